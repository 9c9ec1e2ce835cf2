//! Driver calls other than frames and time: counters, events, the flow cache, and operators'
//! queries about flows.

use super::{ClientShare, FlowInfo, Forwarder, ForwarderEvents, VisitBudget};
#[cfg(any(test, feature = "test-util"))]
use crate::FlowTable;
use crate::plan::Plan;
use crate::{
    CacheEvent, Flow, FlowEnd, FlowState, HopUse, KnownFlow, NatPorts, PathMtuSuspicion, UnansweredSegment,
};
use convey_model::{FlowActivity, FlowKey, Handshakes, Shortage, Timestamp};
use convey_trace::TraceFilter;
use convey_wire::Headers;

/// Results of the last packet, and events.
impl Forwarder {
    /// Complete frame, without padding, that answers the packet of the last
    /// [`Verdict::Reply`](crate::Verdict::Reply).
    pub fn answer(&self) -> &[u8] {
        self.replies.frame()
    }

    /// Number of the frontend that has refused a client with the last verdict, for the reasons
    /// [`DropReason::AccessDenied`](convey_model::DropReason::AccessDenied),
    /// [`DropReason::SourceConnections`](convey_model::DropReason::SourceConnections) and
    /// [`DropReason::SourceRate`](convey_model::DropReason::SourceRate).
    pub fn refused_at(&self) -> u32 {
        self.replies.refused_at()
    }

    /// Pending events, which the caller drains. If the next call finds no ended flow in the events,
    /// the forwarder assumes that the caller has released the slots of all ended flows.
    pub fn events(&mut self) -> &mut ForwarderEvents {
        self.eviction.settle_released_slots(&self.tracker);
        self.tracker.collect_events()
    }

    /// Next reset for the server of an evicted handshake: the frame, and the interface to send it
    /// on. Call this method until it returns `None`, and send each reset before the frame of the
    /// last verdict.
    #[inline]
    pub fn next_server_reset(&mut self, plan: &Plan) -> Option<(&[u8], u32)> {
        self.eviction.next_server_reset(plan)
    }

    /// Notes that the server of a repeated segment has answered some client at this time, which is
    /// after the first repeat. Returns the suspicion that the answer confirms; `None` if it
    /// confirms none.
    pub fn server_has_answered(
        &mut self,
        segment: &UnansweredSegment,
        at: Timestamp,
    ) -> Option<PathMtuSuspicion> {
        self.path_mtu.server_has_answered(segment, at)
    }
}

/// Counters.
impl Forwarder {
    /// Number of flows that send to each next hop, as a view that stays current.
    pub fn hop_use(&self) -> HopUse {
        self.tracker.table().hop_use().clone()
    }

    /// Current number of flows in this state.
    pub fn flows_in(&self, state: FlowState) -> u32 {
        self.tracker.table().count(state)
    }

    /// Current number of open flows, as far as convey can see: the connection has begun and has not
    /// ended.
    pub fn open_flows(&self) -> u32 {
        self.tracker.table().open()
    }

    /// Current number of flows with entries in the flow cache.
    pub fn cached_flows(&self) -> u32 {
        self.tracker.table().cached()
    }

    /// Numbers of TCP handshakes: begun by clients, completed, and evicted early.
    pub fn handshakes(&self) -> Handshakes {
        let finished = self.tracker.table().finished();
        Handshakes { begun: self.syns, finished, displaced: self.eviction.displaced() }
    }

    /// Number of flows evicted before they were over.
    pub fn evicted(&self, shortage: Shortage) -> u64 {
        self.eviction.evicted(shortage)
    }

    /// Number of SNAT ports in use.
    pub fn snat_ports_in_use(&self) -> usize {
        self.tracker.ports().map_or(0, NatPorts::in_use)
    }

    /// Connection table.
    #[cfg(any(test, feature = "test-util"))]
    pub fn flows(&self) -> &FlowTable {
        self.tracker.table()
    }

    /// Number of passthrough flows that count among the open flows of their clients. Adds up all
    /// counters.
    #[cfg(any(test, feature = "test-util"))]
    pub fn counted_for_clients(&self) -> u64 {
        self.eviction.counted_for_clients()
    }
}

/// The flow cache, and handover from and to other processes.
impl Forwarder {
    /// Carries out the changes of the cache since the last call. Call it between batches of frames.
    pub fn flush_cache(&mut self) {
        self.tracker.flush_cache();
    }

    /// Applies a segment that the cache has forwarded at `now` or a little before.
    pub fn on_cached(&mut self, event: CacheEvent, now: Timestamp) {
        self.tracker.on_cached(event, now);
    }

    /// Applies cache events of another forwarder, which had these flows before: forwarded segments
    /// and, in events without flags, the progress of their sender.
    pub fn on_cached_elsewhere(&mut self, events: &[CacheEvent], now: Timestamp) {
        self.tracker.on_cached_elsewhere(events, now);
    }

    /// Flows with all state that another forwarder needs to continue them, including their progress
    /// in the cache. Flows that have been in their state for longest come first. The flows stay in
    /// this forwarder.
    pub fn known_flows(&mut self) -> Vec<KnownFlow> {
        self.tracker.known_flows()
    }

    /// Progress of flows in the cache since [`Forwarder::known_flows`]: the server's SYN-ACK if it
    /// has answered since; for each side of an open connection, a segment without flags and length,
    /// and its FIN if it has finished; for a UDP stream, the time of its server's last datagram.
    /// The next process applies these events before all other events.
    pub fn progress_in_cache(&mut self) -> Vec<CacheEvent> {
        self.tracker.progress_in_cache()
    }

    /// Whether another forwarder has handled this frame already: the frame waited in this process
    /// while the other forwarder's flows were restored. Call it before an event is applied or a
    /// frame is handled.
    ///
    /// A SYN was handled if the other forwarder has recorded its flow: handling the SYN twice would
    /// restart a connection that has continued or ended. Any other frame of a cached flow was
    /// handled by the other forwarder's cache, if flows `were_cached` there.
    pub fn was_handled_elsewhere(&self, headers: &Headers, were_cached: bool) -> bool {
        self.tracker.was_handled_elsewhere(headers, were_cached)
    }

    /// Routes the packets of flows that match one of these filters through a worker from now on.
    /// Watched flows that no longer match are added to the cache again with their next packet.
    pub fn watch_flows(&mut self, filters: Vec<TraceFilter>) {
        self.tracker.watch_flows(filters);
    }

    /// Prefetches into the CPU cache the flow memory that packets with these keys will read. Use it
    /// for the keys of a batch if the flows do not fit into the cache: the waits for memory then
    /// overlap instead of adding up.
    pub fn prefetch<'a>(&self, keys: impl IntoIterator<Item = &'a FlowKey>) {
        self.tracker.table().prefetch(keys);
    }
}

/// Single flows, for operators and the journal.
impl Forwarder {
    /// Starts or stops reporting ended flows in [`ForwarderEvents::records`]. Only flows that begin
    /// after the start are reported. The start reserves memory for notes on all flows.
    pub fn set_journal_enabled(&mut self, is_wanted: bool) {
        self.tracker.set_log_enabled(is_wanted);
    }

    /// The flow that packets with this key belong to.
    pub(crate) fn flow_of(&self, key: &FlowKey) -> Option<&Flow> {
        self.tracker.flow_of(key)
    }

    /// Passes a slice of the flows to `see`, which may request the activity of each. The first call
    /// has `from` 0; the result is the place to continue with, `None` at the end. A flow that
    /// exists during the whole walk is passed once. Changes nothing.
    pub fn visit_flows(
        &mut self,
        from: u32,
        budget: VisitBudget,
        now: Timestamp,
        see: impl FnMut(&FlowInfo, &mut dyn FnMut() -> FlowActivity),
    ) -> Option<u32> {
        self.tracker.visit_flows(from, budget, now, see)
    }

    /// Flow that packets with this key belong to, if there is one. Changes nothing.
    pub fn find_flow(&mut self, key: &FlowKey, now: Timestamp) -> Option<(FlowInfo, FlowActivity)> {
        self.tracker.find_flow(key, now)
    }

    /// Client's share of the resource because of which a new flow of the client would be refused;
    /// the client's share of the table if the flow would not be refused. `server` is the server's
    /// number. `None` where clients have no share, or if the client is trusted.
    pub fn client_share(
        &mut self,
        key: &FlowKey,
        server: u32,
        plan: &Plan,
        now: Timestamp,
    ) -> Option<ClientShare> {
        self.eviction.client_share(&mut self.tracker, (key, server), plan, now)
    }

    /// Ends the flow in a place if it has this serial number. `reset` gets resets for both sides of
    /// a connection, each with the interface to send it on; in DSR, only a reset for the client.
    /// Returns the flow as it was before; `None` if no flow in this place has this serial number.
    pub fn kill(
        &mut self,
        (place, serial): (u32, u32),
        plan: &Plan,
        now: Timestamp,
        mut reset: impl FnMut(&[u8], u32),
    ) -> Option<FlowInfo> {
        let id = self.tracker.table().find(place, serial)?;
        self.tracker.catch_up(id);
        let info = FlowInfo::new(self.tracker.table(), id);
        let flow = self.tracker.table_mut().remove(id);
        if !info.state.is_udp() && !flow.is_over() {
            self.replies.reset_both(&flow, plan, &mut reset);
        }
        self.tracker.log_removed(id, &flow, FlowEnd::Killed, now);
        self.tracker.release(&flow, FlowEnd::Killed);
        Some(info)
    }
}
