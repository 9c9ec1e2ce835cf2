//! An interpreter of classic BPF judges which frames get in.

use super::*;
use std::net::Ipv4Addr;

use proptest::prelude::*;

/// What the kernel would give the filter: the frame, and what is beside its bytes.
#[derive(Clone)]
struct Frame {
    bytes: Vec<u8>,
    vlan_tag: bool,
    to_others: bool,
}

/// A TCP segment, to be made into other things.
fn tcp(src: &str, dst: &str) -> Frame {
    let (src, dst): (std::net::SocketAddrV4, std::net::SocketAddrV4) =
        (src.parse().unwrap(), dst.parse().unwrap());
    let mut bytes = vec![0; 12];
    bytes.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend(src.ip().octets());
    bytes.extend(dst.ip().octets());
    bytes.extend(src.port().to_be_bytes());
    bytes.extend(dst.port().to_be_bytes());
    bytes.extend([0; 16]);
    Frame { bytes, vlan_tag: false, to_others: false }
}

impl Frame {
    /// Options in the IP header: `words` times 4 bytes, all ones.
    fn options(mut self, words: u8) -> Frame {
        self.bytes[14] = 0x45 + words;
        self.bytes.splice(34..34, vec![0xff; usize::from(words) * 4]);
        self
    }

    fn byte(mut self, at: usize, value: u8) -> Frame {
        self.bytes[at] = value;
        self
    }

    /// A fragment that begins `at` times 8 bytes into its packet.
    fn fragment(self, at: u8) -> Frame {
        self.byte(20, 0x20).byte(21, at)
    }

    fn icmp(self, kind: u8) -> Frame {
        self.byte(23, 1).byte(34, kind)
    }

    fn cut(mut self, len: usize) -> Frame {
        self.bytes.truncate(len);
        self
    }
}

fn selection(frontends: &[&str], servers: &[&str], snat: &[&str]) -> Selection {
    let replies = Replies {
        servers: servers.iter().map(|addr| addr.parse().unwrap()).collect(),
        snat_addresses: snat.iter().map(|ip| ip.parse().unwrap()).collect(),
        snat_ports: 33768..=61000,
    };
    Selection {
        draining: [].into(),
        frontends: frontends.iter().map(|addr| addr.parse().unwrap()).collect(),
        replies: (!snat.is_empty()).then_some(replies),
    }
}

fn usual() -> Filter {
    Filter::new(&selection(
        &["203.0.113.1:80", "203.0.113.1:443", "10.0.0.1:8080"],
        &["10.0.0.7:80", "10.0.0.8:80", "10.0.0.8:81"],
        &["10.0.0.1", "10.0.0.2"],
    ))
}

fn accepts(filter: &Filter, frame: &Frame) -> bool {
    match run(filter.instructions(), frame) {
        ACCEPT => true,
        REJECT => false,
        other => panic!("accepts only {other} bytes of a frame"),
    }
}

/// One run, as the kernel does it: a load beyond the frame ends it with rejection.
fn run(program: &[sock_filter], frame: &Frame) -> u32 {
    let load = |size: u32, at: u32| -> Option<u32> {
        match at.wrapping_sub(SKF_AD_OFF as u32) as i32 {
            SKF_AD_VLAN_TAG_PRESENT => return Some(u32::from(frame.vlan_tag)),
            SKF_AD_PKTTYPE => return Some(if frame.to_others { 3 } else { 0 }),
            _ => {}
        }
        let len = match size {
            BPF_B => 1,
            BPF_H => 2,
            _ => 4,
        };
        let bytes = frame.bytes.get(at as usize..at as usize + len)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    };
    let (mut pc, mut a, mut x) = (0, 0, 0u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[pc];
        pc += 1;
        let mut branch = |taken: bool| pc += usize::from(if taken { jt } else { jf });
        let code = u32::from(code);
        let size = code & (BPF_B | BPF_H);
        match code {
            c if c == BPF_RET | BPF_K => return k,
            c if c == BPF_JMP | BPF_JA => pc += k as usize,
            c if c == BPF_JMP | BPF_JEQ | BPF_K => branch(a == k),
            c if c == BPF_JMP | BPF_JGE | BPF_K => branch(a >= k),
            c if c == BPF_JMP | BPF_JGT | BPF_K => branch(a > k),
            c if c == BPF_JMP | BPF_JSET | BPF_K => branch(a & k != 0),
            c if c == BPF_LDX | BPF_MSH | BPF_B => match load(BPF_B, k) {
                Some(byte) => x = (byte & 0xf) * 4,
                None => return REJECT,
            },
            c if c & !size == BPF_LD | BPF_ABS => match load(size, k) {
                Some(value) => a = value,
                None => return REJECT,
            },
            c if c & !size == BPF_LD | BPF_IND => match load(size, x + k) {
                Some(value) => a = value,
                None => return REJECT,
            },
            other => panic!("instruction {other:#x} is not used here"),
        }
    }
}

#[test]
fn what_drains_is_let_in_as_before() {
    let serving = selection(&["203.0.113.1:80", "203.0.113.1:443"], &[], &[]);
    let [gone, stays] = ["203.0.113.1:80", "203.0.113.1:443"].map(|addr| [addr.parse().unwrap()].into());
    let draining = Selection { draining: gone, frontends: stays, replies: None };
    assert_eq!(Filter::new(&draining).instructions(), Filter::new(&serving).instructions());
}

#[test]
fn clients_of_a_frontend_get_in_and_nobody_else_does() {
    let filter = usual();
    assert_eq!(filter.precision(), Precision::Exact);
    for (dst, ours) in [
        ("203.0.113.1:80", true),
        ("203.0.113.1:443", true),
        ("10.0.0.1:8080", true),
        ("203.0.113.1:22", false),
        ("203.0.113.1:8080", false),
        ("203.0.113.2:80", false),
        ("10.0.0.1:80", false),
        ("10.0.0.1:22", false),
    ] {
        assert_eq!(accepts(&filter, &tcp("198.51.100.9:40000", dst)), ours, "{dst}");
    }
}

#[test]
fn replies_get_in_from_a_server_to_one_of_our_ports_only() {
    let filter = usual();
    for (src, dst, ours) in [
        ("10.0.0.7:80", "10.0.0.1:33768", true),
        ("10.0.0.8:81", "10.0.0.2:61000", true),
        ("10.0.0.8:80", "10.0.0.1:50000", true),
        ("10.0.0.7:80", "10.0.0.1:33767", false),
        ("10.0.0.7:80", "10.0.0.1:61001", false),
        ("10.0.0.7:81", "10.0.0.1:50000", false),
        ("10.0.0.9:80", "10.0.0.1:50000", false),
        ("10.0.0.7:80", "203.0.113.1:50000", false),
    ] {
        assert_eq!(accepts(&filter, &tcp(src, dst)), ours, "{src} -> {dst}");
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
        assert!(accepts(&filter, &tcp("10.0.0.7:80", "10.0.0.1:50000").options(words)));
        assert!(!accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:22").options(words)));
    }
}

#[test]
fn later_fragments_have_no_ports_and_get_in_by_address() {
    let filter = usual();
    for (dst, ours) in [("203.0.113.1:9", true), ("10.0.0.2:9", true), ("203.0.113.2:80", false)] {
        assert_eq!(accepts(&filter, &tcp("198.51.100.9:80", dst).fragment(185)), ours, "{dst}");
    }
    assert!(accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:80").fragment(0)));
    assert!(!accepts(&filter, &tcp("198.51.100.9:40000", "203.0.113.1:22").fragment(0)));
    assert!(!accepts(&filter, &tcp("198.51.100.9:9", "203.0.113.1:9").fragment(185).byte(23, 17)), "UDP");
}

#[test]
fn icmp_errors_get_in_and_echo_is_left_to_the_host() {
    let filter = usual();
    let to = |dst| tcp("198.51.100.9:0", dst);
    for (kind, ours) in [(0, false), (3, true), (5, false), (8, false), (11, true), (12, true), (13, false)] {
        assert_eq!(accepts(&filter, &to("203.0.113.1:0").icmp(kind)), ours, "type {kind}");
        assert_eq!(
            accepts(&filter, &to("10.0.0.2:0").icmp(kind).options(2).byte(42, kind)),
            ours,
            "type {kind}"
        );
        assert!(!accepts(&filter, &to("203.0.113.2:0").icmp(kind)));
        assert!(!accepts(&filter, &to("203.0.113.1:0").fragment(1).icmp(kind)));
    }
}

#[test]
fn frames_for_other_machines_tagged_frames_and_other_protocols_stay_out() {
    let filter = usual();
    let ours = tcp("198.51.100.9:40000", "203.0.113.1:80");
    assert!(accepts(&filter, &ours));
    assert!(!accepts(&filter, &Frame { to_others: true, ..ours.clone() }));
    assert!(!accepts(&filter, &Frame { vlan_tag: true, ..ours.clone() }));
    assert!(!accepts(&filter, &ours.clone().byte(12, 0x86).byte(13, 0xdd)), "IPv6");
    assert!(!accepts(&filter, &ours.clone().byte(13, 0x06)), "ARP");
    assert!(!accepts(&filter, &ours.clone().byte(23, 17)), "UDP");
    for len in 0..38 {
        assert!(!accepts(&filter, &ours.clone().cut(len)), "cut to {len} bytes");
    }
    assert!(accepts(&filter, &ours.cut(38)));
    assert!(!accepts(&Filter::nothing(), &tcp("198.51.100.9:40000", "203.0.113.1:80")));
}

fn many(servers: u32, vips: u32, ports: u16) -> Selection {
    let ip = |base: u32, i: u32| Ipv4Addr::from(base + i);
    let vips = (0..vips).flat_map(|v| (0..ports).map(move |port| (ip(0xc000_0000, v), 1 + port).into()));
    let replies = Replies {
        servers: (0..servers).map(|s| (ip(0x0a01_0000, s), 80).into()).collect(),
        snat_addresses: [ip(0x0a00_0001, 0).into()].into(),
        snat_ports: 33768..=61000,
    };
    Selection { frontends: vips.collect(), draining: [].into(), replies: Some(replies) }
}

#[test]
fn a_set_too_large_for_the_kernel_lets_in_more_and_never_less() {
    for (servers, vips, ports, precision) in [
        (300, 2, 50, Precision::Exact),
        (1, 1, 400, Precision::Exact),
        (100_000, 2, 50, Precision::AnyServer),
        (10, 100, 100, Precision::AnyPort),
        (10, 10_000, 1, Precision::AnyAddress),
    ] {
        let selection = many(servers, vips, ports);
        let filter = Filter::new(&selection);
        assert_eq!(filter.precision(), precision);
        assert!(filter.instructions().len() <= MAX_INSTRUCTIONS);
        for frontend in &selection.frontends {
            assert!(accepts(&filter, &tcp("198.51.100.9:40000", &frontend.to_string())), "{frontend}");
        }
        for server in &selection.replies.as_ref().unwrap().servers {
            assert!(accepts(&filter, &tcp(&server.to_string(), "10.0.0.1:40000")), "{server}");
        }
        let error = tcp("198.51.100.9:0", "192.0.0.0:0").icmp(3);
        assert!(
            accepts(&filter, &error) && accepts(&filter, &tcp("198.51.100.9:0", "192.0.0.0:0").fragment(1))
        );
        assert!(!accepts(&filter, &error.byte(34, 8)));
    }
}

/// Few addresses and ports, so that they meet.
fn any_addr() -> impl Strategy<Value = SocketAddr> {
    (0..4u8, prop_oneof![80..84u16, 33766..33770u16]).prop_map(|(host, port)| ([10, 0, 0, host], port).into())
}

proptest! {
    #[test]
    fn the_filter_is_the_selection(
        frontends in prop::collection::btree_set(any_addr(), 0..6),
        servers in prop::collection::btree_set(any_addr(), 0..6),
        snat_addresses in prop::collection::btree_set(any_addr().prop_map(|addr| addr.ip()), 0..3),
        packets in prop::collection::vec((any_addr(), any_addr()), 50),
    ) {
        let snat_ports = 33768..=61000;
        let replies = Replies { servers, snat_addresses, snat_ports };
        let selection = Selection { frontends, draining: [].into(), replies: Some(replies) };
        let filter = Filter::new(&selection);
        let Some(Replies { servers, snat_addresses, snat_ports }) = &selection.replies else { unreachable!() };
        for (src, dst) in packets {
            let reply = servers.contains(&src)
                && snat_addresses.contains(&dst.ip())
                && snat_ports.contains(&dst.port());
            let ours = selection.frontends.contains(&dst) || reply;
            prop_assert_eq!(accepts(&filter, &tcp(&src.to_string(), &dst.to_string())), ours, "{} {}", src, dst);
        }
    }
}
