use std::net::IpAddr;

use etherparse::{IpNumber, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::{TestPacket, parse};

const SERVERS: [&str; 2] = ["10.9.0.11", "2001:db8:9::11"];

fn tunnel(encapsulation: Encapsulation, server: &str) -> Tunnel {
    let server: IpAddr = server.parse().unwrap();
    let source = if server.is_ipv4() { "10.0.0.1" } else { "2001:db8::1" };
    Tunnel { encapsulation, source: source.parse().unwrap(), server: server.into() }
}

/// Each encapsulation, to a server of each address family.
fn tunnels() -> impl Iterator<Item = Tunnel> {
    let kinds = [Encapsulation::Ipip, Encapsulation::Gue { port: 6_080 }];
    kinds.into_iter().flat_map(|kind| SERVERS.map(|server| tunnel(kind, server)))
}

fn packet_of(client: &TestPacket) -> Vec<u8> {
    client.bytes()[14..].to_vec()
}

fn put(tunnel: &Tunnel, packet: &[u8]) -> Vec<u8> {
    let envelope = Envelope { tunnel: *tunnel, hash: 0x1234_5678 };
    let headers = envelope.headers(packet);
    assert_eq!(headers.bytes().len(), tunnel.overhead() as usize);
    [headers.bytes(), packet].concat()
}

/// Decapsulates an outer packet with etherparse. Returns the outer source, destination and traffic
/// class, and the inner packet.
fn taken_out(outer: &[u8], tunnel: &Tunnel) -> (IpAddr, IpAddr, u8, Vec<u8>) {
    let read = SlicedPacket::from_ip(outer).unwrap();
    let (src, dst, class, protocol) = match read.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert!(header.dont_fragment() && header.ttl() == 64);
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            let class = header.dcp().value() << 2 | header.ecn().value();
            (header.source_addr().into(), header.destination_addr().into(), class, header.protocol())
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            assert_eq!((header.hop_limit(), header.flow_label().value()), (64, 0x4_5678));
            let [src, dst]: [IpAddr; 2] = [header.source_addr().into(), header.destination_addr().into()];
            (src, dst, header.traffic_class(), header.next_header())
        }
        NetSlice::Arp(_) => panic!("no packet of IP"),
    };
    let ip_len = if dst.is_ipv4() { 20 } else { 40 };
    let (inside, packet) = match tunnel.encapsulation {
        Encapsulation::Ipip => (protocol, &outer[ip_len..]),
        Encapsulation::Gue { port } => {
            let Some(TransportSlice::Udp(datagram)) = read.transport else { panic!("a datagram") };
            let header = datagram.to_header();
            assert_eq!((header.source_port, header.destination_port), (0xc000 | 0x5678 & 0x3fff, port));
            assert_eq!(usize::from(header.length), outer.len() - ip_len);
            let expected = match (src, dst) {
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), datagram.payload()).unwrap()
                }
                _ => 0,
            };
            assert_eq!(header.checksum, expected);
            let gue = &datagram.payload()[..4];
            assert_eq!([gue[0], gue[2], gue[3]], [0; 3], "version 0, no flags");
            (IpNumber(gue[1]), &datagram.payload()[4..])
        }
    };
    let version = if inside == IpNumber::IPV4 { 4 } else { 6 };
    assert!(inside == IpNumber(if version == 4 { 4 } else { 41 }) && packet[0] >> 4 == version);
    (src, dst, class, packet.to_vec())
}

#[test]
fn a_packet_of_either_family_goes_whole_to_a_server_of_either() {
    for tunnel in tunnels() {
        for client in [
            TestPacket::from("198.51.100.7:4242").to("192.0.2.1:80").syn(),
            TestPacket::from("[2001:db8:5::7]:4242").to("[2001:db8::80]:80").ack(7).payload(b"hello"),
            TestPacket::from("198.51.100.7:4242").to("192.0.2.1:53").udp().payload(b"odd"),
        ] {
            let packet = packet_of(&client);
            let (src, dst, class, inner) = taken_out(&put(&tunnel, &packet), &tunnel);
            assert_eq!((src, dst), (tunnel.source.first(), tunnel.server.ip()));
            assert_eq!((class, inner), (0, packet));
        }
    }
}

/// `taken_out` decapsulates the original packet, whether the outer checksum was derived from the
/// inner headers or computed over all bytes.
#[test]
fn outer_headers_are_derived_from_inner_ones_where_checksums_allow() {
    let gue = |server| Envelope { tunnel: tunnel(Encapsulation::Gue { port: 6_080 }, server), hash: 7 };
    let (v4, v6) = (TestPacket::from("198.51.100.7:4242").to("192.0.2.1:80"), SERVERS[1]);
    let long = v4.clone().udp().payload(&[7; 200]);
    let mut short = packet_of(&long);
    // Makes the UDP length shorter than the packet.
    short[25] -= 8;
    let [first, ..] = &long.fragments(9, 64)[..] else { panic!("fragments") };
    for (packet, expected) in [
        (packet_of(&v4.clone().syn().payload(b"odd")), true),
        (packet_of(&long), true),
        (packet_of(&TestPacket::from("[2001:db8:5::7]:42").to("[2001:db8::80]:80").udp()), true),
        (packet_of(&long.clone().without_checksum()), false),
        (short, false),
        (packet_of(&v4.clone().ip_options(&[1; 4])), false),
        (first[14..].to_vec(), false),
    ] {
        assert_eq!(gue(v6).follows_from_headers(&packet), expected, "{packet:02x?}");
        assert!(gue(SERVERS[0]).follows_from_headers(&packet), "no checksum");
        assert!(Envelope { tunnel: tunnel(Encapsulation::Ipip, v6), hash: 7 }.follows_from_headers(&packet));
        let tunnel = gue(v6).tunnel;
        assert_eq!(taken_out(&put(&tunnel, &packet), &tunnel).3, packet);
    }
}

#[test]
fn the_traffic_class_and_its_congestion_bits_are_those_of_the_packet() {
    for tunnel in tunnels() {
        for class in [0x01, 0x02, 0x03, 0xb8, 0xff] {
            let mut v4 = packet_of(&TestPacket::from("198.51.100.7:4242").to("192.0.2.1:80").syn());
            v4[1] = class;
            let mut v6 = packet_of(&TestPacket::from("[2001:db8:5::7]:4242").to("[2001:db8::80]:80").syn());
            v6[0] = 0x60 | class >> 4;
            v6[1] = class << 4 | 0x0a;
            for packet in [v4, v6] {
                assert_eq!(taken_out(&put(&tunnel, &packet), &tunnel).2, class);
            }
        }
    }
}

#[test]
fn flows_differ_in_their_ports_and_the_packets_of_one_do_not() {
    let tunnel = tunnel(Encapsulation::Gue { port: 6_080 }, SERVERS[0]);
    let port = |client: u16| {
        let frame = TestPacket::from(format!("198.51.100.7:{client}")).to("192.0.2.1:80").syn().bytes();
        let envelope = Envelope::new(&tunnel, &parse(&frame).unwrap().key);
        assert_eq!(envelope, Envelope::new(&tunnel, &parse(&frame).unwrap().key));
        let headers = envelope.headers(&frame[14..]);
        u16::from_be_bytes([headers.bytes()[20], headers.bytes()[21]])
    };
    let ports: std::collections::BTreeSet<u16> = (1_000..2_000).map(port).collect();
    assert!(ports.len() > 900 && ports.iter().all(|port| *port >= FIRST_PORT), "{} ports", ports.len());
}

#[test]
fn a_checksum_that_was_left_to_the_sender_is_complete_within() {
    for packet in [
        TestPacket::from("198.51.100.7:4242").to("192.0.2.1:80").ack(1).payload(b"hello"),
        TestPacket::from("[2001:db8:5::7]:4242").to("[2001:db8::80]:80").udp().payload(b"hello"),
    ] {
        let mut frame = packet.clone().partial().bytes();
        let headers = parse(&frame).unwrap();
        complete_checksum(&mut frame, &headers, Checksum::Partial);
        assert_eq!(frame, packet.bytes());
        complete_checksum(&mut frame, &headers, Checksum::Complete);
        assert_eq!(frame, packet.bytes());
    }
}

proptest! {
    #[test]
    fn encapsulated_packet_decapsulates_to_the_original(
        which in 0..4usize,
        is_v4: bool,
        class: u8,
        hash: u32,
        rest in prop::collection::vec(any::<u8>(), 0..1_500),
    ) {
        let tunnel = tunnels().nth(which).unwrap();
        let mut packet = if is_v4 { vec![0x45, class] } else { vec![0x60 | class >> 4, class << 4] };
        packet.extend_from_slice(&rest);
        let envelope = Envelope { tunnel, hash };
        let headers = envelope.headers(&packet);
        let outer = [headers.bytes(), &packet].concat();
        prop_assert_eq!(&outer[tunnel.overhead() as usize..], &packet);
        prop_assert_eq!(headers.ether_type() == 0x0800, tunnel.server.is_v4());
        let total = match tunnel.server.is_v4() {
            true => usize::from(u16::from_be_bytes([outer[2], outer[3]])),
            false => usize::from(u16::from_be_bytes([outer[4], outer[5]])) + 40,
        };
        prop_assert_eq!(total, outer.len());
    }
}
