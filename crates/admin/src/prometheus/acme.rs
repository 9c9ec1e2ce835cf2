//! Metrics of certificates that convey orders itself.

use convey_api::StatsReport;

use super::page::{Labels, MetricsPage, labels};
use super::unix_time;

/// Adds the outcomes of orders, and the times of the next orders.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let Some(acme) = &report.acme else { return };
    let (mut next, mut failures) = (Vec::<(Labels, f64)>::new(), Vec::<(Labels, u32)>::new());
    for (name, of) in &acme.names {
        let label = || labels([("domain", &**name)]);
        next.extend(of.next_order.map(|at| (label(), unix_time(at))));
        failures.push((label(), of.failures));
    }
    page.counter(
        "convey_acme_orders_total",
        "Orders of certificates by their result.",
        &[("success", acme.orders), ("failure", acme.failures)]
            .map(|(result, n)| (labels([("result", result)]), n)),
        |n| *n as f64,
    );
    page.gauge(
        "convey_acme_next_order_timestamp_seconds",
        "When the next order for the name is due, in Unix time.",
        &next,
        |at| *at,
    );
    page.gauge(
        "convey_acme_consecutive_failures",
        "Failed orders for the name since the last successful one.",
        &failures,
        |n| f64::from(*n),
    );
}
