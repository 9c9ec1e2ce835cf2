//! State machine of a TCP connection (RFC 9293) or an exchange of UDP datagrams, driven by the
//! packets that pass. The state decides how long a flow is remembered, never whether a packet is
//! forwarded. Segments were validated before, by their sequence numbers.

use std::time::Duration;

use convey_model::{FlowTimeouts, UDP};
use convey_wire::TcpFlags;

/// Flag of the TCP header, byte 13: the sender has finished.
pub const FIN: u8 = TcpFlags::FIN;
/// Flag of the TCP header, byte 13: the sender opens the connection.
pub const SYN: u8 = TcpFlags::SYN;
/// Flag of the TCP header, byte 13: the sender has no such connection any more.
pub const RST: u8 = TcpFlags::RST;
/// Flag of the TCP header, byte 13: the acknowledgement number is valid.
pub const ACK: u8 = TcpFlags::ACK;

/// Direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Direction {
    /// The opposite direction.
    pub(crate) fn opposite(self) -> Direction {
        match self {
            Direction::ToServer => Direction::ToClient,
            Direction::ToClient => Direction::ToServer,
        }
    }
}

/// Sides of a flow whose packets pass convey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum View {
    /// Client and server (passthrough).
    BothSides,
    /// The client alone; the server answers it directly (DSR).
    ClientSide,
}

impl View {
    /// Directions of the packets that pass convey.
    pub(super) fn directions(self) -> &'static [Direction] {
        match self {
            View::BothSides => &[Direction::ToServer, Direction::ToClient],
            View::ClientSide => &[Direction::ToServer],
        }
    }
}

/// Fields of a TCP segment that matter for tracking; all zero for a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// The flags: byte 13 of the TCP header.
    pub flags: u8,
    /// The sequence number.
    pub seq: u32,
    /// The acknowledgement number; valid if [`ACK`] is set.
    pub ack: u32,
    /// Advance of the sequence number: the payload, and one each for SYN and FIN.
    pub len: u32,
}

/// State of a TCP connection or UDP exchange. The UDP states follow the TCP states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FlowState {
    /// The client has sent a SYN.
    SynSent,
    /// The server has answered the SYN.
    SynReceived,
    /// Picked up mid-connection, and no data has passed since: the client's segments may be forged.
    Adopted,
    /// DSR: the client has acknowledged a SYN-ACK that convey has not seen, and has sent nothing
    /// since. Both segments may be forged.
    HandshakeOnly,
    /// Both sides may send. Where only the client's packets pass: the client has sent or
    /// acknowledged data.
    Established,
    /// The client has finished; the server may send. Where only the client's packets pass, the
    /// server may have finished too, and convey only learns of a reset from then on.
    HalfClosedByClient,
    /// The server has finished; the client may send.
    HalfClosedByServer,
    /// Both sides have finished.
    Closing,
    /// Both sides have finished, and an acknowledgement has followed.
    TimeWait,
    /// One side has reset the connection.
    Closed,
    /// UDP: the client has sent, and convey has not seen an answer.
    UdpNew,
    /// UDP: the server has answered, which mostly ends the exchange.
    UdpAnswered,
    /// UDP: the client has sent again after an answer or, where only its packets pass, after its
    /// first datagram.
    UdpStream,
}

impl FlowState {
    /// All states, in the order of their numbers.
    pub const ALL: [FlowState; FlowState::UdpStream as usize + 1] = [
        FlowState::SynSent,
        FlowState::SynReceived,
        FlowState::Adopted,
        FlowState::HandshakeOnly,
        FlowState::Established,
        FlowState::HalfClosedByClient,
        FlowState::HalfClosedByServer,
        FlowState::Closing,
        FlowState::TimeWait,
        FlowState::Closed,
        FlowState::UdpNew,
        FlowState::UdpAnswered,
        FlowState::UdpStream,
    ];

    /// Name of the state in metrics; lower case with underscores.
    pub const fn name(self) -> &'static str {
        match self {
            FlowState::SynSent => "syn_sent",
            FlowState::SynReceived => "syn_received",
            FlowState::Adopted => "adopted",
            FlowState::HandshakeOnly => "handshake_only",
            FlowState::Established => "established",
            FlowState::HalfClosedByClient => "half_closed_by_client",
            FlowState::HalfClosedByServer => "half_closed_by_server",
            FlowState::Closing => "closing",
            FlowState::TimeWait => "time_wait",
            FlowState::Closed => "closed",
            FlowState::UdpNew => "udp_new",
            FlowState::UdpAnswered => "udp_answered",
            FlowState::UdpStream => "udp_stream",
        }
    }

    /// State of a connection after the first segment that convey has seen, which the client has
    /// sent. The connection begins with this segment, or convey picks the connection up
    /// mid-connection (after a restart, or when a client moves here from another balancer).
    pub fn first(protocol: u8, flags: u8) -> FlowState {
        match flags & (SYN | ACK | FIN | RST) {
            _ if protocol == UDP => FlowState::UdpNew,
            ACK => FlowState::Adopted,
            FIN_ACK => FlowState::HalfClosedByClient,
            flags if flags & RST != 0 => FlowState::Closed,
            _ => FlowState::SynSent,
        }
    }

    /// State after a segment with these flags, which were validated, or after a datagram, which has
    /// none. Data changes the state further: see `FlowState::with_data`.
    pub fn next(self, view: View, direction: Direction, flags: u8) -> FlowState {
        match view {
            _ if self.is_udp() => self.after_datagram(view, direction),
            _ if flags & RST != 0 => FlowState::Closed,
            View::BothSides => self.after_either(direction, flags),
            View::ClientSide => self.after_client(flags),
        }
    }

    /// State once data has passed since the first segments that were seen.
    #[inline]
    pub(super) fn with_data(self) -> FlowState {
        match self {
            FlowState::Adopted | FlowState::HandshakeOnly => FlowState::Established,
            state => state,
        }
    }

    /// Whether both sides have finished, or one has reset the connection, as far as convey can see.
    /// UDP has no end.
    pub fn is_over(self, view: View) -> bool {
        match self {
            FlowState::Closing | FlowState::TimeWait | FlowState::Closed => true,
            // The server's end does not pass convey. If half-closed connections were kept, the
            // table would fill with connections that have ended.
            FlowState::HalfClosedByClient => view == View::ClientSide,
            _ => false,
        }
    }

    /// Whether the sender of packets in this direction has finished, or the connection was reset.
    pub(super) fn has_finished(self, direction: Direction) -> bool {
        match self {
            FlowState::Closing | FlowState::TimeWait | FlowState::Closed => true,
            FlowState::HalfClosedByClient => direction == Direction::ToServer,
            FlowState::HalfClosedByServer => direction == Direction::ToClient,
            _ => false,
        }
    }

    /// Whether the flow has begun with a SYN and its handshake is not complete.
    pub(super) fn is_handshake(self) -> bool {
        matches!(self, FlowState::SynSent | FlowState::SynReceived)
    }

    /// Whether the flow cache may have seen a packet that changes this state.
    pub(super) fn may_lag(self) -> bool {
        self.is_handshake() || self == FlowState::HandshakeOnly
    }

    pub(super) fn is_udp(self) -> bool {
        self >= FlowState::UdpNew
    }

    /// Maximum silence of a connection in this state.
    pub(super) fn timeout(self, timeouts: &FlowTimeouts) -> Duration {
        match self {
            FlowState::SynSent | FlowState::SynReceived | FlowState::Adopted => timeouts.half_open,
            FlowState::HandshakeOnly => timeouts.handshake_only,
            FlowState::Established => timeouts.established,
            FlowState::HalfClosedByClient | FlowState::HalfClosedByServer => timeouts.half_closed,
            FlowState::Closing => timeouts.closing,
            FlowState::TimeWait => timeouts.time_wait,
            FlowState::Closed => timeouts.closed,
            FlowState::UdpNew | FlowState::UdpAnswered => timeouts.udp_single,
            FlowState::UdpStream => timeouts.udp_stream,
        }
    }

    fn after_either(self, direction: Direction, flags: u8) -> FlowState {
        use Direction::{ToClient, ToServer};
        use FlowState::*;
        match (self, direction, flags & (SYN | ACK | FIN)) {
            (SynSent, ToClient, SYN_ACK) => SynReceived,
            (SynReceived, ToServer, ACK) => Established,
            (SynReceived | Established, ToServer, FIN_ACK) => HalfClosedByClient,
            (SynReceived | Established, ToClient, FIN_ACK) => HalfClosedByServer,
            (HalfClosedByClient, ToClient, FIN_ACK) | (HalfClosedByServer, ToServer, FIN_ACK) => Closing,
            (Closing, _, ACK) => TimeWait,
            // The server has lost the connection, and answers the client's next SYN.
            (Established | HalfClosedByClient | HalfClosedByServer, ToClient, SYN_ACK) => SynReceived,
            _ => self,
        }
    }

    fn after_datagram(self, view: View, direction: Direction) -> FlowState {
        match (self, direction, view) {
            (FlowState::UdpNew, Direction::ToClient, _) => FlowState::UdpAnswered,
            (FlowState::UdpAnswered, Direction::ToServer, _) => FlowState::UdpStream,
            (FlowState::UdpNew, Direction::ToServer, View::ClientSide) => FlowState::UdpStream,
            _ => self,
        }
    }

    fn after_client(self, flags: u8) -> FlowState {
        use FlowState::*;
        match (self, flags & (SYN | ACK | FIN)) {
            (Adopted, SYN) => SynSent,
            (SynSent, ACK) => HandshakeOnly,
            (SynSent | Adopted | HandshakeOnly | Established, FIN_ACK) => HalfClosedByClient,
            _ => self,
        }
    }
}

const SYN_ACK: u8 = SYN | ACK;
const FIN_ACK: u8 = FIN | ACK;

#[cfg(test)]
mod tests {
    use super::Direction::{ToClient, ToServer};
    use super::FlowState::*;
    use super::*;
    use convey_model::TCP;

    /// States after a client's SYN and after each of these segments, where both sides pass.
    fn passthrough(segments: &[(Direction, u8)]) -> Vec<FlowState> {
        let mut state = FlowState::first(TCP, SYN);
        let mut after = |&(direction, flags): &_| {
            state = state.next(View::BothSides, direction, flags);
            state
        };
        segments.iter().map(&mut after).collect()
    }

    /// States after each of these segments of a client, where the server's do not pass.
    fn dsr(segments: &[u8]) -> Vec<FlowState> {
        let mut states = vec![FlowState::first(TCP, segments[0])];
        for &flags in &segments[1..] {
            states.push(states[states.len() - 1].next(View::ClientSide, ToServer, flags));
        }
        states
    }

    fn tcp_states() -> impl Iterator<Item = FlowState> {
        FlowState::ALL.into_iter().filter(|state| !state.is_udp())
    }

    #[test]
    fn udp_flow_is_a_stream_from_its_second_request_on() {
        let after = |view, steps: &[Direction]| {
            steps.iter().fold(UdpNew, |state, &direction| state.next(view, direction, 0))
        };
        assert_eq!(after(View::BothSides, &[ToServer, ToServer]), UdpNew, "nobody has answered");
        assert_eq!(after(View::BothSides, &[ToClient, ToClient]), UdpAnswered);
        assert_eq!(after(View::BothSides, &[ToClient, ToServer, ToClient]), UdpStream);
        assert_eq!(after(View::ClientSide, &[ToServer, ToServer]), UdpStream);
    }

    const HANDSHAKE: [(Direction, u8); 2] = [(ToClient, SYN_ACK), (ToServer, ACK)];

    fn after_handshake(segments: &[(Direction, u8)]) -> Vec<FlowState> {
        passthrough(&[&HANDSHAKE, segments].concat())[2..].to_vec()
    }

    #[test]
    fn a_connection_opens_and_is_closed_by_the_client() {
        assert_eq!(passthrough(&HANDSHAKE), [SynReceived, Established]);
        let close = [(ToServer, FIN_ACK), (ToClient, FIN_ACK), (ToServer, ACK)];
        assert_eq!(after_handshake(&close), [HalfClosedByClient, Closing, TimeWait]);
    }

    #[test]
    fn a_server_that_closes_first_still_gets_the_rest_of_the_request() {
        let close =
            [(ToClient, FIN_ACK), (ToServer, ACK), (ToServer, ACK), (ToServer, FIN_ACK), (ToClient, ACK)];
        let states = [HalfClosedByServer, HalfClosedByServer, HalfClosedByServer, Closing, TimeWait];
        assert_eq!(after_handshake(&close), states);
    }

    #[test]
    fn simultaneous_close_ends_in_time_wait() {
        let close = [(ToServer, FIN_ACK), (ToClient, FIN_ACK), (ToServer, ACK), (ToClient, ACK)];
        assert_eq!(after_handshake(&close), [HalfClosedByClient, Closing, TimeWait, TimeWait]);
    }

    #[test]
    fn a_lost_fin_that_is_sent_again_ends_nothing_twice() {
        let twice = [(ToServer, FIN_ACK), (ToServer, FIN_ACK), (ToClient, FIN_ACK), (ToClient, FIN_ACK)];
        assert_eq!(after_handshake(&twice), [HalfClosedByClient, HalfClosedByClient, Closing, Closing]);
    }

    #[test]
    fn a_reset_of_either_side_closes_in_any_state() {
        for state in tcp_states() {
            for (direction, flags) in [(ToServer, RST), (ToClient, RST), (ToClient, RST | ACK)] {
                assert_eq!(state.next(View::BothSides, direction, flags), Closed);
            }
            assert_eq!(state.next(View::ClientSide, ToServer, RST | ACK), Closed);
        }
    }

    #[test]
    fn passthrough_handshake_needs_the_server() {
        let forged = [(ToServer, ACK), (ToServer, FIN_ACK), (ToServer, SYN), (ToServer, SYN_ACK)];
        assert_eq!(passthrough(&forged), [SynSent; 4]);
    }

    #[test]
    fn a_stray_syn_or_a_segment_without_flags_changes_nothing() {
        for state in tcp_states().filter(|state| *state != Adopted) {
            for flags in [SYN, 0, FIN, SYN | FIN] {
                assert_eq!(state.next(View::BothSides, ToServer, flags), state);
                assert_eq!(state.next(View::ClientSide, ToServer, flags), state);
            }
        }
    }

    #[test]
    fn the_clients_segments_alone_show_a_connection_open_and_close() {
        let states = [SynSent, SynSent, HandshakeOnly, HandshakeOnly, HalfClosedByClient, HalfClosedByClient];
        assert_eq!(dsr(&[SYN, SYN, ACK, ACK, FIN_ACK, ACK]), states);
    }

    #[test]
    fn a_connection_met_under_way_is_not_believed_in_for_its_flags() {
        assert_eq!(dsr(&[ACK, ACK, ACK]), [Adopted; 3]);
        assert_eq!(dsr(&[ACK, SYN, ACK]), [Adopted, SynSent, HandshakeOnly], "it begins after all");
        assert_eq!(dsr(&[ACK, FIN_ACK]), [Adopted, HalfClosedByClient]);
        assert_eq!(dsr(&[FIN_ACK]), [HalfClosedByClient]);
        assert_eq!(dsr(&[RST]), [Closed]);
        assert_eq!(dsr(&[0]), [SynSent], "a probe without flags is no connection");
    }
}
