//! Limits per source at a frontend. Pure.

use std::num::NonZeroU32;
use std::time::Duration;

/// Limits per source of a frontend's clients. The default is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections (UDP: sessions or flows) of one source; `None`: no limit.
    pub connections_per_source: Option<u32>,
    /// Maximum number of new connections a second from one source; `None`: no limit.
    pub rate_per_source: Option<NonZeroU32>,
    /// Maximum number of new connections in a burst after a pause; `None`: as many as in a second.
    pub burst: Option<NonZeroU32>,
    /// Prefix length of an IPv4 source, in bits. All clients in one network of this length are one
    /// source.
    pub ipv4_prefix: u8,
    /// Prefix length of an IPv6 source, in bits. All clients in one network of this length are one
    /// source.
    pub ipv6_prefix: u8,
    /// Treatment of a client that exceeds a limit.
    pub action: OverLimit,
    /// Time in which a client must send its first byte (TCP in proxy mode); `None`: no limit.
    pub first_byte_timeout: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_per_source: None,
            rate_per_source: None,
            burst: None,
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            action: OverLimit::default(),
            first_byte_timeout: None,
        }
    }
}

impl Limits {
    /// Limits without `connections_per_source`: a source may have any number of open connections.
    pub fn without_connections(self) -> Limits {
        Limits { connections_per_source: None, ..self }
    }

    /// Limits without `rate_per_source`: a source may open connections at any rate.
    pub fn without_rate(self) -> Limits {
        Limits { rate_per_source: None, ..self }
    }

    /// Whether any limit requires counts per source.
    pub fn are_per_source(&self) -> bool {
        self.connections_per_source.is_some() || self.rate_per_source.is_some()
    }
}

/// Treatment of a client that exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverLimit {
    /// Notify the client by a reset, or in packet modes by ICMP where the protocol has no resets.
    #[default]
    Reset,
    /// Drop without notice.
    Drop,
}

impl OverLimit {
    /// Both actions, in the order the documentation lists them.
    pub const ALL: [OverLimit; 2] = [OverLimit::Reset, OverLimit::Drop];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            OverLimit::Reset => "reset",
            OverLimit::Drop => "drop",
        }
    }
}
