//! Flows that are kept from the flow cache because a trace watches their packets: those pass a
//! worker.

use std::collections::HashSet;

use crate::Flow;
use crate::forwarder::owners;
use convey_model::FlowKey;
use convey_trace::TraceFilter;

/// Upper bound for the flows that are kept from the cache at once. The kernel goes on with others,
/// so that watching everything does not take the whole traffic away from it.
const MAX_FLOWS: usize = 1_024;

/// Filters of the running traces, and the flows that one of them may show.
#[derive(Debug, Default)]
pub(super) struct CacheBypass {
    /// Empty while there is no trace.
    filters: Vec<TraceFilter>,
    /// By the key of the client's packets.
    flows: HashSet<FlowKey>,
    /// Next place of the table to look at for flows that are in the cache; `None` after the last
    /// one.
    next_place: Option<u32>,
}

impl CacheBypass {
    /// A bypass for these filters that has to look at all flows.
    pub(super) fn new(filters: Vec<TraceFilter>) -> CacheBypass {
        let next_place = (!filters.is_empty()).then_some(0);
        CacheBypass { filters, flows: HashSet::new(), next_place }
    }

    /// Next place of the table to look at for flows that are in the cache, if not all were looked
    /// at.
    pub(super) fn next_place(&self) -> Option<u32> {
        self.next_place
    }

    /// Continues the look at the table at this place.
    pub(super) fn continue_at(&mut self, place: Option<u32>) {
        self.next_place = place;
    }

    /// Whether the flow is kept from the cache.
    pub(super) fn has(&self, flow: &Flow) -> bool {
        !self.flows.is_empty() && self.flows.contains(&flow.client())
    }

    /// Forgets a flow that is gone.
    #[inline]
    pub(super) fn forget(&mut self, flow: &Flow) {
        if !self.flows.is_empty() {
            self.flows.remove(&flow.client());
        }
    }

    /// Whether a flow is to be kept from the cache from now on.
    #[inline]
    pub(super) fn keep(&mut self, flow: &Flow) -> bool {
        !self.filters.is_empty() && self.keep_watched(flow)
    }

    fn keep_watched(&mut self, flow: &Flow) -> bool {
        if self.has(flow) {
            return true;
        }
        let is_watched = self.flows.len() < MAX_FLOWS && self.may_be_shown(flow);
        if is_watched {
            self.flows.insert(flow.client());
        }
        is_watched
    }

    fn may_be_shown(&self, flow: &Flow) -> bool {
        let (key, owners) = (flow.client(), owners(flow));
        let Some(protocol) = key.transport() else { return false };
        let of = (key.source(), key.destination(), protocol);
        self.filters.iter().any(|filter| filter.may_show_forwarded(of, (owners.frontend, owners.server)))
    }
}
