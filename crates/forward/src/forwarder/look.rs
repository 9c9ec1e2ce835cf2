//! Looks at flows for an operator, a slice at a time, and ends one.

use super::ahead::progress_of;
use super::entries::keys;
use super::{Forwarder, owners, refuse};
use crate::ServerWay;
use crate::journal::Journal;
use crate::plan::Plan;
use crate::{Direction, Flow, FlowCache, FlowEnd, FlowId, FlowOwners, FlowState, FlowTable, Progress, View};
use convey_model::{FlowActivity, FlowKey, Timestamp};

/// How much one look may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookBudget {
    /// Places that are looked at.
    pub places: u32,
    /// Flows whose activity the cache is asked for.
    pub asked: u32,
}

/// A flow as it is when it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSight {
    /// Its place in the table.
    pub place: u32,
    /// Which of the flows of that place it is.
    pub serial: u32,
    /// Key of the client's packets: from the client to the VIP.
    pub client: FlowKey,
    /// Key of the server's packets as they leave it.
    pub server: FlowKey,
    /// Whose packets pass.
    pub view: View,
    /// How packets get to the server.
    pub way: ServerWay,
    /// Whose it is.
    pub owners: FlowOwners,
    /// How far it is.
    pub state: FlowState,
    /// Whether the flow cache forwards its packets.
    pub is_cached: bool,
    /// Where packets to its server go next: index into the plan's next hops.
    pub to_server: u32,
}

impl FlowSight {
    fn new(flows: &FlowTable, id: FlowId) -> FlowSight {
        let flow = flows.get(id);
        FlowSight {
            place: id.0,
            serial: flows.serial(id),
            client: flow.client(),
            server: flow.server(),
            view: flow.view(),
            way: flow.way(),
            owners: owners(flow),
            state: flow.state(),
            is_cached: flow.is_cached(),
            to_server: flow.next_hop(Direction::ToServer),
        }
    }

    /// Whether its connection is over as far as can be seen: a SYN of its client begins a new one then.
    pub fn is_over(&self) -> bool {
        self.state.is_over(self.view)
    }
}

impl Forwarder {
    /// Shows a slice of the flows to `see`, which may ask for the activity of each. Begins with `from` at 0; returns where to go
    /// on, `None` at the end. A flow that is there from the first slice to the last is shown once. Changes nothing.
    pub fn look(
        &mut self,
        from: u32,
        budget: LookBudget,
        now: Timestamp,
        mut see: impl FnMut(&FlowSight, &mut dyn FnMut() -> FlowActivity),
    ) -> Option<u32> {
        let Forwarder { flows, cache, journal, ahead, .. } = self;
        let (end, mut left) = (from.saturating_add(budget.places).min(flows.places()), budget.asked);
        for place in from..end {
            let Some((id, flow)) = flows.at(place) else { continue };
            let mut sight = FlowSight::new(flows, id);
            let mut ask = || {
                let cache = cache.as_deref_mut().filter(|_| flow.is_cached())?;
                left = left.saturating_sub(1);
                Some(seen(cache, flow, ahead.has(id)))
            };
            // Else the cache knows nothing of its state that is not known here.
            let known = if flow.state().may_lag() { ask() } else { None };
            if let Some(seen) = known {
                sight.state = state(flow, seen);
            }
            see(&sight, &mut || {
                let seen = known.or_else(&mut ask).unwrap_or_default();
                activity(flows, (id, flow), seen, journal.as_ref(), now)
            });
            if left == 0 {
                return (place + 1 < flows.places()).then_some(place + 1);
            }
        }
        (end < flows.places()).then_some(end)
    }

    /// Shows the flow that packets with this key belong to, if there is one. Changes nothing.
    pub fn find_flow(&mut self, key: &FlowKey, now: Timestamp) -> Option<(FlowSight, FlowActivity)> {
        let Forwarder { flows, cache, journal, ahead, .. } = self;
        let (id, _) = flows.lookup(key)?;
        let (mut sight, flow) = (FlowSight::new(flows, id), flows.get(id));
        let seen = match cache.as_deref_mut().filter(|_| flow.is_cached()) {
            Some(cache) => seen(cache, flow, ahead.has(id)),
            None => BothSeen::default(),
        };
        sight.state = state(flow, seen);
        Some((sight, activity(flows, (id, flow), seen, journal.as_ref(), now)))
    }

    /// Ends the flow in a place, if it is this one of those that had it. `reset` is given resets for both sides of a connection,
    /// each with the interface to send it on; where servers answer clients themselves, for the client's alone.
    pub fn kill(
        &mut self,
        (place, serial): (u32, u32),
        plan: &Plan,
        now: Timestamp,
        mut reset: impl FnMut(&[u8], u32),
    ) -> Option<FlowSight> {
        let id = self.flows.find(place, serial)?;
        self.catch_up(id);
        let sight = FlowSight::new(&self.flows, id);
        let flow = self.flows.remove(id);
        if !sight.state.is_udp() && !flow.is_over() {
            for tell in [refuse::farewell, refuse::farewell_to_server] {
                if let Some(interface) = tell(&flow, plan, &mut self.answer) {
                    reset(&self.answer, interface);
                }
            }
        }
        self.note_gone(id, &flow, FlowEnd::Killed, now);
        self.let_go(&flow, FlowEnd::Killed);
        Some(sight)
    }
}

/// How far a flow's client and server have got, and when the cache has last forwarded a packet of theirs.
#[derive(Debug, Clone, Copy, Default)]
struct BothSeen {
    progress: [Option<Progress>; 2],
    at: Option<Timestamp>,
}

fn seen(cache: &mut dyn FlowCache, flow: &Flow, is_ahead: bool) -> BothSeen {
    let mut both = [None; 2];
    keys(flow).for_each(|(direction, key)| both[direction as usize] = cache.seen(&key));
    BothSeen {
        progress: progress_of(flow, is_ahead, both),
        at: both.iter().flatten().map(|seen| seen.at).max(),
    }
}

/// How far a flow is by what the cache has seen.
fn state(flow: &Flow, seen: BothSeen) -> FlowState {
    match (flow.state().is_handshake(), seen.progress) {
        (true, [Some(client), _]) => flow.clone().catch_up(Some(client), None),
        (true, _) => flow.state(),
        (false, [client, server]) => flow.clone().catch_up(client, server),
    }
}

fn activity(
    flows: &FlowTable,
    (id, flow): (FlowId, &Flow),
    seen: BothSeen,
    journal: Option<&Journal>,
    now: Timestamp,
) -> FlowActivity {
    let last = seen.at.unwrap_or_default().max(flows.last_kept(flow));
    let [bytes_rx, bytes_tx] = journal.map_or([None; 2], |journal| bytes(journal, id, flow, seen.progress));
    FlowActivity { age: Some(now.since(flows.began(id))), idle: Some(now.since(last)), bytes_rx, bytes_tx }
}

/// Payload bytes from and to the client, as the journal can tell.
fn bytes(journal: &Journal, id: FlowId, flow: &Flow, seen: [Option<Progress>; 2]) -> [Option<u64>; 2] {
    let note = journal.get(id);
    if note.began.is_none() {
        return [None; 2];
    }
    if flow.state().is_udp() {
        return note.udp_bytes(flow.view());
    }
    let mut flow = flow.clone();
    if seen != [None; 2] {
        flow.catch_up(seen[0], seen[1]);
    }
    let sent = [Direction::ToServer, Direction::ToClient].map(|direction| flow.progress(direction).sent);
    note.tcp_bytes(flow.state(), flow.view(), sent)
}
