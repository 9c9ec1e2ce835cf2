//! Doubly linked lists through the records of the table: adding and removing a flow takes constant
//! time and no memory.

use super::flow::Flow;

/// Index in [`Flow::links`] for the list of a wheel slot, or of vacant records.
pub(super) const TIMER: usize = 0;
/// Index in [`Flow::links`] for a list of flows that may be evicted.
pub(super) const GROUP: usize = 1;

/// Numbers of the records before and after a record in a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowLinks {
    previous: u32,
    next: u32,
}

impl FlowLinks {
    /// Links of a record without neighbours.
    pub(super) const NONE: FlowLinks = FlowLinks { previous: NONE, next: NONE };
}

/// First and last record of a list that uses the links with index `PLACE`.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowList<const PLACE: usize> {
    first: u32,
    last: u32,
}

impl<const PLACE: usize> FlowList<PLACE> {
    /// Empty list.
    pub(super) const EMPTY: Self = FlowList { first: NONE, last: NONE };

    /// The record that was added first.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// The record that was added last.
    pub(super) fn last(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    /// Appends a record that is in no other list with this index.
    pub(super) fn push(&mut self, flows: &mut [Flow], id: u32) {
        flows[id as usize].links[PLACE] = FlowLinks { previous: self.last, next: NONE };
        match self.last {
            NONE => self.first = id,
            last => flows[last as usize].links[PLACE].next = id,
        }
        self.last = id;
    }

    /// Removes a record from this list.
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

/// Value of a link or list end without a record.
const NONE: u32 = u32::MAX;
