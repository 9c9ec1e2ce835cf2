//! Flows that may give way to others, in their order.

use super::{FlowId, FlowTable, Full, OPENED};
use crate::flow::{Class, Flow};
use crate::queues::Resource;
use crate::state::View;
use crate::table_quota::{Occupancy, TrafficKind};
use crate::wheel::{Slot, begin};
use convey_model::Timestamp;

impl FlowTable {
    /// How many flows of a kind there are, and how many more there is room for.
    pub(crate) fn occupancy(&self, kind: TrafficKind) -> Occupancy {
        self.quota.occupancy(kind)
    }

    /// A flow that was opened since it was last asked, if it still is open: a connection seen from
    /// both sides, or of those seen from the client's side one that is counted at its source. The
    /// last one first.
    pub(crate) fn next_opened(&mut self) -> Option<FlowId> {
        while let Some(id) = self.opened.pop() {
            // One that has ended since may have taken its record along.
            let Some(flow) = self.flows.get(id.0 as usize) else { continue };
            let is_open = match flow.view() {
                View::BothSides => flow.is_open_connection(),
                View::ClientSide => flow.is_counted(),
            };
            if flow.slot != Slot::NONE && is_open {
                return Some(id);
            }
        }
        self.opened.shrink_to(OPENED);
        None
    }

    /// The flow that [`FlowTable::insert`] would forget now for one of this kind; none if there is
    /// room.
    ///
    /// # Errors
    /// There is no room, and all are open.
    pub fn victim(&mut self, new: TrafficKind) -> Result<Option<FlowId>, Full> {
        Ok(self.quota.victim(&self.flows, new)?.map(FlowId))
    }

    /// Whether a flow of this kind may give way to a new one for its place.
    pub(crate) fn may_evict(&self, kind: TrafficKind, new: TrafficKind) -> bool {
        self.quota.may_evict(kind, new)
    }

    /// How many flows of a kind and class hold this.
    pub(crate) fn count_of(&self, held: Resource, kind: TrafficKind, class: Class) -> u32 {
        self.quota.count(held, kind, class)
    }

    /// The flow of this kind that holds this and has been in a class for longest: a flow that wants
    /// what it holds may take its place.
    pub(crate) fn first_of(&mut self, held: Resource, kind: TrafficKind, class: Class) -> Option<FlowId> {
        self.quota.first(&self.flows, held, kind, class).map(FlowId)
    }

    /// Puts a stream at the end of its queue, as one that was last in use then.
    pub(crate) fn put_last(&mut self, id: FlowId, last_use: Timestamp) {
        let class = self.get(id).class();
        self.quota.put_last(&mut self.flows, id.0, class, last_use);
    }

    /// When a stream was last in use, as far as is known here: its server has sent, or its client
    /// where the server's packets do not pass. Up to a quarter of a second too early.
    pub(crate) fn last_use(&self, flow: &Flow) -> Timestamp {
        match flow.view() {
            View::BothSides => begin(flow.last_answer()),
            View::ClientSide => self.last_kept(flow),
        }
    }
}
