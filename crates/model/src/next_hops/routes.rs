//! Lookup of routes, from the kernel's routing tables and policy rules.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::routing_rules::RuleSteps;
use crate::{Addr, Prefix, Route, RouteHop, RoutingRule};

/// Routing tables that policy rules refer to, and the policy rules of both families.
#[derive(Debug, Default)]
pub(super) struct Routes {
    listed: Arc<[Route]>,
    rules: Arc<[RoutingRule]>,
    v4: RuleSteps,
    v6: RuleSteps,
    tables: Vec<Prefixes>,
    /// MTUs of routes that set one, by interface and router.
    mtus: HashMap<(u32, Option<IpAddr>), BTreeSet<u32>>,
    /// Interfaces that lead to more than link-local addresses, by family (`true`: IPv4).
    used: HashSet<(u32, bool)>,
    /// Broadcast addresses of all tables.
    broadcasts: HashSet<IpAddr>,
}

impl Routes {
    /// Builds the tables from the kernel's lists.
    pub(super) fn new(listed: Arc<[Route]>, rules: Arc<[RoutingRule]>) -> Routes {
        let mut mtus: HashMap<_, BTreeSet<u32>> = HashMap::new();
        for hop in listed.iter().flat_map(|route| &route.hops) {
            if let Some(mtu) = hop.mtu {
                mtus.entry((hop.interface, hop.gateway)).or_default().insert(mtu);
            }
        }
        let mut numbers: Vec<u32> = Vec::new();
        let mut place = |number: u32| {
            numbers.iter().position(|known| *known == number).unwrap_or_else(|| {
                numbers.push(number);
                numbers.len() - 1
            })
        };
        let [v4, v6] = [true, false].map(|is_v4| RuleSteps::new(is_v4, &rules, &mut place));
        let leads = |route: &&Route| {
            route.table != Route::LOCAL && numbers.contains(&route.table) && !is_link_local(route.prefix)
        };
        let of_route = |route: &Route| {
            let is_v4 = route.prefix.is_ipv4();
            route.hops.iter().map(move |hop| (hop.interface, is_v4)).collect::<Vec<_>>()
        };
        let used = listed.iter().filter(leads).flat_map(of_route).collect();
        let tables = numbers.iter().map(|number| Prefixes::of(&listed, *number)).collect();
        let broadcasts = listed.iter().filter(|route| route.is_broadcast).map(|route| route.prefix).collect();
        Routes { used, broadcasts, v4, v6, tables, mtus, listed, rules }
    }

    /// Whether the tables were built from these lists.
    pub(super) fn are_of(&self, listed: &Arc<[Route]>, rules: &Arc<[RoutingRule]>) -> bool {
        Arc::ptr_eq(&self.listed, listed) && (Arc::ptr_eq(&self.rules, rules) || self.rules == *rules)
    }

    /// Rules that the tables were built from.
    pub(super) fn rules(&self) -> &Arc<[RoutingRule]> {
        &self.rules
    }

    /// Whether packets take the same paths as with `other`, and may arrive on the same interfaces.
    pub(super) fn lead_as(&self, other: &Routes) -> bool {
        (&self.v4, &self.v6, &self.tables, &self.used) == (&other.v4, &other.v6, &other.tables, &other.used)
    }

    /// Whether the route of a packet may depend on its source.
    pub(super) fn depend_on_source(&self) -> bool {
        self.v4.depend_on_source()
            || self.v6.depend_on_source()
            || self.tables.iter().any(Prefixes::depend_on_source)
    }

    /// Next hops for packets from `src` to `dst`; empty without a route. An unspecified `src` means
    /// that the kernel chooses the source.
    pub(super) fn find(&self, src: IpAddr, dst: IpAddr) -> &[RouteHop] {
        let found = self.steps(dst).find(src, Some(dst), |table, suppressed| {
            let (len, hops) = self.tables.get(table)?.find(src, dst)?;
            // A route that refuses packets is never suppressed.
            let is_suppressed = suppressed.is_some_and(|most| len <= u32::from(most)) && !hops.is_empty();
            (!is_suppressed).then_some(hops)
        });
        found.unwrap_or(&[])
    }

    /// Next hops to `dst` in each table. Ignores the policy rules, which would select one table.
    pub(super) fn find_in_tables(&self, src: IpAddr, dst: IpAddr) -> impl Iterator<Item = &RouteHop> {
        self.tables.iter().filter_map(move |table| table.find(src, dst)).flat_map(|(_, hops)| hops)
    }

    /// Whether any of the kernel's tables has the address as a broadcast address.
    pub(super) fn is_broadcast(&self, ip: IpAddr) -> bool {
        self.broadcasts.contains(&ip)
    }

    /// Whether routes of this family through an interface lead to more than link-local and
    /// multicast addresses.
    pub(super) fn use_interface(&self, interface: u32, is_v4: bool) -> bool {
        self.used.contains(&(interface, is_v4))
    }

    /// Next hops of the default route for packets with the source `src`.
    pub(super) fn find_default(&self, src: IpAddr) -> &[RouteHop] {
        let found = self.steps(src).find(src, None, |table, suppressed| {
            let hops = self.tables.get(table)?.find_default(src)?;
            (suppressed.is_none() || hops.is_empty()).then_some(hops)
        });
        found.unwrap_or(&[])
    }

    /// MTUs of the routes through a neighbour, without the MTU of the interface; duplicates are
    /// possible.
    pub(super) fn mtus(&self, interface: u32, neighbour: IpAddr) -> impl Iterator<Item = u32> {
        let ways = [(interface, None), (interface, Some(neighbour))];
        ways.into_iter().filter_map(|way| self.mtus.get(&way)).flatten().copied()
    }

    fn steps(&self, family: IpAddr) -> &RuleSteps {
        if family.is_ipv4() { &self.v4 } else { &self.v6 }
    }
}

/// Routing table: networks by prefix length, the longest first. IPv4 addresses are mapped to IPv6,
/// so that one table serves both families.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prefixes(Vec<Networks>);

/// Networks with one prefix length.
#[derive(Debug, Default, PartialEq, Eq)]
struct Networks {
    length: u32,
    all: HashMap<u128, Best>,
    /// Networks with routes for certain sources, the longest source prefix first.
    by_source: HashMap<u128, Vec<(Prefix, Best)>>,
}

/// Best route to a network; several routes with equal metrics are joined.
#[derive(Debug, PartialEq, Eq)]
struct Best {
    metric: u32,
    /// Highest preference of the routes.
    preference: i8,
    is_throw: bool,
    hops: Vec<RouteHop>,
}

impl Best {
    fn of(route: &Route) -> Best {
        let Route { metric, preference, is_throw, .. } = *route;
        Best { metric, preference, is_throw, hops: route.hops.clone() }
    }

    fn add(&mut self, other: Best) {
        match other.metric.cmp(&self.metric) {
            // The kernel also prefers IPv6 routers with a higher preference in their router
            // advertisements.
            std::cmp::Ordering::Equal if other.preference > self.preference => {
                let less = std::mem::replace(self, other);
                self.hops.extend(less.hops);
            }
            std::cmp::Ordering::Equal => self.hops.extend(other.hops),
            std::cmp::Ordering::Less => *self = other,
            std::cmp::Ordering::Greater => {}
        }
    }
}

impl Networks {
    fn add(&mut self, route: &Route) {
        let (network, best) = (masked(route.prefix, self.length), Best::of(route));
        let Some(source) = route.source else {
            match self.all.get_mut(&network) {
                Some(known) => known.add(best),
                None => _ = self.all.insert(network, best),
            }
            return;
        };
        let sources = self.by_source.entry(network).or_default();
        match sources.iter_mut().find(|(known, _)| *known == source) {
            Some((_, known)) => known.add(best),
            None => {
                let at = sources.partition_point(|(known, _)| known.len() > source.len());
                sources.insert(at, (source, best));
            }
        }
    }

    fn find(&self, src: IpAddr, dst: IpAddr) -> Option<&Best> {
        let network = masked(dst, self.length);
        if !self.by_source.is_empty()
            && let Some(sources) = self.by_source.get(&network)
        {
            match sources.iter().find(|(source, _)| source.contains(src)) {
                Some((_, best)) => return Some(best),
                // The kernel then continues with the next shorter prefix, and ignores a route of
                // this prefix for all sources.
                None if self.length != 0 => return None,
                None => {}
            }
        }
        self.all.get(&network)
    }
}

impl Prefixes {
    fn of(routes: &[Route], table: u32) -> Prefixes {
        let mut lengths: HashMap<u32, Networks> = HashMap::new();
        for route in routes.iter().filter(|route| route.table == table) {
            let length = bits_mapped(route.prefix) + u32::from(route.prefix_len);
            let networks =
                lengths.entry(length).or_insert_with(|| Networks { length, ..Networks::default() });
            networks.add(route);
        }
        let mut lengths: Vec<_> = lengths.into_values().collect();
        lengths.sort_unstable_by_key(|networks| u32::MAX - networks.length);
        Prefixes(lengths)
    }

    fn depend_on_source(&self) -> bool {
        self.0.iter().any(|networks| !networks.by_source.is_empty())
    }

    /// Prefix length of the most specific route to `dst`, and its next hops; `None` without a
    /// route.
    fn find(&self, src: IpAddr, dst: IpAddr) -> Option<(u32, &[RouteHop])> {
        // The search ends before the default route of IPv6, which does not apply to IPv4.
        let of_family = self.0.iter().take_while(|networks| networks.length >= bits_mapped(dst));
        for networks in of_family {
            if let Some(best) = networks.find(src, dst) {
                let len = networks.length - bits_mapped(dst);
                return (!best.is_throw).then_some((len, &best.hops));
            }
        }
        None
    }

    /// Default route of the source's family; `None` if the table has none.
    fn find_default(&self, src: IpAddr) -> Option<&[RouteHop]> {
        let length = bits_mapped(src);
        let networks = self.0.iter().find(|networks| networks.length == length)?;
        let anywhere = if src.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        networks.find(src, anywhere).filter(|best| !best.is_throw).map(|best| best.hops.as_slice())
    }
}

/// Whether the network is multicast or link-local. Every interface has link-local addresses.
fn is_link_local(network: IpAddr) -> bool {
    match network {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    }
}

/// Number of leading bits that all addresses of the family share after mapping to IPv6.
fn bits_mapped(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 96 } else { 0 }
}

fn masked(ip: IpAddr, length: u32) -> u128 {
    let bits = u128::from_be_bytes(*Addr::from(ip).bytes());
    bits & u128::MAX.checked_shl(128 - length).unwrap_or(0)
}
