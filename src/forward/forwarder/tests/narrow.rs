//! Clients whose path takes shorter packets than their server is told.

use std::collections::BTreeSet;
use std::time::Duration;

use super::lab::{Family, LAN, Lab, Outcome, Seen, WAN, error_about, told_with_cache};
use crate::model::DropReason;
use crate::wire::{self, IcmpError, TestPacket};

told_over_both_families! {
    a_server_is_told_of_no_path_mtu_below_the_least,
    in_dsr_a_server_is_told_what_the_router_said_for_it_knows_each_clients_path,
}

/// Somebody on the way to the clients says that packets like this one, on its way to its client, may have `mtu` bytes.
fn too_big(lab: &mut Lab, family: Family, answer: &Seen, mtu: u32) -> Outcome {
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    lab.handle_frame(&mut error_about(&answer.frame, IcmpError::TooBig { mtu }, router), None)
}

/// A flow of client 1, which has asked twice and was answered: the server's answers.
fn stream(lab: &mut Lab) -> (TestPacket, Seen) {
    let question = lab.send(lab.client(1).udp());
    lab.send(question.reply());
    lab.send(lab.client(1).udp());
    let answer = lab.send(question.reply().payload(&[7; 1_000]));
    (question.reply(), answer)
}

fn a_server_is_told_of_no_path_mtu_below_the_least(family: Family) {
    for mtu in [0, 68, 1_279] {
        let mut lab = Lab::passthrough(family).udp();
        let (_, answer) = stream(&mut lab);
        let outcome = too_big(&mut lab, family, &answer, mtu);
        assert_eq!(outcome, Outcome::Dropped(DropReason::PathMtuTooSmall));
    }
    for mtu in [1_280, 1_400] {
        let mut lab = Lab::passthrough(family).udp();
        let (_, answer) = stream(&mut lab);
        let Outcome::Sent(told) = too_big(&mut lab, family, &answer, mtu) else { panic!("{mtu}") };
        assert_eq!((told.says().0, told.interface), (IcmpError::TooBig { mtu }, LAN));
    }
}

fn in_dsr_a_server_is_told_what_the_router_said_for_it_knows_each_clients_path(family: Family) {
    let mut lab = Lab::dsr(family).udp();
    lab.send(lab.client(1).udp());
    let answer = TestPacket::from(family.vip()).to(family.client_addr(1)).udp().payload(&[7; 1_000]).bytes();
    let error =
        error_about(&answer, IcmpError::TooBig { mtu: 600 }, family.pick("203.0.113.7", "2001:db8:7::7"));
    assert_eq!(lab.forwarded(&error).says().0, IcmpError::TooBig { mtu: 600 });
}

/// The pieces of what was sent, checked to be fragments of one packet that may be cut further.
fn pieces(outcome: Outcome) -> Vec<usize> {
    let Outcome::Fragments(pieces, WAN) = outcome else { panic!("{outcome:?}") };
    let headers: Vec<_> = pieces.iter().map(|piece| wire::parse(piece).unwrap()).collect();
    assert!(headers.iter().all(|headers| !headers.dont_fragment));
    let ids = headers.iter().map(|headers| headers.fragment().map(|key| key.id));
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), 1);
    headers.iter().map(|headers| headers.packet_len()).collect()
}

#[test]
fn what_is_too_long_for_a_narrow_path_is_cut_here_and_nobody_elses() {
    let family = Family::V4;
    let mut lab = Lab::passthrough(family).udp();
    let (reply, answer) = stream(&mut lab);
    too_big(&mut lab, family, &answer, 68);
    lab.send(reply.clone().payload(&[7; 548]));
    // They must not be cut, as far as their sender knows.
    for (payload, expected) in [(549, &[572, 25][..]), (1_472, &[572, 572, 396])] {
        assert_eq!(pieces(lab.handle(&reply.clone().payload(&vec![7; payload]))), expected);
    }
    assert_eq!(lab.forwarder.flows().cached(), 0, "the cache cuts nothing");
    // Nobody else's are cut, nor what the client sends.
    let other = lab.send(lab.client(2).udp());
    lab.send(other.reply().payload(&[7; 1_472]));
    lab.send(lab.client(1).udp().payload(&[7; 1_372]));
}

#[test]
fn a_path_that_was_narrow_is_tried_again_after_ten_minutes() {
    told_with_cache(|| {
        let family = Family::V4;
        let mut lab = Lab::passthrough(family).udp();
        let (reply, answer) = stream(&mut lab);
        too_big(&mut lab, family, &answer, 68);
        let packet = reply.payload(&[7; 1_472]);
        for _ in 0..5 {
            assert_eq!(pieces(lab.handle(&packet)).len(), 3);
            lab.wait(Duration::from_secs(110));
        }
        assert_eq!((pieces(lab.handle(&packet)).len(), lab.forwarder.flows().cached()), (3, 0));
        lab.wait(Duration::from_secs(51));
        lab.send(packet.clone());
        assert_eq!(lab.forwarder.flows().cached(), 1);
        // It is as narrow as before.
        let whole = lab.send(packet.clone());
        too_big(&mut lab, family, &whole, 68);
        assert_eq!((pieces(lab.handle(&packet)).len(), lab.forwarder.flows().cached()), (3, 0));
    });
}

#[test]
fn where_servers_are_told_of_fewer_paths_those_that_are_not_so_narrow_get_longer_pieces() {
    let family = Family::V4;
    let mut lab = Lab::passthrough(family).udp();
    lab.snapshot.min_path_mtu = 1_500;
    let (reply, answer) = stream(&mut lab);
    too_big(&mut lab, family, &answer, 1_400);
    let packet = reply.payload(&[7; 1_472]);
    assert_eq!(pieces(lab.handle(&packet)), [1_276, 244]);
    too_big(&mut lab, family, &answer, 1_200);
    too_big(&mut lab, family, &answer, 1_400);
    assert_eq!(pieces(lab.handle(&packet)), [572, 572, 396]);
}

#[test]
fn a_connection_with_a_narrow_path_gets_shorter_segments_of_super_frames() {
    let family = Family::V4;
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let answer = lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
    too_big(&mut lab, family, &answer, 500);
    let mut super_frame = syn.reply().seq(1_501).ack(101).payload(&[7; 12_400]).bytes();
    let Outcome::Segments(seen, 536) = lab.handle_frame(&mut super_frame, Some(1_240)) else { panic!() };
    assert!(!wire::parse(&seen.frame).unwrap().dont_fragment, "a router may need even shorter ones");
    let whole = syn.reply().seq(1_501).ack(101).payload(&[7; 1_240]);
    assert_eq!(pieces(lab.handle(&whole)).len(), 3);
}

#[test]
fn a_link_of_ours_that_is_narrower_than_servers_are_told_has_packets_cut_too() {
    let mut lab = Lab::passthrough(Family::V4).udp();
    let question = lab.send(lab.client(1).udp());
    lab.change(|world| world.wan_mtu = 600);
    assert_eq!(pieces(lab.handle(&question.reply().payload(&[7; 1_472]))), [596, 596, 348]);
    lab.change(|world| world.wan_mtu = 1_300);
    let (told, _) = lab.answer(question.reply().payload(&[7; 1_472]));
    assert_eq!(told.says().0, IcmpError::TooBig { mtu: 1_300 });
}
