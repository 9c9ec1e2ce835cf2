//! Deadlines of flows: packets put them off, and flows that miss them are forgotten.

use std::time::Duration;

use super::{FlowId, FlowTable};
use crate::flow::Flow;
use crate::state::FlowState;
use crate::wheel::{begin, tick, tick_from, ticks, time};
use convey_model::{FlowTimeouts, Timestamp};

impl FlowTable {
    /// Puts a flow's deadline off as a packet does after which its state is the same.
    pub(crate) fn keep(&mut self, id: FlowId, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        flow.deadline = tick_from(at) + self.timeouts[flow.state as usize];
        self.keep_in_time(id);
    }

    /// Puts a flow's deadline off, if one more packet is known to have come at `last`, which is later than the last one.
    pub(crate) fn put_off(&mut self, id: FlowId, last: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        flow.deadline = flow.deadline.max(tick_from(last) + self.timeouts[flow.state as usize]);
    }

    /// A flow that is to be looked at by now, if there is one: see [`FlowTable::expire_or_requeue`].
    pub fn due(&mut self, now: Timestamp) -> Option<FlowId> {
        self.wheel.due(tick(now)).map(FlowId)
    }

    /// Forgets a flow that was [`FlowTable::due`] if its deadline has come, and returns what was known of it. Its last packet
    /// that is known of elsewhere was at `last`. If it stays, it will be due another time.
    pub(crate) fn expire_or_requeue(
        &mut self,
        id: FlowId,
        last: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Flow> {
        let flow = &mut self.flows[id.0 as usize];
        if let Some(last) = last {
            flow.deadline = flow.deadline.max(tick_from(last) + self.timeouts[flow.state as usize]);
        }
        if flow.deadline <= tick(now) {
            return Some(self.remove(id));
        }
        self.wheel.remove(&mut self.flows, id.0);
        self.wheel.add(&mut self.flows, id.0);
        None
    }

    /// Has a flow be due at `at`, if that is before its deadline, too.
    pub(crate) fn look_at(&mut self, id: FlowId, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        let (deadline, tick) = (flow.deadline, tick_from(at));
        if self.wheel.tick_of(flow.slot) > tick {
            flow.deadline = tick;
            self.wheel.remove(&mut self.flows, id.0);
            self.wheel.add(&mut self.flows, id.0);
            self.flows[id.0 as usize].deadline = deadline;
        }
    }

    /// Whether a flow that is due will be forgotten, as far as is known here.
    pub fn is_silent(&self, id: FlowId, now: Timestamp) -> bool {
        self.get(id).deadline <= tick(now)
    }

    /// When the last packet passed here that put a flow's deadline off. Up to a quarter of a second too early.
    pub(crate) fn last_kept(&self, flow: &Flow) -> Timestamp {
        begin(flow.deadline.saturating_sub(self.timeouts[flow.state as usize] + 1))
    }

    /// How long a flow has been silent that is in the table or was, to a quarter of a second.
    pub(crate) fn silence(&self, flow: &Flow, now: Timestamp) -> Duration {
        time(tick(now).saturating_sub(flow.deadline.saturating_sub(self.timeouts[flow.state as usize])))
    }

    /// Changes the timeouts. Returns whether they were others: longer ones hold from a flow's next packet, shorter ones
    /// from when it is swept.
    pub(crate) fn set_timeouts(&mut self, timeouts: &FlowTimeouts) -> bool {
        let before = std::mem::replace(&mut self.timeouts, in_ticks(timeouts));
        before != self.timeouts
    }

    /// The wheel finds out by itself that a deadline was put off, but not that it was brought forward.
    #[inline]
    pub(super) fn keep_in_time(&mut self, id: FlowId) {
        let flow = &self.flows[id.0 as usize];
        if self.wheel.tick_of(flow.slot) > flow.deadline {
            self.wheel.remove(&mut self.flows, id.0);
            self.wheel.add(&mut self.flows, id.0);
        }
    }
}

pub(super) fn in_ticks(timeouts: &FlowTimeouts) -> [u32; FlowState::ALL.len()] {
    FlowState::ALL.map(|state| ticks(state.timeout(timeouts)))
}
