//! Packets that were damaged on their path, or whose sender has invented a checksum.

use super::lab::{Family, Lab, Outcome, error_about};
use convey_model::DropReason;
use convey_wire::{self as wire, IcmpError, TestPacket};

run_cases_over_both_families! {
    a_damaged_end_of_either_side_ends_no_connection,
    a_damaged_syn_opens_no_flow,
    a_damaged_icmp_error_is_not_believed,
    a_damaged_segment_is_not_cut_into_valid_ones,
}

/// The frame with one bit of its transport header changed: the lowest bit of the TCP window or of
/// the unused ICMP word.
fn damaged(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let l4 = wire::parse(&frame).unwrap().l4;
    let is_tcp = wire::parse(&frame).unwrap().kind == wire::Kind::Whole;
    frame[l4 + if is_tcp { 15 } else { 4 }] ^= 1;
    frame
}

#[track_caller]
fn assert_dropped(lab: &mut Lab, frame: &[u8]) {
    let outcome = lab.handle_frame(&mut damaged(frame), None);
    assert_eq!(outcome, Outcome::Dropped(DropReason::BadChecksum));
}

fn a_damaged_end_of_either_side_ends_no_connection(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let is_dsr = !lab.world.frontends[0].mode.has_snat();
        let syn = lab.connect(1);
        let of_client = |packet: TestPacket| packet.seq(101).ack(501);
        let mut ends = vec![of_client(lab.client(1).rst()), of_client(lab.client(1).fin())];
        if !is_dsr {
            ends.extend([syn.reply().rst().seq(501).ack(101), syn.reply().fin().seq(501).ack(101)]);
        }
        for end in &ends {
            assert_dropped(&mut lab, &end.bytes());
        }
        assert_eq!((lab.forwarder.flows().open(), lab.ended()), (1, 0));
        lab.send(ends.remove(0));
        assert_eq!(lab.ended(), 1);
    }
}

fn a_damaged_syn_opens_no_flow(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.client(1).syn().seq(100).bytes();
        assert_dropped(&mut lab, &syn);
        assert_eq!(lab.forwarder.flows().len(), 0);
    }
}

fn a_damaged_icmp_error_is_not_believed(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let answer = lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_400]));
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    let error = error_about(&answer.frame, IcmpError::TooBig { mtu: 1_280 }, router);
    assert_dropped(&mut lab, &error);
    lab.send(syn.reply().seq(1_901).ack(101).payload(&[7; 1_400]));
    let narrow = lab.handle_frame(&mut error.clone(), None);
    assert_eq!(narrow, Outcome::Dropped(DropReason::PathMtuTooSmall), "the same error undamaged");
}

fn a_damaged_segment_is_not_cut_into_valid_ones(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let segment = || syn.reply().seq(501).ack(101).payload(&[7; 1_400]);
    let answer = lab.send(segment());
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    let error = error_about(&answer.frame, IcmpError::TooBig { mtu: 1_280 }, router);
    lab.handle_frame(&mut error.clone(), None);
    let whole = segment().bytes();
    let last = whole.len() - 1;
    let mut frame = whole.clone();
    frame[last] ^= 1;
    assert_eq!(lab.handle_frame(&mut frame, None), Outcome::Dropped(DropReason::BadChecksum));
    let Outcome::Fragments(pieces, _) = lab.handle_frame(&mut whole.clone(), None) else { panic!("not cut") };
    assert_eq!(pieces.len(), 2);
}

#[test]
fn a_damaged_ipv4_header_is_dropped_whatever_it_says() {
    let mut lab = Lab::passthrough(Family::V4);
    lab.connect(1);
    let frame = lab.client(1).seq(101).ack(501).payload(b"hello").bytes();
    // Identification, TTL, checksum, source, destination.
    for at in [18, 22, 24, 29, 33] {
        let mut frame = frame.clone();
        frame[at] ^= 0x10;
        assert_eq!(
            lab.handle_frame(&mut frame, None),
            Outcome::Dropped(DropReason::BadChecksum),
            "byte {at}"
        );
    }
    assert_eq!(lab.forwarder.flows().len(), 1);
}
