//! Generators of all kinds of packets, and checks that share no code with the parser and the
//! rewriter.

use std::net::{IpAddr, SocketAddr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{IpSlice, SlicedPacket, TransportSlice};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{TestPacket, parse};
use convey_model::{FlowKey, NextHop, Protocol, Rewrite};

/// Next hop of rewritten packets.
pub(super) const HOP: NextHop = NextHop {
    interface: 3,
    src_mac: [0x02, 0, 0, 0, 0, 0x0a],
    dst_mac: [0x02, 0, 0, 0, 0, 0x0b],
    mtu: 1_500,
    redirect_peer: false,
};

/// Any endpoint of the family, including all zeros and all ones, except IPv4-mapped IPv6 addresses.
pub(super) fn any_endpoint(is_v4: bool) -> BoxedStrategy<SocketAddr> {
    let port = prop_oneof![1 => Just(0), 1 => Just(u16::MAX), 8 => any::<u16>()];
    let v4 = prop_oneof![1 => Just(0), 1 => Just(u32::MAX), 8 => any::<u32>()];
    let v6 = prop_oneof![1 => Just(0), 1 => Just(u128::MAX), 8 => any::<u128>()];
    let ip = match is_v4 {
        true => v4.prop_map(|ip| IpAddr::V4(ip.into())).boxed(),
        false => {
            v6.prop_filter("mapped", |ip| ip >> 32 != 0xffff).prop_map(|ip| IpAddr::V6(ip.into())).boxed()
        }
    };
    (ip, port).prop_map(|(ip, port)| SocketAddr::new(ip, port)).boxed()
}

/// Any valid packet with at least one hop left, and two other endpoints of its family.
pub(super) fn any_packet_to() -> impl Strategy<Value = (TestPacket, SocketAddr, SocketAddr)> {
    any::<bool>().prop_flat_map(|is_v4| (any_packet_of(is_v4), any_endpoint(is_v4), any_endpoint(is_v4)))
}

/// Any valid packet with at least one hop left.
pub(super) fn any_packet() -> impl Strategy<Value = TestPacket> {
    any::<bool>().prop_flat_map(any_packet_of)
}

/// Any TCP segment.
pub(super) fn any_segment() -> impl Strategy<Value = TestPacket> {
    any::<bool>().prop_flat_map(|is_v4| any_packet_with(is_v4, Protocol::Tcp))
}

fn any_packet_of(is_v4: bool) -> BoxedStrategy<TestPacket> {
    prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)]
        .prop_flat_map(move |protocol| any_packet_with(is_v4, protocol))
        .boxed()
}

fn any_packet_with(is_v4: bool, protocol: Protocol) -> BoxedStrategy<TestPacket> {
    let endpoints = (any_endpoint(is_v4), any_endpoint(is_v4));
    let flags = any::<[bool; 5]>();
    let numbers = (2..=u8::MAX, any::<u32>(), any::<u32>(), any::<u16>());
    let ip_options = prop_oneof![2 => Just(vec![]), 1 => any_ip_options()];
    let tcp_options = prop_oneof![2 => Just(vec![]), 1 => vec(any::<u8>(), 0..=40)];
    let payload =
        prop_oneof![Just(vec![]), vec(any::<u8>(), 0..100), Just(vec![0; 64]), Just(vec![0xff; 65])];
    (endpoints, flags, numbers, ip_options, tcp_options, payload)
        .prop_map(
            move |(
                (src, dst),
                [syn, ack, fin, rst, psh],
                (ttl, seq, ack_number, window),
                ip,
                tcp,
                payload,
            )| {
                let set = |yes: bool, flag: fn(TestPacket) -> TestPacket, packet| match yes {
                    true => flag(packet),
                    false => packet,
                };
                let packet = TestPacket::from(src).to(dst).ttl(ttl).payload(&payload);
                let packet = match is_v4 {
                    true => set(fin, |packet| packet.may_be_cut(7), packet.ip_options(&ip)),
                    // Padding options (PadN), which receivers skip.
                    false => {
                        let pad = [0, 1, 4, 0, 0, 0, 0];
                        let packet = if syn { packet.extension(60, &pad) } else { packet };
                        if psh { packet.cut_extension(60, &pad) } else { packet }
                    }
                };
                if protocol == Protocol::Udp {
                    return set(rst && is_v4, TestPacket::without_checksum, packet.udp());
                }
                let packet = packet.seq(seq).window(window).tcp_options(&tcp);
                let packet = set(syn, TestPacket::syn, set(fin, TestPacket::fin, packet));
                let packet = set(rst, TestPacket::rst, set(psh, TestPacket::psh, packet));
                if ack { packet.ack(ack_number) } else { packet }
            },
        )
        .boxed()
}

/// Any IPv4 options, valid or not, except source routes.
pub(super) fn any_ip_options() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>().prop_map(|byte| if [131, 137].contains(&byte) { 1 } else { byte }), 0..=40)
}

/// Rewrite to these endpoints.
pub(super) fn to(src: impl ToString, dst: impl ToString) -> Rewrite {
    let [src, dst] = [src.to_string(), dst.to_string()].map(|addr| addr.parse::<SocketAddr>().unwrap());
    let key = FlowKey::tcp(src, dst);
    Rewrite { src: key.src, dst: key.dst, src_port: key.src_port, dst_port: key.dst_port, next_hop: 0 }
}

/// Whether the checksums of a packet are valid according to etherparse: of the IP header, and of
/// the payload.
pub(super) fn checksums_hold(frame: &[u8]) -> (bool, bool) {
    let ip = IpSlice::from_slice(&frame[14..]).unwrap();
    let ip_holds = match &ip {
        IpSlice::Ipv4(v4) => v4.header().header_checksum() == v4.header().to_header().calc_header_checksum(),
        IpSlice::Ipv6(_) => true,
    };
    let (src, dst) = (ip.source_addr(), ip.destination_addr());
    let pseudo = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Sum16BitWords::new().add_4bytes(src.octets()).add_4bytes(dst.octets())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Sum16BitWords::new().add_16bytes(src.octets()).add_16bytes(dst.octets())
        }
        _ => panic!("two families"),
    };
    let payload = ip.payload();
    let is_icmp_v4 = payload.ip_number.0 == 1;
    let pseudo = pseudo
        .add_2bytes(u16::from(payload.ip_number.0).to_be_bytes())
        .add_4bytes((payload.payload.len() as u32).to_be_bytes());
    let sum = if is_icmp_v4 { Sum16BitWords::new() } else { pseudo };
    let without = payload.ip_number.0 == 17 && payload.payload[6..8] == [0, 0] && src.is_ipv4();
    (ip_holds, without || sum.add_slice(payload.payload).ones_complement() == 0)
}

/// Completes a partial checksum like a network card: sums the segment, including the checksum
/// field, and writes the complement to the field. The frame must have no padding.
pub(super) fn complete(frame: &mut [u8]) {
    let headers = parse(frame).unwrap();
    let Some(TransportSlice::Tcp(_) | TransportSlice::Udp(_)) =
        SlicedPacket::from_ethernet(frame).unwrap().transport
    else {
        panic!("nothing to complete");
    };
    let at = if headers.is_tcp() { 16 } else { 6 };
    let segment = &mut frame[headers.l4..];
    let checksum = match Sum16BitWords::new().add_slice(segment).ones_complement().to_be() {
        0 if at == 6 => 0xffff,
        checksum => checksum,
    };
    segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}
