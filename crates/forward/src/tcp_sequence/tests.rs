mod conversation;
mod lost;

use proptest::prelude::*;

use super::Direction::{ToClient, ToServer};
use super::FlowState::{
    Adopted, Closing, Established, HalfClosedByClient, HalfClosedByServer, HandshakeOnly, SynReceived,
    SynSent,
};
use super::View::{BothSides, ClientSide};
use super::*;

const FIN_ACK: u8 = FIN | ACK;

fn segment(flags: u8, seq: u32, ack: u32) -> Segment {
    Segment { flags, seq, ack, len: u32::from(flags & (SYN | FIN) != 0) }
}

/// A connection whose client has sent bytes up to 1,000 and expects 5,000.
fn established() -> TcpSequence {
    TcpSequence { sent: 1_000, acked: 5_000, answered: 5_000 }
}

impl TcpSequence {
    /// Accepted flags of a segment while no FIN is pending.
    fn say(&mut self, view: View, state: FlowState, from: Direction, segment: Segment) -> u8 {
        self.apply_segment(&mut PendingFin::default(), (view, state), from, segment).flags
    }
}

/// Accepted flags of this segment of an established connection.
fn believed(from: Direction, segment: Segment) -> u8 {
    established().say(BothSides, Established, from, segment)
}

#[test]
fn numbers_of_the_cache_count_however_much_has_passed() {
    for passed in [1_u32 << 20, 3 << 30, u32::MAX - (8 << 20)] {
        let mut numbers = established();
        let sent = 1_000_u32.wrapping_add(passed);
        let (client, server) = (Progress { sent, acked: 5_000 }, Progress { sent: 5_000, acked: sent });
        numbers.catch_up(PendingFin::Nobodys, Some(client), Some(server));
        assert_eq!(numbers.sent, sent, "{passed}");
        let fin = Segment { flags: FIN_ACK, seq: sent, ack: 5_000, len: 1 };
        assert_eq!(numbers.finish(&mut PendingFin::default(), Established, ToServer, fin), FIN_ACK);
    }
}

#[test]
fn a_handshake_is_believed_if_each_side_has_heard_the_other() {
    for off in [u32::MAX, 65 << 10, 1 << 31] {
        let far = |number: u32| number.wrapping_add(off);
        let mut numbers = TcpSequence::first(segment(SYN, 100, 0));
        assert_eq!(
            numbers.say(BothSides, SynSent, ToServer, segment(ACK, 101, 501)),
            0,
            "nobody has answered"
        );
        assert_eq!(numbers.say(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, far(101))), 0);
        assert_eq!(numbers.say(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, 101)), SYN_ACK);
        for (seq, ack) in [(101, far(501)), (far(101), 501)] {
            assert_eq!(numbers.say(BothSides, SynReceived, ToServer, segment(ACK, seq, ack)), 0, "{off}");
        }
        assert_eq!(numbers.acked(), 501);
        assert_eq!(numbers.say(BothSides, SynReceived, ToServer, segment(ACK, 101, 501)), ACK);
    }
}

#[test]
fn dsr_handshake_completes_with_the_number_after_the_syn() {
    let mut numbers = TcpSequence::first(segment(SYN, u32::MAX, 0));
    for seq in [u32::MAX, 1 << 20, 1 << 31] {
        assert_eq!(numbers.say(ClientSide, SynSent, ToServer, segment(ACK, seq, 501)), 0);
    }
    assert_eq!(numbers.say(ClientSide, SynSent, ToServer, segment(ACK, 0, 501)), ACK);
    assert_eq!(numbers.acked(), 501);
}

#[test]
fn reset_behind_data_of_a_syn_that_the_server_accepted_counts() {
    for (state, after) in [(SynReceived, None), (Established, Some(segment(ACK, 401, 501)))] {
        let mut numbers = TcpSequence::first(Segment { len: 301, ..segment(SYN, 100, 0) });
        assert_eq!(numbers.say(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, 401)), SYN_ACK);
        if let Some(ack) = after {
            assert_eq!(numbers.say(BothSides, SynReceived, ToServer, ack), ACK);
        }
        assert_eq!(numbers.say(BothSides, state, ToServer, segment(RST, 401, 0)), RST, "{state:?}");
    }
}

#[test]
fn data_that_comes_with_a_syn_may_be_accepted_or_not() {
    let syn = Segment { len: 1_001, ..segment(SYN, 100, 0) };
    for accepted in [101, 1_101] {
        let mut numbers = TcpSequence::first(syn);
        assert_eq!(numbers.say(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, accepted)), SYN_ACK);
        assert_eq!(numbers.say(BothSides, SynReceived, ToServer, segment(ACK, accepted, 501)), ACK);
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
        assert_eq!(numbers.say(view, state, ToServer, segment(SYN, 70_000, 0)), flags, "{state:?}");
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
        let heard = numbers.apply_segment(&mut pending, (BothSides, state), ToClient, answer);
        assert_eq!(heard.flags, if is_believed { SYN_ACK } else { 0 }, "{state:?}: {before:?}");
        let is_anew = numbers.numbers() == [70_001, 90_001, 90_001];
        assert_eq!(is_anew, is_believed, "{numbers:?}");
        assert!(!is_believed || pending == PendingFin::Nobodys);
    }
}

#[test]
fn a_server_that_refuses_the_next_syn_has_forgotten_the_connection() {
    for (refused, believed) in [(70_001, RST), (70_002, 0), (1_000, 0)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let mut apply_segment =
            |from, segment| numbers.apply_segment(&mut pending, (BothSides, Established), from, segment);
        apply_segment(ToServer, segment(SYN, 70_000, 0));
        assert_eq!(apply_segment(ToClient, segment(RST_ACK, 0, refused)).flags, believed, "{refused}");
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
            let heard = apply_segment(next);
            assert_eq!(heard & (FIN | RST), 0, "{before:?} {next:?}");
            let end = next.seq.wrapping_add(next.len);
            let is_anew = numbers.numbers() == [end, 90_001, 90_001] && pending == PendingFin::Nobodys;
            assert_eq!(is_anew, is_believed, "{before:?} {next:?}: {numbers:?}");
        }
    }
}

#[test]
fn reset_needs_the_exact_sequence_number() {
    for (from, seq, ack) in [(ToServer, 1_000, 5_000), (ToClient, 5_000, 1_000)] {
        assert_eq!(believed(from, segment(RST, seq, 0)), RST);
        assert_eq!(believed(from, segment(RST_ACK, seq, 77)), RST);
        for off in [1, 100_000, 1 << 30, u32::MAX] {
            assert_eq!(believed(from, segment(RST_ACK, seq.wrapping_add(off), ack)), 0);
            assert_eq!(believed(from, segment(RST, seq.wrapping_add(off), 0)), 0);
        }
    }
}

#[test]
fn a_server_that_resets_behind_what_is_on_its_way_is_believed() {
    let mut numbers = established();
    numbers.say(BothSides, Established, ToClient, Segment { len: 700, ..segment(ACK, 5_000, 1_000) });
    assert_eq!(numbers.say(BothSides, Established, ToClient, segment(RST_ACK, 5_700, 1_000)), RST);
    assert_eq!(numbers.say(BothSides, Established, ToClient, segment(RST, 5_000, 0)), RST, "nothing arrived");
}

/// Whether a FIN is accepted when it arrives, and when its receiver acknowledges it.
fn fin(numbers: &mut TcpSequence, from: Direction, fin: Segment) -> [bool; 2] {
    let mut pending = PendingFin::default();
    let heard = numbers.apply_segment(&mut pending, (BothSides, Established), from, fin);
    let (end, other) = (fin.seq.wrapping_add(fin.len), if from == ToServer { ToClient } else { ToServer });
    let ack =
        numbers.apply_segment(&mut pending, (BothSides, Established), other, segment(ACK, fin.ack, end));
    assert_eq!(pending, PendingFin::Nobodys);
    [heard.flags & FIN != 0, ack.ends_other]
}

#[test]
fn fin_counts_in_sequence_or_once_acknowledged() {
    for (from, sent, other) in [(ToServer, 1_000, 5_000), (ToClient, 5_000, 1_000)] {
        let next = |seq, len| Segment { len, ..segment(FIN_ACK, seq, other) };
        assert_eq!(fin(&mut established(), from, next(sent, 1)), [true, false]);
        assert_eq!(fin(&mut established(), from, next(sent, 301)), [true, false], "with its last bytes");
        assert_eq!(fin(&mut established(), from, next(sent - 300, 301)), [true, false], "which came before");
        assert_eq!(fin(&mut established(), from, next(sent + 300, 1)), [false, true], "those were lost");
        assert_eq!(fin(&mut established(), from, next(sent - 100, 301)), [false, true], "some of them were");
    }
}

#[test]
fn a_fin_before_the_window_is_ignored_unless_it_is_repeated() {
    for (from, finished) in [(ToServer, HalfClosedByClient), (ToClient, HalfClosedByServer)] {
        let (sent, other) = if from == ToServer { (1_000, 5_000) } else { (5_000, 1_000) };
        for len in [1, 301] {
            let (mut numbers, mut pending) = (established(), PendingFin::default());
            let fin = Segment { len, ..segment(FIN_ACK, sent - len, other) };
            let heard = numbers.apply_segment(&mut pending, (BothSides, Established), from, fin);
            assert_eq!((heard, pending), (Heard::flags(0), PendingFin::Nobodys), "{from:?} {len}");
            assert_eq!(numbers.numbers(), established().numbers());
            let acked = segment(ACK, other, sent);
            let back = if from == ToServer { ToClient } else { ToServer };
            assert!(!numbers.apply_segment(&mut pending, (BothSides, Established), back, acked).ends_other);
            assert_eq!(
                numbers.apply_segment(&mut pending, (BothSides, finished), from, fin).flags,
                FIN_ACK,
                "it has come"
            );
        }
    }
}

#[test]
fn fin_of_a_server_that_its_acknowledgements_overtook_counts_once_acknowledged() {
    for len in [1, 301] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let mut apply_segment =
            |from, segment| numbers.apply_segment(&mut pending, (BothSides, Established), from, segment);
        apply_segment(ToClient, Segment { len: 100, ..segment(ACK, 5_000, 1_000) });
        apply_segment(ToClient, segment(ACK, 5_100 + len, 1_000));
        for _ in 0..2 {
            let fin = Segment { len, ..segment(FIN_ACK, 5_100, 1_000) };
            assert_eq!(apply_segment(ToClient, fin), Heard::flags(ACK));
        }
        assert!(!apply_segment(ToServer, segment(ACK, 1_000, 5_100)).ends_other);
        assert!(apply_segment(ToServer, segment(ACK, 1_000, 5_100 + len)).ends_other);
    }
}

#[test]
fn fin_of_a_client_that_its_acknowledgements_overtook_counts_in_dsr() {
    for len in [1, 301] {
        let mut numbers = established();
        numbers.say(ClientSide, Established, ToServer, segment(ACK, 1_000 + len, 5_100));
        let fin = Segment { len, ..segment(FIN_ACK, 1_000, 5_100) };
        assert_eq!(numbers.say(ClientSide, Established, ToServer, fin), FIN_ACK);
    }
}

#[test]
fn a_fin_that_its_sender_goes_on_behind_was_none() {
    for (from, sent, other) in [(ToServer, 1_000, 5_000), (ToClient, 5_000, 1_000)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let mut apply_segment =
            |from, segment| numbers.apply_segment(&mut pending, (BothSides, Established), from, segment);
        let heard = apply_segment(from, segment(FIN_ACK, sent + 1_000, other));
        assert_eq!(heard, Heard { flags: ACK, ends_other: false });
        for seq in [0, 700] {
            apply_segment(from, Segment { len: 700, ..segment(ACK, sent + seq, other) });
        }
        let back = if from == ToServer { ToClient } else { ToServer };
        let heard = apply_segment(back, segment(ACK, other, sent + 1_001));
        assert_eq!((heard.ends_other, pending), (false, PendingFin::Nobodys));
    }
}

#[test]
fn in_dsr_a_fin_waits_for_what_was_lost_before_it() {
    for (len, repeated) in [(1, 700), (301, 1_001)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let mut apply_segment =
            |segment| numbers.apply_segment(&mut pending, (ClientSide, Established), ToServer, segment).flags;
        let end = Segment { len, ..segment(FIN_ACK, 1_700, 5_000) };
        assert_eq!([apply_segment(end), apply_segment(end)], [ACK; 2], "nor if it is sent twice");
        // The client sends the lost bytes; or, after data of its own, acknowledges the server's.
        let next = if len == 1 { segment(ACK, 1_000, 5_000) } else { segment(ACK, 2_001, 5_100) };
        let next = Segment { len: if len == 1 { repeated } else { 0 }, ..next };
        assert_eq!(apply_segment(next), FIN_ACK);
    }
}

#[test]
fn dsr_segment_after_a_gap_counts_only_if_close() {
    let near =
        [(MAX_GAP + 1, 0), (100, MAX_GAP_ACK + 1), (100, u32::MAX), (1 << 23, 1 << 23), (u32::MAX - 100, 1)];
    for (gap, acked) in near {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let (seq, ack) = (1_000u32.wrapping_add(gap), 5_000u32.wrapping_add(acked));
        let mut apply_segment = |flags, seq, len| {
            let segment = Segment { len, ..segment(flags, seq, ack) };
            numbers.apply_segment(&mut pending, (ClientSide, Established), ToServer, segment).flags
                & (FIN | RST)
        };
        // Data, and a reset or a FIN that follow it.
        apply_segment(ACK, seq, 1);
        assert_eq!(
            [apply_segment(RST, seq.wrapping_add(1), 0), apply_segment(FIN_ACK, seq.wrapping_add(1), 1)],
            [0; 2]
        );
        assert_eq!(apply_segment(ACK, seq.wrapping_add(2), 0), 0, "{gap} {acked}");
        assert_eq!((numbers.sent, numbers.acked), (1_000, 5_000), "{gap} {acked}");
    }
    for (gap, acked) in [(1, 0), (MAX_GAP, MAX_GAP_ACK)] {
        let mut numbers = established();
        let data = Segment { len: 10, ..segment(ACK, 1_000 + gap, 5_000 + acked) };
        numbers.say(ClientSide, Established, ToServer, data);
        assert_eq!((numbers.sent, numbers.acked), (1_010 + gap, 5_000 + acked));
        assert_eq!(numbers.say(ClientSide, Established, ToServer, segment(RST, 1_010 + gap, 0)), RST);
    }
    // Without a gap, a segment may acknowledge more.
    let mut numbers = established();
    numbers.say(ClientSide, Established, ToServer, segment(ACK, 1_000, 5_000 + (8 << 20)));
    assert_eq!(numbers.acked, 5_000 + (8 << 20));
}

#[test]
fn confirmed_fin_is_no_longer_pending() {
    for (from, seq, ack) in [(ToServer, 1_010, 5_000), (ToClient, 5_010, 1_000)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let fin = segment(FIN_ACK, seq, ack);
        numbers.apply_segment(&mut pending, (BothSides, Established), from, fin);
        assert_ne!(pending, PendingFin::Nobodys);
        assert_eq!(numbers.finish(&mut pending, Established, from, fin), FIN_ACK);
        assert_eq!(pending, PendingFin::Nobodys);
        let at_end = if from == ToServer { numbers.sent } else { numbers.answered };
        assert_eq!(at_end, seq + 1);
    }
}

#[test]
fn exact_fin_ends_the_memory_of_a_syn() {
    for (state, from, seq, ack) in
        [(HalfClosedByServer, ToServer, 1_000, 5_000), (HalfClosedByClient, ToClient, 5_000, 1_000)]
    {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        numbers.apply_segment(&mut pending, (BothSides, state), ToServer, segment(SYN, 70_000, 0));
        assert_eq!(pending, PendingFin::Reopening);
        assert_eq!(numbers.finish(&mut pending, state, from, segment(FIN_ACK, seq, ack)), FIN_ACK);
        assert_eq!(pending, PendingFin::Nobodys);
        let reset = segment(RST, seq + 1, 0);
        assert_eq!(
            numbers.apply_segment(&mut pending, (BothSides, Closing), from, reset).flags,
            RST,
            "{from:?}"
        );
    }
}

#[test]
fn late_server_fin_from_the_cache_keeps_a_pending_syn() {
    for (state, seq) in [(HalfClosedByServer, 4_999), (HalfClosedByServer, 5_000), (Established, 5_000)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        numbers.apply_segment(&mut pending, (BothSides, state), ToServer, segment(SYN, 70_000, 0));
        let fin = segment(FIN_ACK, seq, 1_000);
        assert_eq!(numbers.finish(&mut pending, state, ToClient, fin), FIN_ACK);
        assert_eq!((pending, numbers.acked), (PendingFin::Reopening, seq + 1), "{state:?}");
        let answer = segment(SYN_ACK, 90_000, 70_001);
        let heard = numbers.apply_segment(&mut pending, (BothSides, HalfClosedByServer), ToClient, answer);
        assert_eq!((heard.flags, numbers.sent, numbers.acked), (SYN_ACK, 70_001, 90_001), "{state:?}");
    }
}

#[test]
fn while_a_connection_begins_only_exact_resets_count() {
    for (state, from, flags, seq, ack, believed) in [
        (SynSent, ToServer, RST, 101, 0, RST),
        (SynSent, ToServer, RST, 102, 0, 0),
        (SynSent, ToServer, RST_ACK, 102, 0, 0),
        (SynSent, ToClient, RST_ACK, 0, 101, RST),
        (SynSent, ToClient, RST_ACK, 0, 100, 0),
        (SynSent, ToClient, RST, 0, 101, 0),
        (SynReceived, ToServer, RST, 101, 0, RST),
        (SynReceived, ToServer, RST_ACK, 102, 501, 0),
        (SynReceived, ToClient, RST, 501, 0, RST),
        (SynReceived, ToClient, RST_ACK, 502, 101, 0),
    ] {
        let acked = if state == SynSent { 0 } else { 501 };
        let mut numbers = TcpSequence { sent: 101, acked, answered: acked };
        let heard = numbers.say(BothSides, state, from, segment(flags, seq, ack));
        assert_eq!(heard, believed, "{state:?} {from:?} {flags:#x} {seq} {ack}");
    }
}

#[test]
fn segment_without_ack_changes_nothing() {
    for flags in [0, FIN, SYN | FIN] {
        assert_eq!(believed(ToServer, segment(flags, 1_000, 5_000)), 0);
        assert_eq!(believed(ToClient, segment(flags, 5_000, 1_000)), 0);
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Number of bytes, and whether they are lost before convey.
    ClientSends(u32, bool),
    ServerSends(u32, bool),
    /// Number of earlier bytes that are sent again.
    ClientRepeats(u32),
    ServerRepeats(u32),
    /// Number of the server's bytes that have arrived and are not acknowledged yet.
    ClientWaits(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..65_000u32, any::<bool>()).prop_map(|(len, lost)| Step::ClientSends(len, lost)),
        (0..65_000u32, any::<bool>()).prop_map(|(len, lost)| Step::ServerSends(len, lost)),
        (0..1_000_000u32).prop_map(Step::ClientRepeats),
        (0..1_000_000u32).prop_map(Step::ServerRepeats),
        (0..1_000_000u32).prop_map(Step::ClientWaits),
    ]
}

/// Streams in both directions that each lose a segment before convey: each side is behind a gap,
/// and in flight for long.
#[test]
fn gaps_on_both_sides_stop_the_numbers_of_no_stream() {
    const SEGMENT: u32 = 1_000;
    const FLIGHT: u32 = 50 * SEGMENT;
    let (mut numbers, mut pending) = (established(), PendingFin::default());
    let mut apply_segment = |from, flags, seq, ack, len| {
        numbers
            .apply_segment(&mut pending, (BothSides, Established), from, Segment { flags, seq, ack, len })
            .flags
    };
    let (client, server) = (1_000, 5_000);
    // Beyond the window, within which a number that stays behind would do no harm.
    let total = 3 * WINDOW / SEGMENT * SEGMENT;
    for at in (0..total).step_by(SEGMENT as usize) {
        let acknowledged = at.saturating_sub(FLIGHT);
        // The tenth segment of each side arrives only after its sender has missed an
        // acknowledgement.
        if at != 10 * SEGMENT {
            apply_segment(ToServer, ACK, client + at, server + acknowledged, SEGMENT);
            apply_segment(ToClient, ACK, server + at, client + acknowledged, SEGMENT);
        }
        if at == 60 * SEGMENT {
            apply_segment(ToServer, ACK, client + 10 * SEGMENT, server + acknowledged, SEGMENT);
            apply_segment(ToClient, ACK, server + 10 * SEGMENT, client + acknowledged, SEGMENT);
        }
    }
    assert_eq!(apply_segment(ToServer, ACK, client + total, server + total, 0), ACK);
    assert_eq!(apply_segment(ToClient, ACK, server + total, client + total, 0), ACK);
    assert_eq!(apply_segment(ToServer, FIN_ACK, client + total, server + total, 1), FIN_ACK);
    assert_eq!(apply_segment(ToClient, FIN_ACK, server + total, client + total + 1, 1), FIN_ACK);
}

proptest! {
    /// In any order of its segments, and with any first numbers.
    #[test]
    fn a_connection_is_believed_from_its_first_byte_to_its_last(
        begin in any::<(u32, u32)>(),
        view in prop::sample::select(&[BothSides, ClientSide][..]),
        steps in prop::collection::vec(step(), 0..100),
    ) {
        let (mut client, mut server) = (begin.0.wrapping_add(1), begin.1.wrapping_add(1));
        let mut acked = server;
        // Segments that were lost before convey and will be repeated.
        let mut lost_of_client = Vec::new();
        let mut numbers = TcpSequence::first(segment(SYN, begin.0, 0));
        let open = match view {
            BothSides => {
                numbers.say(view, SynSent, ToClient, segment(SYN_ACK, begin.1, client));
                numbers.say(view, SynReceived, ToServer, segment(ACK, client, server))
            }
            ClientSide => numbers.say(view, SynSent, ToServer, segment(ACK, client, server)),
        };
        prop_assert_eq!(open, ACK);
        for step in steps {
            let (from, seq, len) = match step {
                Step::ClientSends(len, lost) => {
                    // At most the length that may be lost at once.
                    let len = if view == ClientSide { len % 40_000 } else { len };
                    client = client.wrapping_add(len);
                    if lost && len > 0 {
                        lost_of_client.push((client.wrapping_sub(len), len));
                        continue;
                    }
                    (ToServer, client.wrapping_sub(len), len)
                }
                Step::ServerSends(len, lost) => {
                    let len = if view == ClientSide { len % 10_000 } else { len };
                    server = server.wrapping_add(len);
                    if lost { continue }
                    (ToClient, server.wrapping_sub(len), len)
                }
                Step::ClientRepeats(back) => {
                    let back = back.min(client.wrapping_sub(begin.0) - 1);
                    (ToServer, client.wrapping_sub(back), back.min(1_460))
                }
                Step::ServerRepeats(back) => {
                    let back = back.min(server.wrapping_sub(begin.1) - 1);
                    (ToClient, server.wrapping_sub(back), back.min(1_460))
                }
                Step::ClientWaits(back) => {
                    acked = server.wrapping_sub(back.min(server.wrapping_sub(begin.1) - 1));
                    (ToServer, client, 0)
                }
            };
            if from == ToClient && view == ClientSide {
                continue;
            }
            let ack = if from == ToServer { acked } else { client };
            let heard = numbers.say(view, Established, from, Segment { flags: ACK, seq, ack, len });
            prop_assert_eq!(heard, ACK, "{:?} of {:?}", step, numbers);
        }
        // Lost segments are repeated; then each side acknowledges all.
        let again = lost_of_client.into_iter().map(|(seq, len)| (ToServer, Segment { flags: ACK, seq, ack: server, len }));
        let last = (ToServer, segment(ACK, client, server));
        for (from, segment) in again.into_iter().chain([last, (ToClient, segment(ACK, server, client)), last]) {
            if (from, view) != (ToClient, ClientSide) {
                prop_assert_eq!(numbers.say(view, Established, from, segment), ACK);
            }
        }
        prop_assert_eq!((numbers.sent, numbers.acked()), (client, server));
        for (from, seq, ack) in [(ToServer, client, server), (ToClient, server, client)] {
            if (from, view) != (ToClient, ClientSide) {
                prop_assert_eq!(numbers.clone().say(view, Established, from, segment(FIN_ACK, seq, ack)), FIN_ACK);
                prop_assert_eq!(numbers.clone().say(view, Established, from, segment(RST, seq, 0)), RST);
            }
        }
    }

    /// In DSR, too, where acknowledgements of the server do not pass.
    #[test]
    fn in_dsr_who_guesses_ends_nothing(
        known in (any::<u32>(), 1..=u32::MAX),
        guesses in prop::collection::vec((any::<(u32, u32)>(), 0..=1u32), 1..50),
    ) {
        let before = TcpSequence { sent: known.0, acked: known.1, answered: known.1 };
        let (mut after, mut pending) = (before, PendingFin::default());
        // Each guess is tried with all segments that could end the connection.
        for ((seq, ack), len) in guesses {
            let (off, acked) = (seq % WINDOW, ack % WINDOW);
            let is_close = off < 3 || off <= 2 * MAX_GAP && acked <= 2 * MAX_GAP_ACK;
            if is_close { continue }
            let (seq, ack) = (known.0.wrapping_add(off), known.1.wrapping_add(acked));
            for (flags, at) in [(ACK, 0), (RST, len), (FIN_ACK, len), (ACK, len + 1)] {
                let forged = Segment { flags, seq: seq.wrapping_add(at), ack, len };
                let heard = after.apply_segment(&mut pending, (ClientSide, Established), ToServer, forged);
                prop_assert!(heard.flags & (FIN | RST) == 0, "{:?} of {:?}", forged, after);
            }
        }
        prop_assert_eq!((after.sent, after.acked), (before.sent, before.acked));
        let end = segment(FIN_ACK, known.0, known.1);
        let heard = after.apply_segment(&mut pending, (ClientSide, Established), ToServer, end);
        prop_assert_eq!(heard.flags, FIN_ACK, "its own does");
    }

    /// A sender that does not see a connection has to guess both of its numbers, and one of them
    /// exactly.
    #[test]
    fn guessed_segment_changes_no_sequence_number(
        flags in 0..32u8,
        from in prop::sample::select(&[ToServer, ToClient][..]),
        known in (any::<u32>(), 1..=u32::MAX),
        off in prop_oneof![1..1_000_000_000i32, -1_000_000_000..-70_000i32],
        (ack, len) in (-1_000..1_000i32, 0..65_536u32),
    ) {
        let before = TcpSequence { sent: known.0, acked: known.1, answered: known.1 };
        let (own, other) = if from == ToServer { known } else { (known.1, known.0) };
        let guess = Segment { flags, seq: own.wrapping_add_signed(off), ack: other.wrapping_add_signed(ack), len };
        let (mut after, mut pending) = (before, PendingFin::default());
        let heard = after.apply_segment(&mut pending, (BothSides, Established), from, guess);
        prop_assert!(heard.flags & (SYN | FIN | RST) == 0 && !heard.ends_other, "{:?}", heard);
        prop_assert_eq!(after.acked, before.acked);
        // A segment from the server's side may acknowledge bytes that have passed behind a gap. It
        // moves no other number.
        let is_acknowledged = from == ToClient && after.sent == guess.ack && ack > 0;
        prop_assert!(after.sent == before.sent || is_acknowledged, "{:?}", after);
    }
}
