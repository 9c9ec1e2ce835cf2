//! Metrics of a configuration in etcd.

use convey_api::StatsReport;

use super::flag;
use super::page::{Labels, MetricsPage};

/// Adds whether convey follows etcd, and the revision in force.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let all: Vec<_> = report.etcd.iter().map(|etcd| (Labels::new(), etcd)).collect();
    page.gauge(
        "convey_etcd_connected",
        "Whether convey follows the configuration in etcd; 0 while etcd cannot be reached.",
        &all,
        |etcd| flag(etcd.connected),
    );
    page.gauge("convey_etcd_revision", "The revision of etcd that is in force.", &all, |etcd| {
        etcd.revision as f64
    });
    page.gauge(
        "convey_etcd_refused",
        "Whether the newest revision of etcd was refused, so that an older one is in force.",
        &all,
        |etcd| flag(etcd.refused_revision.is_some()),
    );
}
