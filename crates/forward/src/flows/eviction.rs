//! Order in which flows are evicted.

use super::{FlowId, FlowTable, Full, OPENED};
use crate::flow::{Class, Flow};
use crate::queues::Resource;
use crate::state::View;
use crate::table_quota::{Occupancy, TrafficKind};
use crate::wheel::{Slot, begin};
use convey_model::Timestamp;

impl FlowTable {
    /// Number of flows of a kind in the table, and number of further flows of this kind that fit.
    pub(crate) fn occupancy(&self, kind: TrafficKind) -> Occupancy {
        self.quota.occupancy(kind)
    }

    /// A flow that was opened since the last call and still is open: a connection in passthrough,
    /// or a flow in DSR that is counted at its source. The newest flow comes first; `None` if no
    /// such flow is left.
    pub(crate) fn next_opened(&mut self) -> Option<FlowId> {
        while let Some(id) = self.opened.pop() {
            // The flow may have ended since, and its record may be gone.
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

    /// Flow that [`FlowTable::insert`] would evict now for a flow of this kind; `None` if there is
    /// room.
    ///
    /// # Errors
    /// There is no room, and all flows are open.
    pub fn victim(&mut self, new: TrafficKind) -> Result<Option<FlowId>, Full> {
        Ok(self.quota.victim(&self.flows, new)?.map(FlowId))
    }

    /// Whether a flow of this kind may be evicted so that a flow of kind `new` gets its table
    /// entry.
    pub(crate) fn may_evict(&self, kind: TrafficKind, new: TrafficKind) -> bool {
        self.quota.may_evict(kind, new)
    }

    /// Number of flows of a kind and class that hold this resource.
    pub(crate) fn count_of(&self, resource: Resource, kind: TrafficKind, class: Class) -> u32 {
        self.quota.count(resource, kind, class)
    }

    /// Flow of this kind that holds this resource and has been in a class for longest. This flow is
    /// evicted for a new flow that needs the resource.
    pub(crate) fn first_of(&mut self, resource: Resource, kind: TrafficKind, class: Class) -> Option<FlowId> {
        self.quota.first(&self.flows, resource, kind, class).map(FlowId)
    }

    /// Moves a stream to the end of its queue, as last used at `last_use`.
    pub(crate) fn move_to_back(&mut self, id: FlowId, last_use: Timestamp) {
        let class = self.get(id).class();
        self.quota.move_to_back(&mut self.flows, id.0, class, last_use);
    }

    /// Time when a stream was last in use, not counting packets in the flow cache: when its server
    /// last sent a packet or, where the server's packets do not pass convey, when its client last
    /// sent one. The returned time is up to a quarter of a second too early.
    pub(crate) fn last_use(&self, flow: &Flow) -> Timestamp {
        match flow.view() {
            View::BothSides => begin(flow.last_answer()),
            View::ClientSide => self.last_extension(flow),
        }
    }
}
