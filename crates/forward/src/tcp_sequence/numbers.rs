//! Arithmetic of TCP sequence numbers: which segments and numbers fit.

use super::{FIRST_WINDOW, WINDOW};
use crate::state::{FlowState, Segment};

/// Whether a segment continues at its sender's next number, or repeats bytes and reaches at least
/// that number.
pub(super) fn follows(segment: Segment, sent: u32) -> bool {
    sent.wrapping_sub(segment.seq) <= segment.len
}

/// Whether a FIN is exactly at its sender's next number after all data, or has arrived already.
pub(super) fn is_exact(fin: Segment, sent: u32) -> bool {
    let behind = sent.wrapping_sub(fin.seq);
    behind == 0 || behind == fin.len || behind.wrapping_add(1) == fin.len
}

/// Whether a FIN ends at its sender's next number. The receiver ignores such a FIN, unless the FIN
/// has arrived before (RFC 9293, section 3.10.7.4).
pub(super) fn is_repeated(fin: Segment, sent: u32) -> bool {
    let behind = sent.wrapping_sub(fin.seq);
    behind > 0 && behind == fin.len
}

pub(in super::super) fn is_after(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 > 0
}

pub(super) fn is_handshake(state: FlowState) -> bool {
    matches!(state, FlowState::SynSent | FlowState::SynReceived)
}

/// Whether a SYN in this state may open the next connection with the same addresses and ports.
pub(super) fn may_reopen(state: FlowState) -> bool {
    matches!(
        state,
        FlowState::HandshakeOnly
            | FlowState::Established
            | FlowState::HalfClosedByClient
            | FlowState::HalfClosedByServer
    )
}

pub(super) fn is_next(number: u32, expected: u32) -> bool {
    number.wrapping_sub(expected) <= FIRST_WINDOW
}

pub(super) fn is_near(number: u32, known: u32) -> bool {
    number.wrapping_sub(known).wrapping_add(WINDOW) <= 2 * WINDOW
}

pub(super) fn is_behind(number: u32, known: u32) -> bool {
    known.wrapping_sub(number) <= WINDOW
}

pub(super) fn advance(known: &mut u32, number: u32) {
    if is_after(number, *known) {
        *known = number;
    }
}
