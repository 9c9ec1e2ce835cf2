//! Validation of a client's segments against the numbers of its connection.

use super::numbers::{
    advance, follows, is_after, is_exact, is_handshake, is_near, is_next, is_repeated, may_reopen,
};
use super::{AcceptedSegment, MAX_GAP, MAX_GAP_ACK, PendingFin, RST_ACK, TcpSequence};
use crate::state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};

impl TcpSequence {
    #[inline]
    pub(super) fn apply_client_segment(
        &mut self,
        pending: &mut PendingFin,
        view: View,
        state: FlowState,
        segment: Segment,
    ) -> AcceptedSegment {
        let Segment { flags, seq, ack, len } = segment;
        let fits = match state {
            // In passthrough, the server has to answer first: a sender that has forged the SYN does
            // not see the number of the answer.
            FlowState::SynSent => view == View::ClientSide && is_next(seq, self.sent),
            FlowState::SynReceived => is_next(seq, self.sent) && is_next(ack, self.acked),
            _ => is_near(seq, self.sent) && (self.acked == 0 || is_near(ack, self.acked)),
        };
        let follows_other = view == View::ClientSide
            && *pending == PendingFin::Reopening
            && match state {
                FlowState::SynSent => !fits && is_next(seq, self.answered),
                _ => flags & FIN == 0 && seq == self.answered,
            };
        match flags & (SYN | ACK | RST) {
            // The client continues from the pending SYN: a new connection with the same addresses
            // and ports (RFC 9293, section 3.6.1).
            ACK if follows_other => {
                *pending = PendingFin::Nobodys;
                *self = TcpSequence { sent: seq.wrapping_add(len), acked: ack, answered: ack };
                AcceptedSegment::flags(flags | SYN)
            }
            ACK if fits && (is_handshake(state) || self.acked == 0) => {
                // An acknowledgement may arrive after a FIN that was lost.
                if len > 0 || view == View::ClientSide {
                    advance(&mut self.sent, seq.wrapping_add(len));
                }
                match self.acked {
                    0 => (self.acked, self.answered) = (ack, ack),
                    _ => advance(&mut self.acked, ack),
                }
                // The client continues from this SYN, so the pending SYN was forged.
                if *pending == PendingFin::Reopening && is_handshake(state) {
                    (*pending, self.answered) = (PendingFin::Nobodys, self.acked);
                }
                AcceptedSegment::flags(flags)
            }
            ACK if fits && view == View::BothSides => self.continue_from_client(pending, state, segment),
            ACK if fits => AcceptedSegment::flags(self.continue_one_sided(pending, state, segment)),
            // A client that restarts has new numbers.
            SYN if state == FlowState::Adopted => {
                (*self, *pending) = (TcpSequence::first(segment), PendingFin::Nobodys);
                AcceptedSegment::flags(flags)
            }
            // The SYN may be forged. Only the server's answer restarts the connection or, where
            // answers do not pass convey, the client's next segment.
            SYN if is_handshake(state) || may_reopen(state) => {
                let next = seq.wrapping_add(1);
                // A client repeats its SYN until the answer arrives.
                if !is_handshake(state) || next != self.sent {
                    (*pending, self.answered) = (PendingFin::Reopening, next);
                }
                AcceptedSegment::flags(0)
            }
            RST | RST_ACK if seq == self.sent => AcceptedSegment::flags(RST),
            _ => AcceptedSegment::flags(0),
        }
    }

    #[inline]
    fn continue_from_client(
        &mut self,
        pending: &mut PendingFin,
        state: FlowState,
        segment: Segment,
    ) -> AcceptedSegment {
        let Segment { flags, seq, ack, len } = segment;
        let acks_other_fin = *pending == PendingFin::Servers && ack == self.answered;
        if acks_other_fin {
            *pending = PendingFin::Nobodys;
        }
        let has_finished = state.has_finished(Direction::ToServer)
            || (*pending == PendingFin::Clients && self.sent == self.answered);
        if flags & FIN != 0 && !has_finished && is_repeated(segment, self.sent) {
            return AcceptedSegment { flags: 0, acks_other_fin };
        }
        if flags & FIN != 0 && !is_exact(segment, self.sent) {
            // After the client's end, a pending FIN of the server stays pending.
            if !state.has_finished(Direction::ToServer) {
                (*pending, self.answered) = (PendingFin::Clients, seq.wrapping_add(len));
            }
            return AcceptedSegment { flags: flags & !FIN, acks_other_fin };
        }
        if follows(segment, self.sent) {
            let (end, before) = (seq.wrapping_add(len), self.sent);
            advance(&mut self.sent, end);
            advance(&mut self.acked, ack);
            let is_settled = match *pending {
                // The client sends data after the pending FIN, or repeats the FIN.
                PendingFin::Clients => flags & FIN != 0 || is_after(self.sent, self.answered),
                // The client sends more data. A segment that was reported late is not new.
                PendingFin::Reopening => is_after(end, before),
                _ => false,
            };
            if is_settled {
                (*pending, self.answered) = (PendingFin::Nobodys, self.acked);
            }
            if *pending == PendingFin::Nobodys {
                advance(&mut self.answered, ack);
            }
        } else if matches!(*pending, PendingFin::Nobodys | PendingFin::Servers)
            && !is_after(ack, self.answered)
        {
            // The server has sent the acknowledged bytes. Without this, gaps on both sides would
            // keep both numbers from moving.
            advance(&mut self.acked, ack);
        }
        AcceptedSegment { flags, acks_other_fin }
    }

    /// Applies a segment where only the client's packets pass, so that acknowledgements of the
    /// server are not seen. A segment whose numbers are close to the known numbers moves them even
    /// behind a gap. A FIN is pending until the bytes that were lost before it arrive, or the
    /// client continues after it. Of 4 million guessed pairs of numbers, one is close.
    fn continue_one_sided(&mut self, pending: &mut PendingFin, state: FlowState, segment: Segment) -> u8 {
        let Segment { flags, seq, ack, len } = segment;
        let end = seq.wrapping_add(len);
        if flags & FIN != 0 && !is_exact(segment, self.sent) {
            (*pending, self.answered) = (PendingFin::Clients, end);
            return flags & !FIN;
        }
        // The client sends nothing after its FIN.
        let is_close = !state.is_over(View::ClientSide)
            && seq.wrapping_sub(self.sent) <= MAX_GAP
            && ack.wrapping_sub(self.acked) <= MAX_GAP_ACK;
        if !follows(segment, self.sent) && !is_close {
            return flags;
        }
        let before = (self.sent, self.acked);
        advance(&mut self.sent, end);
        advance(&mut self.acked, ack);
        // The client continues the connection in spite of the SYN. A late segment moves no number.
        let is_same = *pending == PendingFin::Reopening && (self.sent, self.acked) != before;
        if flags & FIN != 0 || is_same {
            (*pending, self.answered) = (PendingFin::Nobodys, self.acked);
        }
        if matches!(*pending, PendingFin::Nobodys | PendingFin::Reopening) {
            return flags;
        }
        if self.answered.wrapping_sub(self.sent) <= 1 {
            (*pending, self.sent) = (PendingFin::Nobodys, self.answered);
            return flags | FIN;
        }
        // The client sends data after the FIN, so the FIN was forged.
        if is_after(self.sent, self.answered) {
            *pending = PendingFin::Nobodys;
        }
        flags
    }
}
