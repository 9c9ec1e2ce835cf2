//! Report on the certificates that convey orders itself, for `/stats`. Pure.

use convey_api::{AcmeNameReport, AcmeReport};

use crate::{AcmeName, AcmeState};

/// Report on ordered certificates. `None` if convey orders none.
pub(crate) fn acme_report(state: &AcmeState) -> Option<AcmeReport> {
    let (names, [failures, orders]) = (state.names(), state.orders());
    let name = |AcmeName { name, not_after, next_order, failures, error, .. }| {
        let time = |at: Option<i64>| at.map(|at| super::tls::time(at).into());
        let (not_after, next_order) = (time(not_after), time(next_order));
        (name, AcmeNameReport { not_after, next_order, failures, error })
    };
    let is_idle = names.is_empty() && failures + orders == 0;
    (!is_idle).then(|| AcmeReport { orders, failures, names: names.into_iter().map(name).collect() })
}
