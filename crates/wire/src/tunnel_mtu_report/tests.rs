use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::tunnel::Envelope;
use crate::{TestPacket, answer};
use convey_model::{FlowKey, Tunnel};

const OWN: [&str; 2] = ["10.0.0.1", "2001:db8::1"];
const SERVERS: [&str; 2] = ["10.9.0.11", "2001:db8:9::11"];
const ROUTERS: [&str; 2] = ["10.5.0.1", "2001:db8:5::1"];
const CLIENTS: [(&str, &str); 2] =
    [("198.51.100.7:4242", "192.0.2.1:80"), ("[2001:db8:c::7]:4242", "[2001:db8:f::1]:80")];

fn addr(text: &str) -> Addr {
    text.parse::<IpAddr>().unwrap().into()
}

/// Outer packets of all encapsulations, outer families and inner families, each with the expected
/// report.
fn outer_packets() -> impl Iterator<Item = (Vec<u8>, TunnelMtuReport)> {
    let kinds = [Encapsulation::Ipip, Encapsulation::Gue { port: 6_080 }];
    let all = kinds.into_iter().flat_map(|kind| [0, 1].map(|outer| (kind, outer)));
    all.flat_map(|(kind, outer)| [0, 1].map(|inner| (kind, outer, inner))).map(
        |(encapsulation, outer, inner)| {
            let (client, vip) = CLIENTS[inner];
            let packet = TestPacket::from(client).to(vip).payload(&[7; 1_000]).bytes()[14..].to_vec();
            let (source, server) = (OWN[outer].parse().unwrap(), addr(SERVERS[outer]));
            let envelope = Envelope { tunnel: Tunnel { encapsulation, source, server }, hash: 0x1234_5678 };
            let report = TunnelMtuReport {
                router: addr(ROUTERS[outer]),
                mtu: 1_400,
                source: addr(OWN[outer]),
                server,
                encapsulation,
                inner_destination: Some(addr(vip.rsplit_once(':').unwrap().0.trim_matches(['[', ']']))),
            };
            ([envelope.headers(&packet).bytes(), &packet].concat(), report)
        },
    )
}

/// ICMP error of a router: type and code, the last four bytes of the ICMP header, and the quoted
/// packet.
fn error(router: &str, to: &str, numbers: [u8; 2], rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    let is_v4 = router.parse::<IpAddr>().unwrap().is_ipv4();
    let mut message = [&numbers[..], &[0; 2], &rest, quoted].concat();
    let protocol = if is_v4 { icmp::V4 } else { icmp::V6 };
    let (src, dst) = (addr(router), addr(to));
    let checksum =
        if is_v4 { header_checksum(&message) } else { payload_checksum(&src, &dst, protocol, &message) };
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let key = FlowKey { src, dst, src_port: 0, dst_port: 0, protocol, reserved: [0; 3] };
    let mut packet = vec![0; if is_v4 { 20 } else { 40 }];
    packet.extend_from_slice(&message);
    answer::put_ip(&mut packet, &key);
    packet
}

/// Router's ICMP error that contains the report.
fn too_big(report: &TunnelMtuReport, quoted: &[u8]) -> Vec<u8> {
    let (router, to) = (report.router.ip().to_string(), report.source.ip().to_string());
    match report.source.is_v4() {
        true => error(&router, &to, [3, 4], [0, 0, (report.mtu >> 8) as u8, report.mtu as u8], quoted),
        false => error(&router, &to, [2, 0], report.mtu.to_be_bytes(), quoted),
    }
}

#[test]
fn tunnel_mtu_is_read_from_an_error_about_an_outer_packet() {
    for (outer, report) in outer_packets() {
        let packet = too_big(&report, &outer[..500]);
        assert_eq!(tunnel_mtu_report(&packet), Some(report));
        let padded = [packet, vec![0; 9]].concat();
        assert_eq!(tunnel_mtu_report(&padded), Some(report));
    }
}

#[test]
fn quotation_may_end_before_the_inner_destination_but_not_the_port() {
    for (outer, report) in outer_packets() {
        let ip_len = if report.server.is_v4() { 20 } else { 40 };
        let short = TunnelMtuReport { inner_destination: None, ..report };
        assert_eq!(tunnel_mtu_report(&too_big(&report, &outer[..ip_len + 8])), Some(short));
        for len in 0..outer.len().min(120) {
            let read = tunnel_mtu_report(&too_big(&report, &outer[..len]));
            let needed = if report.encapsulation == Encapsulation::Ipip { ip_len } else { ip_len + 4 };
            assert_eq!(read.is_some(), len >= needed, "{len} of {report:?}");
            assert!(read.is_none_or(|read| read == report || read == short));
        }
    }
}

#[test]
fn truncated_or_damaged_error_is_not_an_mtu_report() {
    for (outer, report) in outer_packets() {
        let packet = too_big(&report, &outer[..100]);
        for len in 0..packet.len() {
            assert_eq!(tunnel_mtu_report(&packet[..len]), None, "{len}");
        }
        let from = if report.server.is_v4() { 20 } else { 40 };
        for at in from..packet.len() {
            let mut damaged = packet.clone();
            damaged[at] ^= 0x10;
            assert_eq!(tunnel_mtu_report(&damaged), None, "{at}");
        }
    }
}

#[test]
fn errors_of_other_kinds_or_about_packets_of_others_are_no_reports() {
    for (outer, report) in outer_packets() {
        let is_v4 = report.server.is_v4();
        let (router, own) = (report.router.ip().to_string(), report.source.ip().to_string());
        let others: &[[u8; 2]] =
            if is_v4 { &[[3, 3], [3, 1], [11, 0], [8, 0]] } else { &[[1, 4], [3, 0], [128, 0]] };
        for numbers in others {
            assert_eq!(tunnel_mtu_report(&error(&router, &own, *numbers, [0, 0, 5, 0x78], &outer)), None);
        }
        // The error is sent to another host than the packet's source.
        let elsewhere = TunnelMtuReport { source: addr(SERVERS[usize::from(!is_v4)]), ..report };
        assert_eq!(tunnel_mtu_report(&too_big(&elsewhere, &outer)), None);
        let with = |at: usize, byte: u8| {
            let mut other = outer.clone();
            other[at] = byte;
            tunnel_mtu_report(&too_big(&report, &other))
        };
        let protocol = if is_v4 { 9 } else { 6 };
        assert_eq!(with(protocol, 6), None, "TCP");
        assert_eq!(with(protocol, 47), None, "GRE");
        assert_eq!(with(0, 0x55), None, "no version of IP");
        let inner = report.encapsulation;
        let ip_len = if is_v4 { 20 } else { 40 };
        let inner_at = if inner == Encapsulation::Ipip { ip_len } else { ip_len + 12 };
        assert_eq!(with(inner_at, outer[inner_at] ^ 0x20), None, "another version inside than outside");
        if inner != Encapsulation::Ipip {
            assert_eq!(with(ip_len + 8, 0x20), None, "a control message of GUE");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_quotations_are_parsed_or_refused(
        which in 0..8usize,
        quoted in proptest::collection::vec(any::<u8>(), 0..120),
        at in 0..60usize,
        byte: u8,
    ) {
        let (mut outer, report) = outer_packets().nth(which).unwrap();
        outer[at] = byte;
        for quoted in [&quoted[..], &outer[..90]] {
            if let Some(read) = tunnel_mtu_report(&too_big(&report, quoted)) {
                prop_assert_eq!((read.router, read.source, read.mtu), (report.router, report.source, report.mtu));
            }
        }
        tunnel_mtu_report(&quoted);
    }
}
