//! Segments that are lost on the path to convey: neither convey nor their receiver sees them.

use super::*;
use crate::{Flow, ForwardingMethod, NewFlow};
use convey_model::FlowKey;

#[test]
fn lost_fin_of_a_server_counts_when_it_comes_again() {
    for state in [Established, HalfClosedByClient] {
        for len in [1, 301] {
            let (mut numbers, mut pending) = (established(), PendingFin::default());
            let mut apply_segment =
                |from, segment| numbers.apply_segment(&mut pending, (BothSides, state), from, segment);
            // The server acknowledges a segment of its client once more.
            apply_segment(ToClient, segment(ACK, 5_000 + len, 1_000));
            let fin = Segment { len, ..segment(FIN_ACK, 5_000, 1_000) };
            assert_eq!(apply_segment(ToClient, fin).flags, FIN_ACK, "{state:?} {len}");
        }
    }
}

#[test]
fn lost_fin_of_a_client_in_dsr_counts_when_it_comes_again() {
    for (state, len) in [(SynSent, 1), (HandshakeOnly, 1), (Established, 1), (Established, 301)] {
        let (mut numbers, mut pending) = (established(), PendingFin::default());
        let mut apply_segment =
            |state, segment| numbers.apply_segment(&mut pending, (ClientSide, state), ToServer, segment);
        apply_segment(state, segment(ACK, 1_000 + len, 5_100));
        let state = if state == SynSent { HandshakeOnly } else { state };
        let fin = Segment { len, ..segment(FIN_ACK, 1_000, 5_100) };
        assert_eq!(apply_segment(state, fin).flags, FIN_ACK, "{state:?} {len}");
    }
}

#[test]
fn lost_fin_of_a_client_counts_after_a_late_handshake() {
    let mut numbers = TcpSequence::first(segment(SYN, 100, 0));
    numbers.apply(BothSides, SynSent, ToClient, segment(SYN_ACK, 500, 101));
    // The first ACK and the FIN were lost, and the server has repeated its answer.
    assert_eq!(numbers.apply(BothSides, SynReceived, ToServer, segment(ACK, 102, 501)), ACK);
    assert_eq!(numbers.apply(BothSides, Established, ToServer, segment(FIN_ACK, 101, 501)), FIN_ACK);
}

/// One side of a connection: its FIN follows `total` bytes. Numbers count from its first byte.
#[derive(Debug)]
struct Side {
    begin: u32,
    total: u32,
    sent: u32,
    acked: u32,
    received: u32,
}

impl Side {
    fn new(begin: u32, total: u32) -> Side {
        Side { begin, total, sent: 0, acked: 0, received: 0 }
    }

    /// Segment of `len` bytes from `at`, with the FIN if the segment reaches that.
    fn segment(&mut self, other: &Side, at: u32, len: u32) -> Segment {
        let end = (at + len).min(self.total + 1);
        self.sent = self.sent.max(end);
        let flags = if end > self.total && end > at { FIN_ACK } else { ACK };
        let (seq, ack) = (self.begin.wrapping_add(at), other.begin.wrapping_add(self.received));
        Segment { flags, seq, ack, len: end - at }
    }

    fn receive(&mut self, other: &mut Side, at: u32, len: u32) {
        if at <= self.received {
            self.received = self.received.max(at + len);
        }
        other.acked = other.acked.max(self.received);
    }

    /// Whether all data and the FIN have arrived.
    fn is_done(&self) -> bool {
        self.acked > self.total
    }
}

#[derive(Debug, Clone, Copy)]
enum Sends {
    /// New bytes, possibly with the FIN.
    More(u32),
    /// Bytes from the first that is not acknowledged.
    Again(u32),
    /// An acknowledgement.
    Nothing,
}

fn sends() -> impl Strategy<Value = (Direction, Sends, bool)> {
    let what = prop_oneof![
        (1..400u32).prop_map(Sends::More),
        (1..400u32).prop_map(Sends::Again),
        Just(Sends::Nothing)
    ];
    (prop::sample::select(&[ToServer, ToClient][..]), what, any::<bool>())
}

struct Connection {
    flow: Flow,
    client: Side,
    server: Side,
}

impl Connection {
    /// A connection whose client has sent the SYN, and whose server has answered.
    fn new(view: View, [client, server]: [(u32, u32); 2]) -> Connection {
        let key = |src: &str, dst: &str| FlowKey::tcp(src.parse().unwrap(), dst.parse().unwrap());
        let flow = Flow::new(&NewFlow {
            client: key("203.0.113.9:4242", "192.0.2.1:80"),
            server: key("10.0.0.1:8080", "10.0.0.254:40000"),
            view,
            method: ForwardingMethod::Rewritten,
            server_id: 7,
            frontend_id: 9,
            to_server: 1,
            to_client: 2,
            segment: segment(SYN, client.0.wrapping_sub(1), 0),
        });
        let [client, server] = [client, server].map(|(begin, total)| Side::new(begin, total));
        let mut connection = Connection { flow, client, server };
        connection.pass(ToClient, segment(SYN_ACK, server_syn(&connection), connection.client.begin));
        connection
    }

    fn pass(&mut self, from: Direction, segment: Segment) {
        if from == ToServer || self.flow.view() == BothSides {
            self.flow.state = self.flow.apply_segment(from, segment);
        }
    }

    fn send(&mut self, from: Direction, sends: Sends, is_lost: bool) {
        let (side, other) = match from {
            ToServer => (&mut self.client, &mut self.server),
            ToClient => (&mut self.server, &mut self.client),
        };
        let (at, len) = match sends {
            Sends::More(len) => (side.sent, len),
            Sends::Again(len) => (side.acked, len.min(side.sent - side.acked)),
            Sends::Nothing => (side.sent, 0),
        };
        let segment = side.segment(other, at, len);
        if !is_lost {
            other.receive(side, at, segment.len);
            self.pass(from, segment);
        }
    }
}

fn server_syn(connection: &Connection) -> u32 {
    connection.server.begin.wrapping_sub(1)
}

proptest! {
    /// Runs a connection from its handshake on, with any lost segments, and with repetitions in any
    /// pieces. Both FINs may be in flight at the same time.
    #[test]
    fn connection_that_loses_segments_is_over_at_its_end(
        view in prop::sample::select(&[BothSides, ClientSide][..]),
        // No client acknowledges the number 0.
        sides in prop::array::uniform2((1..u32::MAX - 2_000, 0..1_000u32)),
        steps in prop::collection::vec(sends(), 0..60),
        pieces in 1..2_000u32,
    ) {
        let mut connection = Connection::new(view, sides);
        for &(from, sends, is_lost) in &steps {
            connection.send(from, sends, is_lost);
        }
        // No more packets are lost.
        while !connection.client.is_done() || !connection.server.is_done() {
            for from in [ToServer, ToClient] {
                let side = if from == ToServer { &connection.client } else { &connection.server };
                let sends = match side {
                    side if side.is_done() => Sends::Nothing,
                    side if side.acked < side.sent => Sends::Again(pieces),
                    _ => Sends::More(pieces),
                };
                connection.send(from, sends, false);
            }
        }
        [ToServer, ToClient].iter().for_each(|from| connection.send(*from, Sends::Nothing, false));
        prop_assert!(connection.flow.is_over(), "{:?}", connection.flow);
    }
}
