//! Resets for the servers of evicted handshakes. Without the reset, the server would repeat its
//! answer for a minute, and would take the next SYN from the same SNAT port for a part of the old
//! handshake.

use crate::limiter::Limiter;
use crate::plan::Plan;
use crate::{Direction, Flow, View};
use convey_model::{FlowKey, Timestamp};
use convey_wire::{self as wire, ANSWER_LEN};

/// Upper bound for the resets per second.
const RESETS_PER_SECOND: u64 = 100_000;

/// Upper bound for the resets in the queue. One packet, or the slot requests of other workers, can
/// cause several resets before the queue is drained.
pub(super) const MAX_QUEUED: usize = 4;

/// Queue of resets to be sent.
#[derive(Debug)]
pub(super) struct ServerResets {
    queue: Vec<ServerReset>,
    limiter: Limiter,
    /// Frame that was built last.
    frame: Vec<u8>,
}

#[derive(Debug)]
struct ServerReset {
    key: FlowKey,
    seq: u32,
    next_hop: u32,
}

impl ServerResets {
    /// Creates an empty queue.
    pub(super) fn new() -> ServerResets {
        ServerResets {
            queue: Vec::new(),
            limiter: Limiter::new(RESETS_PER_SECOND),
            frame: Vec::with_capacity(ANSWER_LEN),
        }
    }

    /// Queues the reset of an evicted handshake, if the server's packets pass convey and the queue
    /// has room.
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
