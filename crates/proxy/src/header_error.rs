//! Errors of PROXY headers at the beginning of connections and datagrams.

use std::time::Duration;

use thiserror::Error;

use super::lines::Event;
use convey_proxy_protocol::{HeaderFault, ProxyHeaderError};
use convey_snapshot::stats::Counter;

/// Time limit for the header of a connection. The specification requires three seconds at least,
/// for a lost segment.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why there is no valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum HeaderError {
    #[error("its sender is not in trusted_proxies")]
    Untrusted,
    /// The peer closed without a byte, like port checks.
    #[error("closed without a byte")]
    Silent,
    #[error("reset before the PROXY header's end")]
    Reset,
    #[error("it ends within its PROXY header")]
    Cut,
    #[error("no PROXY header within {HEADER_TIMEOUT:?}")]
    Late,
    #[error("a PROXY header of version 1, which is for TCP")]
    LineOverUdp,
    #[error(transparent)]
    Malformed(HeaderFault),
}

impl HeaderError {
    /// Counter of a refused connection.
    pub(super) fn end(self) -> Option<Counter> {
        match self {
            HeaderError::Silent => None,
            HeaderError::Reset => Some(Counter::ClientReset),
            HeaderError::Late => Some(Counter::ProxyHeaderTimeout),
            HeaderError::Untrusted => Some(Counter::ProxyUntrusted),
            HeaderError::Cut | HeaderError::LineOverUdp | HeaderError::Malformed(_) => {
                Some(Counter::ProxyHeaderInvalid)
            }
        }
    }

    /// Counter of a dropped datagram.
    pub(super) fn drop_reason(self) -> Counter {
        match self {
            HeaderError::Untrusted => Counter::DroppedProxyUntrusted,
            _ => Counter::DroppedProxyHeader,
        }
    }

    /// Kind of the log line.
    pub(super) fn event(self) -> Event {
        if self == HeaderError::Untrusted { Event::Untrusted } else { Event::Header }
    }
}

/// Error of bytes that no further bytes follow.
impl From<ProxyHeaderError> for HeaderError {
    fn from(error: ProxyHeaderError) -> HeaderError {
        match error {
            ProxyHeaderError::Incomplete => HeaderError::Cut,
            ProxyHeaderError::Malformed(fault) => HeaderError::Malformed(fault),
        }
    }
}
