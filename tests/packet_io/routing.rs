//! Routing set-ups of hosts: the kernel's way for each source and destination beside that of convey.

use std::net::IpAddr;

use convey::model::{NextHops, RouteHop};
use convey::net::{KernelRouteKind, Netlink, RouteQuery};
use convey_testkit::{PATIENCE, TestNamespace};

use super::next_hops::{block_on, ip, wait};
use super::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        ways_of_ipv4_are_those_of_the_kernel,
        ways_of_ipv6_are_those_of_the_kernel,
        ways_follow_changes_of_rules_and_nexthop_objects,
        ipsec_policies_and_tunnels_of_routes_refuse_servers,
    ]
}

/// A host set up by these commands of `ip`. Those that begin with `peer` are for the host on its links, those with `sysctl` are
/// settings.
struct SetUp {
    name: &'static str,
    commands: &'static [&'static str],
    /// Source, destination, and interface and router of the way between them; `none` where there is no way.
    way: (&'static str, &'static str, &'static str),
}

const fn set_up(
    name: &'static str,
    commands: &'static [&'static str],
    way: (&'static str, &'static str, &'static str),
) -> SetUp {
    SetUp { name, commands, way }
}

const VIP: &str = "10.9.9.9";
const CLIENT: &str = "198.51.100.9";
const V4: [&str; 5] = [VIP, "10.1.0.1", "10.2.0.1", "10.1.0.77", "0.0.0.0"];
const TO_V4: [&str; 7] =
    [CLIENT, "198.51.100.200", "203.0.113.7", "10.1.0.2", "10.2.0.2", "10.1.0.77", "192.0.2.1"];

const DEFAULTS: &str = "route add default via 10.1.0.254";

/// Every one begins with a default route by 10.1.0.254.
const SET_UPS_V4: &[SetUp] = &[
    set_up("default route", &[], (VIP, CLIENT, "ea 10.1.0.254")),
    set_up(
        "rule from the VIP",
        &["route add default via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule from the VIP, and another source",
        &["route add default via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200"],
        ("10.1.0.1", CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule to a network",
        &["route add default via 10.2.0.254 table 200", "rule add to 198.51.100.0/25 lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule from and to",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from 10.9.9.0/24 to 198.51.100.0/25 lookup 200",
        ],
        (VIP, "198.51.100.200", "ea 10.1.0.254"),
    ),
    set_up(
        "rule with a table that has no such route",
        &["route add 203.0.113.0/24 via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule with an empty table",
        &["rule add from 10.9.9.9 lookup 201"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rules by priority",
        &[
            "route add default via 10.2.0.254 table 200",
            "route add default via 10.2.0.253 table 201",
            "rule add from all lookup 200 prio 2000",
            "rule add from 10.9.9.9 lookup 201 prio 1000",
        ],
        (VIP, CLIENT, "eb 10.2.0.253"),
    ),
    set_up(
        "rule after the table main",
        &["route add default via 10.2.0.254 table 200", "rule add from 10.9.9.9 lookup 200 prio 32800"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "table main without its default route",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add lookup main suppress_prefixlength 0 prio 100",
            "rule add from 10.9.9.9 lookup 200 prio 101",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "table main without short prefixes",
        &[
            "route add 198.51.0.0/16 via 10.1.0.253",
            "route add default via 10.2.0.254 table 200",
            "rule add lookup main suppress_prefixlength 16 prio 100",
            "rule add from 10.9.9.9 lookup 200 prio 101",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rules of WireGuard",
        &[
            "route add default via 10.2.0.254 table 51820",
            "rule add not fwmark 51820 lookup 51820 prio 101",
            "rule add lookup main suppress_prefixlength 0 prio 100",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule with a mark",
        &["route add default via 10.2.0.254 table 200", "rule add fwmark 7 lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule with a mask of the mark alone",
        &["route add default via 10.2.0.254 table 200", "rule add fwmark 0/0xff lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule with TOS",
        &["route add default via 10.2.0.254 table 200", "rule add tos 0x10 lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule for what this host sends",
        &["route add default via 10.2.0.254 table 200", "rule add iif lo lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "rule for what comes in",
        &["route add default via 10.2.0.254 table 200", "rule add iif ea lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "rule for programs bound to an interface",
        &["route add default via 10.2.0.254 table 200", "rule add oif eb lookup 200"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "inverted rule",
        &["route add default via 10.2.0.254 table 200", "rule add not from 10.1.0.0/24 lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "inverted rule of an interface",
        &["route add default via 10.2.0.254 table 200", "rule add not iif ea lookup 200"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up("prohibit", &["rule add from 10.9.9.9 to 198.51.100.0/24 prohibit"], (VIP, CLIENT, "none")),
    set_up("blackhole", &["rule add to 198.51.100.0/24 blackhole"], (VIP, CLIENT, "none")),
    set_up("unreachable", &["rule add from 10.9.9.9 unreachable"], (VIP, "10.1.0.2", "none")),
    set_up(
        "goto",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from 10.9.9.9 lookup 200 prio 300",
            "rule add to 203.0.113.0/24 goto 32766 prio 100",
            "rule add from all nop prio 200",
        ],
        (VIP, "203.0.113.7", "ea 10.1.0.254"),
    ),
    set_up(
        "goto nowhere",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from 10.9.9.9 lookup 200 prio 300",
            "rule add to 203.0.113.0/24 goto 250 prio 100",
        ],
        (VIP, "203.0.113.7", "eb 10.2.0.254"),
    ),
    set_up(
        "throw",
        &[
            "route add default via 10.2.0.254 table 200",
            "route add throw 203.0.113.0/24 table 200",
            "rule add from 10.9.9.9 lookup 200",
        ],
        (VIP, "203.0.113.7", "ea 10.1.0.254"),
    ),
    set_up(
        "blackhole route in a table of its own",
        &["route add blackhole default table 200", "rule add from 10.9.9.9 lookup 200"],
        (VIP, CLIENT, "none"),
    ),
    set_up(
        "suppressed table with a blackhole route",
        &[
            "route add blackhole default table 200",
            "rule add from 10.9.9.9 lookup 200 suppress_prefixlength 0",
        ],
        (VIP, CLIENT, "none"),
    ),
    set_up(
        "table local later than others",
        &[
            "route add default via 10.2.0.254 table 200",
            "rule add from all lookup local prio 500",
            "rule add from 10.9.9.9 lookup 200 prio 100",
            "rule del prio 0",
        ],
        (VIP, "10.1.0.77", "eb 10.2.0.254"),
    ),
    set_up(
        "no rules but for one table",
        &["route add default via 10.2.0.254 table 200", "rule add lookup 200 prio 5", "rule del prio 32766"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "metrics",
        &["route add default via 10.2.0.254 metric 5", "route add default via 10.2.0.253 metric 700"],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up("route with TOS", &["route add default tos 0x10 via 10.2.0.254"], (VIP, CLIENT, "ea 10.1.0.254")),
    set_up(
        "carrier lost, and routes without it ignored",
        &[
            "sysctl net.ipv4.conf.eb.ignore_routes_with_linkdown=1",
            "route add 198.51.100.0/24 via 10.2.0.254",
            "peer link set eb down",
        ],
        (VIP, CLIENT, "ea 10.1.0.254"),
    ),
    set_up(
        "carrier lost",
        &["route add 198.51.100.0/24 via 10.2.0.254", "peer link set eb down"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "nexthop object",
        &["nexthop add id 7 via 10.2.0.254 dev eb", "route add 198.51.100.0/24 nhid 7"],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "nexthop object that its route alone names",
        &[
            "sysctl net.ipv4.nexthop_compat_mode=0",
            "nexthop add id 7 via 10.2.0.254 dev eb",
            "route add 198.51.100.0/24 nhid 7",
        ],
        (VIP, CLIENT, "eb 10.2.0.254"),
    ),
    set_up(
        "blackhole among nexthop objects",
        &[
            "sysctl net.ipv4.nexthop_compat_mode=0",
            "nexthop add id 8 blackhole",
            "route add 198.51.100.0/24 nhid 8",
        ],
        (VIP, CLIENT, "none"),
    ),
    set_up(
        "router of the other family",
        &["route add 198.51.100.0/24 via inet6 fd02::fe dev eb"],
        (VIP, CLIENT, "eb fd02::fe"),
    ),
];

const VIP6: &str = "fd09::9";
const CLIENT6: &str = "2001:db8:77::9";
const V6: [&str; 4] = [VIP6, "fd01::1", "fd02::1", "::"];
const TO_V6: [&str; 4] = [CLIENT6, "2001:db8:78::7", "fd01::2", "fd02::2"];

/// Every one begins with a default route by fd01::fe.
const SET_UPS_V6: &[SetUp] = &[
    set_up("default route", &[], (VIP6, CLIENT6, "ea fd01::fe")),
    set_up(
        "rule from the VIP",
        &["-6 route add default via fd02::fe table 200", "-6 rule add from fd09::9 lookup 200"],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
    set_up(
        "table main without its default route",
        &[
            "-6 route add default via fd02::fe table 200",
            "-6 rule add lookup main suppress_prefixlength 0 prio 100",
            "-6 rule add from fd09::9 lookup 200 prio 101",
        ],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
    set_up("prohibit", &["-6 rule add to 2001:db8:77::/48 prohibit"], (VIP6, CLIENT6, "none")),
    set_up(
        "default route of another source",
        &["-6 route add default from 2001:db8:5::/48 via fd02::fe metric 10"],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "default route of the VIP's network",
        &["-6 route add default from fd09::/64 via fd02::fe metric 2000"],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
    set_up(
        "longer of two sources",
        &[
            "-6 route add default from fd09::/64 via fd02::fe",
            "-6 route add default from fd09::9/128 via fd02::fd",
        ],
        (VIP6, CLIENT6, "eb fd02::fd"),
    ),
    set_up(
        "network with routes of other sources",
        &[
            "-6 route add 2001:db8:77::/48 via fd02::fe",
            "-6 route add 2001:db8:77::/48 from 2001:db8:5::/48 via fd02::fd",
        ],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "network with routes of this source",
        &["-6 route add 2001:db8:77::/48 from fd09::/64 via fd02::fd"],
        (VIP6, CLIENT6, "eb fd02::fd"),
    ),
    set_up(
        "carrier lost, and routes without it ignored",
        &[
            "sysctl net.ipv6.conf.eb.ignore_routes_with_linkdown=1",
            "-6 route add 2001:db8:77::/48 via fd02::fe",
            "peer link set eb down",
        ],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "throw",
        &[
            "-6 route add default via fd02::fe table 200",
            "-6 route add throw 2001:db8:77::/48 table 200",
            "-6 rule add from fd09::9 lookup 200",
        ],
        (VIP6, CLIENT6, "ea fd01::fe"),
    ),
    set_up(
        "nexthop object that its route alone names",
        &[
            "sysctl net.ipv4.nexthop_compat_mode=0",
            "nexthop add id 7 via fd02::fe dev eb",
            "-6 route add 2001:db8:77::/48 nhid 7",
        ],
        (VIP6, CLIENT6, "eb fd02::fe"),
    ),
];

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
    host.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut table = netlink.table().await.unwrap();
            let mut hops = NextHops::default().update_all(&table);
            // A carrier that is lost is known a moment later.
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
        });
    });
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
            // A policy that goes first, and lets packets pass.
            host.ip("xfrm policy update src 10.2.0.0/24 dst 10.2.0.2/32 dir out priority 9 tmpl proto esp mode transport");
            host.ip("xfrm policy add src 10.2.0.1/32 dst 10.2.0.0/24 dir out priority 3");
            wait(&netlink, &mut hops, |hops| refusal(hops).is_empty()).await;
            host.ip("xfrm policy flush");
            host.ip("route add 10.2.0.2/32 encap seg6 mode encap segs fd02::7 dev eb");
            wait(&netlink, &mut hops, |hops| refusal(hops).contains("tunnel")).await;
            host.ip("route del 10.2.0.2/32");
            wait(&netlink, &mut hops, |hops| refusal(hops).is_empty()).await;
        });
    });
}
