//! SYNs that reach workers while a flood of forged ones is on.

use std::net::SocketAddr;
use std::time::Duration;

use convey_dataplane::SynLimit;
use convey_dataplane::testing::Outcome;
use convey_dataplane::testing::Rate;
use convey_model::{Endpoint, Mode};
use convey_wire::TestPacket;

use super::balancer::BalancerSetup;
use super::filter::{FilteredCache, tcp};
use super::kernel;
use super::twin::{Twin, US, client, is_tcp, selection, setups};
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        forged_syns_are_all_refused,
        a_client_is_heard_when_it_asks_again,
        syn_repeated_at_once_is_not_accepted_as_a_retransmission,
        syns_from_a_network_with_a_completed_connection_are_accepted_at_once,
        networks_that_connections_were_completed_from_in_peace_are_known,
        a_syn_that_is_sent_again_and_again_is_heard_twice,
        strangers_push_no_known_network_out,
        strangers_are_heard_no_more_often_than_they_may_all_together,
        a_network_is_heard_again_in_time,
        syns_that_are_not_for_a_frontend_are_left_alone,
        xdp_drops_refused_syns_and_tc_leaves_them_to_the_guard,
        without_a_limit_every_syn_is_heard,
        syns_in_disguise_are_heard_of_networks_that_have_completed_a_connection,
        segments_of_servers_in_disguise_pass_in_a_flood,
        disguised_segments_of_servers_pass_where_a_vip_is_a_snat_address,
        errors_in_disguise_pass_in_a_flood,
    ]
}

const HOUR: Duration = Duration::from_secs(3600);

/// Three SYNs of a network and two of strangers are allowed, and the next one only after an hour.
const FEW: SynLimit =
    SynLimit { network: Rate { interval: HOUR, burst: 3 }, strangers: Rate { interval: HOUR, burst: 2 } };

/// A tick of the clock that limits are held against, at the least ticks that kernels have, and some
/// of another.
const TICK: u64 = 20_000_000;

/// Addresses of the frontend, a client, another client in its network, and a client in another
/// network.
const FAMILIES: [(&str, &str, &str, &str); 2] = [
    ("203.0.113.1:80", "198.51.100.9", "198.51.100.200", "198.51.101.9"),
    ("[2001:db8::1]:80", "[2001:db8:7::9]", "[2001:db8:7:ff::1]", "[2001:db8:8::9]"),
];

fn limited(limit: SynLimit) -> FilteredCache {
    let mut filter = FilteredCache::new();
    filter.0.limit_syns(Some(&limit)).unwrap();
    filter
}

fn syn(from: &str, to: &str) -> TestPacket {
    TestPacket::from(from).to(to).syn()
}

/// Sends a SYN until the filter accepts it. Returns the time that it took, in nanoseconds.
fn until_accepted(filter: &mut FilteredCache, syn: &TestPacket) -> u64 {
    let begin = kernel::now();
    while !filter.accepts(syn.clone()) {
        assert!(kernel::now() - begin < 10_000_000_000, "it is never heard");
    }
    kernel::now() - begin
}

fn forged_syns_are_all_refused() {
    for (vip, client, ..) in FAMILIES {
        let mut filter = limited(FEW);
        let accepted_after =
            (1..=1000).filter(|n| filter.accepts(syn(&format!("{client}:{n}"), vip).seq(n * 7919)));
        assert_eq!(accepted_after.count(), 0);
        assert_eq!(filter.0.syns_refused().unwrap(), 1000);
        assert!(filter.accepts(tcp(&format!("{client}:1"), vip)), "connections go on");
        assert!(filter.accepts(syn(&format!("{client}:1"), vip).ack(1)), "that opens nothing");
    }
}

fn a_client_is_heard_when_it_asks_again() {
    for (vip, client, ..) in FAMILIES {
        let mut filter = limited(FEW);
        let syns = [1, 2].map(|port| syn(&format!("{client}:{port}"), vip).seq(77));
        let other = syn(&format!("{client}:1"), vip).seq(78);
        assert!(!filter.accepts(syns[0].clone()) && !filter.accepts(syns[1].clone()));
        until_accepted(&mut filter, &syns[0]);
        assert!(!filter.accepts(other), "that is the first of another connection");
        // Its first SYN came a little later, more so on a busy machine.
        until_accepted(&mut filter, &syns[1]);
        assert_eq!(filter.0.count(Outcome::CameAgain).unwrap(), 2);
    }
}

fn syn_repeated_at_once_is_not_accepted_as_a_retransmission() {
    let mut filter = limited(FEW);
    let waited = until_accepted(&mut filter, &syn("198.51.100.9:1", "203.0.113.1:80"));
    assert!(waited > 500_000_000 - TICK, "after {waited} ns");
}

fn syns_from_a_network_with_a_completed_connection_are_accepted_at_once() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let (neighbour, other) = match setup.is_v6 {
            true => ("[2001:db8:9:ff::1]:1", "[2001:db8:8::7]:1"),
            false => ("198.51.100.200:1", "198.51.101.7:1"),
        };
        let hears = |twin: &mut Twin, from: &str| {
            twin.passes_filter(&setup.packet(from).macs([2; 6], US).syn().bytes())
        };
        twin.cache.limit_syns(Some(&FEW)).unwrap();
        assert!(!hears(&mut twin, neighbour), "nobody has sent anything yet");
        if setup.mode == Mode::Passthrough {
            twin.see(&ends.to_client().ack(1).bytes());
            assert!(!hears(&mut twin, neighbour), "what a server sends says nothing of its client");
        }
        twin.see(&ends.to_server().ack(1).bytes());
        let accepted_after = [0; 5].map(|_| hears(&mut twin, neighbour));
        assert_eq!(accepted_after, [true, true, true, false, false], "as many as a network may");
        assert!(!hears(&mut twin, other), "of another network");
    }
}

/// In DSR the cache cannot see whether the client got the server's answer.
fn networks_that_connections_were_completed_from_in_peace_are_known() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let ends = twin.begin(client(&setup));
        let last = ends.to_server().seq(1).ack(501).bytes();
        let hears = |twin: &mut Twin| {
            let neighbour = if setup.is_v6 { "[2001:db8:9:ff::1]:1" } else { "198.51.100.200:1" };
            twin.cache.limit_syns(Some(&FEW)).unwrap();
            let hears = twin.passes_filter(&setup.packet(neighbour).macs([2; 6], US).syn().bytes());
            twin.cache.limit_syns(None).unwrap();
            hears
        };
        if setup.mode == Mode::Passthrough {
            kernel::run(twin.cache.tc().unwrap(), &last);
            assert!(!hears(&mut twin), "it has not heard the server");
            kernel::run(twin.cache.tc().unwrap(), &ends.to_client().syn().seq(500).ack(1).bytes());
            assert!(!hears(&mut twin), "the server alone has spoken");
        }
        kernel::run(twin.cache.tc().unwrap(), &last);
        assert_eq!(hears(&mut twin), setup.mode == Mode::Passthrough);
    }
}

fn a_syn_that_is_sent_again_and_again_is_heard_twice() {
    let strangers = Rate { interval: Duration::from_nanos(1), burst: 1_000 };
    let mut filter = limited(SynLimit { strangers, ..FEW });
    let again = syn("198.51.100.9:1", "203.0.113.1:80");
    until_accepted(&mut filter, &again);
    let waited = until_accepted(&mut filter, &again);
    assert!(waited > 1_500_000_000 - TICK, "after {waited} ns: the first may have been lost on its way");
    let begin = kernel::now();
    while kernel::now() - begin < 3_500_000_000 {
        assert!(!filter.accepts(again.clone()), "it takes what others need");
    }
    until_accepted(&mut filter, &again.seq(7));
    assert_eq!(filter.0.count(Outcome::CameAgain).unwrap(), 3);
}

fn strangers_push_no_known_network_out() {
    // More than the table has room for.
    const STRANGERS: u32 = 80_000;
    let setup = BalancerSetup::passthrough(1, 100);
    let mut twin = Twin::new(setup);
    let ends = twin.establish(client(&setup));
    let often = Rate { interval: Duration::from_nanos(1), burst: u32::MAX };
    let limit = SynLimit { network: often, strangers: often };
    twin.cache.limit_syns(Some(&limit)).unwrap();
    twin.see(&ends.to_server().ack(1).bytes());
    for _ in 0..2 {
        let begin = kernel::now();
        for n in 0..STRANGERS {
            let [_, a, b, c] = n.to_be_bytes();
            let syn = setup.packet(format!("{}.{b}.{c}.9:1", 20 + a)).macs([2; 6], US).syn();
            twin.passes_filter(&syn.bytes());
        }
        while kernel::now() - begin < 600_000_000 {}
    }
    let accepted_after = twin.cache.count(Outcome::CameAgain).unwrap();
    assert!(accepted_after > u64::from(STRANGERS) * 8 / 10, "{accepted_after} were heard");
    assert!(
        twin.passes_filter(&setup.packet("198.51.100.200:1").macs([2; 6], US).syn().bytes()),
        "still known"
    );
}

fn strangers_are_heard_no_more_often_than_they_may_all_together() {
    let mut filter = limited(FEW);
    let syns = [1, 2, 3, 4].map(|n| syn(&format!("198.51.{n}.9:1"), "203.0.113.1:80"));
    syns.iter().for_each(|syn| assert!(!filter.accepts(syn.clone())));
    // The others were refused earlier, and have waited equally long.
    until_accepted(&mut filter, &syns[3]);
    let accepted_after = [0, 1, 2].map(|n: usize| filter.accepts(syns[n].clone()));
    assert_eq!(accepted_after, [true, false, false]);
}

fn a_network_is_heard_again_in_time() {
    let setup = BalancerSetup::passthrough(1, 100);
    let mut twin = Twin::new(setup);
    let ends = twin.establish(client(&setup));
    let rate = Rate { interval: Duration::from_millis(100), burst: 1 };
    twin.cache.limit_syns(Some(&SynLimit { network: rate, strangers: rate })).unwrap();
    twin.see(&ends.to_server().ack(1).bytes());
    let syn = setup.packet("198.51.100.200:1").macs([2; 6], US).syn().bytes();
    let begin = kernel::now();
    assert!(twin.passes_filter(&syn));
    while !twin.passes_filter(&syn) {}
    assert!(kernel::now() - begin > 100_000_000 - TICK, "before it is due");
}

fn syns_that_are_not_for_a_frontend_are_left_alone() {
    let mut filter = limited(FEW);
    for port in 1..=20 {
        let from = format!("198.51.100.9:{port}");
        assert!(!filter.accepts(syn(&from, "203.0.113.1:22")));
        assert!(filter.accepts(syn(&from, "203.0.113.9:80")), "it drains: the host's");
        for to in ["203.0.113.1:22", "203.0.113.9:80"] {
            let frame = syn(&from, to).macs([2; 6], US).bytes();
            let tc = kernel::run(filter.0.tc().unwrap(), &frame).verdict;
            assert_eq!((tc, kernel::run(filter.0.xdp().unwrap(), &frame).verdict), (-1, 2), "{to}");
        }
    }
    assert_eq!(filter.0.syns_refused().unwrap(), 0);
}

fn xdp_drops_refused_syns_and_tc_leaves_them_to_the_guard() {
    let mut filter = FilteredCache::new();
    let frame = syn("198.51.100.9:1", "203.0.113.1:80").macs([2; 6], US).bytes();
    for (limit, xdp) in [(None, 2), (Some(&FEW), 1), (None, 2)] {
        filter.0.limit_syns(limit).unwrap();
        assert_eq!(kernel::run(filter.0.tc().unwrap(), &frame).verdict, -1);
        assert_eq!(kernel::run(filter.0.xdp().unwrap(), &frame).verdict, xdp);
    }
    assert_eq!(filter.0.syns_refused().unwrap(), 1, "by XDP");
}

fn without_a_limit_every_syn_is_heard() {
    let mut filter = FilteredCache::new();
    for limit in [None, Some(&FEW), None] {
        filter.0.limit_syns(limit).unwrap();
        let accepted_after =
            (1..=20).filter(|port| filter.accepts(syn(&format!("198.51.100.9:{port}"), "203.0.113.1:80")));
        assert_eq!(accepted_after.count(), if limit.is_some() { 0 } else { 20 });
    }
}

/// SYNs whose header the programs do not read, and datagrams of each such kind.
fn disguised(from: &str, vip: &str, is_v6: bool) -> [Vec<Vec<u8>>; 2] {
    let of = |packet: TestPacket| {
        let packet = packet.macs([2; 6], US).payload(&[7; 64]);
        let with_options = match is_v6 {
            true => packet.clone().extension(60, &[0; 7]),
            false => packet.clone().ip_options(&[1, 1, 1, 1]),
        };
        let mut frames = packet.fragments(9, 48);
        frames.truncate(2);
        frames.push(with_options.bytes());
        frames
    };
    [of(syn(from, vip)), of(TestPacket::from(from).to(vip).udp())]
}

fn syns_in_disguise_are_heard_of_networks_that_have_completed_a_connection() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let vip = ends.to_server();
        let vip = convey_wire::parse(&vip.bytes()).unwrap().key.destination().to_string();
        let stranger = if setup.is_v6 { "[2001:db8:8::7]:1" } else { "198.51.101.7:1" };
        let [syns, datagrams] = disguised(stranger, &vip, setup.is_v6);
        for limit in [None, Some(&FEW), None] {
            twin.cache.limit_syns(limit).unwrap();
            for syn in &syns {
                assert_eq!(twin.passes_filter(syn), limit.is_none(), "{limit:?}");
                let xdp = kernel::run(twin.cache.xdp().unwrap(), syn).verdict;
                assert_eq!(xdp, if limit.is_none() { 2 } else { 1 });
            }
            assert!(datagrams.iter().all(|datagram| twin.passes_filter(datagram)), "nobody counts those");
        }
        assert_eq!(twin.cache.syns_refused().unwrap(), 6);
        twin.cache.limit_syns(Some(&FEW)).unwrap();
        twin.see(&ends.to_server().ack(1).bytes());
        let [syns, _] = disguised(client(&setup), &vip, setup.is_v6);
        let accepted_after = [0, 1, 2, 0, 1].map(|n: usize| twin.passes_filter(&syns[n]));
        assert_eq!(accepted_after, [true, true, true, false, false], "as many as a network may");
    }
}

/// Fragments, and segments with IP options, to an address that accepts no connections.
fn segments_of_servers_in_disguise_pass_in_a_flood() {
    let servers = [("10.0.0.7:80", "10.0.0.1:40000"), ("[fd00::7]:80", "[fd00::1]:40000")];
    for (server, snat) in servers {
        let mut filter = limited(FEW);
        for frame in disguised(server, snat, server.starts_with('[')).concat() {
            assert!(kernel::passes_filter(filter.0.filter().unwrap(), &frame), "{server}");
            assert_eq!(kernel::run(filter.0.xdp().unwrap(), &frame).verdict, 2, "{server}");
        }
        assert_eq!(filter.0.syns_refused().unwrap(), 0);
    }
}

fn disguised_segments_of_servers_pass_where_a_vip_is_a_snat_address() {
    for setup in setups().into_iter().filter(|setup| is_tcp(setup) && setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let key = convey_wire::parse(&ends.to_client().bytes()).unwrap().key;
        let mut selection = selection(&setup);
        selection.frontends.insert(Endpoint::tcp(SocketAddr::new(key.dst.ip(), 80)));
        twin.cache.select(&selection).unwrap();
        twin.cache.limit_syns(Some(&FEW)).unwrap();
        let [segments, _] = disguised(&key.source().to_string(), &key.destination().to_string(), setup.is_v6);
        assert!(!twin.passes_filter(&segments[0]), "it may be anybody's");
        twin.see(&ends.to_client().ack(1).bytes());
        assert!(segments.iter().all(|segment| twin.passes_filter(segment)));
    }
}

/// Only TCP has SYNs.
fn errors_in_disguise_pass_in_a_flood() {
    const ICMPV6: u8 = 58;
    let (mut filter, next_header) = (limited(FEW), 54);
    let packet = TestPacket::from("[2001:db8:8::7]:1").to("[2001:db8::1]:80").macs([2; 6], US);
    let mut frame = packet.syn().extension(60, &[0; 7]).bytes();
    assert!(!kernel::passes_filter(filter.0.filter().unwrap(), &frame));
    frame[next_header] = ICMPV6;
    assert!(kernel::passes_filter(filter.0.filter().unwrap(), &frame));
    assert_eq!(kernel::run(filter.0.xdp().unwrap(), &frame).verdict, 2);
    filter.0.limit_syns(None).unwrap();
    assert!(kernel::passes_filter(filter.0.filter().unwrap(), &frame));
}
