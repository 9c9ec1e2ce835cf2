//! Ends flows that have been silent for too long, and looks at all of them after a new plan.

use std::time::Duration;

use super::adopt::reroute;
use super::begin::UNRESOLVED;
use super::entries;
use super::journal::silenced;
use super::withheld::AT_ONCE;
use super::{Forwarder, refuse};
use crate::plan::Plan;
use crate::{Direction, Flow, FlowEnd, FlowId, View};
use convey_model::Timestamp;

/// How long after a FIN that is not believed yet it is looked whether it has been acknowledged.
pub(super) const ACKNOWLEDGED_AFTER: Duration = Duration::from_secs(2);

/// Flows looked at in one call of [`Forwarder::handle_timeout`], for each of its two tasks.
const BUDGET: u32 = 4_096;

/// Pools of SNAT ports looked at in one call.
const POOLS: usize = 1_024;

/// Cached flows whose entries change by a new plan.
#[derive(Default)]
struct Moved {
    rerouted: Vec<FlowId>,
    without_tunnel: Vec<FlowId>,
    /// Flows whose server answers by another interface than that of the next hop to it.
    server_moved: Vec<FlowId>,
}

/// Whether the routes alone decide which interface the entry of a flow's server has, as its next hop is not known.
fn has_unresolved_server(flow: &Flow) -> bool {
    flow.view() == View::BothSides && flow.next_hop(Direction::ToServer) == UNRESOLVED
}

impl Forwarder {
    /// Lets time pass: expires flows, and after a new plan looks at every flow once, a slice at a time. `reset` is given
    /// resets, each with the interface to send it on. They tell clients that their server is gone. They tell both sides
    /// of a connection that it was silent for too long, or that it is beyond its client's share. Call it before the first
    /// frame, and about as often as batches of frames come. Returns whether there is more to be done that need not wait.
    pub fn handle_timeout(&mut self, plan: &Plan, now: Timestamp, mut reset: impl FnMut(&[u8], u32)) -> bool {
        self.adopt(plan);
        self.write_numbers(now);
        self.widen(now);
        self.black_holes.forget_old(now);
        self.ask_for_awaited(now);
        self.give_way_to_others(plan, now);
        self.end_those_beyond(plan, now, &mut reset);
        self.withdraw_watched();
        let mut gone = Vec::new();
        let expired_all = self.expire(now, &mut gone);
        for (id, flow, end) in gone.iter_mut().filter(|(_, _, end)| *end == FlowEnd::Silent) {
            self.take_leave((*id, flow, *end), plan, now, &mut reset);
        }
        if let Some(from) = self.sweep {
            self.look_at_flows(from, (plan, now), &mut gone, &mut reset);
        }
        for (id, flow, end) in &gone {
            self.note_gone(*id, flow, *end, now);
            self.let_go(flow, *end);
        }
        let has_spare_memory = expired_all && self.sweep.is_none() && self.flows.give_back_memory();
        let served = &self.served;
        let may_be_asked = |server, protocol| served.may_be_asked(server, protocol);
        let has_more_pools = self.ports.as_mut().is_some_and(|ports| ports.check(POOLS, may_be_asked));
        !expired_all
            || has_spare_memory
            || self.sweep.is_some()
            || has_more_pools
            || self.withheld.is_behind()
            || self.ahead.is_behind(now)
    }

    /// Looks at a slice of the flows after a new plan: those that end are `gone`, others go where it has them go.
    fn look_at_flows(
        &mut self,
        from: u32,
        (plan, now): (&Plan, Timestamp),
        gone: &mut Vec<(FlowId, Flow, FlowEnd)>,
        reset: &mut impl FnMut(&[u8], u32),
    ) {
        let (served, answer, ahead) = (&self.served, &mut self.answer, &self.ahead);
        let tunnels = &self.tunnels;
        let (mut cache, mut moved) = (self.cache.as_deref_mut(), Moved::default());
        let (events, awaited) = (&mut self.events, &mut self.awaited);
        if from == 0 {
            awaited.clear();
        }
        self.sweep = self.flows.sweep(now, from, BUDGET, |id, flow| {
            let end = served.end_of(flow);
            let is_moved = reroute(flow, plan, |neighbour| {
                if end.is_none() {
                    awaited.add(neighbour);
                    // No packet asks for a router or a server. Requests for clients are few, and
                    // those that packets wait for have precedence.
                    if neighbour.is_ours {
                        events.want(neighbour);
                    }
                }
            });
            let is_rerouted = is_moved || tunnels.is_changed(flow) || has_unresolved_server(flow);
            match cache.as_deref_mut().filter(|_| flow.is_cached()) {
                Some(cache) if end.is_some() => entries::catch_up(cache, flow, ahead.has(id)),
                Some(_) if !tunnels.know(flow) => moved.without_tunnel.push(id),
                Some(_) if is_rerouted => moved.rerouted.push(id),
                Some(_) if flow.is_server_moved() => moved.server_moved.push(id),
                _ => {}
            }
            if let Some(end) = end {
                if end != FlowEnd::Left
                    && let Some(interface) = refuse::farewell(flow, plan, answer)
                {
                    reset(answer, interface);
                }
                // The client is heard no more, so its server would wait for it.
                if end == FlowEnd::Denied
                    && flow.is_open_connection()
                    && let Some(interface) = refuse::farewell_to_server(flow, plan, answer)
                {
                    reset(answer, interface);
                }
                gone.push((id, flow.clone(), end));
            }
            end.is_none()
        });
        self.move_in_cache(moved, now);
        if self.sweep.is_none() {
            match std::mem::take(&mut self.sweep_again) {
                true => self.sweep = Some(0),
                false => self.tunnels.forget_changes(),
            }
        }
    }

    fn move_in_cache(&mut self, Moved { mut rerouted, without_tunnel, server_moved }: Moved, now: Timestamp) {
        self.flush_cache();
        for some in without_tunnel.chunks(AT_ONCE) {
            some.iter().for_each(|id| self.withdraw(*id));
            self.flush_cache();
        }
        rerouted.extend(server_moved.into_iter().filter(|id| self.has_lost_server_way(*id)));
        for some in rerouted.chunks(AT_ONCE) {
            some.iter().for_each(|id| self.reroute_in_cache(*id, now));
            self.flush_cache();
        }
    }

    /// Forgets flows that have been silent for too long. Returns whether that was all of them.
    fn expire(&mut self, now: Timestamp, gone: &mut Vec<(FlowId, Flow, FlowEnd)>) -> bool {
        for _ in 0..BUDGET {
            let Some(id) = self.flows.due(now) else { return true };
            let flow = self.flows.get(id);
            if flow.is_cached() && flow.has_pending_fin() {
                self.catch_up(id);
            }
            let last = if self.flows.is_silent(id, now) { self.last_in_cache(id) } else { None };
            match self.flows.expire_or_requeue(id, last, now) {
                Some(flow) => {
                    let end = silenced(&flow);
                    gone.push((id, flow, end));
                }
                // Less and less often: a client may never finish what it has announced.
                None if self.flows.get(id).is_cached() && self.flows.get(id).has_pending_fin() => {
                    let silence = self.flows.silence(self.flows.get(id), now);
                    self.flows.look_at(id, now.after(silence.max(ACKNOWLEDGED_AFTER)));
                }
                None => {}
            }
        }
        self.flows.due(now).is_none()
    }

    /// Tells both sides of a connection that it is no longer forwarded: a side that speaks first would wait in vain. In DSR
    /// nobody is told of silence, as another balancer may forward it, or this one again by hash.
    pub(super) fn take_leave(
        &mut self,
        (id, flow, end): (FlowId, &mut Flow, FlowEnd),
        plan: &Plan,
        now: Timestamp,
        reset: &mut impl FnMut(&[u8], u32),
    ) {
        let goes_on = flow.view() == View::ClientSide && end == FlowEnd::Silent;
        if goes_on || !self.silence.allow(now) {
            return;
        }
        if let Some(cache) = self.cache.as_deref_mut().filter(|_| flow.is_cached()) {
            entries::catch_up(cache, flow, self.ahead.has(id));
        }
        for tell in [refuse::farewell, refuse::farewell_to_server] {
            if let Some(interface) = tell(flow, plan, &mut self.answer) {
                reset(&self.answer, interface);
            }
        }
    }
}
