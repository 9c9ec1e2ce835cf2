use proptest::prelude::*;

use super::Direction::{ToClient, ToServer};
use super::FlowState::{Adopted, Established, SynReceived, SynSent};
use super::View::{BothSides, ClientSide};
use super::*;

const FIN_ACK: u8 = FIN | ACK;

fn segment(flags: u8, seq: u32, ack: u32) -> Segment {
    Segment { flags, seq, ack, len: u32::from(flags & (SYN | FIN) != 0) }
}

/// A connection whose client has sent bytes up to 1,000 and waits for 5,000.
fn established() -> Numbers {
    Numbers { sent: 1_000, acked: 5_000 }
}

/// What is believed of this segment of an established connection.
fn believed(from: Direction, segment: Segment) -> u8 {
    established().hear(BothSides, Established, from, segment)
}

#[test]
fn a_handshake_is_believed_if_each_side_has_heard_the_other() {
    for off in [u32::MAX, 65 << 10, 1 << 31] {
        let far = |number: u32| number.wrapping_add(off);
        let mut numbers = Numbers::first(segment(SYN, 100, 0));
        assert_eq!(
            numbers.hear(BothSides, SynSent, ToServer, segment(ACK, 101, 501)),
            0,
            "nobody has answered"
        );
        assert_eq!(numbers.hear(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, far(101))), 0);
        assert_eq!(numbers.hear(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, 101)), SYN_ACK);
        for (seq, ack) in [(101, far(501)), (far(101), 501)] {
            assert_eq!(numbers.hear(BothSides, SynReceived, ToServer, segment(ACK, seq, ack)), 0, "{off}");
        }
        assert_eq!(numbers.acked(), 501);
        assert_eq!(numbers.hear(BothSides, SynReceived, ToServer, segment(ACK, 101, 501)), ACK);
    }
}

#[test]
fn in_dsr_a_client_opens_a_connection_if_it_goes_on_from_its_own_syn() {
    let mut numbers = Numbers::first(segment(SYN, u32::MAX, 0));
    for seq in [u32::MAX, 1 << 20, 1 << 31] {
        assert_eq!(numbers.hear(ClientSide, SynSent, ToServer, segment(ACK, seq, 501)), 0);
    }
    assert_eq!(numbers.hear(ClientSide, SynSent, ToServer, segment(ACK, 0, 501)), ACK);
    assert_eq!(numbers.acked(), 501);
}

#[test]
fn data_that_comes_with_a_syn_may_be_accepted_or_not() {
    let syn = Segment { len: 1_001, ..segment(SYN, 100, 0) };
    for accepted in [101, 1_101] {
        let mut numbers = Numbers::first(syn);
        assert_eq!(numbers.hear(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, accepted)), SYN_ACK);
        assert_eq!(numbers.hear(BothSides, SynReceived, ToServer, segment(ACK, accepted, 501)), ACK);
    }
}

#[test]
fn a_client_that_begins_anew_has_new_numbers_but_not_in_the_middle_of_a_connection() {
    for (state, flags) in [(SynSent, SYN), (Adopted, SYN), (SynReceived, 0), (Established, 0)] {
        let mut numbers = established();
        assert_eq!(numbers.hear(BothSides, state, ToServer, segment(SYN, 70_000, 0)), flags, "{state:?}");
        assert_eq!((numbers.sent, numbers.acked), if flags == SYN { (70_001, 0) } else { (1_000, 5_000) });
    }
}

#[test]
fn a_reset_that_is_exact_ends_and_one_that_is_near_says_as_much_as_a_fin() {
    let near = 100_000;
    for (from, seq, ack) in [(ToServer, 1_000, 5_000), (ToClient, 5_000, 1_000)] {
        assert_eq!(believed(from, segment(RST, seq, 0)), RST);
        assert_eq!(believed(from, segment(RST_ACK, seq, 77)), RST);
        assert_eq!(believed(from, segment(RST_ACK, seq + near, ack)), FIN_ACK);
        assert_eq!(believed(from, segment(RST, seq + near, 0)), 0, "it says too little");
        assert_eq!(believed(from, segment(RST_ACK, seq + near, ack + (1 << 30))), 0);
        assert_eq!(believed(from, segment(RST_ACK, seq + (1 << 30), ack)), 0);
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
        let mut numbers = Numbers { sent: 101, acked };
        let heard = numbers.hear(BothSides, state, from, segment(flags, seq, ack));
        assert_eq!(heard, believed, "{state:?} {from:?} {flags:#x} {seq} {ack}");
    }
}

#[test]
fn what_acknowledges_nothing_is_believed_nothing() {
    for flags in [0, FIN, SYN | FIN] {
        assert_eq!(believed(ToServer, segment(flags, 1_000, 5_000)), 0);
        assert_eq!(believed(ToClient, segment(flags, 5_000, 1_000)), 0);
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Bytes, and whether they are lost before they come here.
    ClientSends(u32, bool),
    ServerSends(u32, bool),
    /// How many of the bytes before are sent again.
    ClientRepeats(u32),
    ServerRepeats(u32),
    /// How many of the server's bytes have come by now are yet to be acknowledged.
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

proptest! {
    /// In whatever order its segments come here, wherever its numbers begin.
    #[test]
    fn a_connection_is_believed_from_its_first_byte_to_its_last(
        begin in any::<(u32, u32)>(),
        view in prop::sample::select(&[BothSides, ClientSide][..]),
        steps in prop::collection::vec(step(), 0..100),
    ) {
        let (mut client, mut server) = (begin.0.wrapping_add(1), begin.1.wrapping_add(1));
        let (mut acked, mut most) = (server, server);
        let mut numbers = Numbers::first(segment(SYN, begin.0, 0));
        let open = match view {
            BothSides => {
                numbers.hear(view, SynSent, ToClient, segment(SYN_ACK, begin.1, client));
                numbers.hear(view, SynReceived, ToServer, segment(ACK, client, server))
            }
            ClientSide => numbers.hear(view, SynSent, ToServer, segment(ACK, client, server)),
        };
        prop_assert_eq!(open, ACK);
        for step in steps {
            let (from, seq, len) = match step {
                Step::ClientSends(len, lost) => {
                    client = client.wrapping_add(len);
                    if lost { continue }
                    (ToServer, client.wrapping_sub(len), len)
                }
                Step::ServerSends(len, lost) => {
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
            if from == ToServer && acked.wrapping_sub(begin.1) > most.wrapping_sub(begin.1) {
                most = acked;
            }
            let ack = if from == ToServer { acked } else { client };
            let heard = numbers.hear(view, Established, from, Segment { flags: ACK, seq, ack, len });
            prop_assert_eq!(heard, ACK, "{:?} of {:?}", step, numbers);
            prop_assert!(numbers.may_be_on_its_way(ToServer, seq) || from == ToClient);
        }
        prop_assert!(numbers.acked() == most || numbers.acked() == 0 || most == 0);

        for (from, seq, ack) in [(ToServer, client, server), (ToClient, server, client)] {
            if (from, view) != (ToClient, ClientSide) {
                prop_assert_eq!(numbers.clone().hear(view, Established, from, segment(FIN_ACK, seq, ack)), FIN_ACK);
                let reset = numbers.clone().hear(view, Established, from, segment(RST_ACK, seq, ack));
                prop_assert!([RST, FIN_ACK].contains(&reset));
                // Once the last word has been acknowledged, a reset is exact.
                let mut heard = numbers;
                heard.hear(view, Established, ToServer, segment(ACK, client, server));
                prop_assert_eq!(heard.hear(view, Established, from, segment(RST, seq, 0)), RST);
            }
        }
    }

    /// Whoever does not see a connection needs both of its numbers, and is 16 MiB off at most.
    #[test]
    fn who_guesses_changes_nothing(
        flags in 0..32u8,
        from in prop::sample::select(&[ToServer, ToClient][..]),
        (seq, ack) in any::<(u32, u32)>(),
        known in (any::<u32>(), 1..=u32::MAX),
    ) {
        let before = Numbers { sent: known.0, acked: known.1 };
        let (own, other) = if from == ToServer { known } else { (known.1, known.0) };
        let distance = |a: u32, b: u32| a.abs_diff(b).min(a.abs_diff(b).wrapping_neg());
        let is_far = distance(seq, own) > 16 << 20 || distance(ack, other) > 16 << 20;
        prop_assume!(is_far && !(flags & RST != 0 && seq == own));
        let mut after = before;
        prop_assert_eq!(after.hear(BothSides, Established, from, segment(flags, seq, ack)), 0);
        prop_assert_eq!((after.sent, after.acked), (before.sent, before.acked));
    }
}
