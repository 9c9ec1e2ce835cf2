//! Certificates that convey orders itself, as `/stats` has them. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::{AcmeName, AcmeState};

/// All of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AcmeReport {
    /// Orders that brought a certificate, since the program began.
    pub orders: u64,
    /// Those that failed.
    pub failures: u64,
    /// The names.
    pub names: BTreeMap<String, AcmeNameReport>,
}

/// A name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AcmeNameReport {
    /// When its certificate expires; `None`: it has none.
    #[serde(serialize_with = "perhaps")]
    pub not_after: Option<SystemTime>,
    /// When the next order is due.
    #[serde(serialize_with = "perhaps")]
    pub next_order: Option<SystemTime>,
    /// Orders that have failed since the last one that has not.
    pub failures: u32,
    /// Why the last one has failed; `None`: it has not.
    pub error: Option<String>,
}

impl AcmeReport {
    /// `None`: none are ordered.
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
