//! Validation of a server's segments against the numbers of its connection.

use super::numbers::{advance, is_after, is_exact, is_handshake, is_near, is_next, is_repeated, may_reopen};
use super::{AcceptedSegment, PendingFin, RST_ACK, SYN_ACK, TcpSequence};
use crate::state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment};

impl TcpSequence {
    #[inline]
    pub(super) fn apply_server_segment(
        &mut self,
        pending: &mut PendingFin,
        state: FlowState,
        segment: Segment,
    ) -> AcceptedSegment {
        let Segment { flags, seq, ack, .. } = segment;
        let fits = match state {
            FlowState::SynSent => is_next(ack, self.sent),
            _ => is_near(seq, self.acked) && is_near(ack, self.sent),
        };
        let answers_other = *pending == PendingFin::Reopening
            && match state {
                FlowState::SynSent => is_next(ack, self.answered),
                _ => (is_handshake(state) || may_reopen(state)) && ack == self.answered,
            };
        match flags & (SYN | ACK | RST) {
            ACK if fits && !is_handshake(state) => self.continue_from_server(pending, state, segment),
            ACK if fits => AcceptedSegment::flags(flags),
            SYN_ACK if is_handshake(state) && is_next(ack, self.sent) => {
                self.acked = seq.wrapping_add(1);
                // The server acknowledges data that came with the SYN.
                advance(&mut self.sent, ack);
                // The client may still wait for the answer to the pending SYN.
                if *pending != PendingFin::Reopening {
                    self.answered = self.acked;
                }
                AcceptedSegment::flags(flags)
            }
            // Server and client have both lost the connection, or its handshake has restarted.
            SYN_ACK if answers_other => {
                *pending = PendingFin::Nobodys;
                (self.sent, self.acked, self.answered) = (ack, seq.wrapping_add(1), seq.wrapping_add(1));
                AcceptedSegment::flags(flags)
            }
            // The port is closed, and the server has lost the connection.
            RST_ACK if answers_other => AcceptedSegment::flags(RST),
            // Refused connection: validated by the acknowledgement number.
            RST_ACK if state == FlowState::SynSent => AcceptedSegment::flags(if fits { RST } else { 0 }),
            RST | RST_ACK if state != FlowState::SynSent && self.is_at_servers_end(*pending, seq) => {
                AcceptedSegment::flags(RST)
            }
            _ => AcceptedSegment::flags(0),
        }
    }

    /// Whether the client expects this number from the server, now or once all segments in flight
    /// have arrived.
    fn is_at_servers_end(&self, pending: PendingFin, seq: u32) -> bool {
        seq == self.acked || (pending == PendingFin::Nobodys && seq == self.answered)
    }

    #[inline]
    fn continue_from_server(
        &mut self,
        pending: &mut PendingFin,
        state: FlowState,
        segment: Segment,
    ) -> AcceptedSegment {
        let Segment { flags, seq, ack, len } = segment;
        let end = seq.wrapping_add(len);
        let acks_other_fin = *pending == PendingFin::Clients && ack == self.answered;
        if acks_other_fin {
            (*pending, self.sent, self.answered) = (PendingFin::Nobodys, ack, self.acked);
        }
        let has_finished = state.has_finished(Direction::ToClient)
            || (*pending == PendingFin::Servers && self.acked == self.answered);
        if flags & FIN != 0 && !has_finished && is_repeated(segment, self.acked) {
            return AcceptedSegment { flags: 0, acks_other_fin };
        }
        // The acknowledgements of a FIN may arrive before the FIN.
        let is_overtaken = !has_finished && is_repeated(segment, self.answered);
        let is_tracked = *pending == PendingFin::Nobodys && !is_overtaken;
        let is_last = is_exact(segment, self.acked) || (is_tracked && is_exact(segment, self.answered));
        if flags & FIN != 0 && !is_last {
            if !state.has_finished(Direction::ToClient) {
                (*pending, self.answered) = (PendingFin::Servers, end);
            }
            return AcceptedSegment { flags: flags & !FIN, acks_other_fin };
        }
        let is_settled = match *pending {
            // The server sends data after the pending FIN, or repeats the FIN.
            PendingFin::Servers => flags & FIN != 0 || is_after(end, self.answered),
            // The server still has the connection.
            PendingFin::Reopening => true,
            _ => false,
        };
        if is_settled {
            (*pending, self.answered) = (PendingFin::Nobodys, self.acked);
        }
        // The acknowledgement is valid even behind a gap, because the segment has arrived on the
        // server's interface.
        advance(&mut self.sent, ack);
        if *pending == PendingFin::Clients && is_after(self.sent, self.answered) {
            (*pending, self.answered) = (PendingFin::Nobodys, self.acked);
        }
        if *pending == PendingFin::Nobodys {
            advance(&mut self.answered, end);
        }
        AcceptedSegment { flags, acks_other_fin }
    }
}
