//! Filter of the packet sockets: for misses of the cache, it accepts the same frames as the filter
//! without the cache.

use std::net::IpAddr;

use convey_dataplane::Selection;
use convey_dataplane::testing::{KernelCache, Replies};
use convey_model::Endpoint;
use convey_wire::{IcmpError, TestPacket};

use super::kernel::{self, SIZES};
use super::twin::US;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        clients_of_frontends_get_in_and_replies_of_servers,
        packets_without_ports_are_accepted_by_address,
        a_reload_changes_what_gets_in,
    ]
}

/// A cache for some frontends, and its filter.
pub(crate) struct FilteredCache(pub(crate) KernelCache);

fn endpoint(text: &str) -> Endpoint {
    match text.strip_suffix("/udp") {
        Some(addr) => Endpoint::udp(addr.parse().unwrap()),
        None => Endpoint::tcp(text.parse().unwrap()),
    }
}

pub(crate) fn selection(frontends: &[&str]) -> Selection {
    let replies = Replies {
        servers: ["10.0.0.7:80", "10.0.0.7:53/udp", "[fd00::7]:80"].map(endpoint).into(),
        snat_addresses: ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap()).into(),
        snat_ports: 33768..=61000,
    };
    Selection {
        frontends: frontends.iter().map(|text| endpoint(text)).collect(),
        draining: [endpoint("203.0.113.9:80")].into(),
        replies: Some(replies),
    }
}

impl FilteredCache {
    pub(crate) fn new() -> FilteredCache {
        let mut cache = KernelCache::load(&SIZES).unwrap();
        cache.select(&selection(&["203.0.113.1:80", "203.0.113.1:53/udp", "[2001:db8::1]:80"])).unwrap();
        cache.set_interface(1, US).unwrap();
        FilteredCache(cache)
    }

    pub(crate) fn accepts(&mut self, packet: TestPacket) -> bool {
        self.accepts_frame(packet.macs([2; 6], US).bytes())
    }

    fn accepts_frame(&mut self, mut frame: Vec<u8>) -> bool {
        frame[..6].copy_from_slice(&US);
        kernel::passes_filter(self.0.filter().unwrap(), &frame)
    }
}

pub(crate) fn tcp(from: &str, to: &str) -> TestPacket {
    TestPacket::from(from).to(to).ack(1)
}

fn clients_of_frontends_get_in_and_replies_of_servers() {
    let mut filter = FilteredCache::new();
    for (from, to, by_tcp, by_udp) in [
        ("198.51.100.9:40000", "203.0.113.1:80", true, false),
        ("198.51.100.9:40000", "203.0.113.1:53", false, true),
        ("198.51.100.9:40000", "203.0.113.9:80", true, false),
        ("198.51.100.9:40000", "203.0.113.1:22", false, false),
        ("198.51.100.9:40000", "203.0.113.2:80", false, false),
        ("[2001:db8::9]:40000", "[2001:db8::1]:80", true, false),
        ("[2001:db8::9]:40000", "[2001:db8::1]:53", false, false),
        ("10.0.0.7:80", "10.0.0.1:33768", true, false),
        ("10.0.0.7:53", "10.0.0.1:61000", false, true),
        ("10.0.0.7:80", "10.0.0.1:61001", false, false),
        ("10.0.0.7:81", "10.0.0.1:50000", false, false),
        ("10.0.0.8:80", "10.0.0.1:50000", false, false),
        ("10.0.0.7:80", "203.0.113.1:50000", false, false),
        ("[fd00::7]:80", "[fd00::1]:50000", true, false),
        ("[fd00::8]:80", "[fd00::1]:50000", false, false),
    ] {
        assert_eq!(filter.accepts(tcp(from, to)), by_tcp, "{from} -> {to}");
        assert_eq!(filter.accepts(tcp(from, to).udp()), by_udp, "{from} -> {to} by UDP");
        let elsewhere = tcp(from, to).macs([2; 6], [2, 0, 0, 0, 0, 1]).bytes();
        assert!(!kernel::passes_filter(filter.0.filter().unwrap(), &elsewhere), "not to this host");
    }
}

fn packets_without_ports_are_accepted_by_address() {
    let mut filter = FilteredCache::new();
    for (from, to, ours) in [
        ("198.51.100.9:80", "203.0.113.1:9", true),
        ("198.51.100.9:80", "203.0.113.9:9", true),
        ("198.51.100.9:80", "10.0.0.1:9", true),
        ("198.51.100.9:80", "203.0.113.2:80", false),
        ("[2001:db8::9]:80", "[2001:db8::1]:9", true),
        ("[2001:db8::9]:80", "[fd00::1]:9", true),
        ("[2001:db8::9]:80", "[2001:db8::2]:80", false),
    ] {
        let packet = || TestPacket::from(from).to(to).ack(1).payload(&[7; 100]);
        for fragment in packet().fragments(7, 64) {
            assert_eq!(filter.accepts_frame(fragment), ours, "a fragment to {to}");
        }
        let unusual = match from.starts_with('[') {
            true => packet().extension(60, &[0, 1, 4, 0, 0, 0, 0]),
            false => packet().ip_options(&[1; 8]),
        };
        assert_eq!(filter.accepts(unusual), ours, "to {to}");

        // An ICMP error about a packet from `to`.
        let mut error = Vec::new();
        let sent = TestPacket::from(to).to(from).bytes();
        let headers = convey_wire::parse(&sent).unwrap();
        let router = if from.starts_with('[') { "2001:db8::fe" } else { "198.51.100.254" };
        convey_wire::icmp_error(
            &sent,
            &headers,
            IcmpError::TimeExceeded,
            router.parse::<IpAddr>().unwrap().into(),
            &mut error,
        );
        assert_eq!(filter.accepts_frame(error.clone()), ours, "an ICMP error to {to}");
        // Echo requests are for the host.
        let kind = if from.starts_with('[') { (54, 128) } else { (34, 8) };
        error[kind.0] = kind.1;
        assert!(!filter.accepts_frame(error));
    }
    let mut arp = tcp("198.51.100.9:80", "203.0.113.1:80").bytes();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert!(!filter.accepts_frame(arp));
}

fn a_reload_changes_what_gets_in() {
    let mut filter = FilteredCache::new();
    filter.0.select(&Selection { replies: None, ..selection(&["203.0.113.5:80"]) }).unwrap();
    assert!(filter.accepts(tcp("198.51.100.9:40000", "203.0.113.5:80")));
    assert!(!filter.accepts(tcp("198.51.100.9:40000", "203.0.113.1:80")));
    assert!(!filter.accepts(tcp("10.0.0.7:80", "10.0.0.1:40000")));
    let fragment = |to: &str| tcp("198.51.100.9:80", to).payload(&[7; 100]).fragments(7, 64).remove(1);
    assert!(filter.accepts_frame(fragment("203.0.113.5:80")));
    assert!(!filter.accepts_frame(fragment("203.0.113.1:80")));
}
