//! Network state of the kernel as plain data. Next hops are derived from it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::next_hops::common_bits;
use crate::{IpsecPolicy, Prefix, RoutingRule};

/// Interfaces, routes and neighbours at one time, and path MTUs that routers have reported. Two
/// values are equal if packets take the same paths. Clones share the routes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkTables {
    /// All interfaces, by index.
    pub interfaces: Vec<Interface>,
    /// Routes of the tables that policy rules name.
    pub routes: Arc<[Route]>,
    /// Policy rules of both families, by priority. If the list has no rules of a family, the
    /// kernel's default rules apply to that family.
    pub rules: Arc<[RoutingRule]>,
    /// IPsec policies for packets that leave this host.
    pub policies: Arc<[IpsecPolicy]>,
    /// Neighbours with a known Ethernet address, by interface and address.
    pub neighbours: Vec<Neighbour>,
    /// Path MTUs to servers that routers have reported, in bytes. convey collects them itself,
    /// because the kernel does not share the path MTUs that it has learned.
    pub path_mtus: Arc<BTreeMap<IpAddr, u32>>,
}

/// Network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index of the interface; the kernel does not reuse it while the system runs.
    pub index: u32,
    /// Name of the interface, which may change.
    pub name: String,
    /// Ethernet address; `None` if the interface carries no Ethernet frames.
    pub mac: Option<[u8; 6]>,
    /// MTU: longest IP packet, in bytes.
    pub mtu: u32,
    /// IPv6 MTU: longest IPv6 packet, in bytes. At most `mtu`; a router advertisement or the
    /// administrator may set a lower value.
    pub mtu_v6: u32,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Whether the interface is a loopback: packets sent on it return to this host.
    pub loopback: bool,
    /// Whether the interface is one end of a veth whose peer is in another network namespace, and
    /// the kernel may redirect frames to that peer directly.
    pub redirect_peer: bool,
    /// Addresses of the interface, sorted.
    pub addresses: Vec<IpAddr>,
    /// Addresses in the kernel's order, with the properties that source address selection uses.
    pub details: Vec<InterfaceAddress>,
}

/// Address of an interface, as a source of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length of the address's network.
    pub prefix_len: u8,
    /// Whether the address is secondary: another address of its network precedes it (IPv4), or it
    /// is temporary (IPv6).
    pub is_secondary: bool,
    /// Whether new connections should use another source.
    pub is_deprecated: bool,
    /// Whether the address is not yet known to be unique on its link, or another host has it.
    pub is_tentative: bool,
    /// Whether the address has a limited lifetime.
    pub expires: bool,
}

impl InterfaceAddress {
    /// Returns a permanent address.
    pub fn new(ip: IpAddr, prefix_len: u8) -> InterfaceAddress {
        let (is_secondary, is_deprecated, is_tentative, expires) = (false, false, false, false);
        InterfaceAddress { ip, prefix_len, is_secondary, is_deprecated, is_tentative, expires }
    }

    /// Whether packets to `dst` may have this source address.
    pub fn is_source(&self, dst: IpAddr) -> bool {
        let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !self.is_tentative && !self.ip.is_loopback() && is_link_local(self.ip) == is_link_local(dst)
    }

    /// Broadcast address of the network, which no host has; `None` for IPv6, and for a network of
    /// one or two addresses (RFC 3021), as they have no broadcast address.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        let IpAddr::V4(ip) = self.ip else { return None };
        (self.prefix_len <= 30).then(|| (u32::from(ip) | u32::MAX >> self.prefix_len).into())
    }

    /// Whether another address is in this address's network.
    pub fn has_in_network(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && common_bits(self.ip, ip) >= self.prefix_len.into()
    }
}

impl Interface {
    /// Returns an interface that is up and carries Ethernet frames with 1,500 bytes of payload. Its
    /// addresses are permanent, in networks of usual size.
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

/// Entry of a routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Table of the route, such as [`Route::LOCAL`], [`Route::MAIN`] or [`Route::DEFAULT`].
    pub table: u32,
    /// Destination network. Bits after `prefix_len` are zero.
    pub prefix: IpAddr,
    /// Prefix length of the network; 0 for a default route.
    pub prefix_len: u8,
    /// Metric; of several routes to one network, the smallest metric is used.
    pub metric: u32,
    /// Network of source addresses that the route applies to (IPv6); `None`: all sources.
    pub source: Option<Prefix>,
    /// Router preference; of routes with equal metrics, the highest preference is used first (RFC
    /// 4191): 1 is high, 0 medium, -1 low.
    pub preference: i8,
    /// Whether the route ends the lookup in its table (`throw`), so that the next rule decides.
    pub is_throw: bool,
    /// Whether the prefix is a broadcast address of a network on a link.
    pub is_broadcast: bool,
    /// Next hops of the route; empty if packets are delivered to this host, or refused.
    pub hops: Vec<RouteHop>,
}

impl Route {
    /// Table of this host's own addresses, broadcasts included; searched first.
    pub const LOCAL: u32 = 255;
    /// Table that `ip route` shows.
    pub const MAIN: u32 = 254;
    /// Table that is searched last; mostly empty.
    pub const DEFAULT: u32 = 253;

    /// Returns a route of the table main with metric 0.
    pub fn of_main(prefix: IpAddr, prefix_len: u8, hops: Vec<RouteHop>) -> Route {
        let (table, metric, source, preference) = (Route::MAIN, 0, None, 0);
        let (is_throw, is_broadcast) = (false, false);
        Route { table, prefix, prefix_len, metric, source, preference, is_throw, is_broadcast, hops }
    }
}

/// Next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteHop {
    /// Index of the sending interface.
    pub interface: u32,
    /// Router to forward through; `None`: the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// MTU of the route in bytes, if the route sets one. The interface's MTU also applies.
    pub mtu: Option<u32>,
    /// Source address that the route sets for packets of this host.
    pub source: Option<IpAddr>,
    /// Whether the route encapsulates packets in a tunnel (seg6, MPLS and others).
    pub is_encapsulated: bool,
}

impl RouteHop {
    /// Neighbour that packets to `dst` are sent to: the router, or `dst` itself if it is on the
    /// link.
    pub fn neighbour(&self, dst: IpAddr) -> NeighbourKey {
        NeighbourKey { interface: self.interface, ip: self.gateway.unwrap_or(dst) }
    }

    /// Next hop through an interface, and through a router if there is one.
    pub fn by(interface: u32, gateway: Option<IpAddr>) -> RouteHop {
        RouteHop { interface, gateway, mtu: None, source: None, is_encapsulated: false }
    }
}

/// Neighbour on a link, with its Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the interface to the neighbour.
    pub interface: u32,
    /// IP address of the neighbour.
    pub ip: IpAddr,
    /// Ethernet address of the neighbour.
    pub mac: [u8; 6],
}

/// Interface and IP address of a neighbour, whether or not its Ethernet address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NeighbourKey {
    /// Index of the interface to the neighbour.
    pub interface: u32,
    /// IP address of the neighbour.
    pub ip: IpAddr,
}

impl Neighbour {
    /// Interface and IP address of the neighbour.
    pub fn key(&self) -> NeighbourKey {
        NeighbourKey { interface: self.interface, ip: self.ip }
    }
}

/// Neighbour whose Ethernet address needs to be resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WantedNeighbour {
    /// Index of the interface to the neighbour.
    pub interface: u32,
    /// IP address of the neighbour.
    pub ip: IpAddr,
    /// Whether the neighbour is a router, or a server in the configuration, and not an arbitrary
    /// client on the link.
    pub is_ours: bool,
    /// Whether the neighbour is a client that has repeated its SYN or datagram. A client with a
    /// forged source address would not do so.
    pub is_repeated: bool,
}

impl WantedNeighbour {
    /// Interface and IP address of the neighbour.
    pub fn key(&self) -> NeighbourKey {
        NeighbourKey { interface: self.interface, ip: self.ip }
    }
}
