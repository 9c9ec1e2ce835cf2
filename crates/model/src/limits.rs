//! The limits of one source at a frontend. Pure.

use std::num::NonZeroU32;
use std::time::Duration;

/// The limits of a frontend's clients. The default is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections (UDP: sessions or flows) that one source has at once.
    pub connections_per_source: Option<u32>,
    /// Connections that one source begins a second.
    pub rate_per_source: Option<NonZeroU32>,
    /// Connections that it may begin at once after a pause; `None`: as many as in a second.
    pub burst: Option<NonZeroU32>,
    /// Bits of an IPv4 address that make a source.
    pub ipv4_prefix: u8,
    /// The same of IPv6.
    pub ipv6_prefix: u8,
    /// Whether convey tells a client that is over a limit.
    pub action: OverLimit,
    /// How long a client may take to send its first byte (TCP in proxy mode).
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
    /// The same, of those that a source may begin: it may have any number at once.
    pub fn without_connections(self) -> Limits {
        Limits { connections_per_source: None, ..self }
    }

    /// The same, of those that a source has at once: it may begin any number.
    pub fn without_rate(self) -> Limits {
        Limits { rate_per_source: None, ..self }
    }

    /// Whether sources are counted.
    pub fn are_per_source(&self) -> bool {
        self.connections_per_source.is_some() || self.rate_per_source.is_some()
    }
}

/// Whether convey tells a client that is over a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverLimit {
    /// Its client is told: by a reset, or by ICMP where there are none (packet modes).
    #[default]
    Reset,
    /// Its client is not told.
    Drop,
}

impl OverLimit {
    /// Both, in the order the documentation lists them.
    pub const ALL: [OverLimit; 2] = [OverLimit::Reset, OverLimit::Drop];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            OverLimit::Reset => "reset",
            OverLimit::Drop => "drop",
        }
    }
}
