//! Calls of the driver besides frames and time: counters, events, the flow cache, and the
//! operator's look at flows.

use super::{ClientShare, FlowSight, Forwarder, ForwarderEvents, LookBudget};
#[cfg(any(test, feature = "test-util"))]
use crate::FlowTable;
use crate::plan::Plan;
use crate::{
    CacheEvent, Flow, FlowEnd, FlowState, HopUse, KnownFlow, NatPorts, PathMtuSuspicion, Segment,
    UnansweredSegment,
};
use convey_model::{FlowActivity, FlowKey, Handshakes, Shortage, Timestamp};
use convey_trace::TraceFilter;
use convey_wire::Headers;

/// Results of the last packet, and events.
impl Forwarder {
    /// The frame that the last [`Verdict::Reply`](crate::Verdict::Reply) is about, complete and
    /// without padding.
    pub fn answer(&self) -> &[u8] {
        self.replies.frame()
    }

    /// The frontend, by its number, whose client the last verdict was about with
    /// [`DropReason::AccessDenied`](convey_model::DropReason::AccessDenied),
    /// [`DropReason::SourceConnections`](convey_model::DropReason::SourceConnections) or
    /// [`DropReason::SourceRate`](convey_model::DropReason::SourceRate).
    pub fn refused_at(&self) -> u32 {
        self.replies.refused_at()
    }

    /// The events; the caller drains them. Once no ended flow is left in it, the forwarder takes
    /// them as accounted for.
    pub fn events(&mut self) -> &mut ForwarderEvents {
        self.eviction.settle_released_slots(&self.tracker);
        self.tracker.collect_events()
    }

    /// A frame to be sent before that of the last verdict, and the interface; to be called until it
    /// returns `None`. It resets an evicted handshake at its server.
    #[inline]
    pub fn next_server_reset(&mut self, plan: &Plan) -> Option<(&[u8], u32)> {
        self.eviction.next_server_reset(plan)
    }

    /// Notes that the server of a repeated segment has answered somebody at this time, which is
    /// after the segment was first repeated. Returns the suspicion that this completes.
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
    /// Returns a view of the number of flows that send to each next hop.
    pub fn hop_use(&self) -> HopUse {
        self.tracker.table().hop_use().clone()
    }

    /// Flows in this state now.
    pub fn flows_in(&self, state: FlowState) -> u32 {
        self.tracker.table().count(state)
    }

    /// Flows that are open now, as far as can be told: the connection has begun, and has not ended.
    pub fn open_flows(&self) -> u32 {
        self.tracker.table().open()
    }

    /// Flows in the flow cache now.
    pub fn cached_flows(&self) -> u32 {
        self.tracker.table().cached()
    }

    /// TCP handshakes that clients have begun, finished and lost to eviction.
    pub fn handshakes(&self) -> Handshakes {
        let finished = self.tracker.table().finished();
        Handshakes { begun: self.syns, finished, displaced: self.eviction.displaced() }
    }

    /// Flows that were evicted before they were over.
    pub fn evicted(&self, shortage: Shortage) -> u64 {
        self.eviction.evicted(shortage)
    }

    /// SNAT ports in use.
    pub fn snat_ports_in_use(&self) -> usize {
        self.tracker.ports().map_or(0, NatPorts::in_use)
    }

    /// The flows.
    #[cfg(any(test, feature = "test-util"))]
    pub fn flows(&self) -> &FlowTable {
        self.tracker.table()
    }

    /// Open flows as they are counted for their clients: those of passthrough. Adds up all
    /// counters.
    #[cfg(any(test, feature = "test-util"))]
    pub fn counted_for_clients(&self) -> u64 {
        self.eviction.counted_for_clients()
    }
}

/// The flow cache, and the processes before and after this one.
impl Forwarder {
    /// Carries out the changes of the cache since the last call. To be called between batches of
    /// frames.
    pub fn flush_cache(&mut self) {
        self.tracker.flush_cache();
    }

    /// Applies a segment that the cache has forwarded at `now` or a little before.
    pub fn on_cached(&mut self, key: &FlowKey, segment: Segment, now: Timestamp) {
        self.tracker.on_cached(key, segment, now);
    }

    /// Applies events of the cache of another forwarder, which had these flows before: segments
    /// that it has forwarded, and, where one has no flags, the progress of their sender.
    pub fn on_cached_elsewhere(&mut self, events: &[CacheEvent], now: Timestamp) {
        self.tracker.on_cached_elsewhere(events, now);
    }

    /// Everything another forwarder needs to go on with the flows, with their progress in the
    /// cache; those first that have been in their state for longest. The flows stay here.
    pub fn known_flows(&mut self) -> Vec<KnownFlow> {
        self.tracker.known_flows()
    }

    /// Progress of connections in the cache since [`Forwarder::known_flows`]: the server's SYN-ACK
    /// where it has answered since, for each side of an open one a segment without flags and
    /// length, and its FIN if it has finished. For a UDP stream, the time of its server's last
    /// datagram. The next process applies these before other events.
    pub fn progress_in_cache(&mut self) -> Vec<CacheEvent> {
        self.tracker.progress_in_cache()
    }

    /// Whether a frame that waited while the flows of another forwarder came has been handled
    /// there. The other one has recorded the flow of its SYN: handled twice, that would begin anew
    /// a connection that has gone on, or ended, meanwhile. Or the other one's cache, if flows
    /// `were_cached`, has forwarded it. To be called before an event is applied, or a frame
    /// handled.
    pub fn was_handled_elsewhere(&self, headers: &Headers, were_cached: bool) -> bool {
        self.tracker.was_handled_elsewhere(headers, were_cached)
    }

    /// Has packets of flows that one of these filters may show pass a worker from now on. The cache
    /// takes flows that are no longer watched with their next packet.
    pub fn watch_flows(&mut self, filters: Vec<TraceFilter>) {
        self.tracker.watch_flows(filters);
    }

    /// Fetches into the CPU's cache what handling packets with these keys will read of their flows.
    /// Worth it for those of a batch, if there are more flows than the cache holds: their waits for
    /// memory overlap, where those of packets handled one by one add up.
    pub fn prefetch<'a>(&self, keys: impl IntoIterator<Item = &'a FlowKey>) {
        self.tracker.table().prefetch(keys);
    }
}

/// Single flows, for operators and the log of flows.
impl Forwarder {
    /// Reports each flow that begins from now on in [`ForwarderEvents::records`] once it has ended,
    /// or no flow any more. The first call takes memory for all flows.
    pub fn keep_journal(&mut self, is_wanted: bool) {
        self.tracker.keep_log(is_wanted);
    }

    /// The flow that packets with this key belong to.
    pub(crate) fn flow_of(&self, key: &FlowKey) -> Option<&Flow> {
        self.tracker.flow_of(key)
    }

    /// Shows a slice of the flows to `see`, which may ask for the activity of each. Begins with
    /// `from` at 0; returns where to go on, `None` at the end. A flow that is there from the first
    /// slice to the last is shown once. Changes nothing.
    pub fn look(
        &mut self,
        from: u32,
        budget: LookBudget,
        now: Timestamp,
        see: impl FnMut(&FlowSight, &mut dyn FnMut() -> FlowActivity),
    ) -> Option<u32> {
        self.tracker.look(from, budget, now, see)
    }

    /// Shows the flow that packets with this key belong to, if there is one. Changes nothing.
    pub fn find_flow(&mut self, key: &FlowKey, now: Timestamp) -> Option<(FlowSight, FlowActivity)> {
        self.tracker.find_flow(key, now)
    }

    /// What the client of a new flow holds of what it has its share of; of the table if it has of
    /// nothing. `server` is the server's number. `None` where nobody has a share, or this client
    /// needs none.
    pub fn client_share(
        &mut self,
        key: &FlowKey,
        server: u32,
        plan: &Plan,
        now: Timestamp,
    ) -> Option<ClientShare> {
        self.eviction.client_share(&mut self.tracker, (key, server), plan, now)
    }

    /// Ends the flow in a place, if it is this one of those that had it. `reset` gets resets for
    /// both sides of a connection, each with the interface to send it on; where servers answer
    /// clients themselves, for the client's alone.
    pub fn kill(
        &mut self,
        (place, serial): (u32, u32),
        plan: &Plan,
        now: Timestamp,
        mut reset: impl FnMut(&[u8], u32),
    ) -> Option<FlowSight> {
        let id = self.tracker.table().find(place, serial)?;
        self.tracker.catch_up(id);
        let sight = FlowSight::new(self.tracker.table(), id);
        let flow = self.tracker.table_mut().remove(id);
        if !sight.state.is_udp() && !flow.is_over() {
            self.replies.reset_both(&flow, plan, &mut reset);
        }
        self.tracker.log_gone(id, &flow, FlowEnd::Killed, now);
        self.tracker.release(&flow, FlowEnd::Killed);
        Some(sight)
    }
}
