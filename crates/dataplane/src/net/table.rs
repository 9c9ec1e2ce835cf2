//! Conversion of the kernel's netlink messages to plain data.

use std::collections::HashMap;
use std::net::IpAddr;

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, LinkAttribute, LinkFlags, LinkLayerType, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use super::neighbours::is_managed;
use super::peer::redirect_peer;
use convey_model::{Interface, InterfaceAddress, Neighbour, NeighbourKey, NetworkTables, Route};

/// Builds the tables from the kernel's messages.
pub(super) fn new(
    links: Vec<LinkMessage>,
    addresses: Vec<AddressMessage>,
    routes: Vec<Route>,
    neighbours: Vec<NeighbourMessage>,
) -> NetworkTables {
    let mut of_link: HashMap<u32, Vec<InterfaceAddress>> = HashMap::new();
    for message in addresses {
        if let Some(ip) = own_address(&message) {
            of_link.entry(message.header.index).or_default().push(detail(&message, ip));
        }
    }
    let mut interfaces: Vec<Interface> = links
        .iter()
        .map(|link| interface(link, of_link.remove(&link.header.index).unwrap_or_default()))
        .collect();
    interfaces.sort_unstable_by_key(|interface| interface.index);
    let mut neighbours: Vec<Neighbour> = neighbours.iter().filter_map(neighbour).collect();
    neighbours.sort_unstable_by_key(Neighbour::key);
    NetworkTables { interfaces, routes: routes.into(), neighbours, ..NetworkTables::default() }
}

/// Updates state for which the kernel sends no notifications: MTUs, and whether frames are
/// redirected to a veth peer. Returns whether any of this state has changed.
pub(super) fn refresh(table: &mut NetworkTables, links: &[LinkMessage]) -> bool {
    let mut is_changed = false;
    for link in links {
        let at = table.interfaces.binary_search_by_key(&link.header.index, |interface| interface.index);
        let Some(interface) = at.ok().and_then(|at| table.interfaces.get_mut(at)) else { continue };
        let known = (interface.mtu, interface.mtu_v6, interface.redirect_peer);
        (interface.mtu, interface.mtu_v6) = mtus(link);
        interface.redirect_peer = redirect_peer(link);
        is_changed |= known != (interface.mtu, interface.mtu_v6, interface.redirect_peer);
    }
    is_changed
}

/// Finds the neighbour with this interface and address.
pub(super) fn find(table: &NetworkTables, key: NeighbourKey) -> Option<Neighbour> {
    let at = table.neighbours.binary_search_by_key(&key, Neighbour::key).ok()?;
    table.neighbours.get(at).copied()
}

/// Applies a change of a neighbour to the table.
pub(super) fn set(table: &mut NetworkTables, change: NeighbourChange) {
    let neighbours = &mut table.neighbours;
    match (neighbours.binary_search_by_key(&change.key(), Neighbour::key), change.now) {
        (Ok(at), Some(neighbour)) => neighbours[at] = neighbour,
        (Ok(at), None) => drop(neighbours.remove(at)),
        (Err(at), Some(neighbour)) => neighbours.insert(at, neighbour),
        (Err(_), None) => {}
    }
}

/// Address of an interface, with the properties that determine whether it is used as a source.
fn detail(message: &AddressMessage, ip: IpAddr) -> InterfaceAddress {
    let mut detail = InterfaceAddress::new(ip, message.header.prefix_len);
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Flags(all) => flags = *all,
            AddressAttribute::CacheInfo(lifetime) => detail.expires = lifetime.ifa_valid != u32::MAX,
            _ => {}
        }
    }
    detail.is_secondary = flags.contains(AddressFlags::Secondary);
    detail.is_deprecated = flags.contains(AddressFlags::Deprecated);
    detail.is_tentative = flags.contains(AddressFlags::Dadfailed)
        || flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic);
    detail
}

fn interface(message: &LinkMessage, details: Vec<InterfaceAddress>) -> Interface {
    let mut addresses: Vec<IpAddr> = details.iter().map(|detail| detail.ip).collect();
    addresses.sort_unstable();
    let header = &message.header;
    let ethernet = matches!(header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback);
    let mut interface = Interface {
        index: header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        mtu_v6: 0,
        up: header.flags.contains(LinkFlags::Up),
        loopback: header.flags.contains(LinkFlags::Loopback),
        redirect_peer: redirect_peer(message),
        addresses,
        details,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Address(mac) if ethernet => interface.mac = mac.as_slice().try_into().ok(),
            _ => {}
        }
    }
    (interface.mtu, interface.mtu_v6) = mtus(message);
    interface
}

/// MTUs of an interface for IPv4 and IPv6, in bytes. If the interface has no IPv6, the second
/// number has no effect.
fn mtus(message: &LinkMessage) -> (u32, u32) {
    let (mut link, mut v6) = (0, u32::MAX);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => link = *mtu,
            LinkAttribute::AfSpecUnspec(families) => {
                let of_v6 = families.iter().filter_map(|family| match family {
                    AfSpecUnspec::Inet6(settings) => Some(settings),
                    _ => None,
                });
                for setting in of_v6.flatten() {
                    if let AfSpecInet6::DevConf(settings) = setting {
                        v6 = settings.mtu6.try_into().unwrap_or(u32::MAX);
                    }
                }
            }
            _ => {}
        }
    }
    (link, v6.min(link))
}

/// An interface's own address. On a point-to-point link, `Address` is the address of the other end.
pub(super) fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

/// Parses a neighbour; `None` if the kernel would not send packets to its MAC address now.
fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    use NeighbourState::{Delay, Permanent, Probe, Reachable, Stale};
    if !matches!(message.header.state, Reachable | Stale | Delay | Probe | Permanent) {
        return None;
    }
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(mac) => mac.as_slice().try_into().ok(),
        _ => None,
    })?;
    Some(Neighbour { interface: message.header.ifindex, ip: neighbour_address(message)?, mac })
}

/// Change of a neighbour.
#[derive(Debug, Clone, Copy)]
pub(super) struct NeighbourChange {
    pub(super) interface: u32,
    pub(super) ip: IpAddr,
    /// New state of the neighbour; `None` if its MAC address is unknown.
    pub(super) now: Option<Neighbour>,
    pub(super) certainty: Certainty,
    /// Whether the kernel keeps the entry fresh (`NTF_EXT_MANAGED`).
    pub(super) is_managed: bool,
}

/// Reliability of a neighbour's MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Certainty {
    /// An administrator or a program has set the address.
    Static,
    /// The neighbour has confirmed the address.
    Confirmed,
    Unconfirmed,
}

impl NeighbourChange {
    /// Change reported for a new or changed entry. `None` if the entry is not a neighbour of IP.
    pub(super) fn new(message: &NeighbourMessage) -> Option<NeighbourChange> {
        let is_ip = matches!(message.header.family, AddressFamily::Inet | AddressFamily::Inet6);
        let ip = neighbour_address(message).filter(|_| is_ip)?;
        Some(NeighbourChange {
            now: neighbour(message),
            certainty: match message.header.state {
                NeighbourState::Permanent => Certainty::Static,
                NeighbourState::Reachable => Certainty::Confirmed,
                _ => Certainty::Unconfirmed,
            },
            is_managed: is_managed(message),
            ..NeighbourChange::missing(NeighbourKey { interface: message.header.ifindex, ip })
        })
    }

    /// Change for a neighbour that has no entry.
    pub(super) fn missing(NeighbourKey { interface, ip }: NeighbourKey) -> NeighbourChange {
        NeighbourChange { interface, ip, now: None, certainty: Certainty::Unconfirmed, is_managed: false }
    }

    /// Change that keeps a neighbour's state.
    pub(super) fn same(known: Neighbour) -> NeighbourChange {
        NeighbourChange { now: Some(known), ..NeighbourChange::missing(known.key()) }
    }

    /// Interface and address of the neighbour.
    pub(super) fn key(&self) -> NeighbourKey {
        NeighbourKey { interface: self.interface, ip: self.ip }
    }

    /// Change for an entry that was deleted.
    pub(super) fn deleted(message: &NeighbourMessage) -> Option<NeighbourChange> {
        NeighbourChange::new(message).map(|change| NeighbourChange { now: None, ..change })
    }
}

/// The neighbour's IP address.
pub(super) fn neighbour_address(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}
