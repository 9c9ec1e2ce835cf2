//! How far a TCP connection is, and so which segments may be part of it (RFC 9293, section 3.4; RFC 5961). Anybody can
//! send a segment in a client's name; who does not see the connection has to guess its numbers.

use super::cache::Progress;
use super::state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};

/// What a connection's client has said of both sides. That is all there is in DSR; in passthrough the server's segments
/// are held against it, and add what its SYN says.
///
/// Numbers wrap: one is after another if it is less than 2 GiB ahead.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Numbers {
    /// What comes after the last byte that the client has sent.
    sent: u32,
    /// What the client expects next; 0 while that is not known.
    acked: u32,
}

/// How far from what is known a number can be that is true, in bytes: more than ordinary systems ever have in flight.
const WINDOW: u32 = 16 << 20;

/// The same while a connection begins: more than may be sent along with a SYN (RFC 7413).
const FIRST_WINDOW: u32 = 64 << 10;

impl Numbers {
    /// What the client's first segment says.
    pub(super) fn first(segment: Segment) -> Numbers {
        // What comes along with a SYN need not be accepted.
        let len = if segment.flags & SYN != 0 { 1 } else { segment.len };
        let acked = if segment.flags & ACK != 0 { segment.ack } else { 0 };
        Numbers { sent: segment.seq.wrapping_add(len), acked }
    }

    /// What the client expects next; 0 while that is not known.
    #[inline]
    pub(super) fn acked(&self) -> u32 {
        self.acked
    }

    /// How far the sender of packets of this direction has got, as the client has it.
    pub(super) fn progress(&self, direction: Direction) -> Progress {
        match direction {
            Direction::ToServer => Progress { sent: self.sent, acked: self.acked },
            Direction::ToClient => Progress { sent: self.acked, acked: self.sent },
        }
    }

    /// Whether a segment of the client with this number may follow its SYN.
    pub(super) fn may_complete(&self, seq: u32) -> bool {
        is_next(seq, self.sent)
    }

    /// Whether the client may have sent as much as this since.
    pub(super) fn may_have_got(&self, sent: u32) -> bool {
        sent.wrapping_sub(self.sent) <= WINDOW
    }

    /// Whether data has passed, either way, since the numbers were these: the client has sent some, or acknowledged some.
    #[inline]
    pub(super) fn show_data_since(&self, before: &Numbers) -> bool {
        self.sent != before.sent || (before.acked != 0 && self.acked != before.acked)
    }

    /// The client has got so far.
    pub(super) fn catch_up(&mut self, Progress { sent, acked }: Progress) {
        *self = Numbers { sent, acked };
    }

    /// Whether a segment of this direction with this number may be on its way: the client has sent it, or is waiting for
    /// it or something before. The first that is lost is always where its receiver waits.
    pub(super) fn may_be_on_its_way(&self, direction: Direction, seq: u32) -> bool {
        match direction {
            Direction::ToServer => self.sent.wrapping_sub(seq) <= WINDOW,
            // A keepalive probe has the number before (RFC 9293, section 3.8.4).
            Direction::ToClient => self.acked == 0 || seq.wrapping_sub(self.acked).wrapping_add(1) <= WINDOW,
        }
    }

    /// Takes note of a segment in this state of the connection. Returns the flags to be believed: none if its numbers are
    /// not those of the connection.
    ///
    /// A reset must have exactly the number that its receiver expects, as far as that is known. One that is near may have
    /// come before what it follows, or after more than has been acknowledged: it says as much as a FIN. Its receiver,
    /// if it lives, asks back, and the answer to that is exact (RFC 5961, section 3.2).
    #[inline]
    pub(super) fn hear(&mut self, view: View, state: FlowState, from: Direction, segment: Segment) -> u8 {
        match from {
            Direction::ToServer => self.hear_client(view, state, segment),
            Direction::ToClient => self.hear_server(state, segment),
        }
    }

    #[inline]
    fn hear_client(&mut self, view: View, state: FlowState, segment: Segment) -> u8 {
        let Segment { flags, seq, ack, len } = segment;
        let fits = match state {
            // In passthrough the server has to be heard first: who has made up the SYN does not know its number.
            FlowState::SynSent => view == View::ClientSide && is_next(seq, self.sent),
            FlowState::SynReceived => is_next(seq, self.sent) && is_next(ack, self.acked),
            _ => is_near(seq, self.sent) && (self.acked == 0 || is_near(ack, self.acked)),
        };
        match flags & (SYN | ACK | RST) {
            ACK if fits => {
                advance(&mut self.sent, seq.wrapping_add(len));
                match self.acked {
                    0 => self.acked = ack,
                    _ => advance(&mut self.acked, ack),
                }
                flags
            }
            // The last one counts: whoever begins anew has new numbers.
            SYN if matches!(state, FlowState::SynSent | FlowState::Adopted) => {
                *self = Numbers::first(segment);
                flags
            }
            RST | RST_ACK => reset(state, seq == self.sent, fits && flags & ACK != 0),
            _ => 0,
        }
    }

    #[inline]
    fn hear_server(&mut self, state: FlowState, segment: Segment) -> u8 {
        let Segment { flags, seq, ack, .. } = segment;
        let fits = match state {
            FlowState::SynSent => is_next(ack, self.sent),
            _ => is_near(seq, self.acked) && is_near(ack, self.sent),
        };
        match flags & (SYN | ACK | RST) {
            ACK if fits => flags,
            SYN_ACK if is_handshake(state) && is_next(ack, self.sent) => {
                self.acked = seq.wrapping_add(1);
                flags
            }
            // "Nobody listens here": known by what it acknowledges.
            RST_ACK if state == FlowState::SynSent => reset(state, fits, false),
            RST | RST_ACK => {
                reset(state, seq == self.acked && state != FlowState::SynSent, fits && flags & ACK != 0)
            }
            _ => 0,
        }
    }
}

const SYN_ACK: u8 = SYN | ACK;
const RST_ACK: u8 = RST | ACK;

/// What to believe of a reset.
fn reset(state: FlowState, is_exact: bool, is_near: bool) -> u8 {
    match is_handshake(state) {
        _ if is_exact => RST,
        false if is_near => FIN | ACK,
        _ => 0,
    }
}

fn is_handshake(state: FlowState) -> bool {
    matches!(state, FlowState::SynSent | FlowState::SynReceived)
}

fn is_next(number: u32, expected: u32) -> bool {
    number.wrapping_sub(expected) <= FIRST_WINDOW
}

fn is_near(number: u32, known: u32) -> bool {
    number.wrapping_sub(known).wrapping_add(WINDOW) <= 2 * WINDOW
}

fn advance(known: &mut u32, number: u32) {
    if number.wrapping_sub(*known) as i32 > 0 {
        *known = number;
    }
}

#[cfg(test)]
mod tests;
