//! The kernel's tables, as they change.

use convey_dataplane::net::{Netlink, ReservedPorts, RouteQuery};
use convey_model::{NextHops, PathEnds, Unreachable};
use convey_testkit::TestNamespace;

use super::next_hops::{ROUTER, block_on, ip, ours, pair, router_advertisement, wait, with_servers};
use super::packet::send;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        next_hops_follow_neighbours_and_routes,
        next_hops_of_ipv6_lead_through_link_local_routers,
        packets_are_as_long_as_a_route_takes,
        packets_of_ipv6_are_as_long_as_its_routers_and_settings_say,
        frames_are_handed_to_the_veth_peer_unless_a_qdisc_is_attached,
        sources_are_those_that_the_kernel_chooses,
        traffic_passes_where_the_kernel_has_the_vip_and_the_servers,
        broadcast_addresses_are_those_that_the_kernel_lists,
        snat_ports_are_reserved_and_what_was_reserved_before_stays,
        reserved_ports_stay_until_their_last_user_is_gone,
        reserved_ports_of_another_network_namespace_are_its_own,
    ]
}

const SYSCTL: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

fn next_hops_follow_neighbours_and_routes() {
    let (balancer, server) = pair();
    let link = balancer.index("back");
    let unresolved = |address| Err(Unreachable::Unresolved { ip: ip(address), interface: link });
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("10.79.0.2")) == unresolved("10.79.0.2")).await;
            assert_eq!(hops.lookup(ip("10.79.0.1")), Err(Unreachable::NoRoute), "our own address");
            assert_eq!(hops.lookup(ip("198.51.100.1")), Err(Unreachable::NoRoute));

            netlink.resolve(ours("10.79.0.2", link)).await.unwrap();
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("10.79.0.2")).is_ok()).await;
            let index = hops.lookup(ip("10.79.0.2")).unwrap();
            let hop = *hops.get(index).unwrap();
            assert_eq!((hop.interface, hop.mtu), (link, 1500));
            assert_eq!((hop.src_mac, hop.dst_mac), ([2, 0, 0, 0, 0, 0x0b], [2, 0, 0, 0, 0, 5]));
            assert!(balancer.ip("neigh show 10.79.0.2").contains("managed"));

            // Announced by the server, as a virtual machine that moves does.
            server.exec("sysctl -qw net.ipv4.conf.eth0.arp_notify=1");
            server.ip("link set eth0 address 02:00:00:00:00:55");
            let mac = |hops: &NextHops| hops.get(index).map(|hop| hop.dst_mac);
            wait(&netlink, &mut hops, |hops| mac(hops) == Some([2, 0, 0, 0, 0, 0x55])).await;

            balancer.ip("route add 198.51.100.0/24 via 10.79.0.2");
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("198.51.100.1")) == Ok(index)).await;
            balancer.ip("route replace 198.51.100.0/24 via 10.79.0.3");
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("198.51.100.1")) == unresolved("10.79.0.3"))
                .await;
            balancer.ip("route del 198.51.100.0/24");
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("198.51.100.1")) == Err(Unreachable::NoRoute))
                .await;

            balancer.ip("link set back down");
            wait(&netlink, &mut hops, |hops| hops.get(index).is_none()).await;
        });
    });
}

fn next_hops_of_ipv6_lead_through_link_local_routers() {
    let (balancer, server) = pair();
    let link = balancer.index("back");
    let unresolved = |address| Err(Unreachable::Unresolved { ip: ip(address), interface: link });
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            // An address is there a little before its route.
            let is_own = |hops: &NextHops, ours| {
                hops.is_own(ip(ours)) && hops.lookup(ip(ours)) == Err(Unreachable::NoRoute)
            };
            wait(&netlink, &mut hops, |hops| {
                is_own(hops, "fd79::1") && hops.lookup(ip("fd79::2")) == unresolved("fd79::2")
            })
            .await;
            assert_eq!(hops.lookup(ip("2001:db8::1")), Err(Unreachable::NoRoute));

            balancer.ip(&format!("route add default via {ROUTER} dev back"));
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("2001:db8::1")) == unresolved(ROUTER)).await;
            netlink.resolve(ours(ROUTER, link)).await.unwrap();
            netlink.resolve(ours("fd79::2", link)).await.unwrap();
            wait(&netlink, &mut hops, |hops| {
                ["2001:db8::1", "fd79::2"].iter().all(|dst| hops.lookup(ip(dst)).is_ok())
            })
            .await;
            let router = hops.lookup(ip("2001:db8::1")).unwrap();
            assert_ne!(hops.lookup(ip("fd79::2")), Ok(router), "two addresses of one machine");
            assert_eq!(hops.get(router).unwrap().dst_mac, [2, 0, 0, 0, 0, 5]);
            for neighbour in ["fd79::2", ROUTER] {
                assert!(balancer.ip(&format!("neigh show {neighbour}")).contains("managed"));
            }

            // Announced, as by a router that takes over from another.
            server.exec("sysctl -qw net.ipv6.conf.eth0.ndisc_notify=1");
            server.ip("link set eth0 address 02:00:00:00:00:55");
            let server_mac = |hops: &NextHops| {
                hops.lookup(ip("fd79::2")).ok().and_then(|i| hops.get(i)).map(|h| h.dst_mac)
            };
            wait(&netlink, &mut hops, |hops| server_mac(hops) == Some([2, 0, 0, 0, 0, 0x55])).await;

            balancer.ip("route add 2001:db8::/32 via fd79::3");
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("2001:db8::1")) == unresolved("fd79::3")).await;
            balancer.ip("addr add 2001:db8::1/128 dev lo");
            wait(&netlink, &mut hops, |hops| is_own(hops, "2001:db8::1")).await;
        });
    });
}

fn packets_are_as_long_as_a_route_takes() {
    let (balancer, _server) = pair();
    let link = balancer.index("back");
    balancer.enter(|| {
        block_on(async {
            let (netlink, mut hops) = (with_servers(link).await, NextHops::default());
            balancer.ip("route add 198.51.100.0/24 via 10.79.0.2 mtu 1400");
            balancer.ip("route add 203.0.113.0/24 via 10.79.0.2 mtu lock 1300");
            balancer.ip("route add 192.0.2.0/24 via 10.79.0.2");
            balancer.ip("route add 2001:db8::/32 via fd79::2 mtu 1350");
            let ways =
                [("198.51.100.1", 1400), ("203.0.113.1", 1300), ("192.0.2.1", 1500), ("2001:db8::1", 1350)];
            let mtu = |hops: &NextHops, dst: &str| Some(hops.get(hops.lookup(ip(dst)).ok()?)?.mtu);
            wait(&netlink, &mut hops, |hops| ways.iter().all(|(dst, len)| mtu(hops, dst) == Some(*len)))
                .await;
            balancer.ip("route change 198.51.100.0/24 via 10.79.0.2 mtu 1380");
            wait(&netlink, &mut hops, |hops| mtu(hops, "198.51.100.1") == Some(1380)).await;
        });
    });
}

fn packets_of_ipv6_are_as_long_as_its_routers_and_settings_say() {
    let (balancer, server) = pair();
    let link = balancer.index("back");
    balancer.enter(|| {
        block_on(async {
            let (netlink, mut hops) = (with_servers(link).await, NextHops::default());
            let mtus = |hops: &NextHops| {
                ["10.79.0.2", "fd79::2"].map(|dst| Some(hops.get(hops.lookup(ip(dst)).ok()?)?.mtu))
            };
            wait(&netlink, &mut hops, |hops| mtus(hops) == [Some(1500), Some(1500)]).await;
            send(&server, "eth0", &[router_advertisement(ROUTER, &[5, 1, 0, 0, 0, 0, 5, 120])]);
            wait(&netlink, &mut hops, |hops| mtus(hops) == [Some(1500), Some(1400)]).await;

            let mut table = netlink.table().await.unwrap();
            balancer.exec("sysctl -qw net.ipv6.conf.back.mtu=1300");
            assert!(netlink.refresh_links(&mut table).await.unwrap());
            let hops = hops.update(&table.interfaces, table.routes.clone(), &table.neighbours);
            assert_eq!(mtus(&hops), [Some(1500), Some(1300)]);
            assert!(!netlink.refresh_links(&mut table).await.unwrap(), "nothing has changed");
        });
    });
}

fn frames_are_handed_to_the_veth_peer_unless_a_qdisc_is_attached() {
    let (balancer, server) = pair();
    let link = balancer.index("back");
    balancer.enter(|| {
        block_on(async {
            let (netlink, mut hops) = (with_servers(link).await, NextHops::default());
            let is_handed_over =
                |hops: &NextHops| Some(hops.get(hops.lookup(ip("10.79.0.2")).ok()?)?.redirect_peer);
            wait(&netlink, &mut hops, |hops| is_handed_over(hops) == Some(true)).await;

            let mut table = netlink.table().await.unwrap();
            for (command, expected) in [("add dev back root pfifo", false), ("del dev back root", true)] {
                balancer.exec(&format!("tc qdisc {command}"));
                assert!(netlink.refresh_links(&mut table).await.unwrap(), "{command}");
                let back = table.interfaces.iter().find(|interface| interface.index == link).unwrap();
                assert_eq!(back.redirect_peer, expected, "{command}");
            }

            server.ip(&format!("link set eth0 netns {}", balancer.name()));
            balancer.ip("link set eth0 up");
            balancer.ip("neigh replace 10.79.0.2 lladdr 02:00:00:00:00:05 dev back nud permanent");
            wait(&netlink, &mut hops, |hops| is_handed_over(hops) == Some(false)).await;
        });
    });
}

/// Addresses of all kinds on two links, and routes by routers and with sources of their own.
fn sources_are_those_that_the_kernel_chooses() {
    let (balancer, server) = pair();
    balancer.link(("side", "02:00:00:00:01:0b"), &server, ("eth1", "02:00:00:00:01:05"));
    for line in [
        "addr add 10.79.7.1/24 dev back",
        "addr add 10.5.0.1/24 dev back",
        "addr add 10.79.0.3/32 dev back",
        "addr add 10.79.0.9/24 dev back",
        "addr add 10.80.0.4/24 dev side",
        "addr add 10.80.0.3/24 dev side",
        "addr add 10.99.0.1/32 dev lo",
        "route add 10.6.0.0/16 via 10.79.0.254",
        "route add 10.7.0.0/16 via 10.79.7.254",
        "route add 10.8.0.0/16 via 10.80.0.254 src 10.99.0.1",
        "route add 10.9.0.0/16 via 10.44.0.1 dev side onlink",
        "addr add fd79::1:1/64 dev back nodad preferred_lft 0",
        "addr add fd79::7:1/112 dev back nodad",
        "addr add 2001:db8:79::1/64 dev back nodad",
        "addr add 2001:db8:80::1/64 dev side nodad",
        "addr add fd80::1/64 dev side nodad preferred_lft 0",
        "addr add fd99::1/128 dev lo nodad",
        "route add 2001:db8:6::/48 via fd79::2",
        "route add fd06::/48 via fd79::2",
        "route add 2001:db8:8::/48 via 2001:db8:80::2 src fd99::1",
    ] {
        balancer.ip(line);
    }
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            let fd79 = ip("fd79::1");
            let is_unique = |hops: &NextHops| hops.own_address(fd79).is_some_and(|own| !own.is_tentative);
            wait(&netlink, &mut hops, is_unique).await;
            for dst in [
                "10.79.0.2",
                "10.79.7.2",
                "10.5.0.2",
                "10.80.0.2",
                "10.6.0.1",
                "10.7.0.1",
                "10.8.0.1",
                "10.9.0.1",
                "fd79::2",
                "fd79::7:2",
                "2001:db8:79::2",
                "2001:db8:80::2",
                "fd80::2",
                "2001:db8:6::1",
                "fd06::1",
                "2001:db8:8::1",
            ] {
                let kernel = netlink.kernel_route(RouteQuery::to(ip(dst))).await.unwrap().unwrap();
                assert_eq!(hops.source_to(ip(dst), |_| true), kernel.source, "to {dst}");
            }
        });
    });
}

fn traffic_passes_where_the_kernel_has_the_vip_and_the_servers() {
    let (balancer, _server) = pair();
    let client = TestNamespace::new();
    client.link(("eth0", "02:00:00:00:00:0c"), &balancer, ("front", "02:00:00:00:01:0b"));
    balancer.ip("addr add 203.0.113.1/24 dev front");
    let (front, back) = (balancer.index("front"), balancer.index("back"));
    let table = balancer.enter(|| block_on(async { Netlink::open().unwrap().table().await.unwrap() }));
    let hops = NextHops::new(&table.interfaces, table.routes, &table.neighbours);
    let interfaces =
        hops.interfaces_for(&[ip("203.0.113.1")], PathEnds { sources: &[], servers: &[ip("10.79.0.2")] });
    assert_eq!(interfaces, [front, back].into());
    let named: Vec<_> = table.interfaces.iter().map(|i| (i.name.as_str(), i.loopback)).collect();
    assert!(named.contains(&("lo", true)) && named.contains(&("front", false)));
    assert!(hops.is_own(ip("203.0.113.1")) && hops.is_own(ip("127.0.0.1")));
}

fn broadcast_addresses_are_those_that_the_kernel_lists() {
    let (balancer, _server) = pair();
    balancer.ip("addr add 10.80.0.1/24 brd 10.80.0.200 dev back");
    balancer.ip("route add 10.79.0.255/32 via 10.79.0.2");
    balancer.ip("route add 10.81.0.0/24 dev back");
    balancer.ip("rule add from 10.79.0.0/24 lookup 7");
    balancer.ip("route add 10.79.0.0/25 dev back table 7");
    balancer.ip("route add broadcast 10.82.0.9 dev back table 7");
    let table = balancer.enter(|| block_on(async { Netlink::open().unwrap().table().await.unwrap() }));
    let hops = NextHops::default().update_all(&table);
    for (address, is_broadcast) in [
        ("10.79.0.255", true),
        ("10.80.0.200", true),
        ("10.80.0.255", true),
        ("10.82.0.9", true),
        ("10.79.0.127", false),
        ("10.79.0.2", false),
        ("10.81.0.255", false),
    ] {
        assert_eq!(hops.is_broadcast(ip(address)), is_broadcast, "{address}");
    }
}

fn snat_ports_are_reserved_and_what_was_reserved_before_stays() {
    let namespace = TestNamespace::new();
    for before in ["", "40000,62000-62010"] {
        namespace.enter(|| {
            let now = || std::fs::read_to_string(SYSCTL).unwrap().trim().to_owned();
            std::fs::write(SYSCTL, format!("{before}\n")).unwrap();
            let reserved = ReservedPorts::add(33768..=61000).unwrap();
            assert!(now().starts_with("33768-61000"), "{}", now());
            drop(reserved);
            assert_eq!(now(), before);
        });
    }
}

fn reserved() -> String {
    std::fs::read_to_string(SYSCTL).unwrap().trim().to_owned()
}

fn reserved_ports_stay_until_their_last_user_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    TestNamespace::new().enter(|| {
        std::fs::write(SYSCTL, "40000,62000\n").unwrap();
        let add = |ports| ReservedPorts::recorded_in(directory.path(), ports).unwrap();
        // Two with the same ports, of other addresses.
        let (first, second) = (add(39_000..=41_000), add(39_000..=41_000));
        let third = add(40_500..=42_000);
        drop(first);
        assert_eq!(reserved(), "39000-42000,62000");
        drop(second);
        assert_eq!(reserved(), "40000,40500-42000,62000");
        drop(third);
        assert_eq!(reserved(), "40000,62000");
        let files = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files, 1, "the lock");
    });
}

fn reserved_ports_of_another_network_namespace_are_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let add = || ReservedPorts::recorded_in(directory.path(), 39_000..=41_000).unwrap();
    let (one, other) = (TestNamespace::new(), TestNamespace::new());
    let (first, second) = (one.enter(add), other.enter(add));
    one.enter(|| {
        drop(first);
        assert_eq!(reserved(), "");
    });
    other.enter(|| {
        assert_eq!(reserved(), "39000-41000");
        drop(second);
        assert_eq!(reserved(), "");
    });
}
