//! Deadlines of flows: packets extend them, and flows that miss them are removed.

use std::time::Duration;

use super::{FlowId, FlowTable};
use crate::flow::Flow;
use crate::state::FlowState;
use crate::wheel::{begin, tick, tick_from, ticks, time};
use convey_model::{FlowTimeouts, Timestamp};

impl FlowTable {
    /// Extends a flow's deadline for a packet that does not change its state.
    pub(crate) fn extend_deadline(&mut self, id: FlowId, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        flow.deadline = tick_from(at) + self.timeouts[flow.state as usize];
        self.requeue_if_earlier(id);
    }

    /// Extends a flow's deadline for a packet at `last`, which is later than the flow's last known
    /// packet.
    pub(crate) fn postpone_deadline(&mut self, id: FlowId, last: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        flow.deadline = flow.deadline.max(tick_from(last) + self.timeouts[flow.state as usize]);
    }

    /// A flow whose deadline has to be checked by now, if there is one: see
    /// [`FlowTable::expire_or_requeue`].
    pub fn due(&mut self, now: Timestamp) -> Option<FlowId> {
        self.wheel.due(tick(now)).map(FlowId)
    }

    /// Checks a flow that [`FlowTable::due`] has returned. If the flow's deadline has passed,
    /// removes the flow and returns its record; otherwise queues the flow again and returns `None`.
    /// `last` is the time of the flow's last packet in the flow cache.
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

    /// Schedules a check of a flow at `at`, even if that is before its deadline.
    pub(crate) fn schedule_check(&mut self, id: FlowId, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        let (deadline, tick) = (flow.deadline, tick_from(at));
        if self.wheel.tick_of(flow.slot) > tick {
            flow.deadline = tick;
            self.wheel.remove(&mut self.flows, id.0);
            self.wheel.add(&mut self.flows, id.0);
            self.flows[id.0 as usize].deadline = deadline;
        }
    }

    /// Whether a due flow has missed its deadline, not counting packets that the flow cache has
    /// forwarded.
    pub fn is_silent(&self, id: FlowId, now: Timestamp) -> bool {
        self.get(id).deadline <= tick(now)
    }

    /// Time of the last packet that extended a flow's deadline in this table. The returned time is
    /// up to a quarter of a second too early.
    pub(crate) fn last_extension(&self, flow: &Flow) -> Timestamp {
        begin(flow.deadline.saturating_sub(self.timeouts[flow.state as usize] + 1))
    }

    /// Time since the last packet that extended a flow's deadline in this table, with a precision
    /// of a quarter of a second. The flow is in the table or was just removed from it.
    pub(crate) fn silence(&self, flow: &Flow, now: Timestamp) -> Duration {
        time(tick(now).saturating_sub(flow.deadline.saturating_sub(self.timeouts[flow.state as usize])))
    }

    /// Changes the timeouts. Returns whether they have changed. Longer timeouts apply from a flow's
    /// next packet, shorter ones from the next sweep.
    pub(crate) fn set_timeouts(&mut self, timeouts: &FlowTimeouts) -> bool {
        let before = std::mem::replace(&mut self.timeouts, in_ticks(timeouts));
        before != self.timeouts
    }

    /// Moves a flow to an earlier slot of the timer wheel, if its deadline was brought forward. The
    /// wheel detects only extended deadlines by itself.
    #[inline]
    pub(super) fn requeue_if_earlier(&mut self, id: FlowId) {
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
