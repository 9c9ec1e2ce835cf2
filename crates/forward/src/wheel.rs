//! When flows end: a ring of lists, one for each tick to come.
//!
//! A packet only stores a later deadline in its flow's record. A flow is looked at again when the tick
//! comes for which it was put down, and put down anew if its deadline has moved on.

use std::time::Duration;

use super::flow::Flow;
use super::list::{FlowList, TIMER};
use convey_model::Timestamp;

/// The step that deadlines are rounded up to: a flow ends no earlier than its timeout says, and less than a
/// tick later.
const TICK: Duration = Duration::from_millis(250);

/// The last tick that has begun.
pub(super) fn tick(now: Timestamp) -> u32 {
    (now.0 / TICK_NANOS) as u32
}

/// The first tick that begins at `now` or later.
#[inline]
pub(super) fn tick_from(now: Timestamp) -> u32 {
    now.0.div_ceil(TICK_NANOS) as u32
}

/// When a tick begins.
pub(super) fn begin(tick: u32) -> Timestamp {
    Timestamp(u64::from(tick) * TICK_NANOS)
}

/// A duration in ticks, rounded up; at least one, and no more than seventeen years.
pub(super) fn ticks(duration: Duration) -> u32 {
    duration.as_nanos().div_ceil(TICK.as_nanos()).clamp(1, u128::from(u32::MAX / 2)) as u32
}

/// How long so many ticks are.
pub(super) fn time(ticks: u32) -> Duration {
    TICK * ticks
}

/// Where in the wheel a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u16);

impl Slot {
    /// Nowhere: the record is vacant.
    pub(super) const NONE: Slot = Slot(u16::MAX);
}

/// All flows by the tick at which they are looked at.
#[derive(Debug)]
pub(super) struct Wheel {
    slots: Box<[FlowList<TIMER>]>,
    /// First tick whose slot has not been emptied.
    current: u32,
    /// Flows in all slots.
    len: u32,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Wheel { slots: vec![FlowList::EMPTY; SLOTS as usize].into_boxed_slice(), current: 0, len: 0 }
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Starts an empty wheel at `tick`, so that no flow is put in a slot of the past. A clock may have run for years before
    /// the first flow: see [`Wheel::due`].
    pub(super) fn start_if_empty(&mut self, tick: u32) {
        if self.len == 0 {
            self.current = self.current.max(tick);
        }
    }

    /// Puts a flow in the slot of its deadline, or in the farthest slot if the deadline is beyond it.
    pub(super) fn add(&mut self, flows: &mut [Flow], id: u32) {
        let flow = &mut flows[id as usize];
        let tick = flow.deadline.clamp(self.current, self.current + SLOTS - 1);
        flow.slot = Slot((tick % SLOTS) as u16);
        self.slots[(tick % SLOTS) as usize].push(flows, id);
        self.len += 1;
    }

    /// Takes out a flow.
    pub(super) fn remove(&mut self, flows: &mut [Flow], id: u32) {
        let Slot(slot) = std::mem::replace(&mut flows[id as usize].slot, Slot::NONE);
        self.slots[usize::from(slot)].remove(flows, id);
        self.len -= 1;
    }

    /// The tick at which the flows in a slot are looked at.
    #[inline]
    pub(super) fn tick_of(&self, Slot(slot): Slot) -> u32 {
        self.current + (u32::from(slot).wrapping_sub(self.current) % SLOTS)
    }

    /// Returns a flow whose slot has come by `tick`, the earliest slot first. The flow stays until it is removed.
    ///
    /// Takes at most one round of slots, however long ago the last call was: after a round every slot has come.
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

/// A power of two: 17 minutes of ticks. A flow with a longer timeout is looked at once in each round.
const SLOTS: u32 = 4096;
const TICK_NANOS: u64 = TICK.as_nanos() as u64;
