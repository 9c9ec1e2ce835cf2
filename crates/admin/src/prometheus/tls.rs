//! Metrics of TLS with clients.

use convey_api::StatsReport;

use super::page::{Labels, MetricsPage, labels};
use super::{flag, unix_time};

/// Adds the counters of handshakes, and the expiry of certificates.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let (mut handshakes, mut expiries) = (Vec::<(Labels, u64)>::new(), Vec::<(Labels, f64)>::new());
    let mut valid = Vec::<(Labels, bool)>::new();
    for (name, frontend) in &report.frontends {
        let Some(tls) = &frontend.tls else { continue };
        for (kind, count) in [("full", tls.handshakes), ("resumed", tls.resumed)] {
            handshakes.push((labels([("frontend", &**name), ("kind", kind)]), count));
        }
        valid.push((labels([("frontend", &**name)]), tls.fault.is_none()));
        for certificate in &tls.certificates {
            let of = labels([("frontend", &**name), ("certificate", &certificate.path)]);
            expiries.push((of, unix_time(certificate.not_after)));
        }
    }
    page.counter(
        "convey_frontend_tls_handshakes_total",
        "TLS handshakes with clients: those that began a session (full), and those that resumed an earlier one (resumed).",
        &handshakes,
        |n| *n as f64,
    );
    page.gauge(
        "convey_certificate_not_after_timestamp_seconds",
        "When the certificate expires, in Unix time.",
        &expiries,
        |at| *at,
    );
    page.gauge(
        "convey_frontend_certificate_valid",
        "Whether the frontend has a certificate that is valid now; 0: TLS handshakes fail, or clients do not trust the certificate.",
        &valid,
        |is_valid| flag(*is_valid),
    );
}
