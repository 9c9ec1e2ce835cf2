//! Certificates that convey orders itself, as `/stats` serves them. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::{AcmeName, AcmeState};

/// Report of all ordered certificates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AcmeReport {
    /// Successful orders since the program began.
    pub orders: u64,
    /// Failed orders since the program began.
    pub failures: u64,
    /// Names for which certificates are ordered.
    pub names: BTreeMap<String, AcmeNameReport>,
}

/// Report of a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AcmeNameReport {
    /// Expiry of its certificate; `None`: there is no certificate.
    #[serde(serialize_with = "perhaps")]
    pub not_after: Option<SystemTime>,
    /// Time of the next order.
    #[serde(serialize_with = "perhaps")]
    pub next_order: Option<SystemTime>,
    /// Failed orders since the last successful one.
    pub failures: u32,
    /// Error of the last order; `None`: it succeeded.
    pub error: Option<String>,
}

impl AcmeReport {
    /// Returns `None` if no certificates are ordered.
    pub(super) fn new(state: &AcmeState) -> Option<AcmeReport> {
        let (names, [failures, orders]) = (state.names(), state.orders());
        let name = |AcmeName { name, not_after, next_order, failures, error, .. }| {
            let time = |at: Option<i64>| at.map(super::tls::time);
            let (not_after, next_order) = (time(not_after), time(next_order));
            (name, AcmeNameReport { not_after, next_order, failures, error })
        };
        let is_idle = names.is_empty() && failures + orders == 0;
        (!is_idle).then(|| AcmeReport { orders, failures, names: names.into_iter().map(name).collect() })
    }
}

fn perhaps<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => super::rfc3339(time, serializer),
        None => serializer.serialize_none(),
    }
}
