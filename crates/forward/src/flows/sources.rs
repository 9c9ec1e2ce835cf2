//! Counts of open flows per source, for frontends with limits for sources.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use super::{FlowId, FlowTable};
use crate::flow::{AtSource, Flow};
use crate::plan::PlannedFrontend;
use crate::wheel::Slot;
use convey_model::{Prefix, Sources, Timestamp};

/// Counts of open flows per source, by the number of the frontend that limits its sources.
#[derive(Debug, Default)]
pub(super) struct SourceCounts(HashMap<u32, Counting>);

#[derive(Debug)]
struct Counting {
    frontend: Arc<PlannedFrontend>,
    sources: Arc<Sources>,
    /// Evictable flows of this worker by source, if connections per source are limited.
    yielding: HashMap<Prefix, Yielding>,
}

/// Flows of one source that may be evicted for another flow of the same source.
#[derive(Debug, Default)]
struct Yielding {
    /// Number of evictable flows.
    len: usize,
    /// Record numbers of the evictable flows, the oldest flow first. Stale and duplicate entries
    /// are possible.
    queue: VecDeque<u32>,
    /// Time when all evictable flows were last found to be in use.
    in_use_at: Option<Timestamp>,
}

impl SourceCounts {
    /// Updates the counts of a flow's source when the flow changes from `before` to `now`.
    #[inline]
    fn note(&mut self, flows: &mut [Flow], id: u32, (before, now): (AtSource, AtSource)) {
        if before == now || self.0.is_empty() {
            return;
        }
        let flow = &mut flows[id as usize];
        let Some(counting) = self.0.get_mut(&flow.frontend_id()) else { return };
        let client = flow.client().src.ip();
        if before == AtSource::Nothing {
            flow.set_counted(!counting.frontend.trusts(client) && counting.sources.opened(client));
        }
        if !flow.is_counted() {
            return;
        }
        if before == AtSource::Yields {
            counting.yields_no_more(client);
        }
        if now == AtSource::Nothing {
            flow.set_counted(false);
            counting.sources.closed(client);
        }
        if now == AtSource::Yields {
            counting.yields(flows, id);
        }
    }
}

impl Counting {
    fn yields(&mut self, flows: &[Flow], id: u32) {
        if self.frontend.limits.connections_per_source.is_none() {
            return;
        }
        let source = self.sources.source_of(flows[id as usize].client().src.ip());
        let mut yielding = self.yielding.remove(&source).unwrap_or_default();
        yielding.len += 1;
        yielding.queue.push_back(id);
        // Clean up only at twice the length, so that most flows come and go without a scan of the
        // queue.
        if yielding.queue.len() > 2 * yielding.len + 8 {
            let mut found = HashSet::new();
            yielding.queue.retain(|&id| self.is_yielding(flows, id, source) && found.insert(id));
        }
        self.yielding.insert(source, yielding);
    }

    fn yields_no_more(&mut self, client: IpAddr) {
        let source = self.sources.source_of(client);
        if let Some(yielding) = self.yielding.get_mut(&source) {
            yielding.len = yielding.len.saturating_sub(1);
            if yielding.len == 0 {
                self.yielding.remove(&source);
            }
        }
    }

    /// Whether a record belongs to a flow of this source that may be evicted.
    fn is_yielding(&self, flows: &[Flow], id: u32, source: Prefix) -> bool {
        // The record may have been vacated since it was queued.
        flows.get(id as usize).is_some_and(|flow| {
            flow.slot != Slot::NONE
                && flow.frontend_id() == self.frontend.id
                && flow.is_counted()
                && flow.at_source() == AtSource::Yields
                && self.sources.source_of(flow.client().src.ip()) == source
        })
    }
}

impl FlowTable {
    /// Updates the counts of a flow's source when the flow changes from `before` to `now`.
    #[inline]
    pub(super) fn note_at_source(&mut self, id: FlowId, before: AtSource, now: AtSource) {
        self.sources.note(&mut self.flows, id.0, (before, now));
    }

    /// Sets the frontends that count open flows per source. If a frontend is new in this set, its
    /// flows that are already open are counted too, with one scan of all flows.
    pub(crate) fn count_sources<'a>(&mut self, frontends: impl Iterator<Item = &'a Arc<PlannedFrontend>>) {
        let mut before = std::mem::take(&mut self.sources.0);
        let mut new = HashSet::new();
        for frontend in frontends {
            let Some(sources) = &frontend.sources else { continue };
            let known = before.remove(&frontend.id).filter(|known| Arc::ptr_eq(&known.sources, sources));
            if known.is_none() {
                new.insert(frontend.id);
            }
            let yielding = known.map(|known| known.yielding).unwrap_or_default();
            let counting = Counting { frontend: frontend.clone(), sources: sources.clone(), yielding };
            self.sources.0.insert(frontend.id, counting);
        }
        if new.is_empty() {
            return;
        }
        for id in 0..self.flows.len() as u32 {
            let flow = &mut self.flows[id as usize];
            if flow.slot != Slot::NONE && new.contains(&flow.frontend_id()) {
                // The flow may be marked as counted in former counts, which are gone.
                flow.set_counted(false);
                let now = flow.at_source();
                self.note_at_source(FlowId(id), AtSource::Nothing, now);
            }
        }
    }

    /// Number of flows that may be evicted for another flow of the client's source; 0 if all of
    /// them were found to be in use at `since` or later.
    pub(crate) fn yielding(&self, frontend: u32, client: IpAddr, since: Timestamp) -> usize {
        let found = self.sources.0.get(&frontend).and_then(|counting| {
            let yielding = counting.yielding.get(&counting.sources.source_of(client))?;
            yielding.in_use_at.is_none_or(|at| at < since).then_some(yielding.len)
        });
        found.unwrap_or_default()
    }

    /// Next candidate for eviction among the flows of the client's source, in turn.
    pub(crate) fn next_yielding(&mut self, frontend: u32, client: IpAddr) -> Option<FlowId> {
        let counting = self.sources.0.get_mut(&frontend)?;
        let source = counting.sources.source_of(client);
        let mut yielding = counting.yielding.remove(&source)?;
        let mut next = None;
        while next.is_none()
            && let Some(id) = yielding.queue.pop_front()
        {
            if counting.is_yielding(&self.flows, id, source) {
                yielding.queue.push_back(id);
                next = Some(FlowId(id));
            }
        }
        counting.yielding.insert(source, yielding);
        next
    }

    /// Notes that all evictable flows of the client's source are in use.
    pub(crate) fn note_in_use(&mut self, frontend: u32, client: IpAddr, now: Timestamp) {
        let counting = self.sources.0.get_mut(&frontend);
        let yielding = counting.and_then(|counting| {
            let source = counting.sources.source_of(client);
            counting.yielding.get_mut(&source)
        });
        if let Some(yielding) = yielding {
            yielding.in_use_at = Some(now);
        }
    }
}
