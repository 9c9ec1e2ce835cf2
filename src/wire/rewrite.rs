//! Sending a packet on as somebody else's.

use super::checksum::{Checksum, Delta};
use super::fields::{ethernet, ipv4, put_u16, put_u32, tcp, u16_at, u32_at};
use super::headers::Headers;
use crate::model::{NextHop, Rewrite};

/// Gives the frame that `headers` were read from new addresses and ports and a new link-layer source and
/// destination, and takes one hop off its TTL. Checksums follow; the payload is not looked at.
///
/// The caller has seen to it that the TTL is above 1, and that both addresses of `to` are IPv4. `checksum`
/// is what the frame's TCP checksum field holds, before and after. `headers` describe the frame no more.
///
/// # Panics
/// If `headers` are not this frame's and point beyond its end.
#[inline]
pub fn rewrite(frame: &mut [u8], headers: &Headers, to: &Rewrite, hop: &NextHop, checksum: Checksum) {
    debug_assert!(headers.ttl > 1, "the packet may go no further");
    let (head, tcp) = frame.split_at_mut(headers.l4);
    let (ethernet, ip) = head.split_at_mut(headers.l3);
    let src = u32::from_be_bytes(to.src.v4_bytes());
    let dst = u32::from_be_bytes(to.dst.v4_bytes());

    ethernet[ethernet::DST].copy_from_slice(&hop.dst_mac);
    ethernet[ethernet::SRC].copy_from_slice(&hop.src_mac);

    let addresses =
        Delta::default().replace_u32(u32_at(ip, ipv4::SRC), src).replace_u32(u32_at(ip, ipv4::DST), dst);
    put_u32(ip, ipv4::SRC, src);
    put_u32(ip, ipv4::DST, dst);

    // A checksum knows words: TTL and protocol share one.
    let hops = u16_at(ip, ipv4::TTL);
    let [ttl, protocol] = hops.to_be_bytes();
    let hops_left = u16::from_be_bytes([ttl.saturating_sub(1), protocol]);
    put_u16(ip, ipv4::TTL, hops_left);
    let field = addresses.replace_u16(hops, hops_left).apply(u16_at(ip, ipv4::CHECKSUM));
    put_u16(ip, ipv4::CHECKSUM, field);

    let field = u16_at(tcp, tcp::CHECKSUM);
    let field = match checksum {
        Checksum::Complete => addresses
            .replace_u16(u16_at(tcp, tcp::SRC_PORT), to.src_port)
            .replace_u16(u16_at(tcp, tcp::DST_PORT), to.dst_port)
            .apply(field),
        Checksum::Partial => addresses.apply_partial(field),
    };
    put_u16(tcp, tcp::CHECKSUM, field);
    put_u16(tcp, tcp::SRC_PORT, to.src_port);
    put_u16(tcp, tcp::DST_PORT, to.dst_port);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use proptest::prelude::*;

    use super::*;
    use crate::model::FlowKey;
    use crate::wire::testing::{HOP, any_endpoint, any_packet, checksums_hold, complete};
    use crate::wire::{TcpPacket, parse};

    #[test]
    fn a_client_is_answered_by_the_address_it_asked() {
        let (client, vip) = ("10.0.0.9:4242", "10.0.0.1:80");
        let (balancer, server) = ("10.0.1.1:40000", "10.0.1.2:8080");

        let mut request = TcpPacket::from(client).to(vip).ack(1).payload(b"GET /").bytes();
        forward(&mut request, &to(balancer, server), Checksum::Complete);
        let sent = TcpPacket::from(balancer).to(server).ack(1).payload(b"GET /");
        assert_eq!(request, sent.ttl(63).macs(HOP.src_mac, HOP.dst_mac).bytes());

        let mut reply = TcpPacket::from(server).to(balancer).ack(2).payload(b"200 OK").bytes();
        forward(&mut reply, &to(vip, client), Checksum::Complete);
        let sent = TcpPacket::from(vip).to(client).ack(2).payload(b"200 OK");
        assert_eq!(reply, sent.ttl(63).macs(HOP.src_mac, HOP.dst_mac).bytes());
    }

    #[test]
    fn a_damaged_packet_stays_damaged() {
        let mut frame = TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").payload(b"hello").bytes();
        *frame.last_mut().unwrap() ^= 1;
        forward(&mut frame, &to("10.0.1.1:40000", "10.0.1.2:8080"), Checksum::Complete);
        let (ip, tcp) = checksums_hold(&frame);
        assert!(ip && !tcp);
    }

    #[test]
    fn padding_and_options_go_along_untouched() {
        let packet = TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").ip_options(&[1; 8]).syn();
        let mut frame = packet.tcp_options(&[2, 4, 5, 180]).bytes();
        frame.extend([0xaa; 9]);
        let before = frame.clone();
        forward(&mut frame, &to("10.0.1.1:40000", "10.0.1.2:8080"), Checksum::Complete);
        assert_eq!((&frame[34..42], &frame[62..]), (&before[34..42], &before[62..]));
        assert_eq!(checksums_hold(&frame), (true, true));
    }

    proptest! {
        #[test]
        fn whatever_is_rewritten_has_valid_checksums_and_goes_where_it_should(
            packet in any_packet(), src in any_endpoint(), dst in any_endpoint(),
        ) {
            let mut frame = packet.bytes();
            let before = parse(&frame).unwrap();
            forward(&mut frame, &to(src, dst), Checksum::Complete);
            assert_eq!(checksums_hold(&frame), (true, true));
            let after = parse(&frame).unwrap();
            let key = FlowKey::tcp(src.into(), dst.into());
            prop_assert_eq!(after, Headers { key, ttl: before.ttl - 1, ..before });
            prop_assert_eq!((&frame[0..6], &frame[6..12]), (&HOP.dst_mac[..], &HOP.src_mac[..]));
        }

        #[test]
        fn the_reverse_rewrite_brings_back_every_byte_but_hops_and_link_addresses(
            packet in any_packet(), partial in any::<bool>(), src in any_endpoint(), dst in any_endpoint(),
        ) {
            let packet = if partial { packet.partial() } else { packet };
            let checksum = if partial { Checksum::Partial } else { Checksum::Complete };
            let mut frame = packet.bytes();
            let before = parse(&frame).unwrap();
            prop_assume!(before.ttl > 2);
            forward(&mut frame, &to(src, dst), checksum);
            forward(&mut frame, &to(before.key.source(), before.key.destination()), checksum);
            prop_assert_eq!(frame, packet.ttl(before.ttl - 2).macs(HOP.src_mac, HOP.dst_mac).bytes());
        }

        #[test]
        fn it_does_not_matter_whether_a_checksum_is_completed_before_or_after(
            packet in any_packet(), src in any_endpoint(), dst in any_endpoint(),
        ) {
            let mut late = packet.clone().partial().bytes();
            forward(&mut late, &to(src, dst), Checksum::Partial);
            complete(&mut late);
            let mut early = packet.bytes();
            forward(&mut early, &to(src, dst), Checksum::Complete);
            prop_assert_eq!(late, early);
        }
    }

    fn to(src: impl ToString, dst: impl ToString) -> Rewrite {
        let [src, dst] = [src.to_string(), dst.to_string()].map(|addr| addr.parse::<SocketAddrV4>().unwrap());
        Rewrite {
            src: (*src.ip()).into(),
            dst: (*dst.ip()).into(),
            src_port: src.port(),
            dst_port: dst.port(),
            next_hop: 0,
        }
    }

    fn forward(frame: &mut [u8], to: &Rewrite, checksum: Checksum) {
        let headers = parse(frame).unwrap();
        rewrite(frame, &headers, to, &HOP, checksum);
    }
}
