//! Metrics of announced addresses.

use convey_api::StatsReport;

use super::flag;
use super::page::{MetricsPage, labels};

/// Adds the state of each announced address.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let all: Vec<_> = report
        .announced
        .iter()
        .map(|(address, of)| (labels([("address", &**address), ("interface", &*of.interface)]), of))
        .collect();
    page.gauge(
        "convey_announced",
        "Whether the address is on its interface, for routing daemons to announce.",
        &all,
        |of| flag(of.announced),
    );
    page.counter(
        "convey_announce_withdrawals_total",
        "Times the address was withdrawn since the program began.",
        &all,
        |of| of.withdrawals as f64,
    );
}
