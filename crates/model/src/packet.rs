//! Settings of the packet modes.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{FlowTimeouts, Offload};

/// Settings of the packet modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketSettings {
    /// Maximum number of tracked flows, over all workers; from 1 to [`PacketSettings::MAX_FLOWS`].
    pub max_flows: u32,
    /// Number of worker threads, at least 1; `None`: the number of cores minus one.
    pub workers: Option<u16>,
    /// Interval between reads of the kernel's count of dropped frames; at least one second.
    pub capture_stats_interval: Duration,
    /// Names of the interfaces with traffic; empty: convey uses interfaces that have a VIP or lead
    /// to a server.
    pub interfaces: Vec<String>,
    /// Whether a guard keeps forwarded packets from the host's own network stack.
    pub guard: bool,
    /// Whether the kernel forwards packets of open flows.
    pub offload: Offload,
    /// SNAT port range on each of the SNAT addresses; never empty.
    pub snat_ports: RangeInclusive<u16>,
    /// SNAT addresses, which servers see in place of the client's address; empty: addresses of the
    /// interfaces towards the servers.
    pub snat_addresses: Vec<IpAddr>,
    /// Smallest path MTU to a client that convey reports to servers in passthrough, in bytes, from
    /// [`PacketSettings::MIN_PATH_MTU`] to [`PacketSettings::MAX_PATH_MTU`]; `None`: convey reports
    /// no path MTU. IPv6 path MTUs are at least 1280.
    pub min_path_mtu: Option<u32>,
    /// Timeouts of idle flows.
    pub timeouts: FlowTimeouts,
}

impl PacketSettings {
    /// Upper bound of `max_flows`: the number of flows that convey can number.
    pub const MAX_FLOWS: u32 = 1 << 30;
    /// Lower bound of `min_path_mtu`, in bytes: every host accepts packets of this length (RFC 791,
    /// section 3.1).
    pub const MIN_PATH_MTU: u32 = 576;
    /// Upper bound of `min_path_mtu`, in bytes: the maximum length of an IP packet.
    pub const MAX_PATH_MTU: u32 = 65_535;
}

impl Default for PacketSettings {
    fn default() -> Self {
        PacketSettings {
            max_flows: 1_000_000,
            workers: None,
            capture_stats_interval: Duration::from_secs(5),
            interfaces: Vec::new(),
            guard: true,
            offload: Offload::Auto,
            // Linux uses 32768-60999 for its own connections. The SNAT range begins 1,000 ports
            // later, so that Linux keeps these ports for health checks and other connections.
            snat_ports: 33_768..=61_000,
            snat_addresses: Vec::new(),
            min_path_mtu: None,
            timeouts: FlowTimeouts::default(),
        }
    }
}

/// Treatment of open connections when their server goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDown {
    /// Reset the clients' connections, so that clients reconnect immediately, to another server.
    Reset,
    /// Keep the connections: the health check may be wrong, or the server may finish its work. UDP
    /// has no connections: the client's next datagram goes to another server.
    Keep,
}

impl OnDown {
    /// Both options, in the order the documentation lists them.
    pub const ALL: [OnDown; 2] = [OnDown::Reset, OnDown::Keep];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            OnDown::Reset => "reset",
            OnDown::Keep => "keep",
        }
    }
}

/// Direct server return: how convey addresses a client's packet to a server that answers the client
/// directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DsrKind {
    /// L3 DSR: convey changes the destination to the server's address, so routers may be in
    /// between. The server sets the VIP as the source of its answers.
    #[default]
    L3,
    /// L2 DSR: convey keeps the addresses of the packet, and sends it to the server's link-layer
    /// address. The server has the VIP on its loopback interface, and must be on the link.
    L2,
    /// IP in IP: convey encapsulates the packet in an IP packet to the server's address (RFC 2003,
    /// RFC 2473), so servers may be on other networks. The server decapsulates the packet, and has
    /// the VIP as with [`DsrKind::L2`].
    Ipip,
    /// Generic UDP Encapsulation: like [`DsrKind::Ipip`], but in a UDP datagram.
    Gue,
}

impl DsrKind {
    /// All kinds, in the order the documentation lists them.
    pub const ALL: [DsrKind; 4] = [DsrKind::L3, DsrKind::L2, DsrKind::Ipip, DsrKind::Gue];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            DsrKind::L3 => "l3",
            DsrKind::L2 => "l2",
            DsrKind::Ipip => "ipip",
            DsrKind::Gue => "gue",
        }
    }

    /// Whether packets keep the VIP and its port as their destination. Servers then listen on that
    /// address and port.
    pub fn keeps_destination(self) -> bool {
        match self {
            DsrKind::L3 => false,
            DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => true,
        }
    }

    /// Whether servers must be on the link, because packets reach them by link-layer address alone.
    pub fn needs_link(self) -> bool {
        match self {
            DsrKind::L3 | DsrKind::Ipip | DsrKind::Gue => false,
            DsrKind::L2 => true,
        }
    }
}
