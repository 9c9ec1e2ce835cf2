//! Eviction of flows when a resource runs out, and limits for clients.
//!
//! Addresses are easily forged, but an attacker who forges an address receives no answer, and so
//! cannot finish a handshake. Eviction therefore takes half-open flows, flows that are over, and
//! streams that are not in use. A worker evicts its own flows only. If only other workers have
//! evictable flows for a connection slot, the worker requests a slot from these workers.

mod client_share;
mod in_use;
mod server_resets;
mod slots;
mod source_limits;
mod table;
mod victims;

pub use self::client_share::ClientShare;
pub(super) use self::client_share::StreamCheck;
use self::in_use::InUse;
use self::server_resets::ServerResets;
pub(super) use self::source_limits::refund_rate;
use self::victims::MAX_LOOKED_AT;
use super::tracker::FlowTracker;
use crate::plan::Plan;
use crate::{Flow, FlowEnd, FlowId, WorkerPeers};
use convey_model::{Shortage, Timestamp};

/// Upper bound for the silence of a handshake that a patient client may still finish, and of a UDP
/// flow in use.
const UDP_SILENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Counts of evicted flows of one worker, and the state of searches for the next flow to evict.
#[derive(Debug)]
pub(super) struct Eviction {
    /// Flows evicted before they were over, by shortage.
    evicted: [u64; Shortage::ALL.len()],
    /// Handshakes evicted less than a second after their last packet, so that the client might have
    /// finished them.
    displaced: u64,
    /// Resets for the servers of evicted handshakes.
    resets: ServerResets,
    workers: WorkerPeers,
    /// Frontend and server of each flow that was evicted for its slots, until the slots are given
    /// back.
    leaving: Vec<(u32, u32)>,
    /// Flows that the last search has examined, each with the time of its last use.
    candidates: Vec<(Timestamp, FlowId)>,
    /// Searches that have found only flows in use.
    in_use: InUse,
}

impl Eviction {
    /// Creates an eviction without evicted flows. All memory is reserved here.
    pub(super) fn new(workers: WorkerPeers) -> Eviction {
        Eviction {
            evicted: Default::default(),
            displaced: 0,
            resets: ServerResets::new(),
            workers,
            leaving: Vec::new(),
            candidates: Vec::with_capacity(MAX_LOOKED_AT as usize),
            in_use: InUse::new(),
        }
    }

    /// Number of flows evicted before they were over.
    pub(super) fn evicted(&self, shortage: Shortage) -> u64 {
        self.evicted[shortage as usize]
    }

    /// Number of handshakes evicted less than a second after their last packet, so that the client
    /// might have finished them.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Evicts a flow because another flow takes its resources.
    pub(super) fn evict(
        &mut self,
        tracker: &mut FlowTracker,
        id: FlowId,
        shortage: Shortage,
        now: Timestamp,
    ) {
        let flow = tracker.table_mut().remove(id);
        self.on_evicted(tracker, (id, &flow), shortage, now);
    }

    /// Counts a flow that was evicted from the table, and releases its other resources.
    pub(super) fn on_evicted(
        &mut self,
        tracker: &mut FlowTracker,
        (id, flow): (FlowId, &Flow),
        shortage: Shortage,
        now: Timestamp,
    ) {
        if !flow.is_over() {
            self.evicted[shortage as usize] += 1;
        }
        if flow.state().is_handshake() {
            let is_early = tracker.table().silence(flow, now) < UDP_SILENCE;
            self.displaced += u64::from(is_early);
            self.resets.queue_reset_to_server(flow, now);
        }
        tracker.log_removed(id, flow, FlowEnd::Evicted, now);
        tracker.release(flow, FlowEnd::Evicted);
    }

    /// Next reset for the server of an evicted handshake: the frame, and the interface to send it
    /// on. Call this method until it returns `None`, and send each reset before the frame of the
    /// last verdict.
    #[inline]
    pub(super) fn next_server_reset(&mut self, plan: &Plan) -> Option<(&[u8], u32)> {
        self.resets.next(plan)
    }

    /// Stops counting the slots of evicted flows as about to be released. Does nothing until the
    /// driver has drained the events of ended flows, and so has released the slots.
    pub(super) fn settle_released_slots(&mut self, tracker: &FlowTracker) {
        if tracker.events().ended.is_empty() {
            self.leaving
                .drain(..)
                .for_each(|(frontend, server)| self.workers.note_released(frontend, server));
        }
    }

    /// Number of passthrough flows that count among the open flows of their clients. Adds up all
    /// counters.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn counted_for_clients(&self) -> u64 {
        self.workers.clients().flows()
    }

    /// Empties the list of flows that the last search has examined. Returns their number.
    #[cfg(test)]
    pub(super) fn take_candidates(&mut self) -> usize {
        self.candidates.drain(..).count()
    }
}
