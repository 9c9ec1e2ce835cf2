use etherparse::{Icmpv4Type, Icmpv6Type, SlicedPacket, TransportSlice, icmpv4, icmpv6};
use proptest::prelude::*;

use super::*;
use crate::testing::{HOP, any_packet, any_segment, checksums_hold};
use crate::{TestPacket, parse};

const CLIENT: &str = "10.0.0.9:4242";
const VIP: &str = "10.0.0.1:80";
const CLIENT6: &str = "[2001:db8::9]:4242";
const VIP6: &str = "[2001:db8::1]:80";

#[test]
fn a_segment_that_acknowledges_is_reset_at_the_byte_it_expects() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
        let segment = TestPacket::from(client).to(vip).seq(100).ack(7_000).payload(b"hello");
        let reply = TestPacket::from(vip).to(client).seq(7_000).rst();
        assert_eq!(answer(&segment), expected(reply));
    }
}

#[test]
fn a_syn_is_refused_by_acknowledging_it() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
        let segment = TestPacket::from(client).to(vip).seq(100).syn().tcp_options(&[2, 4, 5, 180]);
        assert_eq!(answer(&segment), expected(TestPacket::from(vip).to(client).ack(101).rst()));
    }
}

#[test]
fn reset_acknowledges_all_of_a_segment_without_ack_across_wraparound() {
    let segment = TestPacket::from(CLIENT).to(VIP).seq(u32::MAX - 2).fin().payload(b"hello");
    assert_eq!(answer(&segment), expected(TestPacket::from(VIP).to(CLIENT).ack(3).rst()));
}

#[test]
fn ip_options_are_not_sent_back() {
    let segment = TestPacket::from(CLIENT).to(VIP).ack(9).ip_options(&[1; 40]);
    assert_eq!(answer(&segment), expected(TestPacket::from(VIP).to(CLIENT).seq(9).rst()));
}

#[test]
fn a_client_whose_server_is_gone_is_told_by_the_vip() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
        let key = FlowKey::tcp(vip.parse().unwrap(), client.parse().unwrap());
        let mut told = vec![7; 3];
        reset(&key, 7, &HOP, &mut told);
        assert_eq!(told, expected(TestPacket::from(vip).to(client).seq(7).rst()));
    }
}

#[test]
fn fragmentation_needed_reports_the_mtu_and_quotes_the_packet() {
    let packet = TestPacket::from(CLIENT).to(VIP).ack(1).payload(&[7; 188]);
    let (frame, error) = refused(&packet, IcmpError::TooBig { mtu: 200 }, "10.0.0.1");
    assert_eq!((frame.len(), checksums_hold(&error)), (14 + 228, (true, true)));
    let sliced = SlicedPacket::from_ethernet(&error).unwrap();
    let Some(TransportSlice::Icmpv4(icmp)) = sliced.transport else { panic!("no ICMP") };
    let needed = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 200 };
    assert_eq!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(needed));
    assert!(icmp.payload().len() >= 28);
    assert_eq!(icmp.payload(), &frame[14..]);
    assert_eq!((&error[26..30], &error[30..34]), (&[10, 0, 0, 1][..], &[10, 0, 0, 9][..]));
}

#[test]
fn packet_too_big_reports_the_mtu_in_at_most_1280_bytes() {
    let packet = TestPacket::from(CLIENT6).to(VIP6).ack(1).payload(&[7; 1400]);
    let (frame, error) = refused(&packet, IcmpError::TooBig { mtu: 1280 }, "2001:db8::1");
    assert_eq!((error.len(), checksums_hold(&error)), (14 + 1280, (true, true)));
    let sliced = SlicedPacket::from_ethernet(&error).unwrap();
    let Some(TransportSlice::Icmpv6(icmp)) = sliced.transport else { panic!("no ICMPv6") };
    assert_eq!(icmp.icmp_type(), Icmpv6Type::PacketTooBig { mtu: 1280 });
    assert_eq!(icmp.payload(), &frame[14..14 + 1280 - 48]);
}

#[test]
fn every_error_has_the_numbers_of_its_family() {
    use etherparse::icmpv4::{DestUnreachableHeader, TimeExceededCode};
    let v4 = [
        (IcmpError::PortUnreachable, Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port)),
        (IcmpError::TimeExceeded, Icmpv4Type::TimeExceeded(TimeExceededCode::TtlExceededInTransit)),
    ];
    for (error, expected) in v4 {
        let (_, frame) = refused(&TestPacket::from(CLIENT).to(VIP).udp().payload(b"?"), error, "10.0.0.1");
        let Some(TransportSlice::Icmpv4(icmp)) = SlicedPacket::from_ethernet(&frame).unwrap().transport
        else {
            panic!("no ICMP");
        };
        assert_eq!(icmp.icmp_type(), expected);
    }
    let v6 = [
        (IcmpError::PortUnreachable, Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port)),
        (IcmpError::TimeExceeded, Icmpv6Type::TimeExceeded(icmpv6::TimeExceededCode::HopLimitExceeded)),
    ];
    for (error, expected) in v6 {
        let (_, frame) =
            refused(&TestPacket::from(CLIENT6).to(VIP6).udp().payload(b"?"), error, "2001:db8::1");
        let Some(TransportSlice::Icmpv6(icmp)) = SlicedPacket::from_ethernet(&frame).unwrap().transport
        else {
            panic!("no ICMPv6");
        };
        assert_eq!(icmp.icmp_type(), expected);
    }
}

proptest! {
    #[test]
    fn every_segment_has_an_answer_that_its_sender_can_read(packet in any_segment()) {
        let frame = packet.bytes();
        let headers = parse(&frame).unwrap();
        if headers.flags.rst() {
            return Ok(()); // never answered
        }
        let mut reply = Vec::new();
        reset_reply(&frame, &headers, &mut reply);
        prop_assert_eq!(checksums_hold(&reply), (true, true));
        let reply = parse(&reply).unwrap();
        prop_assert_eq!((reply.key, reply.ttl), (headers.key.reversed(), 64));
        prop_assert!(reply.flags.rst() && reply.flags.ack() != headers.flags.ack());
    }

    #[test]
    fn every_error_quotes_the_packet_it_is_about(packet in any_packet(), mtu in 68u32..9000) {
        let frame = packet.bytes();
        let headers = parse(&frame).unwrap();
        let src = if headers.is_v4() { Addr::v4([10, 0, 0, 1]) } else { Addr::v6([7; 16]) };
        for error in [IcmpError::TooBig { mtu }, IcmpError::TimeExceeded, IcmpError::PortUnreachable] {
            let mut answer = Vec::new();
            icmp_error(&frame, &headers, error, src, &mut answer);
            prop_assert!(answer.len() <= ANSWER_LEN);
            prop_assert_eq!(checksums_hold(&answer), (true, true));
            let read = parse(&answer).unwrap();
            prop_assert!(read.is_error());
            prop_assert_eq!((read.key, read.seq), (headers.key.reversed(), headers.seq));
        }
    }
}

fn refused(packet: &TestPacket, error: IcmpError, src: &str) -> (Vec<u8>, Vec<u8>) {
    let frame = packet.bytes();
    let mut answer = Vec::new();
    let src = src.parse::<std::net::IpAddr>().unwrap().into();
    icmp_error(&frame, &parse(&frame).unwrap(), error, src, &mut answer);
    (frame, answer)
}

fn answer(segment: &TestPacket) -> Vec<u8> {
    let frame = segment.clone().macs(HOP.dst_mac, HOP.src_mac).bytes();
    let mut answer = Vec::new();
    reset_reply(&frame, &parse(&frame).unwrap(), &mut answer);
    answer
}

/// Frame of the reply, addressed to the sender of the segment. A reset has a window of 0.
fn expected(reply: TestPacket) -> Vec<u8> {
    reply.macs(HOP.src_mac, HOP.dst_mac).window(0).bytes()
}
