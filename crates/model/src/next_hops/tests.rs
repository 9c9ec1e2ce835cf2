//! Tests of route lookups.

use super::*;
use crate::fixture::{self, interface};

const LAN: u32 = 2;
const WAN: u32 = 3;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn loopback(addresses: &[&str]) -> Interface {
    Interface { mac: Some([0; 6]), loopback: true, ..interface(1, addresses) }
}

/// Route to a network such as `10.0.0.0/8`, through an interface, and through a router if there is
/// one.
fn route(network: &str, interface: u32, gateway: Option<&str>) -> Route {
    fixture::route(network, interface, gateway.map(ip))
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

/// Last byte of the MAC address of the next hop to `dst`.
fn mac_to(hops: &NextHops, dst: &str) -> u8 {
    hops.get(hops.lookup(ip(dst)).unwrap()).unwrap().dst_mac[5]
}

#[test]
fn server_on_the_link_is_its_own_next_hop() {
    let routes = [route("10.0.0.0/24", LAN, None), route("0.0.0.0/0", WAN, Some("192.0.2.1"))];
    let hops = NextHops::new(
        &links(),
        routes.clone(),
        &[neighbour(LAN, "10.0.0.7", 7), neighbour(WAN, "192.0.2.1", 1)],
    );
    assert_eq!((mac_to(&hops, "10.0.0.7"), mac_to(&hops, "198.51.100.9")), (7, 1));
    let hop = hops.get(hops.lookup(ip("10.0.0.7")).unwrap()).unwrap();
    assert_eq!((hop.interface, hop.src_mac, hop.mtu), (LAN, [2, 0, 0, 0, 1, 2], 1500));
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
    let hops = NextHops::new(&links(), routes.clone(), &neighbours);
    assert_eq!(["10.1.9.9", "10.1.2.9", "10.1.2.3"].map(|dst| mac_to(&hops, dst)), [2, 3, 4]);
    assert_eq!(hops.lookup(ip("10.2.0.1")), Err(Unreachable::NoRoute));
}

#[test]
fn unresolved_next_hop_is_returned_with_its_interface() {
    let routes = [route("10.0.0.0/24", LAN, None), route("0.0.0.0/0", WAN, Some("192.0.2.1"))];
    let hops = NextHops::new(&links(), routes.clone(), &[]);
    assert_eq!(hops.lookup(ip("10.0.0.7")), unresolved("10.0.0.7", LAN));
    assert_eq!(hops.lookup(ip("198.51.100.9")), unresolved("192.0.2.1", WAN));
    let router = RouteHop::by(WAN, Some(ip("192.0.2.1")));
    assert_eq!(hops.hop_to(ip("198.51.100.9")), Some(router));
}

#[test]
fn packets_to_this_host_or_to_a_refused_network_go_nowhere() {
    let own = Route { table: Route::LOCAL, hops: vec![], ..route("10.0.0.1/32", LAN, None) };
    let blackhole = Route { hops: vec![], ..route("10.0.0.128/25", LAN, None) };
    let routes = [own, blackhole, route("10.0.0.0/24", LAN, None)];
    let hops = NextHops::new(&links(), routes.clone(), &[neighbour(LAN, "10.0.0.200", 1)]);
    assert_eq!(hops.lookup(ip("10.0.0.1")), Err(Unreachable::NoRoute));
    assert_eq!(hops.lookup(ip("10.0.0.200")), Err(Unreachable::NoRoute));
    assert_eq!(["10.0.0.1", "10.0.0.200"].map(|dst| hops.hop_to(ip(dst))), [None, None]);
    assert!(hops.is_own(ip("10.0.0.1")) && !hops.is_own(ip("10.0.0.2")));
}

#[test]
fn resolved_router_is_preferred_in_a_multipath_route() {
    let mut both = route("0.0.0.0/0", WAN, Some("192.0.2.1"));
    both.hops.push(RouteHop::by(WAN, Some(ip("192.0.2.3"))));
    let hops = NextHops::new(&links(), [both], &[neighbour(WAN, "192.0.2.3", 3)]);
    assert_eq!(mac_to(&hops, "198.51.100.9"), 3);
}

#[test]
fn resolved_router_is_preferred_among_routes_of_equal_metric() {
    let mut worse = route("::/0", LAN, Some("fe80::3"));
    worse.metric = 2000;
    let routes = [worse, route("::/0", WAN, Some("fe80::1")), route("::/0", WAN, Some("fe80::2"))];
    let hops = NextHops::new(
        &links(),
        routes.clone(),
        &[neighbour(LAN, "fe80::3", 3), neighbour(WAN, "fe80::2", 2)],
    );
    assert_eq!(mac_to(&hops, "2001:db8::1"), 2);
}

#[test]
fn next_hop_index_is_stable_and_follows_mac_changes() {
    let routes = [route("10.0.0.0/24", LAN, None)];
    let seven = neighbour(LAN, "10.0.0.7", 7);
    let before = NextHops::new(&links(), routes.clone(), &[seven]);
    let index = before.lookup(ip("10.0.0.7")).unwrap();

    let moved = neighbour(LAN, "10.0.0.7", 77);
    let after = before.update(&links(), routes.clone(), &[neighbour(LAN, "10.0.0.3", 3), moved]);
    assert_eq!(after.lookup(ip("10.0.0.7")), Ok(index));
    assert_eq!(after.get(index).unwrap().dst_mac[5], 77);
    assert_ne!(after.lookup(ip("10.0.0.3")), Ok(index));

    let gone = after.update(&links(), routes.clone(), &[]);
    assert_eq!(gone.get(index), None);
    assert_eq!(gone.lookup(ip("10.0.0.7")), unresolved("10.0.0.7", LAN));
    let back = gone.update(&links(), routes.clone(), &[neighbour(LAN, "10.0.0.9", 9), seven]);
    assert_eq!((back.lookup(ip("10.0.0.7")), mac_to(&back, "10.0.0.7")), (Ok(index), 7));
}

#[test]
fn interface_that_is_down_or_without_ethernet_is_unreachable() {
    let routes = [route("10.0.0.0/24", LAN, None)];
    let neighbours = [neighbour(LAN, "10.0.0.7", 7)];
    let down = Interface { up: false, ..interface(LAN, &[]) };
    let tunnel = Interface { mac: None, ..interface(LAN, &[]) };
    let without_ethernet = Err(Unreachable::NoEthernet { interface: LAN });
    for (link, expected) in [(down, unresolved("10.0.0.7", LAN)), (tunnel, without_ethernet)] {
        let hops = NextHops::new(&[link], routes.clone(), &neighbours);
        assert_eq!(hops.lookup(ip("10.0.0.7")), expected);
    }
}

#[test]
fn ipv4_and_ipv6_share_the_table_without_conflict() {
    let routes = [route("::/0", WAN, Some("fe80::1")), route("10.0.0.0/8", LAN, None)];
    let neighbours = [neighbour(WAN, "fe80::1", 6), neighbour(LAN, "10.0.0.7", 4)];
    let hops = NextHops::new(&links(), routes.clone(), &neighbours);
    assert_eq!((mac_to(&hops, "2001:db8::1"), mac_to(&hops, "10.0.0.7")), (6, 4));
    assert_eq!(hops.lookup(ip("192.0.2.9")), Err(Unreachable::NoRoute));
}

#[test]
fn traffic_passes_where_the_vip_is_and_where_the_servers_are() {
    let routes = [route("10.0.0.0/24", LAN, None), route("0.0.0.0/0", WAN, Some("192.0.2.1"))];
    let [lan, wan] = links();
    let all = [loopback(&["127.0.0.1", "203.0.113.1"]), lan, wan, interface(9, &["10.9.0.1"])];
    let hops = NextHops::new(&all, routes.clone(), &[]);
    let interfaces = |vip: &str, server: &str| -> Vec<u32> {
        hops.interfaces_for(&[ip(vip)], PathEnds { sources: &[], servers: &[ip(server)] })
            .into_iter()
            .collect()
    };
    assert_eq!(interfaces("192.0.2.2", "10.0.0.7"), [LAN, WAN]);
    assert_eq!(interfaces("10.0.0.1", "10.0.0.7"), [LAN]);
    assert_eq!(
        interfaces("203.0.113.1", "10.0.0.7"),
        [LAN, WAN],
        "a VIP on lo comes in by the default route"
    );
}

/// Route with an MTU.
fn narrow(network: &str, interface: u32, gateway: Option<&str>, mtu: u32) -> Route {
    let mut route = route(network, interface, gateway);
    route.hops[0].mtu = Some(mtu);
    route
}

fn mtu_to(hops: &NextHops, dst: &str) -> u32 {
    hops.get(hops.lookup(ip(dst)).unwrap()).unwrap().mtu
}

#[test]
fn packets_are_as_long_as_both_route_and_interface_take() {
    let routes = [
        route("0.0.0.0/0", WAN, Some("192.0.2.1")),
        narrow("198.51.100.0/24", WAN, Some("192.0.2.1"), 1400),
        narrow("203.0.113.0/24", WAN, Some("192.0.2.1"), 9000),
        narrow("10.0.0.0/24", LAN, None, 1300),
    ];
    let neighbours = [neighbour(WAN, "192.0.2.1", 1), neighbour(LAN, "10.0.0.7", 7)];
    let hops = NextHops::new(&links(), routes, &neighbours);
    let to = ["8.8.8.8", "198.51.100.9", "203.0.113.9", "10.0.0.7"];
    assert_eq!(to.map(|dst| mtu_to(&hops, dst)), [1500, 1400, 1500, 1300]);
    assert_eq!(to.map(|dst| mac_to(&hops, dst)), [1, 1, 1, 7]);
}

#[test]
fn packets_of_ipv6_are_as_long_as_its_interface_takes_of_these() {
    let narrow_v6 = |mtu_v6| [Interface { mtu_v6, ..interface(LAN, &[]) }];
    let routes = [
        route("10.0.0.0/24", LAN, None),
        route("fd00::/64", LAN, None),
        narrow("2001:db8::/32", LAN, Some("fd00::7"), 1400),
    ];
    let neighbours = [neighbour(LAN, "10.0.0.7", 7), neighbour(LAN, "fd00::7", 7)];
    let hops = NextHops::new(&narrow_v6(1300), routes.clone(), &neighbours);
    let to = ["10.0.0.7", "fd00::7", "2001:db8::9"];
    assert_eq!(to.map(|dst| mtu_to(&hops, dst)), [1500, 1300, 1300]);
    let hops = hops.update(&narrow_v6(1450), routes, &neighbours);
    assert_eq!(to.map(|dst| mtu_to(&hops, dst)), [1500, 1450, 1400]);
}

#[test]
fn flows_look_again_when_a_route_gets_another_mtu() {
    let routes = |mtu| [narrow("0.0.0.0/0", WAN, Some("192.0.2.1"), mtu)];
    let neighbours = [neighbour(WAN, "192.0.2.1", 1)];
    let before = NextHops::new(&links(), routes(1400), &neighbours);
    let index = before.lookup(ip("8.8.8.8")).unwrap();
    let after = before.update(&links(), routes(1300), &neighbours);
    assert!(after.moves_flows_of(&before));
    assert_eq!((after.get(index), mtu_to(&after, "8.8.8.8")), (None, 1300));
    let same = after.update(&links(), routes(1300), &neighbours);
    assert!(!same.moves_flows_of(&after));
}

#[test]
fn path_mtu_is_per_server_and_bounded_by_route_and_link() {
    let routes: Arc<[Route]> =
        [route("10.0.0.0/24", LAN, None), narrow("10.9.0.0/16", LAN, Some("10.0.0.9"), 1450)].into();
    let neighbours = vec![neighbour(LAN, "10.0.0.7", 7), neighbour(LAN, "10.0.0.9", 9)];
    let tables = |path_mtus: &[(&str, u32)]| NetworkTables {
        interfaces: links().to_vec(),
        routes: routes.clone(),
        neighbours: neighbours.clone(),
        path_mtus: Arc::new(path_mtus.iter().map(|(server, mtu)| (ip(server), *mtu)).collect()),
        ..NetworkTables::default()
    };
    let servers = ["10.0.0.7", "10.9.0.1", "10.9.0.2"];
    let before = NextHops::default().update_all(&tables(&[]));
    assert_eq!(servers.map(|server| mtu_to(&before, server)), [1500, 1450, 1450]);
    let wide = before.lookup(ip("10.9.0.1"));
    let told = before.update_all(&tables(&[("10.0.0.7", 1300), ("10.9.0.1", 1400), ("10.9.0.2", 9000)]));
    assert!(told.moves_flows_of(&before));
    assert_eq!(servers.map(|server| mtu_to(&told, server)), [1300, 1400, 1450]);
    assert_eq!(servers.map(|server| mac_to(&told, server)), [7, 9, 9]);
    let same = told.update(&links(), routes.clone(), &neighbours);
    assert!(!same.moves_flows_of(&told));
    assert_eq!(mtu_to(&same, "10.9.0.1"), 1400, "the kernel's tables change nothing of it");
    let after = same.update_all(&tables(&[]));
    assert!(after.moves_flows_of(&same));
    assert_eq!(after.lookup(ip("10.9.0.1")), wide);
}

#[test]
fn lookup_on_link_does_not_use_a_router() {
    let neighbours = [neighbour(LAN, "10.0.0.7", 7), neighbour(WAN, "192.0.2.1", 1)];
    let through =
        |routes: &[Route]| NextHops::new(&links(), routes, &neighbours).lookup_on_link(ip("10.0.0.7"));
    let (on_link, behind) = (route("10.0.0.0/24", LAN, None), route("0.0.0.0/0", WAN, Some("192.0.2.1")));
    assert!(through(&[on_link, behind.clone()]).is_ok());
    assert_eq!(through(&[behind]), Err(Unreachable::NotOnLink));
    assert_eq!(through(&[]), Err(Unreachable::NoRoute));
}

/// LAN with these hosts.
fn lan_of(before: &NextHops, hosts: impl Iterator<Item = u32>) -> NextHops {
    let host =
        |n: u32| Neighbour { interface: LAN, ip: [10, 1, (n >> 8) as u8, n as u8].into(), mac: [2; 6] };
    before.update(&links(), [route("10.0.0.0/8", LAN, None)], &hosts.map(host).collect::<Vec<_>>())
}

#[test]
fn indices_of_removed_hosts_are_reused_after_a_delay() {
    const MINUTE: u64 = 60_000_000_000;
    let mut hops = lan_of(&NextHops::default(), 0..2_000);
    hops.recycle(Timestamp(0));
    let stays = hops.lookup(ip("10.1.0.0")).unwrap();

    let mut left = lan_of(&hops, 0..1_000);
    left.recycle(Timestamp(1));
    assert!(!left.moves_flows_of(&hops), "a few more may come back");
    assert_eq!(lan_of(&left, 0..2_000).lookup(ip("10.1.7.0")), hops.lookup(ip("10.1.7.0")));

    let mut retired = lan_of(&left, 0..1);
    retired.recycle(Timestamp(2));
    assert!(retired.moves_flows_of(&left), "flows are taken off them");
    let mut soon = lan_of(&retired, 3_000..5_000);
    soon.recycle(Timestamp(MINUTE));
    assert!((3_000..5_000u32).all(|n| {
        let [_, _, high, low] = n.to_be_bytes();
        soon.lookup([10, 1, high, low].into()).unwrap() >= 2_000
    }));
    soon.recycle(Timestamp(MINUTE + 2));
    let later = lan_of(&soon, (0..1).chain(3_000..6_000));
    assert_eq!(later.lookup(ip("10.1.0.0")), Ok(stays));
    let [_, _, high, low] = 5_500u32.to_be_bytes();
    let again = later.lookup([10, 1, high, low].into()).unwrap();
    assert!(again < 2_000 && again != stays && soon.get(again).is_none());
}

#[test]
fn next_hop_table_is_bounded_on_a_link_of_forged_hosts() {
    let host = |n: u32| Neighbour { interface: LAN, ip: std::net::Ipv4Addr::from(n).into(), mac: [2; 6] };
    let forged: Vec<Neighbour> = (0..70_000).map(|n| host((10 << 24) + n)).collect();
    let hops = NextHops::new(&links(), [route("10.0.0.0/8", LAN, None)], &forged);
    let resolved = forged.iter().filter(|n| hops.lookup(n.ip).is_ok());
    assert_eq!(resolved.count(), NextHops::MAX_COUNT);
}

#[test]
fn broadcast_addresses_are_those_of_interfaces_and_of_the_kernel() {
    let address = |text, prefix_len| InterfaceAddress::new(ip(text), prefix_len);
    let details = vec![
        address("10.0.0.1", 8),
        address("10.8.0.0", 31),
        address("10.8.1.1", 32),
        address("10.7.0.6", 30),
        address("fd00::1", 64),
    ];
    let down = Interface { up: false, ..interface(4, &["203.0.113.1"]) };
    let links = [Interface { details, ..interface(LAN, &["10.0.0.1"]) }, links()[1].clone(), down];
    let listed = |table| Route { table, hops: vec![], is_broadcast: true, ..route("10.1.2.3/32", LAN, None) };
    let local = Route { prefix: ip("192.0.2.255"), ..listed(Route::LOCAL) };
    let routes = [
        route("0.0.0.0/0", WAN, Some("192.0.2.1")),
        route("10.9.0.0/16", LAN, None),
        // Route that is more specific than the networks of the interfaces.
        route("10.255.255.255/32", LAN, Some("10.0.0.9")),
        local,
        listed(7),
    ];
    let hops = NextHops::new(&links, routes.to_vec(), &[]);
    for (address, is_broadcast) in [
        ("10.255.255.255", true),
        ("192.0.2.255", true),
        ("10.7.0.7", true),
        ("10.1.2.3", true),
        ("192.0.2.127", false),
        ("10.9.255.255", false),
        ("10.8.0.1", false),
        ("10.8.1.1", false),
        ("203.0.113.255", false),
        ("198.51.100.255", false),
        ("255.255.255.255", false),
        ("fd00::ffff:ffff:ffff:ffff", false),
    ] {
        assert_eq!(hops.is_broadcast(ip(address)), is_broadcast, "{address}");
    }
}
