//! Addresses that convey announces, as `/stats` serves them. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{AnnounceState, AnnouncedAddress};

/// Report of an announced address.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnnouncedReport {
    /// Interface that carries the address.
    pub interface: String,
    /// Whether the address is on the interface.
    pub announced: bool,
    /// Reason why the address is announced or not.
    pub reason: String,
    /// Number of withdrawals since the program began.
    pub withdrawals: u64,
}

/// Reports of all addresses, by address.
pub(super) fn reports(state: &AnnounceState) -> BTreeMap<String, AnnouncedReport> {
    let report = |AnnouncedAddress { address, interface, is_announced, reason, withdrawals, .. }| {
        (address.to_string(), AnnouncedReport { interface, announced: is_announced, reason, withdrawals })
    };
    state.addresses().into_iter().map(report).collect()
}
