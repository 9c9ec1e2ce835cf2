//! What the packet modes are set to.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{FlowTimeouts, Offload};

/// Settings of the packet modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketSettings {
    /// Most flows tracked at once, over all workers; from 1 to [`PacketSettings::MAX_FLOWS`].
    pub max_flows: u32,
    /// Worker threads, at least 1; `None`: one less than there are cores.
    pub workers: Option<u16>,
    /// From one count of the frames that the kernel dropped to the next, at least a second.
    pub capture_stats_interval: Duration,
    /// Names of the interfaces that traffic passes; empty: those that hold a VIP or lead to a server.
    pub interfaces: Vec<String>,
    /// Whether the host's own stack is kept from seeing what is forwarded.
    pub guard: bool,
    /// Whether the kernel forwards packets of open flows by itself.
    pub offload: Offload,
    /// Ports that stand for clients towards servers, on each of the SNAT addresses; never empty.
    pub snat_ports: RangeInclusive<u16>,
    /// Our addresses that servers see as their clients'; empty: those of the interfaces towards the servers.
    pub snat_addresses: Vec<IpAddr>,
    /// Shortest path MTU to a client that servers are told of in passthrough, in bytes, from [`PacketSettings::MIN_PATH_MTU`]
    /// to [`PacketSettings::MAX_PATH_MTU`]; `None`: they are told of none. By IPv6 none is below 1280.
    pub min_path_mtu: Option<u32>,
    /// How long silent flows are remembered.
    pub timeouts: FlowTimeouts,
}

impl PacketSettings {
    /// More flows than this cannot be numbered.
    pub const MAX_FLOWS: u32 = 1 << 30;
    /// What every host takes (RFC 791, section 3.1).
    pub const MIN_PATH_MTU: u32 = 576;
    /// The longest packet of IP.
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
            // Linux hands out 32768-60999 to its own connections. The first thousand are left to it: health
            // checks are made from there.
            snat_ports: 33_768..=61_000,
            snat_addresses: Vec::new(),
            min_path_mtu: None,
            timeouts: FlowTimeouts::default(),
        }
    }
}

/// Whether convey resets or keeps the connections of a server that is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDown {
    /// Their clients are sent a reset, so that they connect again at once, to another server.
    Reset,
    /// They go on: it may be the health check that is wrong, or a server may finish what it began. Not so with UDP,
    /// which has no connections: the next datagram of a client goes to another server.
    Keep,
}

impl OnDown {
    /// Both, in the order the documentation lists them.
    pub const ALL: [OnDown; 2] = [OnDown::Reset, OnDown::Keep];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            OnDown::Reset => "reset",
            OnDown::Keep => "keep",
        }
    }
}

/// How a packet of a client is made one for a server that answers the client directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DsrKind {
    /// Its destination becomes the server's address, so routers may be in between (L3 DSR). The server makes the VIP the
    /// source of its answers.
    #[default]
    L3,
    /// It keeps its addresses (L2 DSR) and is sent to the server's link-layer address; the server has the VIP on its
    /// loopback interface. Servers must be on the link.
    L2,
    /// It goes whole in a packet of IP to the server's address (RFC 2003, RFC 2473), so servers may be on other networks. The
    /// server takes it out, and has the VIP as with [`DsrKind::L2`].
    Ipip,
    /// The same in a datagram of UDP (Generic UDP Encapsulation).
    Gue,
}

impl DsrKind {
    /// Every kind, in the order the documentation lists them.
    pub const ALL: [DsrKind; 4] = [DsrKind::L3, DsrKind::L2, DsrKind::Ipip, DsrKind::Gue];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            DsrKind::L3 => "l3",
            DsrKind::L2 => "l2",
            DsrKind::Ipip => "ipip",
            DsrKind::Gue => "gue",
        }
    }

    /// Whether packets keep the VIP and its port as their destination: servers listen there.
    pub fn keeps_destination(self) -> bool {
        match self {
            DsrKind::L3 => false,
            DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => true,
        }
    }

    /// Whether servers must be on the link: packets reach them by their link-layer address alone.
    pub fn needs_link(self) -> bool {
        match self {
            DsrKind::L3 | DsrKind::Ipip | DsrKind::Gue => false,
            DsrKind::L2 => true,
        }
    }
}
