//! How far a TCP connection is, and so which segments may be part of it (RFC 9293, section 3.4; RFC 5961). Anybody can
//! send a segment in a client's name; a sender that does not see the connection has to guess its numbers.

mod client;
mod numbers;
mod server;

use self::numbers::{advance, is_behind, is_exact, is_near, is_next};
use super::cache::Progress;
use super::state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};

pub(super) use self::numbers::is_after;

/// How far both sides of a connection are. In DSR there is nothing to be known of it but what the client says.
///
/// Sequence numbers wrap: one is after another if it is less than 2 GiB ahead.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct TcpSequence {
    /// What comes after the last byte that the client has sent. In passthrough without a gap, or up to what the server has
    /// acknowledged: so nobody moves it who does not know it.
    sent: u32,
    /// What the client expects next; 0 while that is not known.
    acked: u32,
    /// Passthrough: the server's `sent`. While a FIN or a SYN waits to be believed: what comes after it. Of UDP, which has no
    /// numbers, when the server last sent.
    answered: u32,
}

/// Whose FIN has been seen that is not exactly where its sender had got to, and is not acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PendingFin {
    #[default]
    Nobodys,
    Clients,
    Servers,
    /// Nobody's, but the client of an open connection has sent a SYN; or that of a handshake a SYN with another number, before or after
    /// the server has answered the first.
    /// The next connection between the same ends has begun if the server answers that SYN (passthrough), or the client follows up on
    /// it (DSR).
    Reopening,
}

/// What is believed of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    /// Of its flags; none if its numbers are not those of the connection.
    pub(super) flags: u8,
    /// Whether it acknowledges a FIN of the other side that had been waiting for that.
    pub(super) ends_other: bool,
}

impl Heard {
    fn flags(flags: u8) -> Heard {
        Heard { flags, ends_other: false }
    }
}

/// How far from what is known a number can be that is true, in bytes: more than ordinary systems ever have in flight.
pub(super) const WINDOW: u32 = 16 << 20;

/// The same while a connection begins: more than may be sent along with a SYN (RFC 7413).
pub(super) const FIRST_WINDOW: u32 = 64 << 10;

/// DSR: how far behind a gap a client's segment moves its number, in bytes. Linux has no more in flight by default (`tcp_wmem`).
pub(super) const MAX_GAP: u32 = 4 << 20;

/// DSR: the most that such a segment may acknowledge beyond what was acknowledged before the gap, in bytes.
pub(super) const MAX_GAP_ACK: u32 = 1 << 20;

impl TcpSequence {
    /// What the client's first segment says.
    pub(super) fn first(segment: Segment) -> TcpSequence {
        // The server need not accept data that comes along with a SYN.
        let len = if segment.flags & SYN != 0 { 1 } else { segment.len };
        let acked = if segment.flags & ACK != 0 { segment.ack } else { 0 };
        TcpSequence { sent: segment.seq.wrapping_add(len), acked, answered: acked }
    }

    /// What another process needs to go on.
    pub(super) fn numbers(&self) -> [u32; 3] {
        [self.sent, self.acked, self.answered]
    }

    /// What another process has told by [`TcpSequence::numbers`].
    pub(super) fn known([sent, acked, answered]: [u32; 3]) -> TcpSequence {
        TcpSequence { sent, acked, answered }
    }

    /// What the client expects next; 0 while that is not known.
    #[inline]
    pub(super) fn acked(&self) -> u32 {
        self.acked
    }

    /// UDP: the server has sent in this tick.
    #[inline]
    pub(super) fn note_answer(&mut self, tick: u32) {
        self.answered = tick;
    }

    /// UDP: the tick in which the server last sent.
    pub(super) fn last_answer(&self) -> u32 {
        self.answered
    }

    /// How far the sender of packets of this direction has got.
    pub(super) fn progress(&self, pending: PendingFin, direction: Direction) -> Progress {
        match (direction, pending) {
            (Direction::ToServer, _) => Progress { sent: self.sent, acked: self.acked },
            (Direction::ToClient, PendingFin::Nobodys) => Progress { sent: self.answered, acked: self.sent },
            (Direction::ToClient, _) => Progress { sent: self.acked, acked: self.sent },
        }
    }

    /// Whether a segment of the client with this number may follow its SYN.
    pub(super) fn may_complete(&self, seq: u32) -> bool {
        is_next(seq, self.sent)
    }

    /// Whether the client has sent this number, and no more than [`WINDOW`] ago.
    pub(super) fn has_sent(&self, seq: u32) -> bool {
        is_behind(seq.wrapping_add(1), self.sent)
    }

    /// Number after the SYN that waits to be followed up.
    pub(super) fn reopening_at(&self, pending: PendingFin) -> Option<u32> {
        (pending == PendingFin::Reopening).then_some(self.answered)
    }

    /// Whether the client has sent no more than a segment behind this number.
    pub(super) fn is_at_beginning(&self, at: u32) -> bool {
        is_next(self.sent, at)
    }

    /// Whether data has passed, either way, since the numbers were these: the client has sent some, or acknowledged some.
    #[inline]
    pub(super) fn show_data_since(&self, before: &TcpSequence) -> bool {
        self.sent != before.sent || (before.acked != 0 && self.acked != before.acked)
    }

    /// Takes the numbers of client and server from the flow cache: however much has passed, they are as far as these.
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

    /// Whether a segment fits what is known, so that it can move the numbers.
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

    /// The FIN that has been waiting, as it would come again, if it has been acknowledged meanwhile.
    /// In DSR, if all that was lost before it has come.
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

    /// Whether a segment of this direction with this number may be on its way: the client has sent it, or is waiting for it
    /// or something before. The first that is lost is always where its receiver waits. Where both sides pass here, all
    /// segments of the server have passed.
    pub(super) fn may_be_on_its_way(
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
            // A forged SYN makes no other number believable.
            (View::BothSides, PendingFin::Reopening) => 0,
            _ => WINDOW - 1,
        };
        match direction {
            Direction::ToServer => self.sent.wrapping_sub(seq) <= WINDOW,
            // A keepalive probe has the number before (RFC 9293, section 3.8.4).
            Direction::ToClient => {
                self.acked == 0 || seq.wrapping_sub(self.acked).wrapping_add(1) <= in_flight + 1
            }
        }
    }

    /// Whether a segment shows that somebody still needs a connection that is over. Where both sides are seen, it repeats data or
    /// a FIN: hosts repeat an acknowledgement for any segment that a stranger makes up. Where only the client's are, it may be an
    /// acknowledgement of data. A client's number is exact, for anybody can guess what is near.
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
    /// A sender that does not see the connection may be lucky and near. So a segment that moves the numbers has to go on
    /// where its sender had got to, or repeat bytes that end there. A FIN counts if it is exactly there; else once its
    /// receiver has acknowledged it. A reset has to be exact, too: one that is near has its receiver ask back, and the
    /// answer to that is exact (RFC 5961, section 3.2).
    #[inline]
    pub(super) fn apply_segment(
        &mut self,
        pending: &mut PendingFin,
        (view, state): (View, FlowState),
        from: Direction,
        segment: Segment,
    ) -> Heard {
        match from {
            Direction::ToServer => self.apply_client_segment(pending, view, state, segment),
            Direction::ToClient => self.apply_server_segment(pending, state, segment),
        }
    }

    /// Takes note of a FIN that has been found to be exact, by who has seen more. Returns the flags to be believed: none if
    /// it is of another connection.
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
        // Nobody sends more than a FIN. One that is told of late may be of the connection before.
        let is_near = is_near(seq, *sent) && is_near(ack, *acked) && !is_after(*sent, end);
        if flags & (SYN | ACK | RST) != ACK || !is_near {
            return 0;
        }
        let is_new = is_after(end, *sent);
        advance(acked, ack);
        match from {
            Direction::ToServer => {
                advance(sent, end);
                // Nothing is left to be waited for; and a client that goes on has sent no SYN.
                if *pending == PendingFin::Clients || (*pending == PendingFin::Reopening && is_new) {
                    (*pending, self.answered) = (PendingFin::Nobodys, self.acked);
                }
            }
            Direction::ToClient if *pending == PendingFin::Clients => {}
            // The cache forwarded this FIN before the SYN, which it left to a worker: the server may answer the SYN.
            Direction::ToClient
                if *pending == PendingFin::Reopening && !state.has_finished(Direction::ToServer) =>
            {
                advance(sent, end);
            }
            // A server that finishes has not forgotten the connection.
            Direction::ToClient => (*pending, self.answered) = (PendingFin::Nobodys, end),
        }
        flags
    }
}

const SYN_ACK: u8 = SYN | ACK;
const RST_ACK: u8 = RST | ACK;

#[cfg(test)]
mod tests;
