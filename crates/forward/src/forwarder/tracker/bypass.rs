//! Flows that are kept out of the flow cache because a trace watches their packets, which have to
//! pass a worker.

use std::collections::HashSet;

use crate::Flow;
use crate::forwarder::owners;
use convey_model::FlowKey;
use convey_trace::TraceFilter;

/// Upper bound for the flows that are kept out of the cache. The kernel forwards all others, so
/// that a trace of everything does not move the whole traffic to the workers.
const MAX_FLOWS: usize = 1_024;

/// Filters of the running traces, and the flows that match one of them.
#[derive(Debug, Default)]
pub(super) struct CacheBypass {
    /// Filters of the running traces; empty if no trace is running.
    filters: Vec<TraceFilter>,
    /// Flows that are kept out of the cache, by the key of the client's packets.
    flows: HashSet<FlowKey>,
    /// Next place of the table to search for cached flows; `None` after the last one.
    next_place: Option<u32>,
}

impl CacheBypass {
    /// Creates a bypass for these filters. All flows of the table have to be checked.
    pub(super) fn new(filters: Vec<TraceFilter>) -> CacheBypass {
        let next_place = (!filters.is_empty()).then_some(0);
        CacheBypass { filters, flows: HashSet::new(), next_place }
    }

    /// Next place of the table to search for cached flows, unless all were checked.
    pub(super) fn next_place(&self) -> Option<u32> {
        self.next_place
    }

    /// Sets the place of the table at which to continue.
    pub(super) fn continue_at(&mut self, place: Option<u32>) {
        self.next_place = place;
    }

    /// Whether the flow is kept out of the cache.
    pub(super) fn has(&self, flow: &Flow) -> bool {
        !self.flows.is_empty() && self.flows.contains(&flow.client())
    }

    /// Removes a flow that is gone.
    #[inline]
    pub(super) fn remove(&mut self, flow: &Flow) {
        if !self.flows.is_empty() {
            self.flows.remove(&flow.client());
        }
    }

    /// Whether a flow has to be kept out of the cache from now on.
    #[inline]
    pub(super) fn must_bypass(&mut self, flow: &Flow) -> bool {
        !self.filters.is_empty() && self.bypass_watched(flow)
    }

    fn bypass_watched(&mut self, flow: &Flow) -> bool {
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
