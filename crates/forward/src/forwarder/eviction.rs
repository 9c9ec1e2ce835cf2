//! Eviction: which flow gives way to a new one where something has run out, and who may take no
//! more.
//!
//! Addresses are easily forged; but who forges them cannot finish a handshake, and gets no answer.
//! So half-open flows and flows that are over give way, and streams that are not in use. A worker
//! ends flows of its own only. Where others have all that may give way for a slot, it asks them.

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
pub(super) use self::source_limits::give_back;
use self::victims::MAX_LOOKED_AT;
use super::tracker::FlowTracker;
use crate::plan::Plan;
use crate::{Flow, FlowEnd, FlowId, WorkerPeers};
use convey_model::{Shortage, Timestamp};

/// Upper bound for the silence of a handshake that a patient client may still finish, and of a flow
/// of UDP in use.
const UDP_SILENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Evicted flows of one worker, and the searches for the next one.
#[derive(Debug)]
pub(super) struct Eviction {
    /// Flows that were evicted before they were over, by shortage.
    evicted: [u64; Shortage::ALL.len()],
    /// Handshakes that were evicted before they could be finished.
    displaced: u64,
    /// Resets for servers of evicted handshakes.
    resets: ServerResets,
    workers: WorkerPeers,
    /// Frontends and servers of flows that were evicted for their slots, which are not given back
    /// yet.
    leaving: Vec<(u32, u32)>,
    /// Flows that the last search has looked at, and when they were last in use.
    candidates: Vec<(Timestamp, FlowId)>,
    /// Searches that have found all flows in use.
    in_use: InUse,
}

impl Eviction {
    /// No flow was evicted yet. All memory is reserved here.
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

    /// Flows that were evicted before they were over.
    pub(super) fn evicted(&self, shortage: Shortage) -> u64 {
        self.evicted[shortage as usize]
    }

    /// Handshakes that were evicted before they could be finished.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Removes a flow because another one takes what it holds.
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

    /// Counts a flow that is no longer in the table because another took what it held, and releases
    /// the rest.
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
        tracker.log_gone(id, flow, FlowEnd::Evicted, now);
        tracker.release(flow, FlowEnd::Evicted);
    }

    /// A frame to be sent before that of the last verdict, and the interface; to be called until it
    /// returns `None`. It resets the evicted handshake at its server.
    #[inline]
    pub(super) fn next_server_reset(&mut self, plan: &Plan) -> Option<(&[u8], u32)> {
        self.resets.next(plan)
    }

    /// Stops to count slots of evicted flows as taken, once the driver has taken the events of
    /// their ends: it has given them back.
    pub(super) fn settle_released_slots(&mut self, tracker: &FlowTracker) {
        if tracker.events().ended.is_empty() {
            self.leaving.drain(..).for_each(|(frontend, server)| self.workers.have_left(frontend, server));
        }
    }

    /// Flows that count among the open ones of their clients: those of passthrough. Adds up all
    /// counters.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn counted_for_clients(&self) -> u64 {
        self.workers.clients().flows()
    }

    /// Empties the list of flows that a search has looked at. Returns how many there were.
    #[cfg(test)]
    pub(super) fn take_candidates(&mut self) -> usize {
        self.candidates.drain(..).count()
    }
}
