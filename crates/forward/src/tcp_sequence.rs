//! TCP sequence numbers of a connection, which decide whether a segment may belong to the
//! connection (RFC 9293, section 3.4; RFC 5961). Anybody can send a segment in a client's name, but
//! a sender that does not see the connection has to guess its numbers.

mod client;
mod numbers;
mod server;

use self::numbers::{advance, is_behind, is_exact, is_near, is_next};
use super::cache::Progress;
use super::state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};

pub(super) use self::numbers::is_after;

/// Progress of both sides of a connection. In DSR only the client's segments are seen.
///
/// Sequence numbers wrap: a number is after another if it is less than 2 GiB ahead.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct TcpSequence {
    /// Sequence number after the last byte that the client has sent. In passthrough, the number
    /// moves only without a gap, or up to the server's acknowledgement, so a sender that does not
    /// see the connection cannot move the number.
    sent: u32,
    /// Next sequence number that the client expects; 0 while unknown.
    acked: u32,
    /// Passthrough: sequence number after the last byte that the server has sent. While a FIN or a
    /// SYN is pending: the number after it. UDP: the tick of the server's last datagram.
    answered: u32,
}

/// Pending FIN: seen, but neither exactly at its sender's next number nor acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PendingFin {
    #[default]
    Nobodys,
    Clients,
    Servers,
    /// A SYN is pending, and no FIN. The client of an open connection has sent the SYN, or a
    /// handshake has a second SYN with another number, before or after the server's answer. The
    /// next connection with the same addresses and ports begins if the server answers that SYN
    /// (passthrough), or the client follows up on it (DSR).
    Reopening,
}

/// Accepted content of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AcceptedSegment {
    /// Accepted flags; 0 if the numbers do not fit the connection.
    pub(super) flags: u8,
    /// Whether the segment acknowledges a pending FIN of the other side.
    pub(super) acks_other_fin: bool,
}

impl AcceptedSegment {
    fn flags(flags: u8) -> AcceptedSegment {
        AcceptedSegment { flags, acks_other_fin: false }
    }
}

/// Maximum distance of a valid number from the known number, in bytes: more than ordinary systems
/// ever have in flight.
pub(super) const WINDOW: u32 = 16 << 20;

/// Like [`WINDOW`], during the handshake: more than can be sent along with a SYN (RFC 7413).
pub(super) const FIRST_WINDOW: u32 = 64 << 10;

/// DSR: maximum gap, in bytes, before a client's segment that still moves the client's sequence
/// number. Linux has no more in flight by default (`tcp_wmem`).
pub(super) const MAX_GAP: u32 = 4 << 20;

/// DSR: maximum advance of the acknowledgement number, in bytes, in a client's segment that follows
/// a gap.
pub(super) const MAX_GAP_ACK: u32 = 1 << 20;

impl TcpSequence {
    /// Numbers after the client's first segment.
    pub(super) fn first(segment: Segment) -> TcpSequence {
        // The server may reject data that is sent along with a SYN.
        let len = if segment.flags & SYN != 0 { 1 } else { segment.len };
        let acked = if segment.flags & ACK != 0 { segment.ack } else { 0 };
        TcpSequence { sent: segment.seq.wrapping_add(len), acked, answered: acked }
    }

    /// Numbers that another process needs to continue.
    pub(super) fn numbers(&self) -> [u32; 3] {
        [self.sent, self.acked, self.answered]
    }

    /// Restores the result of [`TcpSequence::numbers`].
    pub(super) fn known([sent, acked, answered]: [u32; 3]) -> TcpSequence {
        TcpSequence { sent, acked, answered }
    }

    /// Next sequence number that the client expects; 0 while unknown.
    #[inline]
    pub(super) fn acked(&self) -> u32 {
        self.acked
    }

    /// UDP: notes that the server has sent in this tick.
    #[inline]
    pub(super) fn note_answer(&mut self, tick: u32) {
        self.answered = tick;
    }

    /// UDP: tick of the server's last datagram.
    pub(super) fn last_answer(&self) -> u32 {
        self.answered
    }

    /// Progress of the sender of packets in this direction.
    pub(super) fn progress(&self, pending: PendingFin, direction: Direction) -> Progress {
        match (direction, pending) {
            (Direction::ToServer, _) => Progress { sent: self.sent, acked: self.acked },
            (Direction::ToClient, PendingFin::Nobodys) => Progress { sent: self.answered, acked: self.sent },
            (Direction::ToClient, _) => Progress { sent: self.acked, acked: self.sent },
        }
    }

    /// Whether a client's segment with this number may follow its SYN.
    pub(super) fn may_complete(&self, seq: u32) -> bool {
        is_next(seq, self.sent)
    }

    /// Whether the client has sent this number, at most [`WINDOW`] bytes ago.
    pub(super) fn has_sent(&self, seq: u32) -> bool {
        is_behind(seq.wrapping_add(1), self.sent)
    }

    /// Number after the pending SYN, if there is one.
    pub(super) fn reopening_at(&self, pending: PendingFin) -> Option<u32> {
        (pending == PendingFin::Reopening).then_some(self.answered)
    }

    /// Whether the client has sent at most one segment after this number.
    pub(super) fn is_at_beginning(&self, at: u32) -> bool {
        is_next(self.sent, at)
    }

    /// Whether data has passed in either direction since `before`: the client has sent or
    /// acknowledged some.
    #[inline]
    pub(super) fn show_data_since(&self, before: &TcpSequence) -> bool {
        self.sent != before.sent || (before.acked != 0 && self.acked != before.acked)
    }

    /// Takes over the numbers of client and server from the flow cache, however far they have
    /// moved.
    pub(super) fn catch_up(
        &mut self,
        pending: PendingFin,
        client: Option<Progress>,
        server: Option<Progress>,
    ) {
        if let Some(Progress { sent, acked }) = client {
            (self.sent, self.acked) = (sent, acked);
        }
        if let Some(server) = server {
            advance(&mut self.sent, server.acked);
        }
        if pending == PendingFin::Nobodys {
            self.answered = match (client, server) {
                (_, Some(server)) => server.sent,
                (Some(client), None) => client.acked,
                (None, None) => self.answered,
            };
            advance(&mut self.answered, self.acked);
        }
    }

    /// Whether a segment fits the known numbers, so that the segment can move these numbers.
    pub(super) fn is_followed_by(
        &self,
        view: View,
        from: Direction,
        Segment { seq, ack, .. }: Segment,
    ) -> bool {
        match (from, view) {
            (Direction::ToServer, View::BothSides) => is_near(seq, self.sent) && is_near(ack, self.acked),
            (Direction::ToServer, View::ClientSide) => {
                seq.wrapping_sub(self.sent).wrapping_add(WINDOW) <= WINDOW + MAX_GAP
                    && ack.wrapping_sub(self.acked).wrapping_add(WINDOW) <= WINDOW + MAX_GAP_ACK
            }
            (Direction::ToClient, _) => is_near(seq, self.acked) && is_near(ack, self.sent),
        }
    }

    /// Direction of the pending FIN, and the FIN as its sender would repeat it. `None` if no FIN is
    /// pending, or its receiver has not acknowledged it. In DSR, the FIN counts as acknowledged
    /// once all bytes that were lost before it have arrived.
    pub(super) fn acknowledged_fin(&self, pending: PendingFin, view: View) -> Option<(Direction, Segment)> {
        let fin = |end: u32, ack| Segment { flags: FIN | ACK, seq: end.wrapping_sub(1), ack, len: 1 };
        match pending {
            PendingFin::Clients
                if self.answered.wrapping_sub(self.sent) <= u32::from(view == View::ClientSide) =>
            {
                Some((Direction::ToServer, fin(self.answered, self.acked)))
            }
            PendingFin::Servers if self.acked == self.answered => {
                Some((Direction::ToClient, fin(self.acked, self.sent)))
            }
            _ => None,
        }
    }

    /// Whether a segment with this direction and number may be in flight: towards the server, the
    /// client has sent this number; towards the client, the client waits for this number or an
    /// earlier one. The first lost segment is always at the number that its receiver expects. In
    /// passthrough, all segments of the server have passed convey.
    pub(super) fn may_be_in_flight(
        &self,
        pending: PendingFin,
        view: View,
        direction: Direction,
        seq: u32,
    ) -> bool {
        let in_flight = match (view, pending) {
            (View::BothSides, PendingFin::Nobodys | PendingFin::Servers) => {
                self.answered.wrapping_sub(self.acked).min(WINDOW)
            }
            // A forged SYN must not make other numbers acceptable.
            (View::BothSides, PendingFin::Reopening) => 0,
            _ => WINDOW - 1,
        };
        match direction {
            Direction::ToServer => self.sent.wrapping_sub(seq) <= WINDOW,
            // A keepalive probe has the number before the expected one (RFC 9293, section 3.8.4).
            Direction::ToClient => {
                self.acked == 0 || seq.wrapping_sub(self.acked).wrapping_add(1) <= in_flight + 1
            }
        }
    }

    /// Whether a segment shows that its sender still needs a connection that is over. In
    /// passthrough, the segment must repeat data or a FIN, because hosts acknowledge any forged
    /// segment again; in DSR the segment may also be an acknowledgement of data. The number of a
    /// client's segment must match exactly, because near numbers can be guessed.
    pub(super) fn may_conclude(
        &self,
        pending: PendingFin,
        view: View,
        from: Direction,
        segment: Segment,
    ) -> bool {
        let Segment { flags, seq, ack, len } = segment;
        if flags & (SYN | RST | ACK) != ACK || (view == View::BothSides && len == 0) {
            return false;
        }
        match from {
            Direction::ToServer => is_exact(segment, self.sent),
            Direction::ToClient => {
                let answered = if pending == PendingFin::Nobodys { self.answered } else { self.acked };
                self.acked != 0 && is_behind(seq, answered) && is_behind(ack, self.sent)
            }
        }
    }

    /// Applies a segment in this state of the connection.
    ///
    /// A sender that does not see the connection may guess a near number. A segment therefore only
    /// moves the numbers if it continues at its sender's next number, or repeats bytes that end
    /// there. A FIN is accepted if it is exactly at that number, otherwise once its receiver has
    /// acknowledged it. A reset has to be exact, too. A reset with a near number makes its receiver
    /// send a challenge ACK, and the reset that answers the challenge is exact (RFC 5961, section
    /// 3.2).
    #[inline]
    pub(super) fn apply_segment(
        &mut self,
        pending: &mut PendingFin,
        (view, state): (View, FlowState),
        from: Direction,
        segment: Segment,
    ) -> AcceptedSegment {
        match from {
            Direction::ToServer => self.apply_client_segment(pending, view, state, segment),
            Direction::ToClient => self.apply_server_segment(pending, state, segment),
        }
    }

    /// Applies a FIN that the flow cache has verified. Returns the accepted flags: 0 if the FIN
    /// belongs to another connection.
    pub(super) fn finish(
        &mut self,
        pending: &mut PendingFin,
        state: FlowState,
        from: Direction,
        segment: Segment,
    ) -> u8 {
        let Segment { flags, seq, ack, len } = segment;
        let (sent, acked) = match from {
            Direction::ToServer => (&mut self.sent, &mut self.acked),
            Direction::ToClient => (&mut self.acked, &mut self.sent),
        };
        let end = seq.wrapping_add(len);
        // No data follows a FIN. An event that arrives late may belong to the connection before.
        let is_near = is_near(seq, *sent) && is_near(ack, *acked) && !is_after(*sent, end);
        if flags & (SYN | ACK | RST) != ACK || !is_near {
            return 0;
        }
        let is_new = is_after(end, *sent);
        advance(acked, ack);
        match from {
            Direction::ToServer => {
                advance(sent, end);
                // The client's pending FIN has now arrived, and a client that continues the
                // connection has not sent the pending SYN.
                if *pending == PendingFin::Clients || (*pending == PendingFin::Reopening && is_new) {
                    (*pending, self.answered) = (PendingFin::Nobodys, self.acked);
                }
            }
            Direction::ToClient if *pending == PendingFin::Clients => {}
            // The cache forwarded this FIN before the SYN, which it left to a worker: the server
            // may answer the SYN.
            Direction::ToClient
                if *pending == PendingFin::Reopening && !state.has_finished(Direction::ToServer) =>
            {
                advance(sent, end);
            }
            // A server that sends a FIN has not lost the connection.
            Direction::ToClient => (*pending, self.answered) = (PendingFin::Nobodys, end),
        }
        flags
    }
}

const SYN_ACK: u8 = SYN | ACK;
const RST_ACK: u8 = RST | ACK;

#[cfg(test)]
mod tests;
