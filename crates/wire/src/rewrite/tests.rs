use proptest::prelude::*;

use super::*;
use crate::testing::{HOP, any_packet_to, checksums_hold, complete, to};
use crate::{TestPacket, parse};
use convey_model::FlowKey;

#[test]
fn a_client_is_answered_by_the_address_it_asked() {
    let v4 = ["10.0.0.9:4242", "10.0.0.1:80", "10.0.1.1:40000", "10.0.1.2:8080"];
    let v6 = ["[fd00::9]:4242", "[fd00::1]:80", "[fd01::1]:40000", "[fd01::2]:8080"];
    for [client, vip, balancer, server] in [v4, v6] {
        let mut request = TestPacket::from(client).to(vip).ack(1).payload(b"GET /").bytes();
        forward(&mut request, &to(balancer, server), Checksum::Complete);
        let sent = TestPacket::from(balancer).to(server).ack(1).payload(b"GET /");
        assert_eq!(request, sent.ttl(63).macs(HOP.src_mac, HOP.dst_mac).bytes());

        let mut reply = TestPacket::from(server).to(balancer).udp().payload(b"200 OK").bytes();
        forward(&mut reply, &to(vip, client), Checksum::Complete);
        let sent = TestPacket::from(vip).to(client).udp().payload(b"200 OK");
        assert_eq!(reply, sent.ttl(63).macs(HOP.src_mac, HOP.dst_mac).bytes());
    }
}

#[test]
fn a_damaged_packet_stays_damaged() {
    let mut frame = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").payload(b"hello").bytes();
    *frame.last_mut().unwrap() ^= 1;
    forward(&mut frame, &to("10.0.1.1:40000", "10.0.1.2:8080"), Checksum::Complete);
    let (ip, tcp) = checksums_hold(&frame);
    assert!(ip && !tcp);
}

#[test]
fn padding_and_options_go_along_untouched() {
    let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").ip_options(&[1; 8]).syn();
    let mut frame = packet.tcp_options(&[2, 4, 5, 180]).bytes();
    frame.extend([0xaa; 9]);
    let before = frame.clone();
    forward(&mut frame, &to("10.0.1.1:40000", "10.0.1.2:8080"), Checksum::Complete);
    assert_eq!((&frame[34..42], &frame[62..]), (&before[34..42], &before[62..]));
    assert_eq!(checksums_hold(&frame), (true, true));
}

#[test]
fn a_datagram_without_a_checksum_goes_on_without_one() {
    let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:53").udp().without_checksum();
    let mut frame = packet.payload(b"?").bytes();
    forward(&mut frame, &to("10.0.1.1:40000", "10.0.1.2:53"), Checksum::Complete);
    assert_eq!(&frame[40..42], [0, 0]);
}

#[test]
fn udp_checksum_of_zero_is_sent_as_all_ones() {
    let packet = |payload: u16| {
        let packet = TestPacket::from("10.0.0.9:4242").to("10.0.1.2:53").udp();
        packet.payload(&payload.to_be_bytes()).ttl(63).macs(HOP.src_mac, HOP.dst_mac).bytes()
    };
    // A payload that makes the sum of all words 0xffff, so that the checksum is 0.
    let rest = packet(0);
    let zero = u16::from_be_bytes([rest[40], rest[41]]);
    let expected = packet(zero);
    assert_eq!(&expected[40..42], [0xff, 0xff]);

    let mut frame = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:53").udp();
    frame = frame.payload(&zero.to_be_bytes());
    let mut frame = frame.bytes();
    forward(&mut frame, &to("10.0.0.9:4242", "10.0.1.2:53"), Checksum::Complete);
    assert_eq!(frame, expected);
}

#[test]
fn the_fragments_of_a_datagram_arrive_as_those_of_the_rewritten_one() {
    let v4 = ["10.0.0.9:4242", "10.0.0.1:53", "10.0.1.1:40000", "10.0.1.2:5353"];
    let v6 = ["[fd00::9]:4242", "[fd00::1]:53", "[fd01::1]:40000", "[fd01::2]:5353"];
    for [client, vip, balancer, server] in [v4, v6] {
        let payload: Vec<u8> = (0..4_000).map(|n| n as u8).collect();
        let sent = TestPacket::from(client).to(vip).udp().payload(&payload).fragments(77, 1_400);
        let got = TestPacket::from(balancer).to(server).udp().payload(&payload);
        let expected = got.ttl(63).macs(HOP.src_mac, HOP.dst_mac).fragments(77, 1_400);
        for (mut fragment, expected) in sent.into_iter().zip(expected) {
            forward(&mut fragment, &to(balancer, server), Checksum::Complete);
            assert_eq!(fragment, expected);
        }
    }
}

#[test]
fn fragments_that_were_somebody_elses_get_numbers_of_their_own() {
    let v4 = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:53").udp().payload(&[7; 100]);
    let v6 = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:53").udp().payload(&[7; 100]);
    // In IPv6: without extension headers, with one before the fragment header, and with one after
    // it.
    let pad = [0, 1, 4, 0, 0, 0, 0];
    for packet in [v4, v6.clone(), v6.clone().extension(0, &pad), v6.cut_extension(60, &pad)] {
        for (mut old, new) in packet.fragments(0x1_004d, 48).into_iter().zip(packet.fragments(0x1_abcd, 48)) {
            let headers = parse(&old).unwrap();
            renumber(&mut old, &headers, 0xabcd);
            assert_eq!(old, new);
        }
        let mut whole = packet.bytes();
        renumber(&mut whole, &parse(&packet.bytes()).unwrap(), 0xabcd);
        assert_eq!(whole, packet.bytes(), "it is no fragment");
    }
}

proptest! {
    #[test]
    fn rewritten_packet_has_valid_checksums_and_new_addresses(
        (packet, src, dst) in any_packet_to(),
    ) {
        let mut frame = packet.bytes();
        let before = parse(&frame).unwrap();
        forward(&mut frame, &to(src, dst), Checksum::Complete);
        assert_eq!(checksums_hold(&frame), (true, true));
        let after = parse(&frame).unwrap();
        let key = FlowKey { protocol: before.key.protocol, ..FlowKey::tcp(src, dst) };
        prop_assert_eq!(after, Headers { key, ttl: before.ttl - 1, ..before });
        prop_assert_eq!((&frame[0..6], &frame[6..12]), (&HOP.dst_mac[..], &HOP.src_mac[..]));
    }

    #[test]
    fn the_reverse_rewrite_brings_back_every_byte_but_hops_and_link_addresses(
        (packet, src, dst) in any_packet_to(), partial in any::<bool>(),
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
    fn checksum_completion_commutes_with_rewriting(
        (packet, src, dst) in any_packet_to(),
    ) {
        let mut early = packet.bytes();
        let headers = parse(&early).unwrap();
        let at = headers.l4 + checksum_at(headers.key.protocol);
        prop_assume!(headers.is_tcp() || early[at..at + 2] != [0, 0], "UDP without a checksum");
        let mut late = packet.partial().bytes();
        forward(&mut late, &to(src, dst), Checksum::Partial);
        complete(&mut late);
        forward(&mut early, &to(src, dst), Checksum::Complete);
        prop_assert_eq!(late, early);
    }
}

fn forward(frame: &mut [u8], to: &Rewrite, checksum: Checksum) {
    let headers = parse(frame).unwrap();
    rewrite(frame, &headers, to, &HOP, checksum);
}
