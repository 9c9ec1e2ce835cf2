//! Handshakes, and SYNs within connections.

use super::*;

#[test]
fn a_handshake_is_believed_if_each_side_has_heard_the_other() {
    for off in [u32::MAX, 65 << 10, 1 << 31] {
        let far = |number: u32| number.wrapping_add(off);
        let mut numbers = TcpSequence::first(segment(SYN, 100, 0));
        assert_eq!(
            numbers.apply(BothSides, SynSent, ToServer, segment(ACK, 101, 501)),
            0,
            "nobody has answered"
        );
        assert_eq!(numbers.apply(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, far(101))), 0);
        assert_eq!(numbers.apply(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, 101)), SYN_ACK);
        for (seq, ack) in [(101, far(501)), (far(101), 501)] {
            assert_eq!(numbers.apply(BothSides, SynReceived, ToServer, segment(ACK, seq, ack)), 0, "{off}");
        }
        assert_eq!(numbers.acked(), 501);
        assert_eq!(numbers.apply(BothSides, SynReceived, ToServer, segment(ACK, 101, 501)), ACK);
    }
}

#[test]
fn dsr_handshake_completes_with_the_number_after_the_syn() {
    let mut numbers = TcpSequence::first(segment(SYN, u32::MAX, 0));
    for seq in [u32::MAX, 1 << 20, 1 << 31] {
        assert_eq!(numbers.apply(ClientSide, SynSent, ToServer, segment(ACK, seq, 501)), 0);
    }
    assert_eq!(numbers.apply(ClientSide, SynSent, ToServer, segment(ACK, 0, 501)), ACK);
    assert_eq!(numbers.acked(), 501);
}

#[test]
fn reset_behind_data_of_a_syn_that_the_server_accepted_counts() {
    for (state, after) in [(SynReceived, None), (Established, Some(segment(ACK, 401, 501)))] {
        let mut numbers = TcpSequence::first(Segment { len: 301, ..segment(SYN, 100, 0) });
        assert_eq!(numbers.apply(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, 401)), SYN_ACK);
        if let Some(ack) = after {
            assert_eq!(numbers.apply(BothSides, SynReceived, ToServer, ack), ACK);
        }
        assert_eq!(numbers.apply(BothSides, state, ToServer, segment(RST, 401, 0)), RST, "{state:?}");
    }
}

#[test]
fn data_that_comes_with_a_syn_may_be_accepted_or_not() {
    let syn = Segment { len: 1_001, ..segment(SYN, 100, 0) };
    for server_ack in [101, 1_101] {
        let mut numbers = TcpSequence::first(syn);
        assert_eq!(numbers.apply(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, server_ack)), SYN_ACK);
        assert_eq!(numbers.apply(BothSides, SynReceived, ToServer, segment(ACK, server_ack, 501)), ACK);
    }
}

#[test]
fn new_syn_resets_sequence_numbers_except_in_open_connections() {
    for (view, state, flags) in [
        (ClientSide, SynSent, 0),
        (ClientSide, Adopted, SYN),
        (BothSides, Adopted, SYN),
        (BothSides, SynSent, 0),
        (BothSides, SynReceived, 0),
        (BothSides, Established, 0),
    ] {
        let mut numbers = established();
        assert_eq!(numbers.apply(view, state, ToServer, segment(SYN, 70_000, 0)), flags, "{state:?}");
        assert_eq!((numbers.sent, numbers.acked), if flags == SYN { (70_001, 0) } else { (1_000, 5_000) });
    }
}

#[test]
fn server_decides_which_of_two_syns_begins_the_connection() {
    let other = 1 << 20;
    for (answered, is_known) in [(101, true), (other + 1, true), (other + 101, true), (1 << 31, false)] {
        let (mut numbers, mut pending) = (TcpSequence::first(segment(SYN, 100, 0)), PendingFin::default());
        let mut apply_segment =
            |from, segment| numbers.apply_segment(&mut pending, (BothSides, SynSent), from, segment).flags;
        apply_segment(ToServer, segment(SYN, other, 0));
        apply_segment(ToServer, segment(SYN, 100, 0));
        let refusal = apply_segment(ToClient, segment(RST_ACK, 0, answered));
        assert_eq!(refusal, if is_known { RST } else { 0 }, "{answered}");
        let answer = apply_segment(ToClient, segment(SYN_ACK, 500, answered));
        assert_eq!(answer, if is_known { SYN_ACK } else { 0 }, "{answered}");
        if is_known {
            let ack = segment(ACK, answered, 501);
            assert_eq!(
                numbers.apply_segment(&mut pending, (BothSides, SynReceived), ToServer, ack).flags,
                ACK
            );
            assert_eq!((numbers.numbers(), pending), ([answered, 501, 501], PendingFin::Nobodys));
        }
    }
}

#[test]
fn client_in_dsr_completes_the_handshake_of_any_of_its_syns() {
    let forged = 3_000_000_000;
    // Data may arrive instead of a lost ACK, and the next segment may overtake it.
    for (seq, len) in [(1_001, 0), (1_001, 100), (1_101, 100), (5_001, 0), (5_001, 100), (5_101, 100)] {
        for syns in [vec![1_000, 5_000], vec![1_000, forged, 1_000], vec![1_000, 5_000, forged, 5_000]] {
            if !syns.contains(&(seq / 1_000 * 1_000)) {
                continue;
            }
            let (mut numbers, mut pending) =
                (TcpSequence::first(segment(SYN, syns[0], 0)), PendingFin::default());
            let mut apply_segment =
                |segment| numbers.apply_segment(&mut pending, (ClientSide, SynSent), ToServer, segment).flags;
            syns[1..].iter().for_each(|seq| assert_eq!(apply_segment(segment(SYN, *seq, 0)), 0));
            assert_eq!(apply_segment(Segment { len, ..segment(ACK, 2_000_000_000, 501) }), 0);
            let flags = apply_segment(Segment { len, ..segment(ACK, seq, 501) });
            assert_eq!(flags & !SYN, ACK, "{syns:?} {seq}");
            assert_eq!((numbers.numbers(), pending), ([seq + len, 501, 501], PendingFin::Nobodys));
        }
    }
}

/// Numbers after a SYN with the number 100, its answer with 500, and a SYN with 3,000,000,000
/// before or after the answer.
fn answered_with_another_syn(is_before: bool) -> (TcpSequence, PendingFin) {
    let (mut numbers, mut pending) = (TcpSequence::first(segment(SYN, 100, 0)), PendingFin::default());
    let (other, answer) = (segment(SYN, 3_000_000_000, 0), segment(SYN_ACK, 500, 101));
    let mut apply_segment =
        |state, from, segment| numbers.apply_segment(&mut pending, (BothSides, state), from, segment).flags;
    if is_before {
        apply_segment(SynSent, ToServer, other);
    }
    assert_eq!(apply_segment(SynSent, ToClient, answer), SYN_ACK);
    if !is_before {
        apply_segment(SynReceived, ToServer, other);
    }
    (numbers, pending)
}

#[test]
fn server_that_answers_both_syns_has_begun_the_second_connection() {
    for is_before in [true, false] {
        let (mut numbers, mut pending) = answered_with_another_syn(is_before);
        let mut apply_segment = |from, segment| {
            numbers.apply_segment(&mut pending, (BothSides, SynReceived), from, segment).flags
        };
        apply_segment(ToServer, segment(SYN, 3_000_000_000, 0));
        assert_eq!(apply_segment(ToClient, segment(SYN_ACK, 700, 3_000_000_002)), 0);
        assert_eq!(apply_segment(ToServer, segment(ACK, 3_000_000_001, 701)), 0, "nobody has answered");
        assert_eq!(apply_segment(ToClient, segment(SYN_ACK, 700, 3_000_000_001)), SYN_ACK);
        assert_eq!(apply_segment(ToServer, segment(ACK, 101, 501)), 0);
        assert_eq!(apply_segment(ToServer, segment(ACK, 3_000_000_001, 701)), ACK, "{is_before}");
        assert_eq!((numbers.numbers(), pending), ([3_000_000_001, 701, 701], PendingFin::Nobodys));
    }
}

#[test]
fn client_that_completes_its_handshake_has_sent_no_other_syn() {
    for is_before in [true, false] {
        let (mut numbers, mut pending) = answered_with_another_syn(is_before);
        assert_eq!(numbers.reopening_at(pending), Some(3_000_000_001), "{is_before}");
        let mut apply_segment = |state, from, segment| {
            numbers.apply_segment(&mut pending, (BothSides, state), from, segment).flags
        };
        assert_eq!(apply_segment(SynReceived, ToClient, segment(SYN_ACK, 500, 101)), SYN_ACK);
        assert_eq!(apply_segment(SynReceived, ToServer, segment(ACK, 101, 501)), ACK);
        assert_eq!(apply_segment(Established, ToClient, segment(SYN_ACK, 700, 3_000_000_001)), 0);
        assert_eq!((numbers.numbers(), pending), ([101, 501, 501], PendingFin::Nobodys));
    }
}

#[test]
fn a_server_that_answers_a_syn_has_forgotten_the_connection() {
    let (syn, answer) = (segment(SYN, 70_000, 0), segment(SYN_ACK, 90_000, 70_001));
    let data = Segment { len: 10, ..segment(ACK, 1_000, 5_000) };
    let repeated = segment(ACK, 1_000, 5_000);
    for (state, before, answer, is_believed) in [
        (HalfClosedByClient, vec![(ToServer, syn)], answer, true),
        (HalfClosedByServer, vec![(ToServer, syn)], answer, true),
        (HalfClosedByServer, vec![(ToServer, syn), (ToServer, repeated)], answer, true),
        (HalfClosedByServer, vec![], answer, false),
        (HalfClosedByServer, vec![(ToServer, syn)], segment(SYN_ACK, 90_000, 70_002), false),
        (HalfClosedByServer, vec![(ToServer, syn), (ToServer, data)], answer, false),
        (HalfClosedByServer, vec![(ToServer, syn), (ToClient, segment(ACK, 5_000, 1_000))], answer, false),
        (Established, vec![(ToServer, syn)], answer, true),
        (Established, vec![(ToServer, syn), (ToServer, repeated)], answer, true),
        (Established, vec![(ToServer, syn), (ToServer, data)], answer, false),
        (Established, vec![(ToServer, syn), (ToClient, segment(ACK, 5_000, 1_000))], answer, false),
        (Established, vec![], answer, false),
    ] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        for (from, segment) in &before {
            numbers.apply_segment(&mut pending, (BothSides, state), *from, *segment);
        }
        let accepted = numbers.apply_segment(&mut pending, (BothSides, state), ToClient, answer);
        assert_eq!(accepted.flags, if is_believed { SYN_ACK } else { 0 }, "{state:?}: {before:?}");
        let is_anew = numbers.numbers() == [70_001, 90_001, 90_001];
        assert_eq!(is_anew, is_believed, "{numbers:?}");
        assert!(!is_believed || pending == PendingFin::Nobodys);
    }
}

#[test]
fn a_server_that_refuses_the_next_syn_has_forgotten_the_connection() {
    for (refused, accepted_flags) in [(70_001, RST), (70_002, 0), (1_000, 0)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let mut apply_segment =
            |from, segment| numbers.apply_segment(&mut pending, (BothSides, Established), from, segment);
        apply_segment(ToServer, segment(SYN, 70_000, 0));
        assert_eq!(apply_segment(ToClient, segment(RST_ACK, 0, refused)).flags, accepted_flags, "{refused}");
    }
}

#[test]
fn dsr_client_that_continues_a_new_syn_resets_the_numbers() {
    let (syn, next) = (segment(SYN, 1 << 31, 0), segment(ACK, (1 << 31) + 1, 90_001));
    let data = Segment { len: 10, ..segment(ACK, 1_000, 5_000) };
    let late = segment(ACK, 1_000, 5_000);
    let acknowledgement = segment(ACK, 1_000, 5_001);
    for (before, next, is_believed) in [
        (vec![syn], next, true),
        (vec![syn, syn], next, true),
        (vec![segment(SYN, 7, 0), syn], next, true),
        (vec![syn, late], next, true),
        (vec![syn], Segment { len: 10, ..next }, true),
        (vec![], next, false),
        (vec![syn, data], next, false),
        (vec![syn, acknowledgement], next, false),
        (vec![syn], Segment { seq: next.seq + 1, ..next }, false),
        (vec![syn], Segment { flags: RST_ACK, ..next }, false),
        (vec![syn], Segment { flags: FIN_ACK, len: 1, ..next }, false),
    ] {
        for state in [HandshakeOnly, Established] {
            let (mut numbers, mut pending) = (established(), PendingFin::default());
            let mut apply_segment =
                |segment| numbers.apply_segment(&mut pending, (ClientSide, state), ToServer, segment).flags;
            before.iter().for_each(|segment| _ = apply_segment(*segment));
            let accepted = apply_segment(next);
            assert_eq!(accepted & (FIN | RST), 0, "{before:?} {next:?}");
            let end = next.seq.wrapping_add(next.len);
            let is_anew = numbers.numbers() == [end, 90_001, 90_001] && pending == PendingFin::Nobodys;
            assert_eq!(is_anew, is_believed, "{before:?} {next:?}: {numbers:?}");
        }
    }
}
