mod conversation;
mod fins;
mod handshakes;
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
    fn apply(&mut self, view: View, state: FlowState, from: Direction, segment: Segment) -> u8 {
        self.apply_segment(&mut PendingFin::default(), (view, state), from, segment).flags
    }
}

/// Accepted flags of this segment of an established connection.
fn accepted_flags(from: Direction, segment: Segment) -> u8 {
    established().apply(BothSides, Established, from, segment)
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
fn reset_needs_the_exact_sequence_number() {
    for (from, seq, ack) in [(ToServer, 1_000, 5_000), (ToClient, 5_000, 1_000)] {
        assert_eq!(accepted_flags(from, segment(RST, seq, 0)), RST);
        assert_eq!(accepted_flags(from, segment(RST_ACK, seq, 77)), RST);
        for off in [1, 100_000, 1 << 30, u32::MAX] {
            assert_eq!(accepted_flags(from, segment(RST_ACK, seq.wrapping_add(off), ack)), 0);
            assert_eq!(accepted_flags(from, segment(RST, seq.wrapping_add(off), 0)), 0);
        }
    }
}

#[test]
fn a_server_that_resets_behind_what_is_on_its_way_is_believed() {
    let mut numbers = established();
    numbers.apply(BothSides, Established, ToClient, Segment { len: 700, ..segment(ACK, 5_000, 1_000) });
    assert_eq!(numbers.apply(BothSides, Established, ToClient, segment(RST_ACK, 5_700, 1_000)), RST);
    assert_eq!(
        numbers.apply(BothSides, Established, ToClient, segment(RST, 5_000, 0)),
        RST,
        "nothing arrived"
    );
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
        let accepted = numbers.apply_segment(&mut pending, (BothSides, HalfClosedByServer), ToClient, answer);
        assert_eq!((accepted.flags, numbers.sent, numbers.acked), (SYN_ACK, 70_001, 90_001), "{state:?}");
    }
}

#[test]
fn while_a_connection_begins_only_exact_resets_count() {
    for (state, from, flags, seq, ack, accepted_flags) in [
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
        let accepted = numbers.apply(BothSides, state, from, segment(flags, seq, ack));
        assert_eq!(accepted, accepted_flags, "{state:?} {from:?} {flags:#x} {seq} {ack}");
    }
}

#[test]
fn segment_without_ack_changes_nothing() {
    for flags in [0, FIN, SYN | FIN] {
        assert_eq!(accepted_flags(ToServer, segment(flags, 1_000, 5_000)), 0);
        assert_eq!(accepted_flags(ToClient, segment(flags, 5_000, 1_000)), 0);
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
    /// Runs connections whose segments arrive in any order and begin with any numbers.
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
                numbers.apply(view, SynSent, ToClient, segment(SYN_ACK, begin.1, client));
                numbers.apply(view, SynReceived, ToServer, segment(ACK, client, server))
            }
            ClientSide => numbers.apply(view, SynSent, ToServer, segment(ACK, client, server)),
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
            let accepted = numbers.apply(view, Established, from, Segment { flags: ACK, seq, ack, len });
            prop_assert_eq!(accepted, ACK, "{:?} of {:?}", step, numbers);
        }
        // Lost segments are repeated; then each side acknowledges all.
        let again = lost_of_client.into_iter().map(|(seq, len)| (ToServer, Segment { flags: ACK, seq, ack: server, len }));
        let last = (ToServer, segment(ACK, client, server));
        for (from, segment) in again.into_iter().chain([last, (ToClient, segment(ACK, server, client)), last]) {
            if (from, view) != (ToClient, ClientSide) {
                prop_assert_eq!(numbers.apply(view, Established, from, segment), ACK);
            }
        }
        prop_assert_eq!((numbers.sent, numbers.acked()), (client, server));
        for (from, seq, ack) in [(ToServer, client, server), (ToClient, server, client)] {
            if (from, view) != (ToClient, ClientSide) {
                prop_assert_eq!(numbers.clone().apply(view, Established, from, segment(FIN_ACK, seq, ack)), FIN_ACK);
                prop_assert_eq!(numbers.clone().apply(view, Established, from, segment(RST, seq, 0)), RST);
            }
        }
    }

    /// Checks DSR, where the server's acknowledgements do not pass convey.
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
                let accepted = after.apply_segment(&mut pending, (ClientSide, Established), ToServer, forged);
                prop_assert!(accepted.flags & (FIN | RST) == 0, "{:?} of {:?}", forged, after);
            }
        }
        prop_assert_eq!((after.sent, after.acked), (before.sent, before.acked));
        let end = segment(FIN_ACK, known.0, known.1);
        let accepted = after.apply_segment(&mut pending, (ClientSide, Established), ToServer, end);
        prop_assert_eq!(accepted.flags, FIN_ACK, "its own does");
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
        let accepted = after.apply_segment(&mut pending, (BothSides, Established), from, guess);
        prop_assert!(accepted.flags & (SYN | FIN | RST) == 0 && !accepted.acks_other_fin, "{:?}", accepted);
        prop_assert_eq!(after.acked, before.acked);
        // A segment from the server's side may acknowledge bytes that have passed behind a gap. It
        // moves no other number.
        let is_acknowledged = from == ToClient && after.sent == guess.ack && ack > 0;
        prop_assert!(after.sent == before.sent || is_acknowledged, "{:?}", after);
    }
}
