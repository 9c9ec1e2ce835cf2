//! An interpreter of classic BPF judges which frames get in.

mod interpreter;
mod limits;
mod packets;

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::prelude::*;

use self::interpreter::accepts;
use self::packets::{Frame, tcp, udp};
use super::*;
use crate::Replies;
use convey_model::{Endpoint, Protocol};

/// `203.0.113.1:80`, or with `/udp` behind it.
fn endpoint(text: &str) -> Endpoint {
    match text.strip_suffix("/udp") {
        Some(addr) => Endpoint::udp(addr.parse().unwrap()),
        None => Endpoint::tcp(text.parse().unwrap()),
    }
}

fn selection(frontends: &[&str], servers: &[&str], snat: &[&str]) -> Selection {
    let replies = Replies {
        servers: servers.iter().map(|text| endpoint(text)).collect(),
        snat_addresses: snat.iter().map(|ip| ip.parse().unwrap()).collect(),
        snat_ports: 33768..=61000,
    };
    Selection {
        frontends: frontends.iter().map(|text| endpoint(text)).collect(),
        draining: [].into(),
        replies: (!snat.is_empty()).then_some(replies),
    }
}

/// Web in both families, DNS in both, with addresses that begin or end alike.
fn usual() -> Filter {
    let filter = Filter::new(&selection(
        &[
            "203.0.113.1:80",
            "203.0.113.1:443",
            "10.0.0.1:8080",
            "203.0.113.1:53/udp",
            "[2001:db8::1]:80",
            "[2001:db8:1::1]:53/udp",
        ],
        &["10.0.0.7:80", "10.0.0.8:80", "10.0.0.8:81", "10.0.0.7:53/udp", "[fd00::7]:80", "[fd00::8]:53/udp"],
        &["10.0.0.1", "10.0.0.2", "fd00::1"],
    ));
    assert_eq!(filter.precision(), Precision::Exact);
    filter
}

#[test]
fn what_drains_is_let_in_as_before() {
    let serving = selection(&["203.0.113.1:80", "203.0.113.1:443"], &[], &[]);
    let [gone, stays] = ["203.0.113.1:80", "203.0.113.1:443"].map(|addr| [endpoint(addr)].into());
    let draining = Selection { draining: gone, frontends: stays, replies: None };
    assert_eq!(Filter::new(&draining).instructions(), Filter::new(&serving).instructions());
}

#[test]
fn clients_of_a_frontend_get_in_and_nobody_else_does() {
    let filter = usual();
    for (dst, by_tcp, by_udp) in [
        ("203.0.113.1:80", true, false),
        ("203.0.113.1:443", true, false),
        ("203.0.113.1:53", false, true),
        ("10.0.0.1:8080", true, false),
        ("203.0.113.1:22", false, false),
        ("203.0.113.2:80", false, false),
        ("10.0.0.1:80", false, false),
    ] {
        assert_eq!(accepts(&filter, &tcp("198.51.100.9:40000", dst)), by_tcp, "{dst}");
        assert_eq!(accepts(&filter, &udp("198.51.100.9:40000", dst)), by_udp, "{dst}/udp");
    }
    for (dst, by_tcp, by_udp) in [
        ("[2001:db8::1]:80", true, false),
        ("[2001:db8:1::1]:53", false, true),
        ("[2001:db8::1]:53", false, false),
        ("[2001:db8:1::1]:80", false, false),
        ("[2001:db8::2]:80", false, false),
        ("[2001:db9::1]:80", false, false),
    ] {
        assert_eq!(accepts(&filter, &tcp("[2001:db8::9]:40000", dst)), by_tcp, "{dst}");
        assert_eq!(accepts(&filter, &udp("[2001:db8::9]:40000", dst)), by_udp, "{dst}/udp");
    }
}

#[test]
fn replies_get_in_from_a_server_to_one_of_our_ports_only() {
    let filter = usual();
    for (src, dst, ours) in [
        ("10.0.0.7:80", "10.0.0.1:33768", true),
        ("10.0.0.8:81", "10.0.0.2:61000", true),
        ("10.0.0.7:80", "10.0.0.1:33767", false),
        ("10.0.0.7:80", "10.0.0.1:61001", false),
        ("10.0.0.7:81", "10.0.0.1:50000", false),
        ("10.0.0.9:80", "10.0.0.1:50000", false),
        ("10.0.0.7:53", "10.0.0.1:50000", false),
        ("10.0.0.7:80", "203.0.113.1:50000", false),
        ("[fd00::7]:80", "[fd00::1]:50000", true),
        ("[fd00::8]:80", "[fd00::1]:50000", false),
        ("[fd00::7]:80", "[2001:db8::1]:50000", false),
    ] {
        assert_eq!(accepts(&filter, &tcp(src, dst)), ours, "{src} -> {dst}");
    }
    for (src, dst, ours) in [
        ("10.0.0.7:53", "10.0.0.1:50000", true),
        ("10.0.0.7:80", "10.0.0.1:50000", false),
        ("[fd00::8]:53", "[fd00::1]:50000", true),
        ("[fd00::8]:53", "[fd00::1]:33767", false),
    ] {
        assert_eq!(accepts(&filter, &udp(src, dst)), ours, "{src} -> {dst}");
    }
}

#[test]
fn a_server_without_a_port_replies_from_any() {
    let frontends = ["203.0.113.1:80", "[2001:db8::1]:80"];
    let servers = ["10.0.0.7:0", "10.0.0.8:80", "10.0.0.9:0/udp", "[fd00::7]:0"];
    let filter = Filter::new(&selection(&frontends, &servers, &["10.0.0.1", "fd00::1"]));
    for (src, dst, by_tcp, by_udp) in [
        ("10.0.0.7:1", "10.0.0.1:50000", true, false),
        ("10.0.0.7:65535", "10.0.0.1:50000", true, false),
        ("10.0.0.7:80", "10.0.0.1:33767", false, false),
        ("10.0.0.8:80", "10.0.0.1:50000", true, false),
        ("10.0.0.8:81", "10.0.0.1:50000", false, false),
        ("10.0.0.9:53", "10.0.0.1:50000", false, true),
        ("10.0.0.10:80", "10.0.0.1:50000", false, false),
        ("[fd00::7]:21000", "[fd00::1]:50000", true, false),
        ("[fd00::8]:21000", "[fd00::1]:50000", false, false),
    ] {
        let reply = [tcp(src, dst), udp(src, dst)].map(|reply| accepts(&filter, &reply));
        assert_eq!(reply, [by_tcp, by_udp], "{src} -> {dst}");
    }
}

#[test]
fn in_dsr_mode_replies_are_none_of_ours() {
    let filter = Filter::new(&selection(&["203.0.113.1:80"], &[], &[]));
    assert!(accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:80")));
    assert!(!accepts(&filter, &tcp("10.0.0.7:80", "10.0.0.1:50000")));
}

#[test]
fn ip_options_move_the_ports_and_are_followed() {
    let filter = usual();
    for words in 1..=10 {
        assert!(accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:80").options(words)));
        assert!(accepts(&filter, &udp("10.0.0.7:53", "10.0.0.1:50000").options(words)));
        assert!(!accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:22").options(words)));
    }
}

#[test]
fn later_fragments_have_no_ports_and_get_in_by_address() {
    let filter = usual();
    for transport in [tcp, udp] {
        for (dst, ours) in [("203.0.113.1:9", true), ("10.0.0.2:9", true), ("203.0.113.2:80", false)] {
            assert_eq!(accepts(&filter, &transport("198.51.100.9:80", dst).fragment(185)), ours, "{dst}");
        }
        assert!(accepts(&filter, &transport("[2001:db8::9]:9", "[2001:db8::1]:9").extension(44)));
        assert!(!accepts(&filter, &transport("[2001:db8::9]:9", "[2001:db8::2]:80").extension(44)));
    }
    assert!(accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:80").fragment(0)));
    assert!(!accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:22").fragment(0)));
    let web_alone = Filter::new(&selection(&["203.0.113.1:80"], &[], &[]));
    assert!(!accepts(&web_alone, &udp("198.51.100.9:80", "203.0.113.1:9").fragment(185)));
}

#[test]
fn what_may_hide_behind_an_extension_header_gets_in_by_address() {
    let filter = usual();
    for extension in [0, 43, 44, 60] {
        let from_client = |dst| tcp("[2001:db8::9]:40000", dst).extension(extension);
        assert!(accepts(&filter, &from_client("[2001:db8::1]:80")), "{extension}");
        assert!(accepts(&filter, &from_client("[fd00::1]:80")), "{extension}");
        assert!(!accepts(&filter, &from_client("[2001:db8::2]:80")), "{extension}");
    }
    for other in [50, 51, 59] {
        assert!(
            !accepts(&filter, &tcp("[2001:db8::9]:40000", "[2001:db8::1]:80").extension(other)),
            "{other}"
        );
    }
}

#[test]
fn icmp_errors_get_in_and_echo_and_neighbour_discovery_are_left_to_the_host() {
    let filter = usual();
    for (kind, ours) in [(0, false), (3, true), (5, false), (8, false), (11, true), (12, true), (13, false)] {
        let error = |dst| tcp("198.51.100.9:0", dst).icmp(kind);
        assert_eq!(accepts(&filter, &error("203.0.113.1:0")), ours, "type {kind}");
        assert_eq!(accepts(&filter, &error("10.0.0.2:0").options(2)), ours, "type {kind}");
        assert!(!accepts(&filter, &error("203.0.113.2:0")));
        assert!(!accepts(&filter, &error("203.0.113.1:0").fragment(1)));
    }
    for kind in 0..=255 {
        let message = |dst| tcp("[2001:db8::9]:0", dst).icmp(kind);
        let ours = (1..=4).contains(&kind);
        assert_eq!(accepts(&filter, &message("[2001:db8::1]:0")), ours, "type {kind}");
        assert_eq!(accepts(&filter, &message("[fd00::1]:0")), ours, "type {kind}");
        assert!(!accepts(&filter, &message("[2001:db8::2]:0")), "type {kind}");
    }
}

#[test]
fn frames_for_other_machines_tagged_frames_and_other_protocols_stay_out() {
    let filter = usual();
    for (src, dst, ports_end) in
        [("198.51.100.9:40000", "203.0.113.1:80", 38), ("[2001:db8::9]:40000", "[2001:db8::1]:80", 58)]
    {
        let ours = tcp(src, dst);
        assert!(accepts(&filter, &ours));
        assert!(!accepts(&filter, &Frame { to_others: true, ..ours.clone() }));
        assert!(!accepts(&filter, &Frame { vlan_tag: true, ..ours.clone() }));
        assert!(!accepts(&filter, &ours.clone().byte(12, 0x08).byte(13, 0x06)), "ARP");
        assert!(!accepts(&filter, &ours.clone().protocol(132)), "SCTP");
        for len in 0..ports_end {
            assert!(!accepts(&filter, &ours.clone().cut(len)), "cut to {len} bytes");
        }
        assert!(accepts(&filter, &ours.clone().cut(ports_end)));
        assert!(!accepts(&Filter::nothing(), &ours));
    }
}

#[test]
fn a_family_that_is_not_forwarded_is_not_looked_at() {
    let v4 = Filter::new(&selection(&["203.0.113.1:80"], &[], &[]));
    assert!(!accepts(&v4, &tcp("[2001:db8::9]:40000", "[2001:db8::1]:80")));
    let v6 = Filter::new(&selection(&["[2001:db8::1]:80"], &[], &[]));
    assert!(!accepts(&v6, &tcp("198.51.100.9:40000", "203.0.113.1:80")));
}

/// Few addresses and ports, so that they meet.
fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let v4 = (0..4u8).prop_map(|host| IpAddr::from([10, 0, 0, host]));
    let v6 = (0..2u16, 0..3u16).prop_map(|(net, host)| IpAddr::from([0xfd00, 0, 0, net, 0, 0, 0, host]));
    let port = prop_oneof![80..83u16, 33766..33770u16];
    (any::<bool>(), prop_oneof![v4, v6], port).prop_map(|(udp, ip, port)| Endpoint {
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        addr: (ip, port).into(),
    })
}

proptest! {
    #[test]
    fn the_filter_is_the_selection(
        frontends in prop::collection::btree_set(any_endpoint(), 0..8),
        servers in prop::collection::btree_set(any_endpoint(), 0..8),
        snat_addresses in prop::collection::btree_set(any_endpoint().prop_map(|e| e.addr.ip()), 0..4),
        packets in prop::collection::vec((any_endpoint(), any_endpoint()), 100),
    ) {
        let snat_ports = 33768..=61000;
        let replies = Replies { servers, snat_addresses, snat_ports };
        let selection = Selection { frontends, draining: [].into(), replies: Some(replies) };
        let filter = Filter::new(&selection);
        prop_assume!(filter.precision() == Precision::Exact);
        let Some(Replies { servers, snat_addresses, snat_ports }) = &selection.replies else { unreachable!() };
        let of_one_kind = |(src, dst): &(Endpoint, Endpoint)| {
            src.protocol == dst.protocol && src.addr.is_ipv4() == dst.addr.is_ipv4()
        };
        for (src, dst) in packets.into_iter().filter(of_one_kind) {
            let reply = servers.contains(&src)
                && snat_addresses.contains(&dst.addr.ip())
                && snat_ports.contains(&dst.addr.port());
            let ours = selection.frontends.contains(&dst) || reply;
            prop_assert_eq!(accepts(&filter, &Frame::new(src.protocol, src.addr, dst.addr)), ours, "{} {}", src, dst);
        }
    }

    #[test]
    fn a_search_finds_exactly_its_keys(
        keys in prop::collection::btree_set(prop::collection::vec(0..4u8, 3), 0..30),
        probes in prop::collection::vec(prop::collection::vec(0..4u8, 3), 30),
    ) {
        let numbers: BTreeSet<Vec<u32>> =
            keys.iter().map(|key| key.iter().map(|value| u32::from(*value)).collect()).collect();
        let mut p = Program::new();
        let fields = [Field::byte(0), Field::byte(1), Field::byte(2)];
        let (yes, no) = (p.accept, p.reject);
        one_of(&mut p, &fields, &numbers, yes, no);
        let filter = Filter { instructions: p.finish(), precision: Precision::Exact };
        for probe in probes {
            let found = accepts(&filter, &Frame { bytes: probe.clone(), vlan_tag: false, to_others: false });
            prop_assert_eq!(found, keys.contains(&probe));
        }
    }
}
