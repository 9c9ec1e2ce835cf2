//! Next hops of packets: lookups by address, based on the kernel's routes and neighbours.

mod indices;
mod routes;
mod sources;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use thiserror::Error;

use self::indices::{Indices, NextHopKey};
use self::routes::Routes;
pub(crate) use self::sources::common_bits;
use crate::{
    Interface, InterfaceAddress, IpsecPolicy, Neighbour, NeighbourKey, NetworkTables, NextHop, Route,
    RouteHop, RoutingRule, Timestamp, ipsec,
};

/// Next hops, with a lookup by destination address.
///
/// Every neighbour has one next hop for each MTU of the routes and paths through it. Flows store
/// the index of a next hop, so the index never changes. For neighbours that do not return, see
/// [`NextHops::recycle`].
#[derive(Debug, Default)]
pub struct NextHops {
    hops: Vec<Option<NextHop>>,
    indices: Indices,
    interfaces: Vec<Interface>,
    /// Broadcast addresses of the interfaces' networks.
    broadcasts: HashSet<IpAddr>,
    routes: Arc<Routes>,
    policies: Arc<[IpsecPolicy]>,
    /// Path MTUs to servers that routers have reported.
    path_mtus: Arc<BTreeMap<IpAddr, u32>>,
}

/// Reason why packets cannot be sent to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unreachable {
    /// No route leads to the address, or the address is this host's own.
    #[error("no route")]
    NoRoute,
    /// The Ethernet address of the next neighbour is unknown, and must be resolved first.
    #[error("neighbour {ip} is not resolved")]
    Unresolved {
        /// Neighbour: a router, or the destination itself.
        ip: IpAddr,
        /// Index of the interface to the neighbour.
        interface: u32,
    },
    /// The address must be on the link, but is reachable only through routers.
    #[error("not on the link")]
    NotOnLink,
    /// The route leaves through an interface that carries no Ethernet frames (WireGuard, tun).
    #[error("behind an interface without Ethernet")]
    NoEthernet {
        /// Index of the interface.
        interface: u32,
    },
    /// The route encapsulates packets in a tunnel of the kernel (seg6, MPLS), which packet modes do
    /// not support.
    #[error("the route puts packets into a tunnel of the kernel")]
    Encapsulated,
    /// An IPsec policy covers packets to the address. Packet modes would send them unencrypted.
    #[error("an IPsec policy covers packets to the address")]
    Ipsec,
}

impl Unreachable {
    /// Whether packets must not be sent, for a reason other than a missing route or neighbour.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Unreachable::NoEthernet { .. } | Unreachable::Encapsulated | Unreachable::Ipsec)
    }
}

impl NextHops {
    /// Maximum number of next hops: flows store the index in 16 bits, and one of the 65,536 values
    /// means "no next hop". Neighbours beyond the limit get no index.
    pub const MAX_COUNT: usize = 65_535;

    /// Builds next hops from the kernel's tables, with indices from 0.
    pub fn new(
        interfaces: &[Interface],
        routes: impl Into<Arc<[Route]>>,
        neighbours: &[Neighbour],
    ) -> NextHops {
        NextHops::default().update(interfaces, routes, neighbours)
    }

    /// Network for examples and tests: one link with all neighbours, and a default route to the
    /// link.
    pub fn on_link(link: Interface, neighbours: &[(IpAddr, [u8; 6])]) -> NextHops {
        let interface = link.index;
        let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let routes = any.map(|prefix| Route::of_main(prefix, 0, vec![RouteHop::by(interface, None)]));
        let neighbours: Vec<_> =
            neighbours.iter().map(|&(ip, mac)| Neighbour { interface, ip, mac }).collect();
        NextHops::new(&[link], routes, &neighbours)
    }

    /// Updates next hops from the kernel's tables. Known next hops keep their index. Next hops of
    /// neighbours that are gone, or whose interface is down, are unusable until the neighbour or
    /// the interface returns. Does not read `routes` again if it is the same object as before. Path
    /// MTUs, policy rules and IPsec policies stay.
    pub fn update(
        &self,
        interfaces: &[Interface],
        routes: impl Into<Arc<[Route]>>,
        neighbours: &[Neighbour],
    ) -> NextHops {
        self.update_all(&NetworkTables {
            interfaces: interfaces.to_vec(),
            routes: routes.into(),
            rules: self.routes.rules().clone(),
            policies: self.policies.clone(),
            neighbours: neighbours.to_vec(),
            path_mtus: self.path_mtus.clone(),
        })
    }

    /// Updates next hops from all tables. Known next hops keep their index.
    pub fn update_all(&self, tables: &NetworkTables) -> NextHops {
        let NetworkTables { interfaces, routes, rules, policies, neighbours, path_mtus } = tables;
        let routes = match self.routes.are_of(routes, rules) {
            true => self.routes.clone(),
            false => Arc::new(Routes::new(routes.clone(), rules.clone())),
        };
        let path_mtus = path_mtus.clone();
        let narrow = narrow_paths(&routes, &path_mtus);
        let mut indices = self.indices.clone();
        let mut hops = vec![None; indices.len()];
        let links: HashMap<u32, &Interface> =
            interfaces.iter().filter(|link| link.up).map(|link| (link.index, link)).collect();
        for neighbour in neighbours {
            let Some(link) = links.get(&neighbour.interface) else { continue };
            let Some(src_mac) = link.mac else { continue };
            let longest = if neighbour.ip.is_ipv4() { link.mtu } else { link.mtu_v6 };
            let of_paths = narrow
                .get(&NeighbourKey { interface: link.index, ip: neighbour.ip })
                .into_iter()
                .flatten()
                .copied();
            let mtus = routes.mtus(link.index, neighbour.ip).chain(of_paths);
            for mtu in mtus.map(Some).chain([None]) {
                let key = NextHopKey::new(link.index, neighbour.ip, mtu);
                let Some(index) = indices.get_or_assign(key, NextHops::MAX_COUNT) else { continue };
                hops.resize(indices.len(), None);
                hops[index as usize] = Some(NextHop {
                    interface: link.index,
                    src_mac,
                    dst_mac: neighbour.mac,
                    mtu: mtu.map_or(longest, |mtu| mtu.min(longest)),
                    redirect_peer: link.redirect_peer,
                });
            }
        }
        let policies = policies.clone();
        let addresses = links.values().flat_map(|link| &link.details);
        let broadcasts = addresses.filter_map(InterfaceAddress::broadcast).map(IpAddr::V4).collect();
        let interfaces = interfaces.to_vec();
        NextHops { hops, indices, interfaces, broadcasts, routes, policies, path_mtus }
    }

    /// Retires the indices of unused next hops once there are many of them. New next hops can reuse
    /// these indices a minute later. By then all flows must have repeated their route lookup, as
    /// [`NextHops::moves_flows_of`] requests.
    pub fn recycle(&mut self, now: Timestamp) {
        let hops = &self.hops;
        self.indices.recycle(|index| hops[index as usize].is_none(), now);
    }

    /// Whether flows with next hops of `before` must repeat their route lookup, because routes,
    /// IPsec policies or path MTUs have changed, or indices were retired.
    pub fn moves_flows_of(&self, before: &NextHops) -> bool {
        let same = Arc::ptr_eq(&self.routes, &before.routes) || self.routes.lead_as(&before.routes);
        let same = same && self.policies == before.policies;
        !same || self.path_mtus != before.path_mtus || self.indices.have_retired_since(&before.indices)
    }

    /// Index of the next hop towards `dst`, for packets whose source address the kernel would
    /// choose.
    pub fn lookup(&self, dst: IpAddr) -> Result<u32, Unreachable> {
        self.lookup_from(any_of_family(dst), dst)
    }

    /// Index of the next hop from `src` to `dst`: the first resolved next hop of the most specific
    /// route.
    pub fn lookup_from(&self, src: IpAddr, dst: IpAddr) -> Result<u32, Unreachable> {
        let ways = self.route_hops(src, dst)?;
        self.resolved(dst, ways)
    }

    /// Like [`NextHops::lookup`], but `dst` must be on a link, without a router in between.
    pub fn lookup_on_link(&self, dst: IpAddr) -> Result<u32, Unreachable> {
        self.lookup_on_link_from(any_of_family(dst), dst)
    }

    /// Like [`NextHops::lookup_from`], but `dst` must be on a link, without a router in between.
    pub fn lookup_on_link_from(&self, src: IpAddr, dst: IpAddr) -> Result<u32, Unreachable> {
        let ways = self.route_hops(src, dst)?;
        if !ways.is_empty() && ways.iter().all(|hop| hop.gateway.is_some()) {
            return Err(Unreachable::NotOnLink);
        }
        self.resolved(dst, ways.iter().filter(|hop| hop.gateway.is_none()))
    }

    /// Next hops of the routes for packets from `src` to `dst`.
    fn route_hops(&self, src: IpAddr, dst: IpAddr) -> Result<&[RouteHop], Unreachable> {
        let ways = self.routes.find(src, dst);
        if ways.iter().any(|hop| hop.is_encapsulated) {
            return Err(Unreachable::Encapsulated);
        }
        if !self.policies.is_empty() && ipsec::forbids(&self.policies, src, dst, ways) {
            return Err(Unreachable::Ipsec);
        }
        Ok(ways)
    }

    /// Whether the route of a packet may depend on its source.
    pub fn depend_on_source(&self) -> bool {
        !self.policies.is_empty() || self.routes.depend_on_source()
    }

    /// Policy rules that the lookup uses; empty: the kernel's default rules.
    pub fn rules(&self) -> &[RoutingRule] {
        self.routes.rules()
    }

    /// Operator-facing lines about the policy rules that have no effect in packet modes, because
    /// they select packets by properties that convey does not evaluate. One line for each rule.
    pub fn rules_not_followed(&self) -> Vec<String> {
        let line = |rule: &RoutingRule| {
            let selectors = rule.not_followed();
            let family = if rule.is_v4 { "ip" } else { "ip -6" };
            let priority = rule.priority;
            (!selectors.is_empty()).then(|| {
                format!(
                    "policy rule {priority} ({family} rule) has no effect in packet modes: it selects packets by {}, which convey \
                     does not support",
                    selectors.join(", ")
                )
            })
        };
        self.routes.rules().iter().filter_map(line).collect()
    }

    /// Operator-facing reason why packets from `src` to the server `dst` must not be sent. `None`:
    /// packets may be sent as soon as a route and a neighbour are known.
    pub fn refusal(&self, src: IpAddr, dst: IpAddr) -> Option<String> {
        match self.lookup_from(src, dst).err()? {
            Unreachable::NoEthernet { interface } => {
                let name = self.interfaces.iter().find(|one| one.index == interface);
                let name = name.map_or("an interface", |interface| &interface.name);
                Some(format!(
                    "packets to the server leave through {name}, which carries no Ethernet frames; packet modes need Ethernet"
                ))
            }
            Unreachable::Encapsulated => Some(
                "the route to the server encapsulates packets (for example with MPLS), which packet modes do not support"
                    .to_owned(),
            ),
            Unreachable::Ipsec => Some(
                "an IPsec policy (ip xfrm policy) covers packets to the server, and packet modes would send them unencrypted"
                    .to_owned(),
            ),
            Unreachable::NoRoute | Unreachable::Unresolved { .. } | Unreachable::NotOnLink => None,
        }
    }

    /// Index of the first of these next hops whose neighbour is resolved.
    fn resolved<'a>(
        &self,
        dst: IpAddr,
        ways: impl IntoIterator<Item = &'a RouteHop>,
    ) -> Result<u32, Unreachable> {
        let mut unreachable = Unreachable::NoRoute;
        let path_mtu = self.path_mtus.get(&dst).copied();
        for hop in ways {
            let ip = hop.gateway.unwrap_or(dst);
            let resolved = |mtu| {
                let index = self.indices.get(&NextHopKey::new(hop.interface, ip, mtu))?;
                self.get(index).map(|_| index)
            };
            // If all indices were in use, no next hop has this path MTU.
            let narrow = path_mtu.and_then(|path_mtu| resolved(Some(smaller(hop, path_mtu))));
            match narrow.or_else(|| resolved(hop.mtu)) {
                Some(index) => return Ok(index),
                None if matches!(unreachable, Unreachable::NoRoute | Unreachable::NoEthernet { .. }) => {
                    unreachable = match self.carries_ethernet(hop.interface) {
                        true => Unreachable::Unresolved { ip, interface: hop.interface },
                        false => Unreachable::NoEthernet { interface: hop.interface },
                    };
                }
                None => {}
            }
        }
        Err(unreachable)
    }

    /// Whether an interface carries Ethernet frames; true for an unknown interface.
    fn carries_ethernet(&self, interface: u32) -> bool {
        let link = self.interfaces.iter().find(|one| one.index == interface);
        link.is_none_or(|link| link.mac.is_some())
    }

    /// Whether the source of a received packet is spoofed: the interface leads to other addresses
    /// of the family, and `src` is routed through other interfaces. A bridge port or a bond link
    /// has no routes of its own and is therefore exempt.
    pub fn is_spoofed(&self, (src, dst): (IpAddr, IpAddr), interface: u32) -> bool {
        let ways = self.routes.find(dst, src);
        ways.iter().all(|hop| hop.interface != interface)
            && self.routes.use_interface(interface, src.is_ipv4())
    }

    /// Neighbours towards `dst` by the routes of every table.
    pub fn neighbours_by_any_route(&self, dst: IpAddr) -> impl Iterator<Item = NeighbourKey> {
        let ways = self.routes.find_in_tables(any_of_family(dst), dst);
        ways.map(move |hop| hop.neighbour(dst))
    }

    /// Routers of the default routes.
    pub fn default_routers(&self) -> impl Iterator<Item = NeighbourKey> {
        let anywhere = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let ways = anywhere.into_iter().flat_map(|family| self.routes.find_default(family));
        ways.filter_map(|hop| Some(NeighbourKey { interface: hop.interface, ip: hop.gateway? }))
    }

    /// Neighbour and index of each next hop that has an index.
    pub fn known(&self) -> impl Iterator<Item = (NeighbourKey, u32)> {
        self.indices.known()
    }

    /// Whether the Ethernet address of this neighbour on an interface is known.
    pub fn is_resolved(&self, interface: u32, neighbour: IpAddr) -> bool {
        let index = self.indices.get(&NextHopKey::new(interface, neighbour, None));
        index.is_some_and(|index| self.get(index).is_some())
    }

    /// Whether packets to `dst` may leave by this interface.
    pub fn leads_to(&self, dst: IpAddr, interface: u32) -> bool {
        self.routes.find(any_of_family(dst), dst).iter().any(|hop| hop.interface == interface)
    }

    /// Interfaces on which packets from clients to these VIPs may arrive: interfaces that have a
    /// VIP, and interfaces of default routes.
    pub fn interfaces_of_clients(&self, vips: &[IpAddr]) -> BTreeSet<u32> {
        let anywhere = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let defaults = anywhere.iter().chain(vips).flat_map(|source| self.routes.find_default(*source));
        self.interfaces_for(vips, PathEnds::default())
            .into_iter()
            .chain(defaults.map(|hop| hop.interface))
            .collect()
    }

    /// Number of indices assigned so far, including those of unusable next hops.
    pub fn count(&self) -> u32 {
        self.hops.len() as u32
    }

    /// Next hop with this index; `None` while its neighbour is not resolved.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&NextHop> {
        self.hops.get(index as usize)?.as_ref()
    }

    /// Next hop of packets to `dst`, resolved or not; `None` if no route leads to `dst`, or if
    /// `dst` is an address of this host.
    pub fn hop_to(&self, dst: IpAddr) -> Option<RouteHop> {
        self.hop_from(any_of_family(dst), dst)
    }

    /// Like [`NextHops::hop_to`], for packets from `src`.
    pub fn hop_from(&self, src: IpAddr, dst: IpAddr) -> Option<RouteHop> {
        self.routes.find(src, dst).first().copied()
    }

    /// Next hops for packets from `src` to `dst`; the kernel uses one of them. Empty if the packets
    /// are delivered to this host or refused.
    pub fn hops_from(&self, src: IpAddr, dst: IpAddr) -> &[RouteHop] {
        self.routes.find(src, dst)
    }

    /// Neighbours on the paths of packets from `src` to `dst` over Ethernet. Packets can be sent as
    /// soon as one of the neighbours is resolved, unless the route uses a tunnel or an IPsec policy
    /// forbids it. With `on_link`, `dst` must be on the link, without a router in between.
    pub fn neighbours_towards(
        &self,
        src: IpAddr,
        dst: IpAddr,
        on_link: bool,
    ) -> impl Iterator<Item = NeighbourKey> {
        let ways = self.routes.find(src, dst).iter();
        ways.filter(move |hop| !(on_link && hop.gateway.is_some()) && self.carries_ethernet(hop.interface))
            .map(move |hop| hop.neighbour(dst))
    }

    /// Current interfaces.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Whether packets to `ip` are delivered to this host.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.addresses.contains(&ip))
    }

    /// Whether the address is a broadcast address of a network on a link, which no host has.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() && (self.broadcasts.contains(&ip) || self.routes.is_broadcast(ip))
    }

    /// Indices of the Ethernet interfaces with traffic: interfaces that have a VIP, and interfaces
    /// of the routes to a server, from any of the sources or from the address that the kernel
    /// chooses. If no Ethernet interface has a VIP (for example, the loopback interface has it),
    /// the interfaces of the default route are included.
    pub fn interfaces_for(
        &self,
        vips: &[IpAddr],
        PathEnds { sources, servers }: PathEnds<'_>,
    ) -> BTreeSet<u32> {
        let ethernet = |interface: &&Interface| interface.mac.is_some() && !interface.loopback;
        let holders = |vip: IpAddr| -> Vec<u32> {
            let holds = |interface: &&Interface| interface.addresses.contains(&vip);
            self.interfaces.iter().filter(ethernet).filter(holds).map(|interface| interface.index).collect()
        };
        let exits = |hops: &[RouteHop]| -> Vec<u32> {
            let leads = |interface: &&Interface| hops.iter().any(|hop| hop.interface == interface.index);
            self.interfaces.iter().filter(ethernet).filter(leads).map(|interface| interface.index).collect()
        };
        let of_vip = |vip: &IpAddr| match holders(*vip) {
            none if none.is_empty() => exits(self.routes.find_default(*vip)),
            some => some,
        };
        let of_server = |server: &IpAddr| {
            let of_family = sources.iter().copied().filter(|source| source.is_ipv4() == server.is_ipv4());
            let sources = of_family.chain([any_of_family(*server)]);
            let exits = sources.flat_map(|source| exits(self.routes.find(source, *server)));
            exits.collect::<Vec<_>>()
        };
        vips.iter().flat_map(of_vip).chain(servers.iter().flat_map(of_server)).collect()
    }
}

/// Ends of the paths from this host to servers.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathEnds<'a> {
    /// Source addresses of the packets.
    pub sources: &'a [IpAddr],
    /// Addresses of the servers.
    pub servers: &'a [IpAddr],
}

/// Path MTUs of the servers behind each neighbour.
fn narrow_paths(routes: &Routes, path_mtus: &BTreeMap<IpAddr, u32>) -> HashMap<NeighbourKey, BTreeSet<u32>> {
    let mut ways: HashMap<_, BTreeSet<u32>> = HashMap::new();
    for (&server, &path_mtu) in path_mtus {
        for hop in routes.find_in_tables(any_of_family(server), server) {
            ways.entry(hop.neighbour(server)).or_default().insert(smaller(hop, path_mtu));
        }
    }
    ways
}

/// Unspecified address of the same family.
fn any_of_family(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}

/// Smaller of the path MTU and the MTU of this hop's route.
fn smaller(hop: &RouteHop, path_mtu: u32) -> u32 {
    hop.mtu.map_or(path_mtu, |mtu| mtu.min(path_mtu))
}

#[cfg(test)]
mod rule_tests;
#[cfg(test)]
mod tests;
