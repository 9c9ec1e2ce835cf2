//! Flows that the cache does not forward because somebody watches their packets: those pass here.

use std::collections::HashSet;

use super::entries::remove;
use super::{Forwarder, owners};
use crate::{Flow, FlowId};
use convey_model::FlowKey;
use convey_trace::TraceFilter;

/// Most flows that are kept from the cache for that at once. The kernel goes on with others, so that watching everything does
/// not take the whole traffic away from it.
const MAX_WITHHELD: usize = 1_024;

/// Flows looked at in one call of [`Forwarder::handle_timeout`].
const BUDGET: u32 = 4_096;

/// Flows taken from the cache, or written anew, before it carries that out: it has not forwarded
/// much more of them by then.
pub(super) const AT_ONCE: usize = 32;

/// Who watches, and the flows that they may be shown.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    /// Empty: nobody watches.
    filters: Vec<TraceFilter>,
    /// By the key of the client's packets.
    flows: HashSet<FlowKey>,
    /// Where the look at the flows that are in the cache has got to.
    sweep: Option<u32>,
}

impl Withheld {
    /// Whether there are flows to be looked at.
    pub(super) fn is_behind(&self) -> bool {
        self.sweep.is_some()
    }

    /// Whether the flow is kept from the cache.
    pub(super) fn has(&self, flow: &Flow) -> bool {
        !self.flows.is_empty() && self.flows.contains(&flow.client())
    }

    /// A flow is gone.
    #[inline]
    pub(super) fn forget(&mut self, flow: &Flow) {
        if !self.flows.is_empty() {
            self.flows.remove(&flow.client());
        }
    }

    fn wants(&self, flow: &Flow) -> bool {
        let (key, owners) = (flow.client(), owners(flow));
        let Some(protocol) = key.transport() else { return false };
        let of = (key.source(), key.destination(), protocol);
        self.filters.iter().any(|filter| filter.may_show_forwarded(of, (owners.frontend, owners.server)))
    }
}

impl Forwarder {
    /// Has packets of flows that one of these filters may show pass here from now on, and leaves those of others to the cache.
    /// Of a flow that is no longer wanted the cache has the packets after its next one.
    pub fn watch_flows(&mut self, filters: Vec<TraceFilter>) {
        let sweep = (!filters.is_empty()).then_some(0);
        self.withheld = Withheld { filters, flows: HashSet::new(), sweep };
    }

    /// Whether a flow is to be kept from the cache.
    #[inline]
    pub(super) fn withholds(&mut self, id: FlowId) -> bool {
        !self.withheld.filters.is_empty() && self.is_wanted(id)
    }

    fn is_wanted(&mut self, id: FlowId) -> bool {
        let flow = self.flows.get(id);
        if self.withheld.has(flow) {
            return true;
        }
        let is_wanted = self.withheld.flows.len() < MAX_WITHHELD && self.withheld.wants(flow);
        if is_wanted {
            self.withheld.flows.insert(flow.client());
        }
        is_wanted
    }

    /// Takes flows that somebody watches from the cache, a slice at a time.
    pub(super) fn withdraw_watched(&mut self) {
        let Some(from) = self.withheld.sweep else { return };
        let (cached, next) = self.flows.cached_from(from, BUDGET);
        let wanted: Vec<FlowId> = cached.into_iter().filter(|id| self.withholds(*id)).collect();
        for some in wanted.chunks(AT_ONCE) {
            some.iter().for_each(|id| self.withdraw(*id));
            self.flush_cache();
        }
        self.withheld.sweep = next;
    }

    /// Takes a flow from the cache. What that has seen of it is known here from now on.
    pub(super) fn withdraw(&mut self, id: FlowId) {
        if let Some(last) = self.last_in_cache(id) {
            self.flows.put_off(id, last);
        }
        // A flow that is found to be over has left it.
        let flow = self.flows.get(id);
        if let Some(cache) = self.cache.as_deref_mut().filter(|_| flow.is_cached()) {
            remove(cache, flow);
        }
        self.flows.set_cached(id, false);
    }
}
