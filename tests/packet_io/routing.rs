//! Routing setups of hosts: for each source and destination, convey's route is compared with the
//! kernel's, and with that of a program.

mod program;
mod set_ups;

use std::net::IpAddr;

use convey_dataplane::net::{KernelRouteKind, Netlink, RouteQuery};
use convey_model::{NextHops, RouteHop};
use convey_testkit::{PATIENCE, TestNamespace};

use self::set_ups::{
    CLIENT, CLIENT6, DEFAULTS, SET_UPS_V4, SET_UPS_V6, SetUp, TO_V4, TO_V6, V4, V6, VIP, VIP6,
};
use super::next_hops::{block_on, ip, wait};
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        ways_of_ipv4_are_those_of_the_kernel,
        ways_of_ipv6_are_those_of_the_kernel,
        ways_follow_changes_of_rules_and_nexthop_objects,
        ipsec_policies_and_tunnels_of_routes_refuse_servers,
    ]
}

/// A host with the links `ea` and `eb`, and the host at their other ends.
fn host() -> (TestNamespace, TestNamespace) {
    let (host, peer) = (TestNamespace::new(), TestNamespace::new());
    host.ip("link set lo up");
    host.link(("ea", "02:00:00:00:00:0a"), &peer, ("ea", "02:00:00:00:00:1a"));
    host.link(("eb", "02:00:00:00:00:0b"), &peer, ("eb", "02:00:00:00:00:1b"));
    for line in [
        "addr add 10.1.0.1/24 dev ea",
        "addr add 10.1.0.77/32 dev ea",
        "addr add 10.2.0.1/24 dev eb",
        "addr add 10.9.9.9/32 dev ea",
        "addr add fd01::1/64 dev ea nodad",
        "addr add fd02::1/64 dev eb nodad",
        "addr add fd09::9/128 dev ea nodad",
        DEFAULTS,
        "-6 route add default via fd01::fe",
    ] {
        run(&host, &peer, line);
    }
    (host, peer)
}

fn run(host: &TestNamespace, peer: &TestNamespace, command: &str) {
    match command.split_once(' ') {
        Some(("peer", line)) => _ = peer.ip(line),
        Some(("sysctl", setting)) => _ = host.exec(&format!("sysctl -qw {setting}")),
        Some(("-6", _)) => _ = host.exec(&format!("ip {command}")),
        _ => _ = host.ip(command),
    }
}

/// Interface and router that the kernel chooses.
async fn of_kernel(netlink: &Netlink, source: IpAddr, destination: IpAddr) -> Option<(u32, Option<IpAddr>)> {
    let source = (!source.is_unspecified()).then_some(source);
    let query = RouteQuery { source, ..RouteQuery::to(destination) };
    let route = netlink.kernel_route(query).await.unwrap()?;
    (route.kind == KernelRouteKind::Unicast).then_some((route.interface, route.gateway))
}

fn of_convey(hops: &NextHops, source: IpAddr, destination: IpAddr) -> Vec<(u32, Option<IpAddr>)> {
    let way = |hop: &RouteHop| (hop.interface, hop.gateway);
    hops.hops_from(source, destination).iter().map(way).collect()
}

/// Whether both go the same way; of several the kernel takes one.
fn are_equal(kernel: Option<(u32, Option<IpAddr>)>, convey: &[(u32, Option<IpAddr>)]) -> bool {
    kernel.map_or(convey.is_empty(), |kernel| convey.contains(&kernel))
}

fn compare(set_up: &SetUp, sources: &[&str], destinations: &[&str]) {
    let (host, peer) = host();
    set_up.commands.iter().for_each(|command| run(&host, &peer, command));
    let (from, to, way) = set_up.way;
    let expected = way.split_once(' ').map(|(name, router)| (host.index(name), Some(ip(router))));
    let hops = host.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut table = netlink.table().await.unwrap();
            let mut hops = NextHops::default().update_all(&table);
            // The loss of a carrier is noticed a moment later.
            let settles = async {
                while of_kernel(&netlink, ip(from), ip(to)).await != expected
                    || !are_equal(expected, &of_convey(&hops, ip(from), ip(to)))
                {
                    netlink.changed().await;
                    netlink.update(&mut table).await.unwrap();
                    hops = hops.update_all(&table);
                }
            };
            let settled = tokio::time::timeout(PATIENCE, settles).await;
            for (from, to) in sources.iter().flat_map(|from| destinations.iter().map(move |to| (from, to))) {
                let kernel = of_kernel(&netlink, ip(from), ip(to)).await;
                let convey = of_convey(&hops, ip(from), ip(to));
                let name = set_up.name;
                assert!(are_equal(kernel, &convey), "{name}: {from} to {to}: {kernel:?}, not {convey:?}");
            }
            assert!(settled.is_ok(), "{}: {from} to {to}, not {way}", set_up.name);
            hops
        })
    });
    program::compare(set_up, (&host, &peer), (sources, destinations), &hops);
}

fn ways_of_ipv4_are_those_of_the_kernel() {
    SET_UPS_V4.iter().for_each(|set_up| compare(set_up, &V4, &TO_V4));
}

fn ways_of_ipv6_are_those_of_the_kernel() {
    SET_UPS_V6.iter().for_each(|set_up| compare(set_up, &V6, &TO_V6));
}

fn ways_follow_changes_of_rules_and_nexthop_objects() {
    let (host, peer) = host();
    host.exec("sysctl -qw net.ipv4.nexthop_compat_mode=0");
    host.ip("route add default via 10.2.0.254 table 200");
    let [a, b] = ["ea", "eb"].map(|name| host.index(name));
    let by = |interface, router: &str| vec![(interface, Some(ip(router)))];
    host.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            let way = |hops: &NextHops| of_convey(hops, ip(VIP), ip(CLIENT));
            wait(&netlink, &mut hops, |hops| way(hops) == by(a, "10.1.0.254")).await;
            let before = NextHops::default().update_all(&netlink.table().await.unwrap());
            host.ip("rule add from 10.9.9.9 lookup 200 prio 100");
            wait(&netlink, &mut hops, |hops| way(hops) == by(b, "10.2.0.254")).await;
            assert!(hops.moves_flows_of(&before));
            host.ip("rule del prio 100");
            wait(&netlink, &mut hops, |hops| way(hops) == by(a, "10.1.0.254")).await;
            host.ip("nexthop add id 7 via 10.2.0.254 dev eb");
            host.ip("route add 198.51.100.0/24 nhid 7");
            wait(&netlink, &mut hops, |hops| way(hops) == by(b, "10.2.0.254")).await;
            host.ip("nexthop replace id 7 via 10.2.0.253 dev eb");
            wait(&netlink, &mut hops, |hops| way(hops) == by(b, "10.2.0.253")).await;
            run(&host, &peer, "-6 rule add from fd09::9 prohibit");
            wait(&netlink, &mut hops, |hops| of_convey(hops, ip(VIP6), ip(CLIENT6)).is_empty()).await;
        });
    });
}

fn ipsec_policies_and_tunnels_of_routes_refuse_servers() {
    let (host, _peer) = host();
    let server = ip("10.2.0.2");
    let refusal = |hops: &NextHops| hops.refusal(ip("10.2.0.1"), server).unwrap_or_default();
    host.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            wait(&netlink, &mut hops, |hops| refusal(hops).is_empty() && hops.hop_to(server).is_some()).await;
            host.ip("xfrm policy add src 10.9.0.0/16 dst 10.2.0.0/24 dir out tmpl proto esp mode transport");
            host.ip("xfrm policy add src 10.2.0.1/32 dst 10.2.0.2/32 dir in tmpl proto esp mode transport");
            host.ip("xfrm policy add src 10.2.0.0/24 dst 10.2.0.2/32 dir out tmpl proto esp mode transport");
            wait(&netlink, &mut hops, |hops| refusal(hops).contains("IPsec")).await;
            // A policy of higher priority, which lets packets pass.
            host.ip("xfrm policy update src 10.2.0.0/24 dst 10.2.0.2/32 dir out priority 9 tmpl proto esp mode transport");
            host.ip("xfrm policy add src 10.2.0.1/32 dst 10.2.0.0/24 dir out priority 3");
            wait(&netlink, &mut hops, |hops| refusal(hops).is_empty()).await;
            host.ip("xfrm policy flush");
            host.ip("route add 10.2.0.2/32 encap seg6 mode encap segs fd02::7 dev eb");
            wait(&netlink, &mut hops, |hops| refusal(hops).contains("encapsulates")).await;
            host.ip("route del 10.2.0.2/32");
            wait(&netlink, &mut hops, |hops| refusal(hops).is_empty()).await;
        });
    });
}
