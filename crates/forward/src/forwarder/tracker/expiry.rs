//! Flows that end without a packet: silent flows, and flows that a new plan ends.

use std::time::Duration;

use super::flow_log::silenced;
use super::placement::FLUSH_EVERY;
use super::{FlowTracker, ForwarderEvents};
use crate::forwarder::begin::UNRESOLVED;
use crate::{Direction, Flow, FlowEnd, FlowId, View};
use convey_model::Timestamp;

/// Delay between a pending FIN and the check whether it has been acknowledged.
pub(crate) const ACKNOWLEDGED_AFTER: Duration = Duration::from_secs(2);

/// Upper bound for the flows that expire, and for the flows that a sweep checks, in one call of
/// [`Forwarder::handle_timeout`](crate::Forwarder::handle_timeout).
const BUDGET: u32 = 4_096;

/// Effect of a new plan on a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SweepDecision {
    /// Reason for the end of the flow; `None` if the flow continues.
    pub(crate) end: Option<FlowEnd>,
    /// Whether the next hop of the flow has changed.
    pub(crate) is_rerouted: bool,
}

/// Cached flows whose entries change because of a new plan.
#[derive(Default)]
struct Moved {
    rerouted: Vec<FlowId>,
    without_tunnel: Vec<FlowId>,
    /// Flows whose server answers on an interface other than the interface of the next hop to the
    /// server.
    server_moved: Vec<FlowId>,
}

/// A flow that is no longer in the table.
pub(crate) struct GoneFlow {
    pub(crate) id: FlowId,
    pub(crate) flow: Flow,
    pub(crate) end: FlowEnd,
}

impl FlowTracker {
    /// Removes flows that have been silent for too long, and adds them to `gone`. Returns whether
    /// no more such flows are left.
    pub(crate) fn expire(&mut self, now: Timestamp, gone: &mut Vec<GoneFlow>) -> bool {
        for _ in 0..BUDGET {
            let Some(id) = self.table.due(now) else { return true };
            let flow = self.table.get(id);
            if flow.is_cached() && flow.has_pending_fin() {
                self.catch_up(id);
            }
            let last = if self.table.is_silent(id, now) { self.last_in_cache(id) } else { None };
            match self.table.expire_or_requeue(id, last, now) {
                Some(flow) => {
                    let end = silenced(&flow);
                    gone.push(GoneFlow { id, flow, end });
                }
                // The interval between two checks grows, because a pending FIN may never be
                // acknowledged.
                None if self.table.get(id).is_cached() && self.table.get(id).has_pending_fin() => {
                    let silence = self.table.silence(self.table.get(id), now);
                    self.table.schedule_check(id, now.after(silence.max(ACKNOWLEDGED_AFTER)));
                }
                None => {}
            }
        }
        self.table.due(now).is_none()
    }

    /// Passes a slice of the flows, beginning at place `from`, to `decide`, which may change their
    /// next hops. Removes flows that end, after passing each to `ended`, and moves the cache
    /// entries of the others. Returns the place to continue with, `None` at the end.
    pub(crate) fn sweep(
        &mut self,
        from: u32,
        now: Timestamp,
        mut decide: impl FnMut(&mut Flow, &mut ForwarderEvents) -> SweepDecision,
        mut ended: impl FnMut(FlowId, &Flow, FlowEnd),
    ) -> Option<u32> {
        let FlowTracker { table, cache, routes, events, .. } = self;
        let mut moved = Moved::default();
        let next = table.sweep(now, from, BUDGET, |id, flow| {
            let SweepDecision { end, is_rerouted } = decide(flow, events);
            if cache.is_present() && flow.is_cached() {
                if end.is_some() {
                    cache.catch_up(id, flow);
                } else if !routes.has_tunnel(flow) {
                    moved.without_tunnel.push(id);
                } else if is_rerouted || routes.has_other_tunnel(flow) || has_unresolved_server(flow) {
                    moved.rerouted.push(id);
                } else if flow.is_server_moved() {
                    moved.server_moved.push(id);
                }
            }
            if let Some(end) = end {
                ended(id, flow, end);
            }
            end.is_none()
        });
        self.move_in_cache(moved, now);
        next
    }

    fn move_in_cache(&mut self, Moved { mut rerouted, without_tunnel, server_moved }: Moved, now: Timestamp) {
        self.flush_cache();
        for some in without_tunnel.chunks(FLUSH_EVERY) {
            some.iter().for_each(|id| self.withdraw(*id));
            self.flush_cache();
        }
        rerouted.extend(server_moved.into_iter().filter(|id| self.has_lost_server_interface(*id)));
        for some in rerouted.chunks(FLUSH_EVERY) {
            some.iter().for_each(|id| self.reroute_in_cache(*id, now));
            self.flush_cache();
        }
    }
}

/// Whether the interface in the entry of a flow's server depends on the routes alone, because the
/// next hop is not resolved.
fn has_unresolved_server(flow: &Flow) -> bool {
    flow.view() == View::BothSides && flow.next_hop(Direction::ToServer) == UNRESOLVED
}
