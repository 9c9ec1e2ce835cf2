//! The kernel's view of the network as plain data: what next hops are made from.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Interfaces, routes and neighbours at one moment, and what routers have reported. Two tables are equal if packets take the same ways. To copy one
/// copies no routes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkTables {
    /// All interfaces, by index.
    pub interfaces: Vec<Interface>,
    /// The routes of the tables local, main and default. Policy rules and other tables (VRFs) are not looked at.
    pub routes: Arc<[Route]>,
    /// Those whose Ethernet address is known, by interface and address.
    pub neighbours: Vec<Neighbour>,
    /// The path MTUs to servers that routers have reported, in bytes. The kernel tells nobody of those that it knows.
    pub path_mtus: Arc<BTreeMap<IpAddr, u32>>,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's number for it; never reused for another while the system runs.
    pub index: u32,
    /// Its name, which may change.
    pub name: String,
    /// Its Ethernet address; `None` if it carries no Ethernet frames.
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet it takes, in bytes.
    pub mtu: u32,
    /// Longest IPv6 packet, in bytes: not more than that, and maybe less by what a router or the administrator says.
    pub mtu_v6: u32,
    /// Administratively up.
    pub up: bool,
    /// Whether what is sent on it comes back to this host.
    pub loopback: bool,
    /// Whether it is one end of a veth, and the kernel may hand frames to the other end (in another network namespace) as if
    /// they had gone through it.
    pub redirect_peer: bool,
    /// Its own addresses, sorted.
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// One that is up and carries Ethernet frames with 1,500 bytes of payload.
    pub fn ethernet(index: u32, name: &str, mac: [u8; 6], addresses: Vec<IpAddr>) -> Interface {
        let (name, mac, mtu, mtu_v6) = (name.to_owned(), Some(mac), 1_500, 1_500);
        Interface {
            index,
            name,
            mac,
            mtu,
            mtu_v6,
            up: true,
            loopback: false,
            redirect_peer: false,
            addresses,
        }
    }
}

/// An entry of a routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The table it is in: [`Route::LOCAL`], [`Route::MAIN`] or [`Route::DEFAULT`].
    pub table: u32,
    /// Network it is for; bits beyond `prefix_len` are zero.
    pub prefix: IpAddr,
    /// Bits of `prefix` that count; 0 for a default route.
    pub prefix_len: u8,
    /// Among routes for the same network the one with the smallest metric is used.
    pub metric: u32,
    /// Where it leads; empty if packets end here: at this host, or refused.
    pub hops: Vec<RouteHop>,
}

impl Route {
    /// What is this host's own, broadcasts included; looked at first.
    pub const LOCAL: u32 = 255;
    /// What `ip route` shows.
    pub const MAIN: u32 = 254;
    /// Looked at last; mostly empty.
    pub const DEFAULT: u32 = 253;
}

/// One of the ways a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteHop {
    /// Index of the interface to send on.
    pub interface: u32,
    /// The router that takes packets on; `None`: the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Longest packet that goes this way, in bytes, if the route says so; never more than the interface takes.
    pub mtu: Option<u32>,
}

/// Somebody on a link whose Ethernet address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the interface it is reached through.
    pub interface: u32,
    /// Its IP address.
    pub ip: IpAddr,
    /// Its Ethernet address.
    pub mac: [u8; 6],
}

/// A neighbour whose Ethernet address is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WantedNeighbour {
    /// Index of the interface it is reached through.
    pub interface: u32,
    /// Its IP address.
    pub ip: IpAddr,
    /// Whether it is one of ours, a server or a router, and not any client that says it is on the link.
    pub is_ours: bool,
    /// Whether it is a client that has sent its SYN or datagram again, as one does that is there.
    pub is_repeated: bool,
}
