//! Supported versions of TLS, for rustls.

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use convey_model::TlsVersion;

/// All versions, the preferred one first.
static ALL: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// Returns this version and all newer ones.
pub(crate) fn from(oldest: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    match oldest {
        TlsVersion::V1_2 => &ALL,
        TlsVersion::V1_3 => &ALL[..1],
    }
}
