//! Periodic work between batches of packets: expiry, and application of new plans to flows.

use super::Forwarder;
use super::adopt::reroute;
use super::tracker::{GoneFlow, SweepDecision};
use crate::plan::Plan;
use crate::{FlowEnd, FlowId, View};
use convey_model::Timestamp;

/// Upper bound for the pools of SNAT ports that one call checks.
const POOLS: usize = 1_024;

impl Forwarder {
    /// Expires flows and, after a new plan, checks every flow once, a slice at a time. `reset` gets
    /// resets, each with its interface: for clients whose server is gone, and for both sides of a
    /// connection that was silent for too long or is beyond its client's share. Call it before the
    /// first frame, and about as often as batches of frames come. Returns whether more work is due
    /// immediately.
    pub fn handle_timeout(&mut self, plan: &Plan, now: Timestamp, mut reset: impl FnMut(&[u8], u32)) -> bool {
        self.adopt(plan);
        self.tracker.write_numbers(now);
        self.path_mtu.widen_expired(&mut self.tracker, now);
        self.path_mtu.remove_old(now);
        self.sweep.repeat_queries(self.tracker.events_mut(), now);
        self.eviction.evict_for_others(&mut self.tracker, plan, now);
        while let Some((id, end)) = self.eviction.next_excess(&mut self.tracker, plan, now) {
            self.end_excess((id, end), plan, now, &mut reset);
        }
        self.tracker.withdraw_watched();
        let mut gone = Vec::new();
        let expired_all = self.tracker.expire(now, &mut gone);
        for gone in gone.iter_mut().filter(|gone| gone.end == FlowEnd::Silent) {
            self.reset_sides(gone, plan, now, &mut reset);
        }
        if let Some(from) = self.sweep.next_place() {
            self.sweep_flows(from, (plan, now), &mut gone, &mut reset);
        }
        for GoneFlow { id, flow, end } in &gone {
            self.tracker.log_removed(*id, flow, *end, now);
            self.tracker.release(flow, *end);
        }
        let is_sweeping = self.sweep.next_place().is_some();
        let has_spare_memory = expired_all && !is_sweeping && self.tracker.table_mut().release_memory();
        let served = &self.served;
        let accepts_flows_to = |server, protocol| served.accepts_flows_to(server, protocol);
        let has_more_pools =
            self.tracker.ports_mut().is_some_and(|ports| ports.check(POOLS, accepts_flows_to));
        !expired_all
            || has_spare_memory
            || is_sweeping
            || has_more_pools
            || self.tracker.has_flows_to_withdraw()
            || self.tracker.has_numbers_to_write(now)
    }

    /// Checks a slice of the flows after a new plan: flows that end are added to `gone`, others
    /// move to the new routes.
    fn sweep_flows(
        &mut self,
        from: u32,
        (plan, now): (&Plan, Timestamp),
        gone: &mut Vec<GoneFlow>,
        reset: &mut impl FnMut(&[u8], u32),
    ) {
        let (served, replies, awaited) = (&self.served, &mut self.replies, self.sweep.begin_slice(from));
        let next = self.tracker.sweep(
            from,
            now,
            |flow, events| {
                let end = served.end_of(flow);
                let is_rerouted = reroute(flow, plan, |neighbour| {
                    if end.is_none() {
                        awaited.add(neighbour);
                        // Routers and servers are requested here, since no packet requests them.
                        // Clients are requested by the packets to them.
                        if neighbour.is_ours {
                            events.want(neighbour);
                        }
                    }
                });
                SweepDecision { end, is_rerouted }
            },
            |id, flow, end| {
                if end != FlowEnd::Left {
                    replies.reset_client(flow, plan, reset);
                }
                // The client's packets are dropped from now on, so the server would wait for them.
                if end == FlowEnd::Denied && flow.is_open_connection() {
                    replies.reset_server(flow, plan, reset);
                }
                gone.push(GoneFlow { id, flow: flow.clone(), end });
            },
        );
        if self.sweep.end_slice(next) {
            self.tracker.clear_tunnel_changes();
        }
    }

    /// Ends a flow that exceeds its client's limits.
    pub(super) fn end_excess(
        &mut self,
        (id, end): (FlowId, FlowEnd),
        plan: &Plan,
        now: Timestamp,
        reset: &mut impl FnMut(&[u8], u32),
    ) {
        let mut gone = GoneFlow { id, flow: self.tracker.table_mut().remove(id), end };
        self.reset_sides(&mut gone, plan, now, reset);
        self.tracker.log_removed(id, &gone.flow, end, now);
        self.tracker.release(&gone.flow, end);
    }

    /// Resets both sides of a connection that convey no longer forwards; otherwise a side that
    /// sends would never get a reply. In DSR, a silent flow is not reset: another balancer may
    /// forward the connection, or this balancer may forward it by hash, without a record.
    fn reset_sides(
        &mut self,
        GoneFlow { id, flow, end }: &mut GoneFlow,
        plan: &Plan,
        now: Timestamp,
        reset: &mut impl FnMut(&[u8], u32),
    ) {
        let goes_on = flow.view() == View::ClientSide && *end == FlowEnd::Silent;
        if !goes_on && self.replies.allow_end(now) {
            self.tracker.catch_up_removed(*id, flow);
            self.replies.reset_both(flow, plan, reset);
        }
    }
}
