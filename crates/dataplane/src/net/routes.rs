//! Parser of routes in the kernel's messages.

use std::net::IpAddr;

use convey_model::{Prefix, Route, RouteHop};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteLwEnCapType, RouteMessage, RouteMetric, RouteNextHop,
    RouteNextHopFlags, RoutePreference, RouteType, RouteVia,
};

use super::nexthops::Nexthops;

/// Parses a route. Returns `None` if packets with TOS 0 cannot use the route now. The result
/// contains no dead hops. With `ignore_routes_with_linkdown`, the kernel also marks hops without
/// carrier as dead.
pub(super) fn route(message: &RouteMessage, nexthops: &Nexthops) -> Option<Route> {
    let header = &message.header;
    if header.address_family == AddressFamily::Inet && header.tos != 0 {
        return None;
    }
    let mut route = Route {
        table: u32::from(header.table),
        ..Route::of_main(unspecified(message)?, header.destination_prefix_length, Vec::new())
    };
    let (mut interface, mut gateway, mut is_encapsulated, mut nexthop) = (None, None, false, None);
    let (mtu, source) = (mtu(message), source(message));
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Destination(prefix) => route.prefix = address(prefix)?,
            RouteAttribute::Source(source) => {
                let len = header.source_prefix_length;
                route.source = (len > 0).then_some(Prefix::of(address(source)?, len));
            }
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::Preference(RoutePreference::High) => route.preference = 1,
            RouteAttribute::Preference(RoutePreference::Low) => route.preference = -1,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(ip) => gateway = address(ip),
            RouteAttribute::Via(via) => gateway = router(via),
            RouteAttribute::EncapType(kind) => is_encapsulated = *kind != RouteLwEnCapType::None,
            RouteAttribute::NhId(id) => nexthop = Some(*id),
            RouteAttribute::MultiPath(ways) => {
                let usable =
                    ways.iter().filter(|route_hop| !route_hop.flags.contains(RouteNextHopFlags::Dead));
                route.hops.extend(usable.map(|hop| RouteHop { mtu, source, ..method(hop) }));
            }
            _ => {}
        }
    }
    if !header.flags.contains(RouteFlags::Dead) {
        route.hops.extend(interface.map(|interface| RouteHop {
            interface,
            gateway,
            mtu,
            source,
            is_encapsulated,
        }));
    }
    if let (Some(id), None) = (nexthop, interface)
        && route.hops.is_empty()
    {
        let hops = nexthops.hops(id);
        route.hops.extend(hops.into_iter().flatten().map(|hop| RouteHop { mtu, source, ..hop }));
    }
    match header.kind {
        RouteType::Unicast => (!route.hops.is_empty()).then_some(route),
        RouteType::Throw => Some(Route { hops: Vec::new(), is_throw: true, ..route }),
        RouteType::Broadcast => Some(Route { hops: Vec::new(), is_broadcast: true, ..route }),
        _ => Some(Route { hops: Vec::new(), ..route }),
    }
}

fn method(hop: &RouteNextHop) -> RouteHop {
    let mut route_hop = RouteHop::by(hop.interface_index, None);
    for attribute in &hop.attributes {
        match attribute {
            RouteAttribute::Gateway(ip) => route_hop.gateway = address(ip),
            RouteAttribute::Via(via) => route_hop.gateway = router(via),
            RouteAttribute::EncapType(kind) => route_hop.is_encapsulated = *kind != RouteLwEnCapType::None,
            _ => {}
        }
    }
    route_hop
}

/// Preferred source address of the route for packets of this host; `None` if the route has none.
fn source(message: &RouteMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(source) => address(source),
        _ => None,
    })
}

/// MTU of the route in bytes; `None` if the route has none. The lock flag is ignored: it affects
/// only local senders, not forwarding.
fn mtu(message: &RouteMessage) -> Option<u32> {
    let metrics = message.attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    });
    metrics.flatten().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
        _ => None,
    })
}

/// Destination address of a default route, which the kernel's message does not contain.
fn unspecified(message: &RouteMessage) -> Option<IpAddr> {
    match message.header.address_family {
        AddressFamily::Inet => Some(IpAddr::from([0; 4])),
        AddressFamily::Inet6 => Some(IpAddr::from([0; 16])),
        _ => None,
    }
}

pub(super) fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

pub(super) fn router(via: &RouteVia) -> Option<IpAddr> {
    match via {
        RouteVia::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteVia::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}
