//! Queries for the kernel's route of one packet.

use std::net::{IpAddr, Ipv6Addr};

use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteLwEnCapType, RouteMessage, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::Netlink;
use super::requests::Error;
use super::routes::{address, router};

/// Packet to be routed, as if a program on this host sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuery {
    /// Destination of the packet.
    pub destination: IpAddr,
    /// Source of the packet, an address of this host. `None`: the kernel chooses it.
    pub source: Option<IpAddr>,
    /// Index of the interface by which the packet must leave. `None`: any interface.
    pub interface: Option<u32>,
}

impl RouteQuery {
    /// Packet to this destination; the kernel chooses its source and interface.
    pub fn to(destination: IpAddr) -> RouteQuery {
        RouteQuery { destination, source: None, interface: None }
    }
}

/// The kernel's answer to a [`RouteQuery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelRoute {
    /// Kind of the route.
    pub kind: KernelRouteKind,
    /// Index of the interface by which the packet leaves.
    pub interface: u32,
    /// Address of the next router; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Source address that the kernel prefers for this destination (`RTA_PREFSRC`). `None` if the
    /// kernel reports none, as for IPv4 if the query has a source.
    pub source: Option<IpAddr>,
    /// Whether the route encapsulates the packet (seg6, MPLS, ...).
    pub is_encapsulated: bool,
}

/// Kinds of routes in the kernel's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelRouteKind {
    /// The packet leaves this host to one destination.
    Unicast,
    /// The destination of the packet is this host.
    Local,
    /// The destination is a broadcast, multicast or anycast address.
    ToMany,
}

impl Netlink {
    /// Queries the kernel's route for a packet. Returns `None` if the kernel has no route or
    /// rejects the packet: by `blackhole`, `unreachable` or `prohibit`, or in IPv4 because the
    /// source is not an address of this host.
    ///
    /// # Errors
    /// If the query cannot be sent, or the kernel has not answered within ten seconds.
    pub async fn kernel_route(&self, query: RouteQuery) -> Result<Option<KernelRoute>, Error> {
        let question = RouteNetlinkMessage::GetRoute(question(query));
        match self.lists.one("a route", question).await {
            Ok(Some(RouteNetlinkMessage::NewRoute(answer))) => Ok(kernel_route(&answer)),
            Ok(_) => Ok(None),
            Err(error) if error.is_no_route() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the kernel has an IPv6 routing table, even an empty one. It has none with
    /// `ipv6.disable=1`.
    pub(super) async fn has_ipv6_routes(&self) -> Result<bool, Error> {
        self.answers(question(RouteQuery::to(Ipv6Addr::LOCALHOST.into()))).await
    }

    /// Whether the kernel can route packets of the query's family.
    async fn answers(&self, question: RouteMessage) -> Result<bool, Error> {
        match self.lists.one("a route", RouteNetlinkMessage::GetRoute(question)).await {
            Err(error) if error.is_unsupported() => Ok(false),
            Err(error) if !error.is_refusal() => Err(error),
            _ => Ok(true),
        }
    }
}

fn question(query: RouteQuery) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, bits) = match query.destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = bits;
    message.attributes.push(RouteAttribute::Destination(attribute(query.destination)));
    if let Some(source) = query.source {
        message.header.source_prefix_length = bits;
        message.attributes.push(RouteAttribute::Source(attribute(source)));
    }
    message.attributes.extend(query.interface.map(RouteAttribute::Oif));
    message
}

fn attribute(ip: IpAddr) -> RouteAddress {
    match ip {
        IpAddr::V4(ip) => RouteAddress::Inet(ip),
        IpAddr::V6(ip) => RouteAddress::Inet6(ip),
    }
}

fn kernel_route(answer: &RouteMessage) -> Option<KernelRoute> {
    let kind = match answer.header.kind {
        RouteType::Unicast => KernelRouteKind::Unicast,
        RouteType::Local => KernelRouteKind::Local,
        RouteType::Broadcast | RouteType::Multicast | RouteType::Anycast => KernelRouteKind::ToMany,
        // IPv6 returns the route that rejects the packet instead of an error.
        _ => return None,
    };
    let mut route = KernelRoute { kind, interface: 0, gateway: None, source: None, is_encapsulated: false };
    for of_route in &answer.attributes {
        match of_route {
            RouteAttribute::Oif(index) => route.interface = *index,
            RouteAttribute::Gateway(ip) => route.gateway = address(ip),
            RouteAttribute::Via(via) => route.gateway = router(via),
            RouteAttribute::PrefSource(ip) => route.source = address(ip),
            RouteAttribute::EncapType(kind) => route.is_encapsulated = *kind != RouteLwEnCapType::None,
            _ => {}
        }
    }
    Some(route)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn answer(kind: RouteType, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.kind = kind;
        message.attributes = attributes;
        message
    }

    #[test]
    fn answer_of_the_kernel_names_interface_router_and_source() {
        let ip = |n| RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, n));
        let attributes = vec![
            RouteAttribute::Oif(3),
            RouteAttribute::Gateway(ip(254)),
            RouteAttribute::PrefSource(ip(1)),
            RouteAttribute::EncapType(RouteLwEnCapType::Seg6),
        ];
        let expected = KernelRoute {
            kind: KernelRouteKind::Unicast,
            interface: 3,
            gateway: Some([10, 0, 0, 254].into()),
            source: Some([10, 0, 0, 1].into()),
            is_encapsulated: true,
        };
        assert_eq!(kernel_route(&answer(RouteType::Unicast, attributes)), Some(expected));
        let local = kernel_route(&answer(RouteType::Local, vec![RouteAttribute::Oif(1)])).unwrap();
        assert_eq!((local.kind, local.gateway), (KernelRouteKind::Local, None));
        for refused in [RouteType::Unreachable, RouteType::BlackHole, RouteType::Prohibit] {
            assert_eq!(kernel_route(&answer(refused, vec![RouteAttribute::Oif(1)])), None);
        }
    }

    #[test]
    fn query_has_the_host_prefix_of_its_family() {
        let v4 = question(RouteQuery {
            source: Some([10, 0, 0, 1].into()),
            ..RouteQuery::to([10, 0, 0, 9].into())
        });
        assert_eq!((v4.header.destination_prefix_length, v4.header.source_prefix_length), (32, 32));
        let v6 = question(RouteQuery { interface: Some(7), ..RouteQuery::to([0xfd; 16].into()) });
        assert_eq!((v6.header.destination_prefix_length, v6.header.source_prefix_length), (128, 0));
        assert!(v6.attributes.contains(&RouteAttribute::Oif(7)));
    }

    #[test]
    fn kernel_routes_this_hosts_own_address_to_itself() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let netlink = Netlink::open().unwrap();
            let route = netlink.kernel_route(RouteQuery::to([127, 0, 0, 1].into())).await.unwrap().unwrap();
            assert_eq!((route.kind, route.gateway), (KernelRouteKind::Local, None));
        });
    }

    #[test]
    fn family_without_a_routing_table_is_known_by_the_kernels_refusal() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let netlink = Netlink::open().unwrap();
            let has_ipv6 = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
            assert_eq!(netlink.has_ipv6_routes().await.unwrap(), has_ipv6);
            let mut of_keys = question(RouteQuery::to(Ipv6Addr::LOCALHOST.into()));
            of_keys.header.address_family = AddressFamily::Key;
            assert!(!netlink.answers(of_keys).await.unwrap());
            let unroutable = "2001:db8::1".parse().unwrap();
            assert!(!has_ipv6 || netlink.answers(question(RouteQuery::to(unroutable))).await.unwrap());
        });
    }
}
