//! TLS of a frontend, as `/stats` serves it. Pure.

use std::time::{Duration, SystemTime};

use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;
use serde::Serialize;

use super::rfc3339;

/// Handshakes of clients, and the certificates of the frontend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TlsReport {
    /// Full handshakes, which began a session.
    pub handshakes: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Certificates in the order of the configuration; clients that send no server name get the
    /// first.
    pub certificates: Vec<CertificateReport>,
    /// Reason why clients accept no certificate; `None`: one is valid now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Report of a certificate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CertificateReport {
    /// File of the certificate chain.
    pub path: String,
    /// Names of the certificate.
    pub names: Vec<String>,
    /// Issuer of the certificate.
    pub issuer: String,
    /// Start of its validity.
    #[serde(serialize_with = "rfc3339")]
    pub not_before: SystemTime,
    /// End of its validity.
    #[serde(serialize_with = "rfc3339")]
    pub not_after: SystemTime,
}

impl TlsReport {
    /// Returns `None` if clients use no TLS with convey.
    pub(super) fn new(frontend: &Frontend, fault: Option<&str>) -> Option<TlsReport> {
        let settings = frontend.config.tls.as_ref()?;
        let all = frontend.tls.iter().flat_map(|acceptor| &acceptor.certificates);
        let certificates =
            settings.certificates.iter().zip(all).map(|(pair, certificate)| CertificateReport {
                path: pair.chain_path.display().to_string(),
                names: certificate.names.clone(),
                issuer: certificate.issuer.clone(),
                not_before: time(certificate.validity.from),
                not_after: time(certificate.validity.until),
            });
        let traffic = &frontend.live.traffic;
        Some(TlsReport {
            handshakes: traffic.sum(Counter::TlsHandshakes),
            resumed: traffic.sum(Counter::TlsResumed),
            certificates: certificates.collect(),
            fault: fault.map(str::to_owned),
        })
    }
}

/// Converts seconds since 1970.
pub(super) fn time(seconds: i64) -> SystemTime {
    let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}
