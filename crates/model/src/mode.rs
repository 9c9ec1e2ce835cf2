//! The modes, and what distinguishes them.
//!
//! All other code asks one of these questions, or matches every mode. So a new mode does not compile before somebody has
//! answered all of them.

/// How traffic is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// TCP is terminated here and relayed to a server; so are datagrams of UDP.
    #[default]
    Proxy,
    /// Packets are rewritten in both directions (NAT); servers see our address.
    Passthrough,
    /// Only client-to-server packets pass us; servers answer clients directly.
    Dsr,
    /// HTTP is terminated here: each request is relayed to a server of its route.
    Http,
}

impl Mode {
    /// Every mode, in the order the documentation lists them.
    pub const ALL: [Mode; 4] = [Mode::Proxy, Mode::Passthrough, Mode::Dsr, Mode::Http];

    /// The mode's name in the configuration, in logs and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Proxy => "proxy",
            Mode::Passthrough => "passthrough",
            Mode::Dsr => "dsr",
            Mode::Http => "http",
        }
    }

    /// Whether clients' connections end at sockets of ours.
    pub fn is_proxied(self) -> bool {
        match self {
            Mode::Proxy | Mode::Http => true,
            Mode::Passthrough | Mode::Dsr => false,
        }
    }

    /// Whether packets are forwarded one by one.
    pub fn forwards_packets(self) -> bool {
        match self {
            Mode::Proxy | Mode::Http => false,
            Mode::Passthrough | Mode::Dsr => true,
        }
    }

    /// Whether packets get an address and port of ours in place of the client's.
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

    /// Whether requests of HTTP are relayed, each by its route.
    pub fn is_http(self) -> bool {
        match self {
            Mode::Http => true,
            Mode::Proxy | Mode::Passthrough | Mode::Dsr => false,
        }
    }
}
