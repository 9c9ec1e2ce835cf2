//! Open flows are counted at their clients' sources, where a frontend has limits for these.

use std::collections::HashMap;
use std::sync::Arc;

use super::FlowTable;
use crate::flow::Flow;
use crate::wheel::Slot;
use convey_model::Sources;

/// Where flows are counted, by the numbers of the frontends that limit sources.
#[derive(Debug, Default)]
pub(super) struct SourceCounts(HashMap<u32, Arc<Sources>>);

impl SourceCounts {
    /// Notes that a flow counts from now on, or no longer.
    #[inline]
    pub(super) fn note(&self, flow: &Flow, counts: bool) {
        if !self.0.is_empty()
            && let Some(sources) = self.0.get(&flow.frontend_id())
        {
            let client = flow.client().src.ip();
            if counts { sources.opened(client) } else { sources.closed(client) }
        }
    }
}

impl FlowTable {
    /// Counts open flows at these tables from now on, by the numbers of their frontends. If a table is new, flows that are open
    /// already are counted too: then it looks at all flows once.
    pub(crate) fn count_sources(&mut self, sources: HashMap<u32, Arc<Sources>>) {
        let SourceCounts(before) = std::mem::replace(&mut self.sources, SourceCounts(sources));
        let SourceCounts(now) = &self.sources;
        let is_known = |(id, sources): &(&u32, &Arc<Sources>)| {
            before.get(*id).is_some_and(|known| Arc::ptr_eq(known, sources))
        };
        let new: HashMap<u32, &Arc<Sources>> =
            now.iter().filter(|entry| !is_known(entry)).map(|(id, sources)| (*id, sources)).collect();
        if new.is_empty() {
            return;
        }
        for flow in self.flows.iter().filter(|flow| flow.slot != Slot::NONE && flow.counts_at_source()) {
            if let Some(sources) = new.get(&flow.frontend_id()) {
                sources.opened(flow.client().src.ip());
            }
        }
    }
}
