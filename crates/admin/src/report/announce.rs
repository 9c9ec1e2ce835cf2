//! Addresses that convey announces, as `/stats` has them. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{AnnounceState, AnnouncedAddress};

/// An address.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnnouncedReport {
    /// The interface that it is put on.
    pub interface: String,
    /// Whether it is there.
    pub announced: bool,
    /// Why it is, or why not.
    pub reason: String,
    /// Times that it was withdrawn since the program began.
    pub withdrawals: u64,
}

/// All of them, by address.
pub(super) fn reports(state: &AnnounceState) -> BTreeMap<String, AnnouncedReport> {
    let report = |AnnouncedAddress { address, interface, is_announced, reason, withdrawals, .. }| {
        (address.to_string(), AnnouncedReport { interface, announced: is_announced, reason, withdrawals })
    };
    state.addresses().into_iter().map(report).collect()
}
