//! FINs, in sequence or ahead of it.

use super::*;

/// Whether a FIN is accepted when it arrives, and when its receiver acknowledges it.
fn fin(numbers: &mut TcpSequence, from: Direction, fin: Segment) -> [bool; 2] {
    let mut pending = PendingFin::default();
    let accepted = numbers.apply_segment(&mut pending, (BothSides, Established), from, fin);
    let (end, other) = (fin.seq.wrapping_add(fin.len), if from == ToServer { ToClient } else { ToServer });
    let ack =
        numbers.apply_segment(&mut pending, (BothSides, Established), other, segment(ACK, fin.ack, end));
    assert_eq!(pending, PendingFin::Nobodys);
    [accepted.flags & FIN != 0, ack.acks_other_fin]
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
            let accepted = numbers.apply_segment(&mut pending, (BothSides, Established), from, fin);
            assert_eq!(
                (accepted, pending),
                (AcceptedSegment::flags(0), PendingFin::Nobodys),
                "{from:?} {len}"
            );
            assert_eq!(numbers.numbers(), established().numbers());
            let acked = segment(ACK, other, sent);
            let back = if from == ToServer { ToClient } else { ToServer };
            assert!(
                !numbers.apply_segment(&mut pending, (BothSides, Established), back, acked).acks_other_fin
            );
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
            assert_eq!(apply_segment(ToClient, fin), AcceptedSegment::flags(ACK));
        }
        assert!(!apply_segment(ToServer, segment(ACK, 1_000, 5_100)).acks_other_fin);
        assert!(apply_segment(ToServer, segment(ACK, 1_000, 5_100 + len)).acks_other_fin);
    }
}

#[test]
fn fin_of_a_client_that_its_acknowledgements_overtook_counts_in_dsr() {
    for len in [1, 301] {
        let mut numbers = established();
        numbers.apply(ClientSide, Established, ToServer, segment(ACK, 1_000 + len, 5_100));
        let fin = Segment { len, ..segment(FIN_ACK, 1_000, 5_100) };
        assert_eq!(numbers.apply(ClientSide, Established, ToServer, fin), FIN_ACK);
    }
}

#[test]
fn a_fin_that_its_sender_goes_on_behind_was_none() {
    for (from, sent, other) in [(ToServer, 1_000, 5_000), (ToClient, 5_000, 1_000)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let mut apply_segment =
            |from, segment| numbers.apply_segment(&mut pending, (BothSides, Established), from, segment);
        let accepted = apply_segment(from, segment(FIN_ACK, sent + 1_000, other));
        assert_eq!(accepted, AcceptedSegment { flags: ACK, acks_other_fin: false });
        for seq in [0, 700] {
            apply_segment(from, Segment { len: 700, ..segment(ACK, sent + seq, other) });
        }
        let back = if from == ToServer { ToClient } else { ToServer };
        let accepted = apply_segment(back, segment(ACK, other, sent + 1_001));
        assert_eq!((accepted.acks_other_fin, pending), (false, PendingFin::Nobodys));
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
        numbers.apply(ClientSide, Established, ToServer, data);
        assert_eq!((numbers.sent, numbers.acked), (1_010 + gap, 5_000 + acked));
        assert_eq!(numbers.apply(ClientSide, Established, ToServer, segment(RST, 1_010 + gap, 0)), RST);
    }
    // Without a gap, a segment may acknowledge more.
    let mut numbers = established();
    numbers.apply(ClientSide, Established, ToServer, segment(ACK, 1_000, 5_000 + (8 << 20)));
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
