//! Metrics of the sources from which backends get servers.

use convey_api::StatsReport;

use super::flag;
use super::page::{MetricsPage, labels};

/// Adds the state of each source, if there are any.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let all: Vec<_> =
        report.discovery.iter().map(|(name, source)| (labels([("backend", name)]), source)).collect();
    page.gauge(
        "convey_discovery_connected",
        "Whether the servers of the backend match the current state of their source.",
        &all,
        |source| flag(source.connected),
    );
    page.gauge("convey_discovery_endpoints", "Endpoints of the source that are servers.", &all, |source| {
        source.endpoints as f64
    });
    page.gauge(
        "convey_discovery_draining_endpoints",
        "Endpoints of the source that get no new connections.",
        &all,
        |source| source.draining as f64,
    );
    page.counter("convey_discovery_failures_total", "Failed requests to the source.", &all, |source| {
        source.failures as f64
    });
}
