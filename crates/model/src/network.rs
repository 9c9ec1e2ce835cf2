//! The kernel's view of the network as plain data: what next hops are made from.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::next_hops::common_bits;
use crate::{IpsecPolicy, Prefix, RoutingRule};

/// Interfaces, routes and neighbours at one moment, and what routers have reported. Two tables are equal if packets take the same ways. To copy one
/// copies no routes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkTables {
    /// All interfaces, by index.
    pub interfaces: Vec<Interface>,
    /// The routes of the tables that policy rules name.
    pub routes: Arc<[Route]>,
    /// The policy rules of both families, by priority. A family without any has the kernel's default ones.
    pub rules: Arc<[RoutingRule]>,
    /// The IPsec policies for packets that leave.
    pub policies: Arc<[IpsecPolicy]>,
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
    /// The same addresses in the kernel's order, with what decides between them as sources.
    pub details: Vec<InterfaceAddress>,
}

/// An address of an interface, as a source of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network.
    pub prefix_len: u8,
    /// Whether another address of the same network comes first (IPv4), or the address is temporary (IPv6).
    pub is_secondary: bool,
    /// Whether new connections should have another source.
    pub is_deprecated: bool,
    /// Whether it is not known yet to be unique on its link, or another host has it.
    pub is_tentative: bool,
    /// Whether it has a lifetime.
    pub expires: bool,
}

impl InterfaceAddress {
    /// A permanent address.
    pub fn new(ip: IpAddr, prefix_len: u8) -> InterfaceAddress {
        let (is_secondary, is_deprecated, is_tentative, expires) = (false, false, false, false);
        InterfaceAddress { ip, prefix_len, is_secondary, is_deprecated, is_tentative, expires }
    }

    /// Whether packets to `dst` may come from it.
    pub fn is_source(&self, dst: IpAddr) -> bool {
        let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !self.is_tentative && !self.ip.is_loopback() && is_link_local(self.ip) == is_link_local(dst)
    }

    /// Last address of its network, which no host has. IPv6 has no broadcast, and a network of one or
    /// two addresses has none (RFC 3021).
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        let IpAddr::V4(ip) = self.ip else { return None };
        (self.prefix_len <= 30).then(|| (u32::from(ip) | u32::MAX >> self.prefix_len).into())
    }

    /// Whether another address is in its network.
    pub fn has_in_network(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && common_bits(self.ip, ip) >= self.prefix_len.into()
    }
}

impl Interface {
    /// One that is up and carries Ethernet frames with 1,500 bytes of payload. Its addresses are permanent, in networks of
    /// usual size.
    pub fn ethernet(index: u32, name: &str, mac: [u8; 6], addresses: Vec<IpAddr>) -> Interface {
        let (name, mac, mtu, mtu_v6) = (name.to_owned(), Some(mac), 1_500, 1_500);
        let detail = |ip: &IpAddr| InterfaceAddress::new(*ip, if ip.is_ipv4() { 24 } else { 64 });
        let details = addresses.iter().map(detail).collect();
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
            details,
        }
    }
}

/// An entry of a routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The table it is in, such as [`Route::LOCAL`], [`Route::MAIN`] or [`Route::DEFAULT`].
    pub table: u32,
    /// Network it is for; bits beyond `prefix_len` are zero.
    pub prefix: IpAddr,
    /// Bits of `prefix` that count; 0 for a default route.
    pub prefix_len: u8,
    /// Among routes for the same network the one with the smallest metric is used.
    pub metric: u32,
    /// Network of the source addresses that the route is for (IPv6); `None`: all.
    pub source: Option<Prefix>,
    /// Of routes with equal metrics, those with the highest preference are used first (RFC 4191): 1 is high, 0 medium, -1
    /// low.
    pub preference: i8,
    /// Whether a packet that it is for has no route in its table (`throw`): the next rule decides.
    pub is_throw: bool,
    /// Whether the prefix is a broadcast address of a network on a link.
    pub is_broadcast: bool,
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

    /// A route of the table main with metric 0.
    pub fn of_main(prefix: IpAddr, prefix_len: u8, hops: Vec<RouteHop>) -> Route {
        let (table, metric, source, preference) = (Route::MAIN, 0, None, 0);
        let (is_throw, is_broadcast) = (false, false);
        Route { table, prefix, prefix_len, metric, source, preference, is_throw, is_broadcast, hops }
    }
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
    /// The source that the route names for packets of this host.
    pub source: Option<IpAddr>,
    /// Whether the kernel puts packets into a tunnel on this way (seg6, MPLS and others).
    pub is_encapsulated: bool,
}

impl RouteHop {
    /// A way by an interface, and by a router if there is one.
    pub fn by(interface: u32, gateway: Option<IpAddr>) -> RouteHop {
        RouteHop { interface, gateway, mtu: None, source: None, is_encapsulated: false }
    }
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
