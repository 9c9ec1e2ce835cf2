//! Timer wheel for the deadlines of flows: a ring of lists, one for each future tick.
//!
//! A packet only stores a later deadline in its flow's record. When the tick of the flow's slot
//! comes, the flow is checked, and put in a later slot if its deadline has moved.

use std::time::Duration;

use super::flow::Flow;
use super::list::{FlowList, TIMER};
use convey_model::Timestamp;

/// Resolution of deadlines: a flow ends no earlier than its timeout, and less than a tick later.
const TICK: Duration = Duration::from_millis(250);

/// Latest tick that has begun.
pub(super) fn tick(now: Timestamp) -> u32 {
    (now.0 / TICK_NANOS) as u32
}

/// First tick that begins at `now` or later.
#[inline]
pub(super) fn tick_from(now: Timestamp) -> u32 {
    now.0.div_ceil(TICK_NANOS) as u32
}

/// Time at which a tick begins.
pub(super) fn begin(tick: u32) -> Timestamp {
    Timestamp(u64::from(tick) * TICK_NANOS)
}

/// Converts a duration to ticks, rounded up; at least one, and at most seventeen years.
pub(super) fn ticks(duration: Duration) -> u32 {
    duration.as_nanos().div_ceil(TICK.as_nanos()).clamp(1, u128::from(u32::MAX / 2)) as u32
}

/// Duration of a number of ticks.
pub(super) fn time(ticks: u32) -> Duration {
    TICK * ticks
}

/// Slot of a flow in the wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u16);

impl Slot {
    /// No slot: the record is vacant.
    pub(super) const NONE: Slot = Slot(u16::MAX);
}

/// All flows, by the tick of their next check.
#[derive(Debug)]
pub(super) struct Wheel {
    slots: Box<[FlowList<TIMER>]>,
    /// First tick whose slot has not been emptied.
    current: u32,
    /// Number of flows in all slots.
    len: u32,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Wheel { slots: vec![FlowList::EMPTY; SLOTS as usize].into_boxed_slice(), current: 0, len: 0 }
    }

    /// Memory of the wheel in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Starts an empty wheel at `tick`, so that no flow is put in a slot of the past. The clock may
    /// have run for years before the first flow: see [`Wheel::due`].
    pub(super) fn start_if_empty(&mut self, tick: u32) {
        if self.len == 0 {
            self.current = self.current.max(tick);
        }
    }

    /// Puts a flow in the slot of its deadline, or in the farthest slot if the deadline is beyond
    /// it.
    pub(super) fn add(&mut self, flows: &mut [Flow], id: u32) {
        let flow = &mut flows[id as usize];
        let tick = flow.deadline.clamp(self.current, self.current + SLOTS - 1);
        flow.slot = Slot((tick % SLOTS) as u16);
        self.slots[(tick % SLOTS) as usize].push(flows, id);
        self.len += 1;
    }

    /// Removes a flow from its slot.
    pub(super) fn remove(&mut self, flows: &mut [Flow], id: u32) {
        let Slot(slot) = std::mem::replace(&mut flows[id as usize].slot, Slot::NONE);
        self.slots[usize::from(slot)].remove(flows, id);
        self.len -= 1;
    }

    /// Tick at which the flows in a slot are checked.
    #[inline]
    pub(super) fn tick_of(&self, Slot(slot): Slot) -> u32 {
        self.current + (u32::from(slot).wrapping_sub(self.current) % SLOTS)
    }

    /// Returns a flow whose slot has come by `tick`, the earliest slot first; `None` if there is no
    /// such flow. The flow stays in the slot until it is removed.
    ///
    /// Takes at most one round of slots, however long ago the last call was: after a round, every
    /// slot has come.
    pub(super) fn due(&mut self, tick: u32) -> Option<u32> {
        self.current = self.current.max((tick + 1).saturating_sub(SLOTS));
        while self.current <= tick {
            let first = self.slots[(self.current % SLOTS) as usize].first();
            if first.is_some() {
                return first;
            }
            self.current += 1;
        }
        None
    }
}

/// Number of slots, a power of two: 17 minutes of ticks. A flow with a longer timeout is checked
/// once in each round.
const SLOTS: u32 = 4096;
const TICK_NANOS: u64 = TICK.as_nanos() as u64;
