//! Why a connection or a datagram is refused that must begin with a PROXY header.

use std::time::Duration;

use thiserror::Error;

use super::lines::Event;
use convey_proxy_protocol::{HeaderFault, ProxyHeaderError};
use convey_snapshot::stats::Counter;

/// How long the header of a connection may take. The specification asks for three seconds at least, for a segment that is lost.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum HeaderError {
    #[error("its sender is not in trusted_proxies")]
    Untrusted,
    /// As connections are that only look whether somebody listens.
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
    /// What is counted of a connection.
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

    /// What is counted of a datagram.
    pub(super) fn drop_reason(self) -> Counter {
        match self {
            HeaderError::Untrusted => Counter::DroppedProxyUntrusted,
            _ => Counter::DroppedProxyHeader,
        }
    }

    /// What the log tells of.
    pub(super) fn event(self) -> Event {
        if self == HeaderError::Untrusted { Event::Untrusted } else { Event::Header }
    }
}

/// Of bytes that no others follow.
impl From<ProxyHeaderError> for HeaderError {
    fn from(error: ProxyHeaderError) -> HeaderError {
        match error {
            ProxyHeaderError::Incomplete => HeaderError::Cut,
            ProxyHeaderError::Malformed(fault) => HeaderError::Malformed(fault),
        }
    }
}
