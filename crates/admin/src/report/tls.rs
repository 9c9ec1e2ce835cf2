//! Report on the TLS of a frontend, for `/stats`. Pure.

use std::time::{Duration, SystemTime};

use convey_api::{CertificateReport, TlsReport};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;

/// Report on TLS. `None` if clients do not use TLS with convey.
pub(super) fn tls_report(frontend: &Frontend, fault: Option<&str>) -> Option<TlsReport> {
    let settings = frontend.config.tls.as_ref()?;
    let all = frontend.tls.iter().flat_map(|acceptor| &acceptor.certificates);
    let certificates = settings.certificates.iter().zip(all).map(|(pair, certificate)| CertificateReport {
        path: pair.chain_path.display().to_string(),
        names: certificate.names.clone(),
        issuer: certificate.issuer.clone(),
        not_before: time(certificate.validity.from).into(),
        not_after: time(certificate.validity.until).into(),
    });
    let traffic = &frontend.live.traffic;
    Some(TlsReport {
        handshakes: traffic.sum(Counter::TlsHandshakes),
        resumed: traffic.sum(Counter::TlsResumed),
        certificates: certificates.collect(),
        fault: fault.map(str::to_owned),
    })
}

/// Converts seconds since 1970 to a time. Negative seconds become 1970.
pub(super) fn time(seconds: i64) -> SystemTime {
    let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}
