//! The next hops of packets: the kernel's routes and neighbours, ready to be looked up.

mod indices;
mod routes;
mod sources;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use thiserror::Error;

use self::indices::{Indices, NextHopKey};
use self::routes::Routes;
pub(crate) use self::sources::common_bits;
use crate::{Interface, Neighbour, NetworkTables, NextHop, Route, RouteHop, Timestamp};

/// The next hops, and which of them leads to an address.
///
/// There is one for every neighbour and every MTU that routes and paths by it have. It keeps its index, which flows hold,
/// whatever becomes of it; see [`NextHops::recycle`] for those that are gone for good.
#[derive(Debug, Default)]
pub struct NextHops {
    hops: Vec<Option<NextHop>>,
    indices: Indices,
    interfaces: Vec<Interface>,
    routes: Arc<Routes>,
    /// The path MTUs to servers that routers have reported.
    path_mtus: Arc<BTreeMap<IpAddr, u32>>,
}

/// Why nothing can be sent to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unreachable {
    /// No route leads there, or it ends at this host.
    #[error("no route")]
    NoRoute,
    /// The next neighbour's Ethernet address is not known: have it resolved.
    #[error("neighbour {ip} is not resolved")]
    Unresolved {
        /// The neighbour: a router, or the destination itself.
        ip: IpAddr,
        /// Index of the interface it is reached through.
        interface: u32,
    },
    /// It was to be on the link, and only routers lead there.
    #[error("not on the link")]
    NotOnLink,
}

impl NextHops {
    /// Most that there are: flows have their index in 16 bits, of which one value means none. Further ones are not resolved.
    pub const MAX_COUNT: usize = 65_535;

    /// What the kernel's tables say, numbered from 0.
    pub fn new(
        interfaces: &[Interface],
        routes: impl Into<Arc<[Route]>>,
        neighbours: &[Neighbour],
    ) -> NextHops {
        NextHops::default().update(interfaces, routes, neighbours)
    }

    /// One link with all neighbours on it, and a default route to that link: the network of an example or a test.
    pub fn on_link(link: Interface, neighbours: &[(IpAddr, [u8; 6])]) -> NextHops {
        let (table, metric, interface) = (Route::MAIN, 0, link.index);
        let hops = vec![RouteHop { interface, gateway: None, mtu: None, source: None }];
        let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let routes = any.map(|prefix| Route { table, prefix, prefix_len: 0, metric, hops: hops.clone() });
        let neighbours: Vec<_> =
            neighbours.iter().map(|&(ip, mac)| Neighbour { interface, ip, mac }).collect();
        NextHops::new(&[link], routes, &neighbours)
    }

    /// What the kernel's tables say now. Next hops known before keep their index; those of neighbours that are
    /// gone, or whose interface is down, lead nowhere until they are back. Routes that are the same list as before
    /// cost nothing. Path MTUs stay.
    pub fn update(
        &self,
        interfaces: &[Interface],
        routes: impl Into<Arc<[Route]>>,
        neighbours: &[Neighbour],
    ) -> NextHops {
        self.update_paths(interfaces, routes.into(), neighbours, self.path_mtus.clone())
    }

    /// The same with the path MTUs of these tables.
    pub fn update_all(&self, tables: &NetworkTables) -> NextHops {
        let NetworkTables { interfaces, routes, neighbours, path_mtus } = tables;
        self.update_paths(interfaces, routes.clone(), neighbours, path_mtus.clone())
    }

    fn update_paths(
        &self,
        interfaces: &[Interface],
        routes: Arc<[Route]>,
        neighbours: &[Neighbour],
        path_mtus: Arc<BTreeMap<IpAddr, u32>>,
    ) -> NextHops {
        let routes =
            if self.routes.are_of(&routes) { self.routes.clone() } else { Arc::new(Routes::new(routes)) };
        let narrow = narrow_ways(&routes, &path_mtus);
        let mut indices = self.indices.clone();
        let mut hops = vec![None; indices.len()];
        let links: HashMap<u32, &Interface> =
            interfaces.iter().filter(|link| link.up).map(|link| (link.index, link)).collect();
        for neighbour in neighbours {
            let Some(link) = links.get(&neighbour.interface) else { continue };
            let Some(src_mac) = link.mac else { continue };
            let longest = if neighbour.ip.is_ipv4() { link.mtu } else { link.mtu_v6 };
            let of_paths = narrow.get(&(link.index, neighbour.ip)).into_iter().flatten().copied();
            let mtus = routes.mtus(link.index, neighbour.ip).chain(of_paths);
            for mtu in mtus.map(Some).chain([None]) {
                let key = NextHopKey::new(link.index, neighbour.ip, mtu);
                let Some(index) = indices.get_or_give(key, NextHops::MAX_COUNT) else { continue };
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
        NextHops { hops, indices, interfaces: interfaces.to_vec(), routes, path_mtus }
    }

    /// Once there are many next hops that are gone, takes their indices away, for new ones to have a minute later. By
    /// then all flows must have looked again where they go, as [`NextHops::moves_flows_of`] asks for.
    pub fn recycle(&mut self, now: Timestamp) {
        let hops = &self.hops;
        self.indices.recycle(|index| hops[index as usize].is_none(), now);
    }

    /// Whether flows that go by `before` have to look again where they go: routes lead elsewhere, paths have other MTUs, or
    /// indices were taken away.
    pub fn moves_flows_of(&self, before: &NextHops) -> bool {
        let same = Arc::ptr_eq(&self.routes, &before.routes) || self.routes.lead_as(&before.routes);
        !same || self.path_mtus != before.path_mtus || self.indices.have_retired_since(&before.indices)
    }

    /// Index of the next hop on the way to `dst`: the most specific routes' first one that is resolved.
    pub fn lookup(&self, dst: IpAddr) -> Result<u32, Unreachable> {
        self.resolved(dst, self.routes.find(dst))
    }

    /// The same if `dst` is on a link, and no router in between.
    pub fn lookup_on_link(&self, dst: IpAddr) -> Result<u32, Unreachable> {
        let ways = self.routes.find(dst);
        if !ways.is_empty() && ways.iter().all(|hop| hop.gateway.is_some()) {
            return Err(Unreachable::NotOnLink);
        }
        self.resolved(dst, ways.iter().filter(|hop| hop.gateway.is_none()))
    }

    /// The first of these ways whose neighbour is resolved.
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
            // Of a path MTU there is none if there was no index left.
            let narrow = path_mtu.and_then(|path_mtu| resolved(Some(smaller(hop, path_mtu))));
            match narrow.or_else(|| resolved(hop.mtu)) {
                Some(index) => return Ok(index),
                None if unreachable == Unreachable::NoRoute => {
                    unreachable = Unreachable::Unresolved { ip, interface: hop.interface };
                }
                None => {}
            }
        }
        Err(unreachable)
    }

    /// Whether what comes in on an interface cannot come from `src`, or from beyond it: the interface leads to other
    /// addresses of its family, and `src` is routed by others. A port of a bridge, or a link of a bond, leads nowhere by
    /// itself and is nobody's.
    pub fn is_spoofed(&self, src: IpAddr, interface: u32) -> bool {
        let ways = self.routes.find(src);
        ways.iter().all(|hop| hop.interface != interface)
            && self.routes.use_interface(interface, src.is_ipv4())
    }

    /// The ways to `dst`: interface and neighbour of each.
    pub fn ways_to(&self, dst: IpAddr) -> impl Iterator<Item = (u32, IpAddr)> {
        self.routes.find(dst).iter().map(move |hop| (hop.interface, hop.gateway.unwrap_or(dst)))
    }

    /// The routers that default routes lead to: interface and address of each.
    pub fn default_routers(&self) -> impl Iterator<Item = (u32, IpAddr)> {
        let anywhere = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let ways = anywhere.into_iter().flat_map(|family| self.routes.find_default(family));
        ways.filter_map(|hop| Some((hop.interface, hop.gateway?)))
    }

    /// Every next hop that has an index: interface, neighbour and index.
    pub fn known(&self) -> impl Iterator<Item = ((u32, IpAddr), u32)> {
        self.indices.known()
    }

    /// Whether packets to `dst` may go out by this interface.
    pub fn leads_to(&self, dst: IpAddr, interface: u32) -> bool {
        self.routes.find(dst).iter().any(|hop| hop.interface == interface)
    }

    /// Interfaces that clients of these VIPs may come in by: those that hold one, and those that default routes go out by.
    pub fn interfaces_of_clients(&self, vips: &[IpAddr]) -> BTreeSet<u32> {
        let anywhere = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let defaults = anywhere.iter().flat_map(|family| self.routes.find_default(*family));
        self.interfaces_for(vips, &[]).into_iter().chain(defaults.map(|hop| hop.interface)).collect()
    }

    /// How many there have been so far, those that lead nowhere now too.
    pub fn count(&self) -> u32 {
        self.hops.len() as u32
    }

    /// The next hop with this index; `None` while it is not resolved.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&NextHop> {
        self.hops.get(index as usize)?.as_ref()
    }

    /// Where packets to `dst` go next, whoever is resolved there; `None` without a route, and for what ends at
    /// this host.
    pub fn hop_to(&self, dst: IpAddr) -> Option<RouteHop> {
        self.routes.find(dst).first().copied()
    }

    /// The interfaces as of now.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Whether packets to `ip` end at this host.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.addresses.contains(&ip))
    }

    /// Whether no host has this address, as it is the broadcast address of a network on a link.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        self.routes.is_broadcast(ip)
    }

    /// Indices of the Ethernet interfaces that traffic passes: those that hold a VIP, and those that lead to a
    /// server. A VIP that none of them holds (it is on the loopback interface, say) comes in where the default
    /// route goes out.
    pub fn interfaces_for(&self, vips: &[IpAddr], servers: &[IpAddr]) -> BTreeSet<u32> {
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
        let of_server = |server: &IpAddr| exits(self.routes.find(*server));
        vips.iter().flat_map(of_vip).chain(servers.iter().flat_map(of_server)).collect()
    }
}

/// The MTUs of paths by each neighbour, by interface and address.
fn narrow_ways(routes: &Routes, path_mtus: &BTreeMap<IpAddr, u32>) -> HashMap<(u32, IpAddr), BTreeSet<u32>> {
    let mut ways: HashMap<_, BTreeSet<u32>> = HashMap::new();
    for (&server, &path_mtu) in path_mtus {
        for hop in routes.find(server) {
            let neighbour = hop.gateway.unwrap_or(server);
            ways.entry((hop.interface, neighbour)).or_default().insert(smaller(hop, path_mtu));
        }
    }
    ways
}

/// The MTU of a path that begins with this hop.
fn smaller(hop: &RouteHop, path_mtu: u32) -> u32 {
    hop.mtu.map_or(path_mtu, |mtu| mtu.min(path_mtu))
}

#[cfg(test)]
mod tests;
