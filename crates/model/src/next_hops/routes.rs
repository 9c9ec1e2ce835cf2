//! The kernel's routing tables, ready to be looked up.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Addr, Route, RouteHop};

/// The tables that are looked at, in the kernel's default order.
#[derive(Debug, Default)]
pub(super) struct Routes {
    listed: Arc<[Route]>,
    local: Prefixes,
    main: Prefixes,
    default: Prefixes,
    /// The MTUs of routes through an interface, and by a router there, that have one.
    mtus: HashMap<(u32, Option<IpAddr>), BTreeSet<u32>>,
    /// The interfaces that lead anywhere else than to link-local addresses, and whether to those of IPv4.
    used: HashSet<(u32, bool)>,
}

impl Routes {
    /// Made from what the kernel lists.
    pub(super) fn new(listed: Arc<[Route]>) -> Routes {
        let mut mtus: HashMap<_, BTreeSet<u32>> = HashMap::new();
        for hop in listed.iter().flat_map(|route| &route.hops) {
            if let Some(mtu) = hop.mtu {
                mtus.entry((hop.interface, hop.gateway)).or_default().insert(mtu);
            }
        }
        let leads = |route: &&Route| route.table != Route::LOCAL && !is_link_local(route.prefix);
        let of_route = |route: &Route| {
            let is_v4 = route.prefix.is_ipv4();
            route.hops.iter().map(move |hop| (hop.interface, is_v4)).collect::<Vec<_>>()
        };
        let used = listed.iter().filter(leads).flat_map(of_route).collect();
        Routes {
            used,
            local: Prefixes::of(&listed, Route::LOCAL),
            main: Prefixes::of(&listed, Route::MAIN),
            default: Prefixes::of(&listed, Route::DEFAULT),
            mtus,
            listed,
        }
    }

    /// Whether they were made from this very list.
    pub(super) fn are_of(&self, listed: &Arc<[Route]>) -> bool {
        Arc::ptr_eq(&self.listed, listed)
    }

    /// Whether packets go the same ways by `other`.
    pub(super) fn lead_as(&self, other: &Routes) -> bool {
        (&self.local, &self.main, &self.default) == (&other.local, &other.main, &other.default)
    }

    /// Where packets to `dst` go; nowhere if it is empty.
    pub(super) fn find(&self, dst: IpAddr) -> &[RouteHop] {
        [&self.local, &self.main, &self.default].into_iter().find_map(|table| table.find(dst)).unwrap_or(&[])
    }

    /// Whether it is the broadcast address of a network on a link.
    pub(super) fn is_broadcast(&self, ip: IpAddr) -> bool {
        // A network of two addresses has none (RFC 3021).
        const LONGEST: u32 = 96 + 30;
        let tables = [&self.local, &self.main, &self.default];
        let Some((length, hops)) = tables.into_iter().find_map(|table| table.find_network(ip)) else {
            return false;
        };
        let is_last = u128::from_be_bytes(*Addr::from(ip).bytes()).trailing_ones() >= 128 - length;
        ip.is_ipv4() && length <= LONGEST && is_last && hops.iter().any(|hop| hop.gateway.is_none())
    }

    /// Whether a route leads by this interface to addresses of this family that others than its neighbours may have.
    pub(super) fn use_interface(&self, interface: u32, is_v4: bool) -> bool {
        self.used.contains(&(interface, is_v4))
    }

    /// Where the default route of the address's family goes.
    pub(super) fn find_default(&self, family: IpAddr) -> &[RouteHop] {
        self.main.find_default(family)
    }

    /// The MTUs that packets by this neighbour may have, besides the interface's; one may be told twice.
    pub(super) fn mtus(&self, interface: u32, neighbour: IpAddr) -> impl Iterator<Item = u32> {
        let ways = [(interface, None), (interface, Some(neighbour))];
        ways.into_iter().filter_map(|way| self.mtus.get(&way)).flatten().copied()
    }
}

/// A routing table: one map for each prefix length in use, the longest first. Addresses are those of IPv6, with
/// IPv4 mapped into them, so that one table serves both families.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prefixes(Vec<(u32, HashMap<u128, Best>)>);

/// The route that is used for a network; all of them, if their metrics are equal.
#[derive(Debug, PartialEq, Eq)]
struct Best {
    metric: u32,
    hops: Vec<RouteHop>,
}

impl Prefixes {
    fn of(routes: &[Route], table: u32) -> Prefixes {
        let mut lengths: HashMap<u32, HashMap<u128, Best>> = HashMap::new();
        for route in routes.iter().filter(|route| route.table == table) {
            let length = bits_mapped(route.prefix) + u32::from(route.prefix_len);
            let best = Best { metric: route.metric, hops: route.hops.clone() };
            let networks = lengths.entry(length).or_default();
            let network = masked(route.prefix, length);
            match networks.get_mut(&network) {
                // As the kernel has it for routers of IPv6 that announced themselves.
                Some(other) if other.metric == best.metric => other.hops.extend(best.hops),
                Some(other) if other.metric < best.metric => {}
                _ => {
                    networks.insert(network, best);
                }
            }
        }
        let mut lengths: Vec<_> = lengths.into_iter().collect();
        lengths.sort_unstable_by_key(|(length, _)| u32::MAX - length);
        Prefixes(lengths)
    }

    fn find(&self, dst: IpAddr) -> Option<&[RouteHop]> {
        self.find_network(dst).map(|(_, hops)| hops)
    }

    /// The longest network with this address: how many bits its addresses have in common, and its hops.
    fn find_network(&self, dst: IpAddr) -> Option<(u32, &[RouteHop])> {
        // The default route of IPv6 is not one of IPv4.
        let mut of_family = self.0.iter().take_while(|(length, _)| *length >= bits_mapped(dst));
        of_family.find_map(|(length, networks)| {
            networks.get(&masked(dst, *length)).map(|best| (*length, best.hops.as_slice()))
        })
    }

    /// The default route of the address's family.
    fn find_default(&self, family: IpAddr) -> &[RouteHop] {
        let length = bits_mapped(family);
        let networks = self.0.iter().find(|(l, _)| *l == length).map(|(_, networks)| networks);
        networks.and_then(|n| n.get(&masked(family, length))).map_or(&[], |best| best.hops.as_slice())
    }
}

/// Whether every interface has addresses of this network, or it is one of multicast.
fn is_link_local(network: IpAddr) -> bool {
    match network {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    }
}

/// Bits that all addresses of the family have in common once mapped.
fn bits_mapped(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 96 } else { 0 }
}

fn masked(ip: IpAddr, length: u32) -> u128 {
    let bits = u128::from_be_bytes(*Addr::from(ip).bytes());
    bits & u128::MAX.checked_shl(128 - length).unwrap_or(0)
}
