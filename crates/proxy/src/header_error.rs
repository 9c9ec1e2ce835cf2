//! Errors of PROXY headers at the beginning of connections and datagrams.

use std::time::Duration;

use thiserror::Error;

use super::lines::Event;
use convey_proxy_protocol::{HeaderFault, ProxyHeaderError};
use convey_snapshot::stats::Counter;

/// Time limit for the PROXY header of a connection. The specification requires at least three
/// seconds, so that a lost segment can be retransmitted.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why a connection or datagram has no valid PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum HeaderError {
    #[error("the sender is not in trusted_proxies")]
    Untrusted,
    /// The peer closed without sending a byte, as port checks do.
    #[error("the peer closed it without sending a byte")]
    Silent,
    #[error("the peer reset it before the end of the PROXY header")]
    Reset,
    #[error("it ends within the PROXY header")]
    Cut,
    #[error("no PROXY header within {HEADER_TIMEOUT:?}")]
    Late,
    #[error("the PROXY header has version 1, which is only for TCP")]
    LineOverUdp,
    #[error(transparent)]
    Malformed(HeaderFault),
}

impl HeaderError {
    /// Returns the counter of a refused connection; `None` if the peer closed in order.
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

    /// Returns the counter of a dropped datagram.
    pub(super) fn drop_reason(self) -> Counter {
        match self {
            HeaderError::Untrusted => Counter::DroppedProxyUntrusted,
            _ => Counter::DroppedProxyHeader,
        }
    }

    /// Returns the kind of the log line about this error.
    pub(super) fn event(self) -> Event {
        if self == HeaderError::Untrusted { Event::Untrusted } else { Event::Header }
    }
}

/// Converts the error of a datagram or of a connection's last bytes: no further bytes will arrive,
/// so an incomplete header is invalid.
impl From<ProxyHeaderError> for HeaderError {
    fn from(error: ProxyHeaderError) -> HeaderError {
        match error {
            ProxyHeaderError::Incomplete => HeaderError::Cut,
            ProxyHeaderError::Malformed(fault) => HeaderError::Malformed(fault),
        }
    }
}
