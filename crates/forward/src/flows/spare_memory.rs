//! Release of table memory that a flood has used: memory that few flows need goes back to the
//! kernel.

use super::{Flow, FlowTable, Index, Slot};
use crate::state::{Direction, View};

/// Upper bound for the vacant records that one call drops at the end of the table.
const AT_ONCE: usize = 4_096;

/// Maximum number of flows for which the index is rebuilt. Rebuilding the index for this many flows
/// takes a few milliseconds.
const MAX_INDEXED: u32 = 65_536;

/// Peak use of the table since memory was last given back.
#[derive(Debug, Default)]
pub(super) struct Peak {
    flows: u32,
    records: u32,
}

impl FlowTable {
    /// Gives memory of the table back to the kernel once less than a quarter of this memory is
    /// needed. The address range stays reserved. Records before the last flow stay until that flow
    /// ends. Returns whether there is more to give back.
    pub(crate) fn release_memory(&mut self) -> bool {
        let (live, used) = (self.quota.len(), self.flows.len() as u32);
        self.peak.flows = self.peak.flows.max(live);
        self.peak.records = self.peak.records.max(used);
        let worthwhile = (self.capacity / 16).max(4_096);
        let is_spare = |records: u32| records >= worthwhile && live < records / 4;
        if is_spare(used) && self.drop_vacant_records() {
            return true;
        }
        let used = self.flows.len();
        if self.peak.records - used as u32 >= worthwhile {
            self.opened.retain(|id| (id.0 as usize) < used);
            release(&mut self.flows, self.capacity);
            self.births.release(used, self.capacity);
            self.peak.records = used as u32;
        }
        if is_spare(self.peak.flows) && live <= MAX_INDEXED {
            self.rebuild_index();
            self.peak.flows = live;
        }
        false
    }

    /// Drops vacant records at the end of the table. Returns whether there are more.
    fn drop_vacant_records(&mut self) -> bool {
        let is_vacant = |flows: &[Flow]| flows.last().is_some_and(|flow| flow.slot == Slot::NONE);
        for _ in 0..AT_ONCE {
            if !is_vacant(&self.flows) {
                break;
            }
            let last = self.flows.len() as u32 - 1;
            self.vacant.remove(&mut self.flows, last);
            self.flows.pop();
        }
        is_vacant(&self.flows)
    }

    /// Rebuilds the index in new memory, which the kernel provides as it is used; the old index is
    /// freed.
    fn rebuild_index(&mut self) {
        self.index = Index::new(2 * self.capacity as usize);
        let ids: Vec<_> = self.ids().collect();
        for id in ids {
            let flow = self.get(id);
            let (client, server, view) = (flow.client(), flow.server(), flow.view());
            self.index.insert(self.hash(&client), id, Direction::ToServer);
            if view == View::BothSides {
                self.index.insert(self.hash(&server), id, Direction::ToClient);
            }
        }
    }
}

/// Returns the unused memory of a vector to the kernel, and reserves address space for `capacity`
/// elements again.
pub(super) fn release<T>(elements: &mut Vec<T>, capacity: u32) {
    elements.shrink_to_fit();
    // If no memory is available now, the vector grows when it is needed.
    let _ = elements.try_reserve_exact(capacity as usize - elements.len());
}
