//! Clients on paths with a smaller MTU than their server uses.

use std::collections::BTreeSet;
use std::time::Duration;

use super::handover::{export_flows, take};
use super::lab::{Family, LAN, Lab, Outcome, Seen, WAN, error_about, run_with_cache};
use convey_model::DropReason;
use convey_wire::{self as wire, IcmpError, TestPacket};

run_cases_over_both_families! {
    a_server_is_told_of_no_path_mtu,
    path_mtus_from_min_path_mtu_on_reach_the_server,
    dsr_server_gets_packet_too_big_unchanged,
    connection_with_a_narrow_path_alone_gets_shorter_segments,
    a_path_that_takes_what_our_link_takes_is_not_narrow,
}

/// Handles an ICMP error of a router on the path to the client of `answer`: packets to this client
/// may have at most `mtu` bytes.
fn too_big(lab: &mut Lab, family: Family, answer: &Seen, mtu: u32) -> Outcome {
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    lab.handle_frame(&mut error_about(&answer.frame, IcmpError::TooBig { mtu }, router), None)
}

/// Opens a stream of client 1, which sends twice and is answered. Returns a template for the
/// server's packets, and a forwarded answer.
fn stream(lab: &mut Lab) -> (TestPacket, Seen) {
    let question = lab.send(lab.client(1).udp());
    lab.send(question.reply());
    lab.send(lab.client(1).udp());
    let answer = lab.send(question.reply().payload(&[7; 1_000]));
    (question.reply(), answer)
}

fn a_server_is_told_of_no_path_mtu(family: Family) {
    for mtu in [0, 68, 1_279, 1_280, 1_400, 1_499, 9_000] {
        let mut lab = Lab::passthrough(family).udp();
        let (_, answer) = stream(&mut lab);
        let outcome = too_big(&mut lab, family, &answer, mtu);
        assert_eq!(outcome, Outcome::Dropped(DropReason::PathMtuTooSmall));
    }
}

fn path_mtus_from_min_path_mtu_on_reach_the_server(family: Family) {
    for (least, mtu, is_told) in [
        (1_400, 1_399, false),
        (1_400, 1_400, true),
        (1_400, 1_492, true),
        (576, 1_280, true),
        (576, 1_279, family == Family::V4),
        (576, 575, false),
    ] {
        let mut lab = Lab::passthrough(family).udp();
        lab.plan.min_path_mtu = Some(least);
        let (_, answer) = stream(&mut lab);
        match too_big(&mut lab, family, &answer, mtu) {
            Outcome::Sent(reply) => {
                assert!(is_told);
                assert_eq!((reply.icmp_error().0, reply.interface), (IcmpError::TooBig { mtu }, LAN));
            }
            outcome => assert_eq!((outcome, is_told), (Outcome::Dropped(DropReason::PathMtuTooSmall), false)),
        }
    }
}

fn dsr_server_gets_packet_too_big_unchanged(family: Family) {
    let mut lab = Lab::dsr(family).udp();
    lab.send(lab.client(1).udp());
    let answer = TestPacket::from(family.vip()).to(family.client_addr(1)).udp().payload(&[7; 1_000]).bytes();
    let error =
        error_about(&answer, IcmpError::TooBig { mtu: 600 }, family.pick("203.0.113.7", "2001:db8:7::7"));
    assert_eq!(lab.forwarded(&error).icmp_error().0, IcmpError::TooBig { mtu: 600 });
}

/// Lengths of the pieces of a forwarded packet, checked to be fragments of one packet that routers
/// may fragment further.
fn pieces(outcome: Outcome) -> Vec<usize> {
    let Outcome::Fragments(pieces, WAN) = outcome else { panic!("{outcome:?}") };
    let headers: Vec<_> = pieces.iter().map(|piece| wire::parse(piece).unwrap()).collect();
    assert!(headers.iter().all(|headers| !headers.dont_fragment));
    let ids = headers.iter().map(|headers| headers.fragment().map(|key| key.id));
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), 1);
    headers.iter().map(|headers| headers.packet_len()).collect()
}

#[test]
fn oversized_datagrams_are_fragmented_only_for_the_narrow_path() {
    let family = Family::V4;
    let mut lab = Lab::passthrough(family).udp();
    let (reply, answer) = stream(&mut lab);
    too_big(&mut lab, family, &answer, 68);
    // The error may be forged: QUIC packets of 1,280 bytes or less stay whole.
    lab.send(reply.clone().payload(&[7; 1_252]));
    // Their sender has set the DF bit.
    for (payload, expected) in [(1_253, &[1_276, 25][..]), (1_472, &[1_276, 244])] {
        assert_eq!(pieces(lab.handle(&reply.clone().payload(&vec![7; payload]))), expected);
    }
    assert_eq!(lab.forwarder.flows().cached(), 0, "the cache cuts nothing");
    // Packets to other clients are not cut, nor are the client's own packets.
    let other = lab.send(lab.client(2).udp());
    lab.send(other.reply().payload(&[7; 1_472]));
    lab.send(lab.client(1).udp().payload(&[7; 1_372]));
}

#[test]
fn a_path_that_was_narrow_is_tried_again_after_ten_minutes() {
    run_with_cache(|| {
        let family = Family::V4;
        let mut lab = Lab::passthrough(family).udp();
        let (reply, answer) = stream(&mut lab);
        too_big(&mut lab, family, &answer, 68);
        let packet = reply.payload(&[7; 1_472]);
        for _ in 0..5 {
            assert_eq!(pieces(lab.handle(&packet)).len(), 2);
            lab.wait(Duration::from_secs(110));
        }
        assert_eq!((pieces(lab.handle(&packet)).len(), lab.forwarder.flows().cached()), (2, 0));
        lab.wait(Duration::from_secs(51));
        lab.send(packet.clone());
        assert_eq!(lab.forwarder.flows().cached(), 1);
        // The path is as narrow as before.
        let whole = lab.send(packet.clone());
        too_big(&mut lab, family, &whole, 68);
        assert_eq!((pieces(lab.handle(&packet)).len(), lab.forwarder.flows().cached()), (2, 0));
    });
}

#[test]
fn a_path_that_was_narrow_in_another_process_is_tried_again_too() {
    run_with_cache(|| {
        let (mut old, mut new) = (Lab::passthrough(Family::V4).udp(), Lab::passthrough(Family::V4).udp());
        let (reply, answer) = stream(&mut old);
        too_big(&mut old, Family::V4, &answer, 68);
        new.now = old.now;
        assert_eq!(take(&mut new, &export_flows(&mut old)), 1);
        let packet = reply.payload(&[7; 1_472]);
        for _ in 0..6 {
            assert_eq!(pieces(new.handle(&packet)).len(), 2);
            new.wait(Duration::from_secs(101));
        }
        new.send(packet.clone());
        assert_eq!(new.forwarder.flows().cached(), 1);
    });
}

#[test]
fn fragments_fit_the_narrowest_hop_but_are_at_least_1280() {
    let family = Family::V4;
    let mut lab = Lab::passthrough(family).udp();
    let (reply, answer) = stream(&mut lab);
    let packet = reply.payload(&[7; 1_472]);
    for (reply, expected) in [
        (1_492, &[1_396, 124][..]),
        (1_300, &[1_276, 244]),
        (1_492, &[1_276, 244]),
        (1_200, &[1_276, 244]),
        (1_400, &[1_276, 244]),
    ] {
        too_big(&mut lab, family, &answer, reply);
        assert_eq!(pieces(lab.handle(&packet)), expected, "{reply}");
    }
}

#[test]
fn ipv6_datagrams_are_fragmented_no_smaller_than_1280() {
    let family = Family::V6;
    let mut lab = Lab::passthrough(family).udp();
    let (reply, answer) = stream(&mut lab);
    let packet = reply.payload(&[7; 1_300]);
    too_big(&mut lab, family, &answer, 1_279);
    lab.send(packet.clone());
    too_big(&mut lab, family, &answer, 1_280);
    let Outcome::Fragments(pieces, WAN) = lab.handle(&packet) else { panic!() };
    let headers: Vec<_> = pieces.iter().map(|piece| wire::parse(piece).unwrap()).collect();
    assert_eq!(headers.iter().map(|headers| headers.packet_len()).collect::<Vec<_>>(), [1_280, 124]);
    let ids: BTreeSet<_> = headers.iter().map(|headers| headers.fragment().map(|key| key.id)).collect();
    assert_eq!(ids.len(), 1);
    // A packet with an extension header that has to precede a fragment header cannot be cut.
    let options = packet.extension(60, &[0; 7]);
    assert_eq!(lab.answer(options).0.icmp_error().0, IcmpError::TooBig { mtu: 1_280 });
}

fn connection_with_a_narrow_path_alone_gets_shorter_segments(family: Family) {
    let mut lab = Lab::passthrough(family);
    let (syn, other) = (lab.connect(1), lab.connect(2));
    let answer = lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
    too_big(&mut lab, family, &answer, 1_400);
    let header_len = family.pick(40, 60);
    let mut super_frame = syn.reply().seq(1_501).ack(101).payload(&[7; 14_000]).bytes();
    let Outcome::Segments(seen, payload) = lab.handle_frame(&mut super_frame, Some(1_400)) else { panic!() };
    assert_eq!(usize::from(payload), 1_400 - header_len);
    let is_whole = |frame: &[u8]| wire::parse(frame).unwrap().dont_fragment;
    assert_eq!(is_whole(&seen.frame), family == Family::V6, "a router may need even shorter ones");
    let whole = syn.reply().seq(15_501).ack(101).psh().payload(&[8; 1_440]);
    let Outcome::Fragments(segments, WAN) = lab.handle(&whole) else { panic!("it has to be cut") };
    let headers: Vec<_> = segments.iter().map(|segment| wire::parse(segment).unwrap()).collect();
    assert!(headers.iter().all(|headers| headers.fragment().is_none()));
    let first = 1_400 - header_len as u32;
    let seen: Vec<_> = headers.iter().map(|h| (h.seq, u32::from(h.payload_len))).collect();
    assert_eq!(seen, [(15_501, first), (15_501 + first, 1_440 - first)]);
    assert_eq!(lab.forwarder.flows().cached(), u32::from(lab.kernel.is_some()), "the cache cuts nothing");
    lab.send(other.reply().seq(501).ack(101).payload(&[7; 1_440]));
}

fn a_path_that_takes_what_our_link_takes_is_not_narrow(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let (reply, answer) = stream(&mut lab);
    for mtu in [1_500, 9_000] {
        assert_eq!(too_big(&mut lab, family, &answer, mtu), Outcome::Dropped(DropReason::PathMtuTooSmall));
        lab.send(reply.clone().payload(&[7; 1_440]));
    }
}

#[test]
fn segments_of_one_packet_have_no_number_of_the_next() {
    let mut lab = Lab::passthrough(Family::V4);
    let syn = lab.connect(1);
    let answer = lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
    too_big(&mut lab, Family::V4, &answer, 1_400);
    let number = |frame: &[u8]| u16::from_be_bytes([frame[18], frame[19]]);
    let mut numbers = Vec::new();
    let mut send = |id: u16, len: usize, segment_size| {
        let packet = syn.reply().seq(1_501).ack(101).payload(&vec![8; len]).may_be_cut(id);
        match lab.handle_frame(&mut packet.bytes(), segment_size) {
            Outcome::Fragments(segments, WAN) => numbers.extend(segments.iter().map(|frame| number(frame))),
            // The interface that cuts the frame counts up.
            Outcome::Segments(seen, payload) => {
                let count = (len as u16).div_ceil(payload);
                numbers.extend((0..count).map(|n| number(&seen.frame).wrapping_add(n)));
            }
            other => panic!("{other:?}"),
        }
    };
    send(7, 1_440, None);
    send(8, 1_440, None);
    send(9, 14_000, Some(1_440));
    send(19, 14_400, Some(1_440));
    send(29, 1_440, None);
    assert_eq!(numbers.len(), 2 + 2 + 11 + 11 + 2);
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len(), "{numbers:?}");
}

#[test]
fn urgent_data_for_a_narrow_path_is_fragmented_not_resegmented() {
    let family = Family::V4;
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let answer = lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
    too_big(&mut lab, family, &answer, 500);
    let mut whole = syn.reply().seq(1_501).ack(101).payload(&[7; 1_240]).bytes();
    whole[14 + 20 + 13] |= 0x20;
    assert_eq!(pieces(lab.handle_frame(&mut whole, None)).len(), 3);
}

#[test]
fn datagrams_for_a_narrow_local_link_are_fragmented() {
    let mut lab = Lab::passthrough(Family::V4).udp();
    let question = lab.send(lab.client(1).udp());
    lab.change(|world| world.wan_mtu = 600);
    assert_eq!(pieces(lab.handle(&question.reply().payload(&[7; 1_472]))), [596, 596, 348]);
    lab.change(|world| world.wan_mtu = 1_300);
    let (reply, _) = lab.answer(question.reply().payload(&[7; 1_472]));
    assert_eq!(reply.icmp_error().0, IcmpError::TooBig { mtu: 1_300 });
}
