//! Resets for servers of evicted handshakes: such a server would answer for a minute, and take the
//! next SYN from the same SNAT port for one of the old handshake.

use crate::limiter::Limiter;
use crate::plan::Plan;
use crate::{Direction, Flow, View};
use convey_model::{FlowKey, Timestamp};
use convey_wire::{self as wire, ANSWER_LEN};

/// Upper bound for the resets sent a second.
const RESETS_PER_SECOND: u64 = 100_000;

/// Upper bound for the resets that wait to be sent: those of one packet, or of what other workers
/// asked for.
pub(super) const MAX_QUEUED: usize = 4;

/// Resets that wait to be sent.
#[derive(Debug)]
pub(super) struct ServerResets {
    queue: Vec<ServerReset>,
    limiter: Limiter,
    /// The last frame that was built.
    frame: Vec<u8>,
}

#[derive(Debug)]
struct ServerReset {
    key: FlowKey,
    seq: u32,
    next_hop: u32,
}

impl ServerResets {
    /// An empty queue.
    pub(super) fn new() -> ServerResets {
        ServerResets {
            queue: Vec::new(),
            limiter: Limiter::new(RESETS_PER_SECOND),
            frame: Vec::with_capacity(ANSWER_LEN),
        }
    }

    /// Queues the reset of an evicted handshake, where the server's packets pass and there is room.
    pub(super) fn queue_reset_to_server(&mut self, flow: &Flow, now: Timestamp) {
        let may_send = flow.view() == View::BothSides && self.queue.len() < MAX_QUEUED;
        if may_send && self.limiter.allow(now) {
            let next_hop = flow.rewrite(Direction::ToServer).next_hop;
            let seq = flow.progress(Direction::ToServer).sent;
            self.queue.push(ServerReset { key: flow.server().reversed(), seq, next_hop });
        }
    }

    /// Builds the frame of the last reset in the queue, and returns it with its interface.
    #[inline]
    pub(super) fn next(&mut self, plan: &Plan) -> Option<(&[u8], u32)> {
        while let Some(ServerReset { key, seq, next_hop }) = self.queue.pop() {
            if let Some(hop) = plan.network.get(next_hop) {
                wire::reset(&key, seq, hop, &mut self.frame);
                return Some((&self.frame, hop.interface));
            }
        }
        None
    }
}
