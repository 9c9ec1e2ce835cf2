//! Forwarding modes, and their properties.
//!
//! Other code queries these properties, or matches on every mode. So a new mode does not compile
//! until all of its properties are defined.

/// Forwarding mode of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// convey terminates TCP and relays it to a server. It relays UDP datagrams in the same way.
    #[default]
    Proxy,
    /// convey rewrites packets in both directions (NAT); servers see convey's address.
    Passthrough,
    /// convey forwards only packets from clients to servers; servers answer clients directly.
    Dsr,
    /// convey terminates HTTP, and relays each request to a server of its route.
    Http,
}

impl Mode {
    /// All modes, in the order the documentation lists them.
    pub const ALL: [Mode; 4] = [Mode::Proxy, Mode::Passthrough, Mode::Dsr, Mode::Http];

    /// Name in the configuration, in logs and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Proxy => "proxy",
            Mode::Passthrough => "passthrough",
            Mode::Dsr => "dsr",
            Mode::Http => "http",
        }
    }

    /// Whether convey terminates clients' connections at its own sockets.
    pub fn is_proxied(self) -> bool {
        match self {
            Mode::Proxy | Mode::Http => true,
            Mode::Passthrough | Mode::Dsr => false,
        }
    }

    /// Whether convey forwards individual packets.
    pub fn forwards_packets(self) -> bool {
        match self {
            Mode::Proxy | Mode::Http => false,
            Mode::Passthrough | Mode::Dsr => true,
        }
    }

    /// Whether convey replaces the client's source address and port with its own.
    pub fn has_snat(self) -> bool {
        match self {
            Mode::Passthrough => true,
            Mode::Proxy | Mode::Dsr | Mode::Http => false,
        }
    }

    /// Whether servers answer clients directly.
    pub fn is_dsr(self) -> bool {
        match self {
            Mode::Dsr => true,
            Mode::Proxy | Mode::Passthrough | Mode::Http => false,
        }
    }

    /// Whether convey relays HTTP requests, each by its route.
    pub fn is_http(self) -> bool {
        match self {
            Mode::Http => true,
            Mode::Proxy | Mode::Passthrough | Mode::Dsr => false,
        }
    }
}
