//! The TLS of a frontend, as `/stats` has it. Pure.

use std::time::{Duration, SystemTime};

use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;
use serde::Serialize;

use super::rfc3339;

/// How clients have shaken hands, and with which certificates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TlsReport {
    /// Handshakes that began a session.
    pub handshakes: u64,
    /// Those that went on with an earlier one.
    pub resumed: u64,
    /// In the order of the configuration; clients that ask for no name get the first.
    pub certificates: Vec<CertificateReport>,
    /// Why clients accept none of them; `None`: one is valid now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CertificateReport {
    /// The file of its chain.
    pub path: String,
    /// The names that it is for.
    pub names: Vec<String>,
    /// Who issued it.
    pub issuer: String,
    /// When it begins to be good.
    #[serde(serialize_with = "rfc3339")]
    pub not_before: SystemTime,
    /// When it ceases to be.
    #[serde(serialize_with = "rfc3339")]
    pub not_after: SystemTime,
}

impl TlsReport {
    /// `None`: clients speak no TLS with convey.
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

/// Of seconds since 1970.
pub(super) fn time(seconds: i64) -> SystemTime {
    let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}
