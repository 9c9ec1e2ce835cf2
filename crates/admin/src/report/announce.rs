//! Report on the addresses that convey announces, for `/stats`. Pure.

use std::collections::BTreeMap;

use convey_api::AnnouncedReport;

use crate::{AnnounceState, AnnouncedAddress};

/// Reports of all addresses, by address.
pub(crate) fn announced_reports(state: &AnnounceState) -> BTreeMap<String, AnnouncedReport> {
    let report = |AnnouncedAddress { address, interface, is_announced, reason, withdrawals, .. }| {
        (address.to_string(), AnnouncedReport { interface, announced: is_announced, reason, withdrawals })
    };
    state.addresses().into_iter().map(report).collect()
}
