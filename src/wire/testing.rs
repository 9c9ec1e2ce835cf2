//! Packets of every kind, and judges that share no code with what they judge.

use std::net::SocketAddrV4;

use etherparse::{Ethernet2Slice, Ipv4Slice, TcpSlice, checksum::Sum16BitWords};
use proptest::collection::vec;
use proptest::prelude::*;

use super::TcpPacket;
use super::fields::ETHERNET_LEN;
use crate::model::NextHop;

/// Where rewritten packets go to.
pub(super) const HOP: NextHop = NextHop {
    interface: 3,
    src_mac: [0x02, 0, 0, 0, 0, 0x0a],
    dst_mac: [0x02, 0, 0, 0, 0, 0x0b],
    mtu: 1_500,
};

/// Any IPv4 address and port, those of nothing but zeros or ones among them.
pub(super) fn any_endpoint() -> impl Strategy<Value = SocketAddrV4> {
    let ip = prop_oneof![1 => Just(0), 1 => Just(u32::MAX), 8 => any::<u32>()];
    let port = prop_oneof![1 => Just(0), 1 => Just(u16::MAX), 8 => any::<u16>()];
    (ip, port).prop_map(|(ip, port)| SocketAddrV4::new(ip.into(), port))
}

/// Any valid packet that may go one hop further.
pub(super) fn any_packet() -> impl Strategy<Value = TcpPacket> {
    let endpoints = (any_endpoint(), any_endpoint());
    let flags = any::<[bool; 5]>();
    let numbers = (2..=u8::MAX, any::<u32>(), any::<u32>(), any::<u16>());
    let option = || prop_oneof![2 => Just(vec![]), 1 => vec(any::<u8>(), 0..=40)];
    let payload =
        prop_oneof![Just(vec![]), vec(any::<u8>(), 0..100), Just(vec![0; 64]), Just(vec![0xff; 65])];
    (endpoints, flags, numbers, option(), option(), payload).prop_map(
        |((src, dst), [syn, ack, fin, rst, psh], (ttl, seq, ack_number, window), ip, tcp, payload)| {
            let set = |yes: bool, flag: fn(TcpPacket) -> TcpPacket, packet| match yes {
                true => flag(packet),
                false => packet,
            };
            let packet = TcpPacket::from(src).to(dst).ttl(ttl).seq(seq).window(window);
            let packet = packet.ip_options(&ip).tcp_options(&tcp).payload(&payload);
            let packet = set(syn, TcpPacket::syn, set(fin, TcpPacket::fin, packet));
            let packet = set(rst, TcpPacket::rst, set(psh, TcpPacket::psh, packet));
            if ack { packet.ack(ack_number) } else { packet }
        },
    )
}

/// Whether a packet's IPv4 and TCP checksums are right, as etherparse computes them.
pub(super) fn checksums_hold(frame: &[u8]) -> (bool, bool) {
    let ethernet = Ethernet2Slice::from_slice_without_fcs(frame).unwrap();
    let ip = Ipv4Slice::from_slice(ethernet.payload_slice()).unwrap();
    let tcp = TcpSlice::from_slice(ip.payload().payload).unwrap();
    let (src, dst) = (ip.header().source(), ip.header().destination());
    (
        ip.header().header_checksum() == ip.header().to_header().calc_header_checksum(),
        tcp.checksum() == tcp.calc_checksum_ipv4(src, dst).unwrap(),
    )
}

/// What a network card does with a partial checksum: it sums up the segment, the field included, and writes
/// the complement there. Without padding.
pub(super) fn complete(frame: &mut [u8]) {
    let ip_len = usize::from(frame[ETHERNET_LEN] & 0x0f) * 4;
    let segment = &mut frame[ETHERNET_LEN + ip_len..];
    let checksum = Sum16BitWords::new().add_slice(segment).ones_complement().to_be();
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
}
