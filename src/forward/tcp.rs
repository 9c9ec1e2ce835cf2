//! What is known of a TCP connection (RFC 9293) from the segments that pass. Sequence numbers are not
//! checked: the state decides how long a flow is remembered, never whether a segment is forwarded.

use std::time::Duration;

use crate::model::FlowTimeouts;
use crate::wire::TcpFlags;

/// Flag of the TCP header, byte 13: the sender has finished.
pub const FIN: u8 = TcpFlags::FIN;
/// Flag of the TCP header, byte 13: the sender opens the connection.
pub const SYN: u8 = TcpFlags::SYN;
/// Flag of the TCP header, byte 13: the sender knows no such connection any more.
pub const RST: u8 = TcpFlags::RST;
/// Flag of the TCP header, byte 13: the acknowledgement number is valid.
pub const ACK: u8 = TcpFlags::ACK;

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Whose segments pass us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum View {
    /// Those of client and server (passthrough).
    BothSides,
    /// Those of the client; the server answers it directly (DSR).
    ClientSide,
}

/// What matters of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The flags: byte 13 of the TCP header.
    pub flags: u8,
    /// The acknowledgement number; means something if [`ACK`] is set.
    pub ack: u32,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// The client has sent a SYN.
    SynSent,
    /// The server has answered it.
    SynReceived,
    /// Met under way, by one segment of the client: anybody could have made that up.
    Adopted,
    /// Both sides may send.
    Established,
    /// The client has finished; the server may send. Seen from the client's side alone, the server may
    /// have finished too: nothing more is ever learnt of this connection but a reset.
    HalfClosedByClient,
    /// The server has finished; the client may send.
    HalfClosedByServer,
    /// Both sides have finished.
    Closing,
    /// Both sides have finished, and an acknowledgement has followed.
    TimeWait,
    /// One side has reset the connection.
    Closed,
}

impl TcpState {
    /// Every state, in the order of their numbers.
    pub const ALL: [TcpState; TcpState::Closed as usize + 1] = [
        TcpState::SynSent,
        TcpState::SynReceived,
        TcpState::Adopted,
        TcpState::Established,
        TcpState::HalfClosedByClient,
        TcpState::HalfClosedByServer,
        TcpState::Closing,
        TcpState::TimeWait,
        TcpState::Closed,
    ];

    /// The state's name in metrics; lower case with underscores.
    pub const fn name(self) -> &'static str {
        match self {
            TcpState::SynSent => "syn_sent",
            TcpState::SynReceived => "syn_received",
            TcpState::Adopted => "adopted",
            TcpState::Established => "established",
            TcpState::HalfClosedByClient => "half_closed_by_client",
            TcpState::HalfClosedByServer => "half_closed_by_server",
            TcpState::Closing => "closing",
            TcpState::TimeWait => "time_wait",
            TcpState::Closed => "closed",
        }
    }

    /// The state of a connection whose first segment we see is this one of the client: it begins, or is under
    /// way (after a restart, or when another balancer's client moves here).
    pub fn first(flags: u8) -> TcpState {
        match flags & (SYN | ACK | FIN | RST) {
            ACK => TcpState::Adopted,
            FIN_ACK => TcpState::HalfClosedByClient,
            flags if flags & RST != 0 => TcpState::Closed,
            _ => TcpState::SynSent,
        }
    }

    /// The state after a segment with these flags.
    pub fn next(self, view: View, direction: Direction, flags: u8) -> TcpState {
        match view {
            _ if flags & RST != 0 => TcpState::Closed,
            View::BothSides => self.after_either(direction, flags),
            View::ClientSide => self.after_client(flags),
        }
    }

    /// How long a connection in this state may be silent.
    pub(super) fn timeout(self, timeouts: &FlowTimeouts) -> Duration {
        match self {
            TcpState::SynSent | TcpState::SynReceived | TcpState::Adopted => timeouts.half_open,
            TcpState::Established => timeouts.established,
            TcpState::HalfClosedByClient | TcpState::HalfClosedByServer => timeouts.half_closed,
            TcpState::Closing => timeouts.closing,
            TcpState::TimeWait => timeouts.time_wait,
            TcpState::Closed => timeouts.closed,
        }
    }

    fn after_either(self, direction: Direction, flags: u8) -> TcpState {
        use Direction::{ToClient, ToServer};
        use TcpState::*;
        match (self, direction, flags & (SYN | ACK | FIN)) {
            (SynSent, ToClient, SYN_ACK) => SynReceived,
            (SynReceived, ToServer, ACK) => Established,
            (SynReceived | Established, ToServer, FIN_ACK) => HalfClosedByClient,
            (SynReceived | Established, ToClient, FIN_ACK) => HalfClosedByServer,
            (HalfClosedByClient, ToClient, FIN_ACK) | (HalfClosedByServer, ToServer, FIN_ACK) => Closing,
            (Closing, _, ACK) => TimeWait,
            _ => self,
        }
    }

    fn after_client(self, flags: u8) -> TcpState {
        use TcpState::*;
        match (self, flags & (SYN | ACK | FIN)) {
            (SynSent | Adopted, ACK) => Established,
            (SynSent | Adopted | Established, FIN_ACK) => HalfClosedByClient,
            _ => self,
        }
    }
}

const SYN_ACK: u8 = SYN | ACK;
const FIN_ACK: u8 = FIN | ACK;

#[cfg(test)]
mod tests {
    use super::Direction::{ToClient, ToServer};
    use super::TcpState::*;
    use super::*;

    /// The states after each of a client's SYN and these segments, seen from both sides.
    fn passthrough(segments: &[(Direction, u8)]) -> Vec<TcpState> {
        let mut state = TcpState::first(SYN);
        let mut after = |&(direction, flags): &_| {
            state = state.next(View::BothSides, direction, flags);
            state
        };
        segments.iter().map(&mut after).collect()
    }

    /// The states after each of these segments of a client, the only ones that pass.
    fn dsr(segments: &[u8]) -> Vec<TcpState> {
        let mut states = vec![TcpState::first(segments[0])];
        for &flags in &segments[1..] {
            states.push(states[states.len() - 1].next(View::ClientSide, ToServer, flags));
        }
        states
    }

    const HANDSHAKE: [(Direction, u8); 2] = [(ToClient, SYN_ACK), (ToServer, ACK)];

    fn after_handshake(segments: &[(Direction, u8)]) -> Vec<TcpState> {
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
    fn both_sides_may_close_at_once() {
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
        for state in TcpState::ALL {
            for (direction, flags) in [(ToServer, RST), (ToClient, RST), (ToClient, RST | ACK)] {
                assert_eq!(state.next(View::BothSides, direction, flags), Closed);
            }
            assert_eq!(state.next(View::ClientSide, ToServer, RST | ACK), Closed);
        }
    }

    #[test]
    fn nothing_of_a_client_alone_completes_a_handshake_seen_from_both_sides() {
        let forged = [(ToServer, ACK), (ToServer, FIN_ACK), (ToServer, SYN), (ToServer, SYN_ACK)];
        assert_eq!(passthrough(&forged), [SynSent; 4]);
    }

    #[test]
    fn a_stray_syn_or_a_segment_without_flags_changes_nothing() {
        for state in TcpState::ALL {
            for flags in [SYN, 0, FIN, SYN | FIN] {
                assert_eq!(state.next(View::BothSides, ToServer, flags), state);
                assert_eq!(state.next(View::ClientSide, ToServer, flags), state);
            }
        }
    }

    #[test]
    fn the_clients_segments_alone_show_a_connection_open_and_close() {
        let states = [SynSent, SynSent, Established, Established, HalfClosedByClient, HalfClosedByClient];
        assert_eq!(dsr(&[SYN, SYN, ACK, ACK, FIN_ACK, ACK]), states);
    }

    #[test]
    fn a_connection_met_under_way_is_believed_in_at_its_second_segment() {
        assert_eq!(dsr(&[ACK, ACK, ACK]), [Adopted, Established, Established]);
        assert_eq!(dsr(&[ACK, SYN, ACK]), [Adopted, Adopted, Established], "it begins after all");
        assert_eq!(dsr(&[ACK, FIN_ACK]), [Adopted, HalfClosedByClient]);
        assert_eq!(dsr(&[FIN_ACK]), [HalfClosedByClient]);
        assert_eq!(dsr(&[RST]), [Closed]);
        assert_eq!(dsr(&[0]), [SynSent], "a probe without flags is no connection");
    }
}
