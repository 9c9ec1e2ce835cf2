//! Where packets go next: the kernel's routes and neighbours, ready to be looked up.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use thiserror::Error;

use crate::model::{Addr, Interface, Neighbour, NextHop, Route, RouteHop};

/// The next hops, and which of them leads to an address.
///
/// A next hop keeps its index for as long as the program runs, whatever becomes of it: flows hold indices.
/// There is one for every neighbour that ever was, so their number is bounded by the addresses of the links.
#[derive(Debug, Default)]
pub struct NextHops {
    hops: Vec<Option<NextHop>>,
    indices: HashMap<(u32, Addr), u32>,
    interfaces: Vec<Interface>,
    local: Prefixes,
    main: Prefixes,
    default: Prefixes,
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
}

impl NextHops {
    /// What the kernel's tables say, numbered from 0.
    pub fn new(interfaces: &[Interface], routes: &[Route], neighbours: &[Neighbour]) -> NextHops {
        NextHops::default().update(interfaces, routes, neighbours)
    }

    /// What the kernel's tables say now. Next hops known before keep their index; those of neighbours that are
    /// gone, or whose interface is down, lead nowhere until they are back.
    pub fn update(&self, interfaces: &[Interface], routes: &[Route], neighbours: &[Neighbour]) -> NextHops {
        let mut next = NextHops {
            hops: vec![None; self.hops.len()],
            indices: self.indices.clone(),
            interfaces: interfaces.to_vec(),
            local: Prefixes::of(routes, Route::LOCAL),
            main: Prefixes::of(routes, Route::MAIN),
            default: Prefixes::of(routes, Route::DEFAULT),
        };
        let links: HashMap<u32, &Interface> =
            interfaces.iter().filter(|link| link.up).map(|link| (link.index, link)).collect();
        for neighbour in neighbours {
            let Some(link) = links.get(&neighbour.interface) else { continue };
            let Some(src_mac) = link.mac else { continue };
            let hop = NextHop { interface: link.index, src_mac, dst_mac: neighbour.mac, mtu: link.mtu };
            next.set((link.index, neighbour.ip.into()), hop);
        }
        next
    }

    /// Index of the next hop on the way to `dst`: the most specific routes' first one that is resolved.
    pub fn lookup(&self, dst: IpAddr) -> Result<u32, Unreachable> {
        let mut unreachable = Unreachable::NoRoute;
        for hop in self.route(dst) {
            let ip = hop.gateway.unwrap_or(dst);
            match self.indices.get(&(hop.interface, ip.into())) {
                Some(&index) if self.get(index).is_some() => return Ok(index),
                _ if unreachable == Unreachable::NoRoute => {
                    unreachable = Unreachable::Unresolved { ip, interface: hop.interface };
                }
                _ => {}
            }
        }
        Err(unreachable)
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
        self.route(dst).first().copied()
    }

    /// Whether routes lead the same ways as in `other`.
    pub fn has_routes_of(&self, other: &NextHops) -> bool {
        (&self.local, &self.main, &self.default) == (&other.local, &other.main, &other.default)
    }

    /// The interfaces as of now.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Whether packets to `ip` end at this host.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.addresses.contains(&ip))
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
            none if none.is_empty() => exits(self.main.find_default(*vip)),
            some => some,
        };
        let of_server = |server: &IpAddr| exits(self.route(*server));
        vips.iter().flat_map(of_vip).chain(servers.iter().flat_map(of_server)).collect()
    }

    /// Where packets to `dst` go; nowhere if it is empty. The tables are asked in the kernel's default order.
    fn route(&self, dst: IpAddr) -> &[RouteHop] {
        [&self.local, &self.main, &self.default].into_iter().find_map(|table| table.find(dst)).unwrap_or(&[])
    }

    fn set(&mut self, key: (u32, Addr), hop: NextHop) {
        let index = *self.indices.entry(key).or_insert(self.hops.len() as u32) as usize;
        if index == self.hops.len() {
            self.hops.push(None);
        }
        self.hops[index] = Some(hop);
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
        // The default route of IPv6 is not one of IPv4.
        let of_family = self.0.iter().take_while(|(length, _)| *length >= bits_mapped(dst));
        let best = of_family.filter_map(|(length, networks)| networks.get(&masked(dst, *length))).next();
        best.map(|best| best.hops.as_slice())
    }

    /// The default route of the address's family.
    fn find_default(&self, family: IpAddr) -> &[RouteHop] {
        let length = bits_mapped(family);
        let networks = self.0.iter().find(|(l, _)| *l == length).map(|(_, networks)| networks);
        networks.and_then(|n| n.get(&masked(family, length))).map_or(&[], |best| best.hops.as_slice())
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

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: u32 = 2;
    const WAN: u32 = 3;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn interface(index: u32, addresses: &[&str]) -> Interface {
        let mac = Some([2, 0, 0, 0, 0, index as u8]);
        let addresses = addresses.iter().map(|a| ip(a)).collect();
        let name = format!("eth{index}");
        Interface { index, name, mac, mtu: 1500, up: true, loopback: false, addresses }
    }

    fn loopback(addresses: &[&str]) -> Interface {
        Interface { mac: Some([0; 6]), loopback: true, ..interface(1, addresses) }
    }

    /// `10.0.0.0/8`, the interface, and the router if there is one.
    fn route(network: &str, interface: u32, gateway: Option<&str>) -> Route {
        let (prefix, len) = network.split_once('/').unwrap();
        Route {
            table: Route::MAIN,
            prefix: ip(prefix),
            prefix_len: len.parse().unwrap(),
            metric: 0,
            hops: vec![RouteHop { interface, gateway: gateway.map(ip) }],
        }
    }

    fn neighbour(interface: u32, address: &str, mac: u8) -> Neighbour {
        Neighbour { interface, ip: ip(address), mac: [2, 9, 9, 9, 9, mac] }
    }

    fn links() -> [Interface; 2] {
        [interface(LAN, &["10.0.0.1"]), interface(WAN, &["192.0.2.2"])]
    }

    fn unresolved(address: &str, interface: u32) -> Result<u32, Unreachable> {
        Err(Unreachable::Unresolved { ip: ip(address), interface })
    }

    /// The MAC's last byte of the next hop to `dst`.
    fn mac_to(hops: &NextHops, dst: &str) -> u8 {
        hops.get(hops.lookup(ip(dst)).unwrap()).unwrap().dst_mac[5]
    }

    #[test]
    fn a_server_on_the_link_is_its_own_next_hop_and_clients_are_behind_the_router() {
        let routes = [route("10.0.0.0/24", LAN, None), route("0.0.0.0/0", WAN, Some("192.0.2.1"))];
        let hops = NextHops::new(
            &links(),
            &routes,
            &[neighbour(LAN, "10.0.0.7", 7), neighbour(WAN, "192.0.2.1", 1)],
        );
        assert_eq!((mac_to(&hops, "10.0.0.7"), mac_to(&hops, "198.51.100.9")), (7, 1));
        let hop = hops.get(hops.lookup(ip("10.0.0.7")).unwrap()).unwrap();
        assert_eq!((hop.interface, hop.src_mac, hop.mtu), (LAN, [2, 0, 0, 0, 0, 2], 1500));
    }

    #[test]
    fn the_most_specific_route_wins_and_among_equals_the_smallest_metric() {
        let mut spare = route("10.1.0.0/16", WAN, Some("192.0.2.1"));
        spare.metric = 100;
        let routes = [
            spare,
            route("10.1.0.0/16", LAN, Some("10.0.0.2")),
            route("10.1.2.0/24", LAN, Some("10.0.0.3")),
            route("10.1.2.3/32", LAN, Some("10.0.0.4")),
        ];
        let neighbours = [
            neighbour(LAN, "10.0.0.2", 2),
            neighbour(LAN, "10.0.0.3", 3),
            neighbour(LAN, "10.0.0.4", 4),
            neighbour(WAN, "192.0.2.1", 1),
        ];
        let hops = NextHops::new(&links(), &routes, &neighbours);
        assert_eq!(["10.1.9.9", "10.1.2.9", "10.1.2.3"].map(|dst| mac_to(&hops, dst)), [2, 3, 4]);
        assert_eq!(hops.lookup(ip("10.2.0.1")), Err(Unreachable::NoRoute));
    }

    #[test]
    fn who_is_not_resolved_is_named_with_the_interface_to_ask_on() {
        let routes = [route("10.0.0.0/24", LAN, None), route("0.0.0.0/0", WAN, Some("192.0.2.1"))];
        let hops = NextHops::new(&links(), &routes, &[]);
        assert_eq!(hops.lookup(ip("10.0.0.7")), unresolved("10.0.0.7", LAN));
        assert_eq!(hops.lookup(ip("198.51.100.9")), unresolved("192.0.2.1", WAN));
        let router = RouteHop { interface: WAN, gateway: Some(ip("192.0.2.1")) };
        assert_eq!(hops.hop_to(ip("198.51.100.9")), Some(router));
    }

    #[test]
    fn packets_to_this_host_or_to_a_refused_network_go_nowhere() {
        let own = Route { table: Route::LOCAL, hops: vec![], ..route("10.0.0.1/32", LAN, None) };
        let blackhole = Route { hops: vec![], ..route("10.0.0.128/25", LAN, None) };
        let routes = [own, blackhole, route("10.0.0.0/24", LAN, None)];
        let hops = NextHops::new(&links(), &routes, &[neighbour(LAN, "10.0.0.200", 1)]);
        assert_eq!(hops.lookup(ip("10.0.0.1")), Err(Unreachable::NoRoute));
        assert_eq!(hops.lookup(ip("10.0.0.200")), Err(Unreachable::NoRoute));
        assert_eq!(["10.0.0.1", "10.0.0.200"].map(|dst| hops.hop_to(ip(dst))), [None, None]);
        assert!(hops.is_own(ip("10.0.0.1")) && !hops.is_own(ip("10.0.0.2")));
    }

    #[test]
    fn of_several_routers_one_that_is_resolved_is_taken() {
        let mut both = route("0.0.0.0/0", WAN, Some("192.0.2.1"));
        both.hops.push(RouteHop { interface: WAN, gateway: Some(ip("192.0.2.3")) });
        let hops = NextHops::new(&links(), &[both], &[neighbour(WAN, "192.0.2.3", 3)]);
        assert_eq!(mac_to(&hops, "198.51.100.9"), 3);
    }

    #[test]
    fn of_routes_with_equal_metrics_one_whose_router_is_resolved_is_taken() {
        let mut worse = route("::/0", LAN, Some("fe80::3"));
        worse.metric = 2000;
        let routes = [worse, route("::/0", WAN, Some("fe80::1")), route("::/0", WAN, Some("fe80::2"))];
        let hops =
            NextHops::new(&links(), &routes, &[neighbour(LAN, "fe80::3", 3), neighbour(WAN, "fe80::2", 2)]);
        assert_eq!(mac_to(&hops, "2001:db8::1"), 2);
    }

    #[test]
    fn flows_keep_their_index_through_changes_and_get_the_new_address_of_their_server() {
        let routes = [route("10.0.0.0/24", LAN, None)];
        let seven = neighbour(LAN, "10.0.0.7", 7);
        let before = NextHops::new(&links(), &routes, &[seven]);
        let index = before.lookup(ip("10.0.0.7")).unwrap();

        let moved = neighbour(LAN, "10.0.0.7", 77);
        let after = before.update(&links(), &routes, &[neighbour(LAN, "10.0.0.3", 3), moved]);
        assert_eq!(after.lookup(ip("10.0.0.7")), Ok(index));
        assert_eq!(after.get(index).unwrap().dst_mac[5], 77);
        assert_ne!(after.lookup(ip("10.0.0.3")), Ok(index));

        let gone = after.update(&links(), &routes, &[]);
        assert_eq!(gone.get(index), None);
        assert_eq!(gone.lookup(ip("10.0.0.7")), unresolved("10.0.0.7", LAN));
        let back = gone.update(&links(), &routes, &[neighbour(LAN, "10.0.0.9", 9), seven]);
        assert_eq!((back.lookup(ip("10.0.0.7")), mac_to(&back, "10.0.0.7")), (Ok(index), 7));
    }

    #[test]
    fn nothing_is_sent_on_an_interface_that_is_down_or_has_no_ethernet() {
        let routes = [route("10.0.0.0/24", LAN, None)];
        let neighbours = [neighbour(LAN, "10.0.0.7", 7)];
        let down = Interface { up: false, ..interface(LAN, &[]) };
        let tunnel = Interface { mac: None, ..interface(LAN, &[]) };
        for link in [down, tunnel] {
            let hops = NextHops::new(&[link], &routes, &neighbours);
            assert_eq!(hops.lookup(ip("10.0.0.7")), unresolved("10.0.0.7", LAN));
        }
    }

    #[test]
    fn both_families_share_the_table_without_meeting() {
        let routes = [route("::/0", WAN, Some("fe80::1")), route("10.0.0.0/8", LAN, None)];
        let neighbours = [neighbour(WAN, "fe80::1", 6), neighbour(LAN, "10.0.0.7", 4)];
        let hops = NextHops::new(&links(), &routes, &neighbours);
        assert_eq!((mac_to(&hops, "2001:db8::1"), mac_to(&hops, "10.0.0.7")), (6, 4));
        assert_eq!(hops.lookup(ip("192.0.2.9")), Err(Unreachable::NoRoute));
    }

    #[test]
    fn traffic_passes_where_the_vip_is_and_where_the_servers_are() {
        let routes = [route("10.0.0.0/24", LAN, None), route("0.0.0.0/0", WAN, Some("192.0.2.1"))];
        let [lan, wan] = links();
        let all = [loopback(&["127.0.0.1", "203.0.113.1"]), lan, wan, interface(9, &["10.9.0.1"])];
        let hops = NextHops::new(&all, &routes, &[]);
        let interfaces = |vip: &str, server: &str| -> Vec<u32> {
            hops.interfaces_for(&[ip(vip)], &[ip(server)]).into_iter().collect()
        };
        assert_eq!(interfaces("192.0.2.2", "10.0.0.7"), [LAN, WAN]);
        assert_eq!(interfaces("10.0.0.1", "10.0.0.7"), [LAN]);
        assert_eq!(
            interfaces("203.0.113.1", "10.0.0.7"),
            [LAN, WAN],
            "a VIP on lo comes in by the default route"
        );
    }
}
