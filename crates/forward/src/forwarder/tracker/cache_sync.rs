//! Synchronization of the flow cache of one worker with the flow table.

use std::time::Duration;

use super::ahead::{AheadOfCache, progress_of};
use super::entries::{self, ActivityByDirection, Numbers, keys};
use super::routes::FlowRoutes;
use super::server_interface::InterfaceChecks;
use crate::{CachedActivity, Flow, FlowCache, FlowId, FlowTable, Progress};
use convey_model::{FlowKey, Timestamp};

/// Upper bound for the delay between a packet that the cache forwards and the event about the
/// packet.
const EVENT_DELAY: Duration = Duration::from_secs(1);

/// The flow cache, if there is one.
#[derive(Debug)]
pub(super) struct CacheSync {
    cache: Option<Box<dyn FlowCache>>,
    /// Flows whose numbers in the cache are behind their numbers in the table.
    ahead: AheadOfCache,
    interface_checks: InterfaceChecks,
    /// Time of the last replacement of a flow's entries during its handshake.
    handshake_replaced: Option<Timestamp>,
}

impl CacheSync {
    /// Wraps a cache that has no entries yet.
    pub(super) fn new(cache: Option<Box<dyn FlowCache>>) -> CacheSync {
        CacheSync {
            cache,
            ahead: AheadOfCache::default(),
            interface_checks: InterfaceChecks::default(),
            handshake_replaced: None,
        }
    }

    /// Whether there is a cache.
    #[inline]
    pub(super) fn is_present(&self) -> bool {
        self.cache.is_some()
    }

    /// Carries out the changes since the last call.
    pub(super) fn flush(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.flush();
        }
    }

    /// Looks up the entries of a flow; `None` if the cache does not have the flow.
    pub(super) fn lookup(&mut self, flow: &Flow) -> Option<ActivityByDirection> {
        let cache = self.of(flow)?;
        Some(entries::lookup(cache, flow))
    }

    /// Looks up one entry of a flow; `None` if the entry has seen no packet, or the cache does not
    /// have the flow.
    pub(super) fn seen(&mut self, flow: &Flow, key: &FlowKey) -> Option<CachedActivity> {
        self.of(flow)?.seen(key)
    }

    /// Makes the cache forward a flow with these numbers. The flow's tunnel must be known.
    pub(super) fn put(&mut self, flow: &Flow, routes: &FlowRoutes, numbers: Numbers) {
        if let Some(cache) = self.cache.as_deref_mut() {
            entries::put_as(cache, flow, routes, numbers);
        }
    }

    /// Replaces the entries of a flow whose tunnel is known. `seen` is the activity of the old
    /// entries, if they were just looked up. Returns whether the cache has the flow.
    pub(super) fn replace(
        &mut self,
        flow: &Flow,
        routes: &FlowRoutes,
        seen: Option<ActivityByDirection>,
        now: Timestamp,
    ) -> bool {
        let Some(cache) = self.of(flow) else { return false };
        let seen = seen.unwrap_or_else(|| entries::lookup(cache, flow));
        entries::put_seen(cache, flow, routes, Numbers::OfCache, seen);
        if flow.state().is_handshake() {
            self.handshake_replaced = Some(now);
        }
        true
    }

    /// Removes the entries of a flow, if the cache has it.
    pub(super) fn remove(&mut self, flow: &Flow) {
        if let Some(cache) = self.of(flow) {
            entries::remove(cache, flow);
        }
    }

    /// Makes the cache accept packets of a flow's server only from this interface. Returns whether
    /// the cache has the flow.
    pub(super) fn accept_server_from(
        &mut self,
        flow: &Flow,
        interface: u32,
        seen: Option<CachedActivity>,
        now: Timestamp,
    ) -> bool {
        let Some(cache) = self.of(flow) else { return false };
        entries::accept_server_from(cache, flow, interface, seen, now);
        true
    }

    /// Whether the entry for a flow's server is due for a comparison with the interface of a
    /// packet. If it is, records the time of the comparison.
    pub(super) fn is_interface_check_due(&mut self, id: FlowId, now: Timestamp) -> bool {
        self.interface_checks.is_due(id, now)
    }

    /// Whether entries of a flow that opened in the cache around `at` may have been replaced by
    /// entries that still wait for the flow's handshake.
    pub(super) fn may_have_lost_handshake(&self, at: Timestamp) -> bool {
        self.handshake_replaced.is_some_and(|replaced| at.since(replaced) < EVENT_DELAY)
    }

    /// Progress of both sides of a flow, from its entries and from a worker that may be ahead of
    /// them.
    pub(super) fn progress(
        &self,
        id: FlowId,
        flow: &Flow,
        seen: ActivityByDirection,
    ) -> [Option<Progress>; 2] {
        progress_of(flow, self.ahead.has(id), seen)
    }

    /// Applies the numbers in the cache to a record outside the table, if the cache has its flow.
    pub(super) fn catch_up(&mut self, id: FlowId, flow: &mut Flow) {
        if let Some(seen) = self.lookup(flow) {
            let [client, server] = self.progress(id, flow, seen);
            flow.catch_up(client, server);
        }
    }

    /// Whether a worker may have later numbers of a flow than the cache.
    pub(super) fn is_behind(&self, id: FlowId) -> bool {
        self.ahead.has(id)
    }

    /// Whether numbers have to be written by now.
    pub(super) fn has_numbers_to_write(&self, now: Timestamp) -> bool {
        self.ahead.is_behind(now)
    }

    /// Notes that a worker has moved the numbers of a flow that the cache has.
    pub(super) fn note_ahead(&mut self, table: &FlowTable, id: FlowId, now: Timestamp) {
        if self.ahead.is_full() {
            self.write_numbers(table, Timestamp(u64::MAX));
        }
        self.ahead.note(id, now);
    }

    /// Writes numbers that no worker has moved for a while into the cache.
    pub(super) fn write_numbers(&mut self, table: &FlowTable, now: Timestamp) {
        if !self.ahead.is_behind(now) {
            return;
        }
        self.flush();
        for _ in 0..AheadOfCache::BUDGET {
            let Some(id) = self.ahead.next(now) else { break };
            if let Some((_, flow)) = table.at(id.0) {
                self.write_progress(flow);
            }
        }
        // From here on, only the numbers in the entries are used.
        self.flush();
    }

    /// Writes a worker's numbers into a flow's entries, if they are ahead of the entries. Earlier
    /// changes to the cache must be flushed before.
    pub(super) fn write_progress(&mut self, flow: &Flow) {
        if flow.state().is_udp() || flow.state().is_handshake() {
            return;
        }
        let Some(cache) = self.of(flow) else { return };
        for (direction, key) in keys(flow) {
            let known = flow.progress(direction);
            let progress = match cache.seen(&key) {
                Some(CachedActivity { progress: Some(seen), .. }) if seen.or_ahead(known) == seen => continue,
                Some(CachedActivity { progress: Some(seen), .. }) => seen.or_ahead(known),
                // The kernel takes over the numbers of the flow's next packets.
                Some(CachedActivity { progress: None, .. }) => continue,
                None => known,
            };
            cache.advance(&key, progress);
        }
    }

    /// The cache, if it has the flow.
    #[inline]
    fn of(&mut self, flow: &Flow) -> Option<&mut (dyn FlowCache + 'static)> {
        self.cache.as_deref_mut().filter(|_| flow.is_cached())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_are_ahead_of_the_cache_are_bounded() {
        let table = FlowTable::new(16, &convey_model::FlowTimeouts::default(), 42);
        let mut sync = CacheSync::new(None);
        (0..AheadOfCache::MAX_FLOWS as u32 + 1_000)
            .for_each(|n| sync.note_ahead(&table, FlowId(n), Timestamp(0)));
        let bounds = AheadOfCache::MAX_FLOWS - AheadOfCache::BUDGET..=AheadOfCache::MAX_FLOWS;
        assert!(bounds.contains(&sync.ahead.len()), "{}", sync.ahead.len());
    }
}
