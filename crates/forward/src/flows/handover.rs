//! Handover of flows from another table.

use super::{FlowId, FlowTable, Full, tick, tick_from};
use crate::flow::{AtSource, Flow};
use crate::handover::KnownFlow;
use crate::table_quota::TrafficKind;
use crate::wheel::Slot;
use crate::{Direction, View};
use convey_model::Timestamp;

impl FlowTable {
    /// Records a flow of another table, with the next hops of this process. Evicts no flow.
    ///
    /// # Errors
    /// [`Full`] if there is no room.
    pub(crate) fn restore(
        &mut self,
        known: &KnownFlow,
        next_hops: [u32; 2],
        now: Timestamp,
    ) -> Result<FlowId, Full> {
        debug_assert!(self.lookup(&known.client).is_none(), "{:?} is there", known.client);
        if self.victim(TrafficKind::new(known.view, known.client.protocol))?.is_some() {
            return Err(Full::Table);
        }
        let mut flow = Flow::restored(known, next_hops);
        let latest = tick_from(now) + self.timeouts[flow.state as usize];
        // Packets that the cache of the other table has forwarded have not extended this deadline
        // yet.
        flow.deadline = if known.was_cached { latest } else { flow.deadline.min(latest) };
        self.counts[flow.state as usize] += 1;
        let (class, at_source, since) = (flow.class(), flow.at_source(), Timestamp(flow.since));
        let id = self.place(flow, known.began().unwrap_or(since).min(now));
        self.wheel.start_if_empty(tick(now));
        self.wheel.add(&mut self.flows, id.0);
        self.quota.insert(&mut self.flows, id.0, class, since.min(now));
        self.note_at_source(id, AtSource::Nothing, at_source);
        self.index.insert(self.hash(&known.client), id, Direction::ToServer);
        if known.view == View::BothSides {
            self.index.insert(self.hash(&known.server), id, Direction::ToClient);
        }
        Ok(id)
    }

    /// Identifiers of all flows.
    pub(crate) fn ids(&self) -> impl Iterator<Item = FlowId> + use<> {
        let used: Vec<u32> =
            (0..self.flows.len() as u32).filter(|id| self.flows[*id as usize].slot != Slot::NONE).collect();
        used.into_iter().map(FlowId)
    }
}
