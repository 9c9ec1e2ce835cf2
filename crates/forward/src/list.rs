//! Doubly linked lists through the records of the table: a flow enters and leaves them at constant cost
//! and without memory of its own.

use super::flow::Flow;

/// Place in [`Flow::links`] of the list of a wheel slot, or of vacant records.
pub(super) const TIMER: usize = 0;
/// Place in [`Flow::links`] of a list of flows that may be evicted.
pub(super) const GROUP: usize = 1;

/// Indices of the records before and after one in a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowLinks {
    previous: u32,
    next: u32,
}

impl FlowLinks {
    /// Those of a record without neighbours.
    pub(super) const NONE: FlowLinks = FlowLinks { previous: NONE, next: NONE };
}

/// First and last record of a list whose links are in place `PLACE` of its records.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowList<const PLACE: usize> {
    first: u32,
    last: u32,
}

impl<const PLACE: usize> FlowList<PLACE> {
    /// The list without records.
    pub(super) const EMPTY: Self = FlowList { first: NONE, last: NONE };

    /// The record that has been in the list for longest.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// The record that came last.
    pub(super) fn last(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    /// Appends a record that is in no list of this place.
    pub(super) fn push(&mut self, flows: &mut [Flow], id: u32) {
        flows[id as usize].links[PLACE] = FlowLinks { previous: self.last, next: NONE };
        match self.last {
            NONE => self.first = id,
            last => flows[last as usize].links[PLACE].next = id,
        }
        self.last = id;
    }

    /// Takes out a record that is in this list.
    pub(super) fn remove(&mut self, flows: &mut [Flow], id: u32) {
        let FlowLinks { previous, next } = flows[id as usize].links[PLACE];
        match previous {
            NONE => self.first = next,
            previous => flows[previous as usize].links[PLACE].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => flows[next as usize].links[PLACE].previous = previous,
        }
    }
}

/// No record has this number.
const NONE: u32 = u32::MAX;
