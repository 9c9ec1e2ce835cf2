//! Fragmented packets, through the fragment queue and the forwarder.

use std::time::Duration;

use super::lab::{Family, LAN, Lab, Outcome, Seen, WAN};
use convey_model::DropReason;
use convey_wire::IcmpError;

run_cases_over_both_families! {
    a_datagram_in_fragments_arrives_in_whatever_order_they_come,
    a_segment_in_fragments_arrives_too,
    fragments_whose_first_is_lost_are_dropped_and_others_pass,
    clients_that_choose_the_same_number_are_told_apart_by_their_server,
    servers_that_choose_the_same_number_are_told_apart_by_their_client,
    in_dsr_fragments_keep_their_number,
    a_later_fragment_is_never_answered,
    fragments_of_what_is_not_ours_pass,
    fragments_of_an_unrecorded_flow_follow_their_first,
}

/// Content in which each piece shows its offset.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 8 % 251) as u8).collect()
}

/// Handles these frames. Returns the forwarded frames.
#[track_caller]
fn arrive<'a>(lab: &mut Lab, frames: impl IntoIterator<Item = &'a Vec<u8>>, interface: u32) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    for outcome in frames.into_iter().flat_map(|frame| lab.handle_fragment(frame)) {
        match outcome {
            Outcome::Fragments(frames, on) if on == interface => sent.extend(frames),
            other => panic!("{other:?}"),
        }
    }
    sent
}

fn a_datagram_in_fragments_arrives_in_whatever_order_they_come(family: Family) {
    for mut lab in [Lab::passthrough(family), Lab::dsr(family), Lab::l2(family)].map(Lab::udp) {
        let content = content(4_096);
        let whole = lab.send(lab.client(1).udp().payload(b"where?"));
        for (id, order) in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]].into_iter().enumerate() {
            let frames = lab.client(1).udp().payload(&content).fragments(id as u32, 1_200);
            let sent = arrive(&mut lab, order.map(|n| &frames[n]), LAN);
            let [seen] = &Seen::reassemble(&sent)[..] else { panic!("one datagram") };
            assert_eq!((seen.route(), seen.mac, seen.ttl), (whole.route(), whole.mac, 63));
            assert!(seen.payload == content);
        }
        assert_eq!((lab.opened, lab.forwarder.flows().len()), (1, 1));

        let frames = lab.client(2).udp().payload(&content).fragments(9, 1_200);
        let sent = arrive(&mut lab, frames.iter().rev(), LAN);
        assert_eq!((Seen::reassemble(&sent).len(), lab.opened), (1, 2), "a flow may begin in fragments");
    }
    let mut lab = Lab::passthrough(family).udp();
    let question = lab.send(lab.client(1).udp());
    let answer = question.reply().payload(&content(4_096)).fragments(7, 1_400);
    let sent = arrive(&mut lab, answer.iter().rev(), WAN);
    let [seen] = &Seen::reassemble(&sent)[..] else { panic!("one datagram") };
    assert_eq!(seen.route(), (family.vip().into(), family.client_addr(1)));
}

fn a_segment_in_fragments_arrives_too(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let segment = lab.client(1).seq(101).ack(501).payload(&content(3_000));
    let sent = arrive(&mut lab, segment.fragments(3, 1_200).iter().rev(), LAN);
    let [seen] = &Seen::reassemble(&sent)[..] else { panic!("one segment") };
    assert_eq!((seen.route(), seen.seq, seen.payload.len()), (syn.route(), 101, 3_000));
}

#[test]
fn a_datagram_with_options_behind_its_fragment_header_arrives_too() {
    for mut lab in [Lab::passthrough(Family::V6), Lab::dsr(Family::V6)].map(Lab::udp) {
        let packet = lab.client(1).udp().payload(&content(3_000)).cut_extension(60, &[0, 1, 4, 0, 0, 0, 0]);
        for (id, order) in [[0, 1, 2], [2, 1, 0]].into_iter().enumerate() {
            let frames = packet.fragments(id as u32, 1_200);
            let sent = arrive(&mut lab, order.map(|n| &frames[n]), LAN);
            assert_eq!((frames.len(), sent.len(), lab.opened), (3, 3, 1));
        }
    }
}

#[test]
fn fragments_that_are_too_long_for_the_next_link_are_cut_further() {
    let mut lab = Lab::passthrough(Family::V4).udp();
    lab.change(|world| world.lan_mtu = 600);
    let frames = lab.client(1).udp().payload(&content(4_000)).fragments(7, 1_480);
    let sent = arrive(&mut lab, &frames, LAN);
    let [seen] = &Seen::reassemble(&sent)[..] else { panic!("one datagram") };
    assert!(seen.payload == content(4_000));
    assert_eq!((frames.len(), sent.len()), (3, 8));
}

fn fragments_whose_first_is_lost_are_dropped_and_others_pass(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let lost = lab.client(1).udp().payload(&content(4_000)).fragments(1, 1_200);
    assert_eq!(arrive(&mut lab, &lost[1..3], LAN), Vec::<Vec<u8>>::new());
    lab.wait(Duration::from_millis(500));
    let other = lab.client(1).udp().payload(&content(4_000)).fragments(2, 1_200);
    let sent = arrive(&mut lab, &other, LAN);
    assert_eq!((sent.len(), Seen::reassemble(&sent).len()), (4, 1));
    assert_eq!(arrive(&mut lab, &lost[..1], LAN).len(), 1, "it is too late for the others");
    // A forwarder that has not seen the first fragment reports that.
    let mut unsorted = lost[1].clone();
    assert_eq!(lab.handle_frame(&mut unsorted, None), Outcome::Dropped(DropReason::FragmentUnmatched));
}

fn clients_that_choose_the_same_number_are_told_apart_by_their_server(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    lab.change(|world| world.servers.truncate(1));
    let [one, other] = [1, 2].map(|n| {
        let content: Vec<u8> = content(4_000).iter().map(|byte| byte ^ n as u8).collect();
        (lab.client(n).udp().payload(&content).fragments(0xab_cdef, 1_200), content)
    });
    let mixed = one.0.iter().zip(&other.0).flat_map(|(one, other)| [one, other]);
    let sent = arrive(&mut lab, mixed, LAN);
    let seen = Seen::reassemble(&sent);
    let contents: Vec<_> = seen.iter().map(|seen| &seen.payload).collect();
    assert!(contents == [&one.1, &other.1], "{seen:?}");
    assert_ne!(seen[0].from, seen[1].from);
}

fn servers_that_choose_the_same_number_are_told_apart_by_their_client(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    // One client, for which all servers have one address: the VIP.
    let mut questions = (0..50).map(|n| lab.send(lab.client(1 + n * 200).udp())).collect::<Vec<_>>();
    questions.dedup_by_key(|question| question.mac);
    let [one, other] = [0, 1].map(|n| questions[n].reply().payload(&content(2_000)).fragments(7, 1_200));
    let mixed = one.iter().zip(&other).flat_map(|(one, other)| [one, other]);
    let sent = arrive(&mut lab, mixed, WAN);
    let seen = Seen::reassemble(&sent);
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.payload == content(2_000)));
}

fn in_dsr_fragments_keep_their_number(family: Family) {
    let mut lab = Lab::dsr(family).udp();
    let frames = lab.client(1).udp().payload(&content(2_000)).fragments(0xab_cdef, 1_200);
    let sent = arrive(&mut lab, &frames, LAN);
    let number = family.pick(18..20, 58..62);
    for (was, is) in frames.iter().zip(&sent) {
        assert_eq!(was[number.clone()], is[number.clone()]);
    }
}

fn a_later_fragment_is_never_answered(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    let frames = lab.client(1).udp().payload(&content(3_000)).ttl(1).fragments(1, 1_200);
    for (n, frame) in frames.iter().enumerate() {
        match &lab.handle_fragment(frame)[..] {
            [Outcome::Answered(reply, DropReason::TtlExceeded)] if n == 0 => {
                assert_eq!(reply.icmp_error().0, IcmpError::TimeExceeded);
            }
            // The first fragment has begun no flow.
            [Outcome::Dropped(DropReason::NoFlow)] if n > 0 => {}
            other => panic!("{n}: {other:?}"),
        }
    }
    lab.send(lab.client(1).udp());
    for (n, frame) in
        lab.client(1).udp().payload(&content(3_000)).ttl(1).fragments(2, 1_200).iter().enumerate()
    {
        let outcome = &lab.handle_fragment(frame)[0];
        let dropped = Outcome::Dropped(DropReason::TtlExceeded);
        assert_eq!(*outcome == dropped, n > 0, "{n}: {outcome:?}");
    }
}

fn fragments_of_what_is_not_ours_pass(family: Family) {
    let mut lab = Lab::passthrough(family);
    for frame in lab.client(1).udp().payload(&content(3_000)).fragments(1, 1_200) {
        assert_eq!(lab.handle_fragment(&frame), [Outcome::Passed], "the frontend is one of TCP");
    }
}

fn fragments_of_an_unrecorded_flow_follow_their_first(family: Family) {
    let mut lab = Lab::dsr_of(family, 1);
    lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(1).payload(b"x"));
    let segment = lab.client(2).seq(101).ack(501).payload(&content(3_000));
    let sent = arrive(&mut lab, &segment.fragments(3, 1_200), LAN);
    let [seen] = &Seen::reassemble(&sent)[..] else { panic!("one segment") };
    assert_eq!((seen.from.to_string(), seen.payload.len()), (family.client_addr(2), 3_000));
    assert_eq!((lab.opened, lab.untracked), (1, 3));
}
