//! Connection tracking: the flows of one worker, with all resources that each of them holds.
//!
//! A flow has a record in the table, entries in the flow cache, a SNAT port and notes in the
//! journal. A packet at a worker, or an event of the cache, changes the record; [`FlowTracker`]
//! keeps the other resources in step with it.

mod ahead;
mod bypass;
mod cache_events;
mod cache_sync;
mod catch_up;
mod entries;
mod events;
mod expiry;
mod flow_log;
mod handover;
mod look;
mod next_hop;
mod placement;
mod routes;
mod segments;
mod server_interface;
mod tunnels;

use self::bypass::CacheBypass;
use self::cache_sync::CacheSync;
pub use self::events::ForwarderEvents;
pub(super) use self::events::add_wanted;
pub(super) use self::expiry::{ACKNOWLEDGED_AFTER, GoneFlow, SweepDecision};
use self::flow_log::FlowLog;
pub use self::look::{FlowInfo, VisitBudget};
use self::routes::FlowRoutes;
pub(super) use self::routes::RouteChanges;
use super::{Settings, owners};
use crate::plan::Plan;
use crate::{AddrPort, Direction, Ended, Flow, FlowEnd, FlowId, FlowTable, NatPorts, Segment, View};
use convey_model::{FlowKey, FlowTimeouts, Timestamp};
use convey_wire::Envelope;

/// Flows of one worker, with all resources that each flow holds.
#[derive(Debug)]
pub(super) struct FlowTracker {
    table: FlowTable,
    /// SNAT ports of this worker; `None` if no frontend is in mode `passthrough`.
    ports: Option<NatPorts>,
    cache: CacheSync,
    bypass: CacheBypass,
    log: FlowLog,
    routes: FlowRoutes,
    events: ForwarderEvents,
}

impl FlowTracker {
    /// Creates a tracker without flows. All memory is reserved here.
    pub(super) fn new(settings: Settings) -> FlowTracker {
        let mut table = FlowTable::new(settings.capacity, &FlowTimeouts::default(), settings.seed);
        table.work_with(settings.workers);
        FlowTracker {
            table,
            ports: settings.ports,
            cache: CacheSync::new(settings.cache),
            bypass: CacheBypass::default(),
            log: FlowLog::default(),
            routes: FlowRoutes::default(),
            events: ForwarderEvents::default(),
        }
    }

    /// Record of a flow, which must be in the table.
    #[inline]
    pub(super) fn flow(&self, id: FlowId) -> &Flow {
        self.table.get(id)
    }

    /// Records of all flows.
    #[inline]
    pub(super) fn table(&self) -> &FlowTable {
        &self.table
    }

    /// Like [`FlowTracker::table`], for changes that only affect the records.
    #[inline]
    pub(super) fn table_mut(&mut self) -> &mut FlowTable {
        &mut self.table
    }

    /// SNAT ports of this worker, if it has any.
    #[inline]
    pub(super) fn ports(&self) -> Option<&NatPorts> {
        self.ports.as_ref()
    }

    /// Like [`FlowTracker::ports`], to take and give back ports.
    #[inline]
    pub(super) fn ports_mut(&mut self) -> Option<&mut NatPorts> {
        self.ports.as_mut()
    }

    /// Events that the driver has not drained yet.
    #[inline]
    pub(super) fn events(&self) -> &ForwarderEvents {
        &self.events
    }

    /// Like [`FlowTracker::events`], to add and to take events.
    #[inline]
    pub(super) fn events_mut(&mut self) -> &mut ForwarderEvents {
        &mut self.events
    }

    /// Adds the handshakes completed since the last call to the events, and returns all events.
    pub(super) fn collect_events(&mut self) -> &mut ForwarderEvents {
        self.events.handshakes.extend(self.table.take_completed());
        &mut self.events
    }

    /// Applies the routes and tunnels of a new plan. Returns how they differ from the previous
    /// plan.
    pub(super) fn adopt_routes(&mut self, plan: &Plan) -> RouteChanges {
        self.routes.adopt(plan)
    }

    /// Resets the list of changed tunnels, after a sweep over all flows.
    pub(super) fn clear_tunnel_changes(&mut self) {
        self.routes.clear_tunnel_changes();
    }

    /// Tunnel of a flow's packet in this direction, and the hash of the flow in the tunnel; `None`
    /// if the packet needs no tunnel.
    #[inline]
    pub(super) fn envelope(
        &self,
        id: FlowId,
        direction: Direction,
        plan: &Plan,
    ) -> Result<Option<Envelope>, super::Stop> {
        self.routes.envelope_of_packet(self.table.get(id), direction, plan)
    }

    /// Notes the first segment of a flow that was just recorded, for the journal.
    pub(super) fn note_begin(&mut self, id: FlowId, segment: Segment, now: Timestamp) {
        self.log.begin(id, segment, now);
    }

    /// Starts or stops taking notes in the journal. The start reserves memory for notes on all
    /// flows.
    pub(super) fn set_log_enabled(&mut self, is_wanted: bool) {
        self.log.set_enabled(is_wanted, self.table.capacity());
    }

    /// Releases the cache entries and the SNAT port of a flow that is no longer in the table.
    /// Reports its end, unless the flow was over.
    pub(super) fn release(&mut self, flow: &Flow, how: FlowEnd) {
        self.bypass.remove(flow);
        self.cache.remove(flow);
        let key = flow.server();
        if let (Some(ports), View::BothSides) = (&mut self.ports, flow.view()) {
            ports.release(AddrPort::source(&key), key.protocol, AddrPort::destination(&key));
        }
        if !flow.is_over() {
            self.events.ended.push(Ended { flow: owners(flow), how });
        }
    }

    /// The flow that packets with this key belong to.
    pub(super) fn flow_of(&self, key: &FlowKey) -> Option<&Flow> {
        self.table.lookup(key).map(|(id, _)| self.table.get(id))
    }
}
