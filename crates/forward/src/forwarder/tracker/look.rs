//! Flow listings for operators, a slice of the table at a time.

use super::FlowTracker;
use super::cache_sync::CacheSync;
use super::flow_log::FlowLog;
use crate::forwarder::owners;
use crate::{Direction, Flow, FlowId, FlowOwners, FlowState, FlowTable, ForwardingMethod, Progress, View};
use convey_model::{FlowActivity, FlowKey, Timestamp};

/// Upper bounds for the cost of one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisitBudget {
    /// Places of the table to visit.
    pub places: u32,
    /// Flows whose activity is looked up in the cache.
    pub lookups: u32,
}

/// State of a flow, for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowInfo {
    /// Place of the flow in the table.
    pub place: u32,
    /// Serial number of the flow. Another flow in the same place has another number.
    pub serial: u32,
    /// Key of the client's packets: from the client to the VIP.
    pub client: FlowKey,
    /// Key of the server's packets as they leave the server.
    pub server: FlowKey,
    /// Whether convey sees the packets of both sides or of the client alone.
    pub view: View,
    /// How packets reach the server.
    pub method: ForwardingMethod,
    /// Owners of the flow.
    pub owners: FlowOwners,
    /// State of the connection.
    pub state: FlowState,
    /// Whether the flow cache forwards its packets.
    pub is_cached: bool,
    /// Next hop to the server: index into the plan's next hops.
    pub to_server: u32,
}

impl FlowInfo {
    pub(crate) fn new(table: &FlowTable, id: FlowId) -> FlowInfo {
        let flow = table.get(id);
        FlowInfo {
            place: id.0,
            serial: table.serial(id),
            client: flow.client(),
            server: flow.server(),
            view: flow.view(),
            method: flow.method(),
            owners: owners(flow),
            state: flow.state(),
            is_cached: flow.is_cached(),
            to_server: flow.next_hop(Direction::ToServer),
        }
    }

    /// Whether the connection is over as far as convey can see; a SYN of its client then begins a
    /// new flow.
    pub fn is_over(&self) -> bool {
        self.state.is_over(self.view)
    }
}

impl FlowTracker {
    /// Passes a slice of the flows to `see`, which may request the activity of each. The first call
    /// has `from` 0; the result is the place to continue with, `None` at the end. A flow that
    /// exists during the whole walk is passed once. Changes nothing.
    pub(crate) fn visit_flows(
        &mut self,
        from: u32,
        budget: VisitBudget,
        now: Timestamp,
        mut see: impl FnMut(&FlowInfo, &mut dyn FnMut() -> FlowActivity),
    ) -> Option<u32> {
        let FlowTracker { table, cache, log, .. } = self;
        let (end, mut left) = (from.saturating_add(budget.places).min(table.places()), budget.lookups);
        for place in from..end {
            let Some((id, flow)) = table.at(place) else { continue };
            let mut info = FlowInfo::new(table, id);
            let mut ask = || {
                let seen = BothSeen::of(cache, id, flow)?;
                left = left.saturating_sub(1);
                Some(seen)
            };
            // In other states, the cache cannot be ahead of the table.
            let known = if flow.state().may_lag() { ask() } else { None };
            if let Some(seen) = known {
                info.state = state(flow, seen);
            }
            see(&info, &mut || {
                let seen = known.or_else(&mut ask).unwrap_or_default();
                activity(table, log, (id, flow), seen, now)
            });
            if left == 0 {
                return (place + 1 < table.places()).then_some(place + 1);
            }
        }
        (end < table.places()).then_some(end)
    }

    /// Flow that packets with this key belong to, if there is one. Changes nothing.
    pub(crate) fn find_flow(&mut self, key: &FlowKey, now: Timestamp) -> Option<(FlowInfo, FlowActivity)> {
        let FlowTracker { table, cache, log, .. } = self;
        let (id, _) = table.lookup(key)?;
        let (mut info, flow) = (FlowInfo::new(table, id), table.get(id));
        let seen = BothSeen::of(cache, id, flow).unwrap_or_default();
        info.state = state(flow, seen);
        Some((info, activity(table, log, (id, flow), seen, now)))
    }
}

/// Progress of a flow's client and server, and the time when the cache last forwarded a packet of
/// either.
#[derive(Debug, Clone, Copy, Default)]
struct BothSeen {
    progress: [Option<Progress>; 2],
    at: Option<Timestamp>,
}

impl BothSeen {
    /// Looks up the entries of a flow; `None` if the cache does not have the flow.
    fn of(cache: &mut CacheSync, id: FlowId, flow: &Flow) -> Option<BothSeen> {
        let both = cache.lookup(flow)?;
        let at = both.iter().flatten().map(|seen| seen.at).max();
        Some(BothSeen { progress: cache.progress(id, flow, both), at })
    }
}

/// State of a flow after the packets that the cache has seen.
fn state(flow: &Flow, seen: BothSeen) -> FlowState {
    match (flow.state().is_handshake(), seen.progress) {
        (true, [Some(client), _]) => flow.clone().catch_up(Some(client), None),
        (true, _) => flow.state(),
        (false, [client, server]) => flow.clone().catch_up(client, server),
    }
}

fn activity(
    table: &FlowTable,
    log: &FlowLog,
    (id, flow): (FlowId, &Flow),
    seen: BothSeen,
    now: Timestamp,
) -> FlowActivity {
    let last = seen.at.unwrap_or_default().max(table.last_extension(flow));
    let [bytes_rx, bytes_tx] = log.bytes(id, flow, seen.progress);
    FlowActivity { age: Some(now.since(table.began(id))), idle: Some(now.since(last)), bytes_rx, bytes_tx }
}
