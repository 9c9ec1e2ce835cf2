//! Forged segments from hosts off the path: in the name of a client or a server, with guessed
//! numbers.

use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Outcome, Seen, Size, error_about};
use crate::FlowState::{self, Adopted, Closed, Established, HandshakeOnly, SynReceived, SynSent};
use convey_model::{Algorithm, DropReason, Handshakes};
use convey_wire::{IcmpError, TestPacket};

run_cases_over_both_families! {
    forged_fin_or_reset_does_not_end_a_connection,
    sequence_number_scan_ends_and_shortens_no_connection,
    forged_acknowledgement_affects_neither_resets_nor_icmp_errors,
    an_error_about_what_the_server_has_not_sent_is_not_believed,
    a_handshake_needs_somebody_who_has_heard_the_server,
    in_dsr_a_forged_acknowledgement_opens_no_connection_that_another_begins,
    server_reset_after_unacknowledged_data_ends_the_connection,
    adopted_dsr_connections_are_evicted_last_and_hash_again,
    in_dsr_forged_connections_keep_nobody_out_whom_no_hash_could_serve,
    in_dsr_connections_met_under_way_are_waited_for_when_we_stop,
    clients_finish_their_handshakes_and_who_forges_their_syns_does_not,
}

fn count(lab: &Lab, state: FlowState) -> u32 {
    lab.forwarder.flows().count(state)
}

/// Sequence number as far from those of both sides as possible.
const GUESS: u32 = 1 << 30;

/// Segments that end a connection, from the sender of `packet`.
fn ends(packet: TestPacket) -> [TestPacket; 4] {
    let packet = |seq, ack: u32| packet.clone().seq(seq).ack(ack);
    // The numbers of the connection are 101 and 501.
    [
        packet(GUESS, GUESS).fin(),
        packet(GUESS, 501).fin(),
        packet(GUESS, GUESS).rst(),
        packet(102, GUESS).rst(),
    ]
}

fn forged_fin_or_reset_does_not_end_a_connection(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.handle(&syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501));
        let state = if lab.forwarder.snat_ports_in_use() > 0 { Established } else { HandshakeOnly };
        for end in ends(lab.client(1)).into_iter().chain([lab.client(1).rst().seq(GUESS)]) {
            assert_eq!(lab.send(end).route(), syn.route(), "its receiver decides");
        }
        if lab.forwarder.snat_ports_in_use() > 0 {
            for end in ends(syn.reply()).into_iter().chain([syn.reply().rst().seq(GUESS)]) {
                lab.send(end);
            }
        }
        assert_eq!((count(&lab, state), lab.ended()), (1, 0));
        lab.wait(Duration::from_secs(200));
        assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), syn.route());

        lab.send(lab.client(1).rst().seq(101));
        assert_eq!((count(&lab, Closed), lab.ended()), (1, 1), "one that is true does");
    }
}

/// Guessed pairs of sequence and acknowledgement numbers. Every possible pair is within 16 MiB of
/// one of these guesses.
fn guesses() -> impl Iterator<Item = (u32, u32)> {
    let all = || (0..128u32).map(|n| (n << 25) + (13 << 20) + 7);
    all().flat_map(move |seq| all().map(move |ack| (seq, ack)))
}

fn sequence_number_scan_ends_and_shortens_no_connection(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.handle(&syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501));
        lab.send(lab.client(1).seq(101).ack(501).payload(b"hi"));
        for (seq, ack) in guesses() {
            let guess = lab.client(1).seq(seq).ack(ack);
            let data = guess.clone().payload(b"!");
            for forged in [
                guess.clone().fin(),
                data,
                guess.clone().fin(),
                guess.clone().rst(),
                guess.seq(seq + 1).rst(),
            ] {
                lab.handle(&forged);
            }
        }
        assert_eq!((count(&lab, Established), lab.ended()), (1, 0));
        lab.wait(Duration::from_secs(7_000));
        assert_eq!(lab.send(lab.client(1).seq(103).ack(501)).route(), syn.route());
        lab.handle(&syn.reply().seq(501).ack(103));
        lab.send(lab.client(1).seq(103).ack(501).fin());
        assert_eq!(count(&lab, FlowState::HalfClosedByClient), 1, "its own does");
    }
}

fn forged_acknowledgement_affects_neither_resets_nor_icmp_errors(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let is_dsr = lab.forwarder.snat_ports_in_use() == 0;
        let syn = lab.send(lab.client(1).syn().seq(100));
        lab.handle(&syn.reply().syn().seq(500).ack(101));
        lab.send(lab.client(1).seq(101).ack(501));
        for (seq, ack) in [(GUESS, GUESS), (101, GUESS), (GUESS, 501), (101, 0u32.wrapping_sub(GUESS))] {
            lab.send(lab.client(1).seq(seq).ack(ack));
            lab.handle(&syn.reply().seq(ack).ack(seq));
        }
        let answer = TestPacket::from(family.vip()).to(family.client_addr(1)).ack(101);
        let router = family.pick("203.0.113.7", "2001:db8:7::7");
        for (seq, is_believed) in [(501, true), (GUESS, false)] {
            let error =
                error_about(&answer.clone().seq(seq).bytes(), IcmpError::TooBig { mtu: 1_280 }, router);
            let outcome = lab.handle_frame(&mut error.clone(), None);
            assert_eq!(outcome == Outcome::Dropped(DropReason::IcmpOutOfWindow), !is_believed, "{seq}");
        }
        let resets = lab.change(|world| world.servers.iter_mut().for_each(|server| server.up = false));
        let resets: Vec<_> = resets.iter().map(Seen::reset).collect();
        let expected = (family.vip().into(), family.client_addr(1), "R", 501, 0);
        assert_eq!(resets, [expected], "in DSR: {is_dsr}");
    }
}

fn a_handshake_needs_somebody_who_has_heard_the_server(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    lab.send(lab.client(1).seq(101).ack(501));
    assert_eq!(count(&lab, SynSent), 1, "it cannot know that");
    lab.send(syn.reply().syn().seq(500).ack(101));
    lab.send(lab.client(1).seq(101).ack(GUESS));
    assert_eq!(count(&lab, SynReceived), 1);
    lab.send(lab.client(1).seq(101).ack(501));
    assert_eq!(count(&lab, Established), 1);
}

fn in_dsr_a_forged_acknowledgement_opens_no_connection_that_another_begins(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.send(lab.client(1).syn().seq(100));
    for forged in [lab.client(1).seq(GUESS).ack(7), lab.client(1).seq(GUESS).ack(7).fin()] {
        lab.send(forged);
        assert_eq!(count(&lab, SynSent), 1);
    }
    lab.send(lab.client(1).seq(101).ack(501));
    assert_eq!(count(&lab, HandshakeOnly), 1);
}

fn server_reset_after_unacknowledged_data_ends_the_connection(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
    // The client has not acknowledged any of these bytes.
    lab.send(syn.reply().rst().seq(1_501).ack(101));
    assert_eq!((count(&lab, Closed), lab.ended()), (1, 1));
    lab.send(lab.client(1).seq(101).ack(1_501));
}

fn an_error_about_what_the_server_has_not_sent_is_not_believed(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    let sent = lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
    let made_up = TestPacket::from(family.vip()).to(family.client_addr(1)).seq(501 + 100_000).ack(101);
    let router = family.pick("203.0.113.7", "2001:db8:7::7");
    for (about, is_believed) in [(sent.frame, true), (made_up.bytes(), false)] {
        let mut error = error_about(&about, IcmpError::TooBig { mtu: 1_280 }, router);
        let outcome = lab.handle_frame(&mut error, None);
        assert_eq!(outcome == Outcome::Dropped(DropReason::IcmpOutOfWindow), !is_believed);
    }
}

/// Sends two segments in the name of a client, as if its connection were under way.
fn forge(lab: &mut Lab, n: u16) -> Outcome {
    lab.handle(&lab.client(n).seq(7).ack(7));
    lab.handle(&lab.client(n).seq(7).ack(7).payload(b"x"))
}

fn adopted_dsr_connections_are_evicted_last_and_hash_again(family: Family) {
    let mut lab = Lab::dsr_of(family, 100);
    let seen: Vec<_> = (1..51).map(|n| lab.send(lab.client(n).syn()).route()).collect();
    (1..51).for_each(|n| drop(lab.send(lab.client(n).seq(1).ack(1).payload(b"x"))));
    let met: Vec<_> = (51..71).map(|n| lab.send(lab.client(n).seq(9).ack(9)).route()).collect();
    (51..71).for_each(|n| drop(lab.send(lab.client(n).seq(9).ack(10))));
    let half_open: Vec<_> = (71..101).map(|n| lab.send(lab.client(n).syn()).route()).collect();

    (1_000..1_030).for_each(|n| drop(forge(&mut lab, n)));
    let kept = |lab: &mut Lab, clients: std::ops::Range<u16>| {
        let opened = lab.opened;
        clients.for_each(|n| drop(lab.send(lab.client(n).seq(9).ack(9))));
        opened == lab.opened
    };
    assert!(kept(&mut lab, 51..71), "half-open ones have made room before");
    (2_000..12_000).for_each(|n| drop(forge(&mut lab, n)));
    assert!(kept(&mut lab, 1..51), "whose beginning was seen stay");
    assert_eq!((lab.forwarder.flows().open(), lab.untracked), (100, 0));
    for (n, route) in (1..).zip(seen.iter().chain(&met).chain(&half_open)) {
        assert_eq!(&lab.send(lab.client(n).seq(9).ack(9)).route(), route);
    }
}

fn in_dsr_forged_connections_keep_nobody_out_whom_no_hash_could_serve(family: Family) {
    let mut lab = Lab::dsr_of(family, 10);
    lab.change(|world| world.algorithm = Algorithm::RoundRobin);
    (1_000..2_000).for_each(|n| drop(forge(&mut lab, n)));
    let syn = lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(1).payload(b"x"));
    (2_000..3_000).for_each(|n| drop(forge(&mut lab, n)));
    assert_eq!(lab.send(lab.client(1).seq(1).ack(1)).route(), syn.route());
    assert_eq!((count(&lab, Adopted), count(&lab, Established)), (0, 10));
}

fn in_dsr_connections_met_under_way_are_waited_for_when_we_stop(family: Family) {
    let mut lab = Lab::dsr(family);
    forge(&mut lab, 1);
    lab.change(|world| world.stopping = true);
    assert_eq!(lab.forwarder.flows().open(), 1, "nobody can tell it from a true one");
}

fn clients_finish_their_handshakes_and_who_forges_their_syns_does_not(family: Family) {
    let size = Size { ports: 8, ..ENOUGH };
    for mut lab in [Lab::passthrough_of(family, size), Lab::dsr(family)] {
        for n in 0..3 {
            let syn = lab.send(lab.client(n).syn().seq(100));
            lab.handle(&syn.reply().syn().seq(500).ack(101));
            lab.send(lab.client(n).seq(101).ack(501));
            lab.send(lab.client(n).seq(101).ack(501));
        }
        // More SYNs than there are ports.
        (3..103).for_each(|n| _ = lab.handle(&lab.client(n).syn().seq(100)));
        // A flood of identical SYNs counts as well.
        lab.handle(&lab.client(102).syn().seq(100));
        lab.handle(&lab.client(101).rst().seq(101));
        let Handshakes { begun, finished, .. } = lab.forwarder.handshakes();
        assert_eq!((begun, finished), (104, 3), "{:?}", lab.forwarder.flows().len());
        lab.change(|world| world.servers.iter_mut().for_each(|server| server.up = false));
        lab.handle(&lab.client(200).syn());
        assert_eq!(lab.forwarder.handshakes().begun, 104, "for want of a server no client can");
    }
}
