//! Selection of the flows in the cache: flows that begin or are open, unless a trace watches them.

use super::FlowTracker;
use super::bypass::CacheBypass;
use super::entries::{ActivityByDirection, Numbers};
use crate::forwarder::owners;
use crate::handshake::HandshakeStep;
use crate::{Ended, FlowEnd, FlowId};
use convey_model::Timestamp;
use convey_trace::TraceFilter;

/// Upper bound for the flows checked in one call of
/// [`Forwarder::handle_timeout`](crate::Forwarder::handle_timeout).
const BUDGET: u32 = 4_096;

/// Upper bound for the flows removed from the cache, or rewritten there, between two flushes. The
/// cache forwards few of their packets in between.
pub(super) const FLUSH_EVERY: usize = 32;

impl FlowTracker {
    /// Carries out the changes of the cache since the last call. Call it between batches of frames.
    pub(crate) fn flush_cache(&mut self) {
        self.cache.flush();
    }

    /// Adds a flow to the cache, or removes it, according to its state after a packet. The cache
    /// has flows that begin or are open, and no others.
    #[inline]
    pub(crate) fn update_in_cache(&mut self, id: FlowId) {
        if self.cache.is_present() {
            self.change_in_cache(id, Numbers::OfCache);
        }
    }

    /// Like [`FlowTracker::update_in_cache`], for a flow that was just recorded. Its first packet
    /// may have ended it.
    #[inline]
    pub(crate) fn begin_in_cache(&mut self, id: FlowId) {
        let flow = self.table.get(id);
        if flow.is_over() {
            self.events.ended.push(Ended { flow: owners(flow), how: FlowEnd::Unopened });
        }
        self.update_in_cache(id);
    }

    /// Like [`FlowTracker::update_in_cache`], for a flow of another process. That process may have
    /// forwarded more packets since it exported the flow.
    pub(crate) fn restore_in_cache(&mut self, id: FlowId) {
        self.change_in_cache(id, Numbers::Restored);
    }

    #[inline]
    fn change_in_cache(&mut self, id: FlowId, numbers: Numbers) {
        let flow = self.table.get(id);
        let change = (flow.is_cached(), flow.may_be_cached() && self.routes.has_tunnel(flow));
        if change == (false, true) && self.bypass.must_bypass(flow) {
            return;
        }
        if !self.cache.is_present() {
            return;
        }
        match change {
            (false, true) => {
                self.cache.put(flow, &self.routes, numbers);
                if flow.state().is_udp() {
                    self.log.stop_counting(id);
                }
            }
            (true, false) => self.cache.remove(flow),
            _ => return,
        }
        let is_cached = flow.is_cached();
        self.table.set_cached(id, !is_cached);
    }

    /// Writes the numbers of another forwarder's event into the entries of a flow, if the cache has
    /// the flow.
    pub(super) fn put_restored_numbers(&mut self, id: FlowId) {
        let flow = self.table.get(id);
        if flow.is_cached() && self.routes.has_tunnel(flow) {
            self.cache.put(flow, &self.routes, Numbers::Restored);
        }
    }

    /// Replaces a flow by the next connection with the same addresses and ports. The cache and the
    /// log still have the numbers of the earlier connection.
    pub(super) fn reopen(&mut self, id: FlowId) {
        self.events.handshakes.push(self.table.get(id).handshake(HandshakeStep::Begun));
        self.log.stop_counting(id);
        if self.cache.is_present() {
            self.cache.remove(self.table.get(id));
            self.table.set_cached(id, false);
        }
        self.update_in_cache(id);
    }

    /// Changes the route of a flow in the cache. Reads the numbers from the cache before, because
    /// the cache may have no memory for the new entries.
    pub(crate) fn reroute_in_cache(&mut self, id: FlowId, now: Timestamp) {
        let seen = self.catch_up_open(id);
        self.replace_entries(id, seen, now);
    }

    /// Replaces the entries of a flow, because the cache has missed a part of its handshake.
    pub(super) fn replace_in_cache(&mut self, id: FlowId, now: Timestamp) {
        self.replace_entries(id, None, now);
    }

    /// Replaces the entries of a flow. `seen` is the activity of the old entries, if they were just
    /// looked up.
    fn replace_entries(&mut self, id: FlowId, seen: Option<ActivityByDirection>, now: Timestamp) {
        let flow = self.table.get(id);
        if !self.routes.has_tunnel(flow) {
            self.update_in_cache(id);
        } else if self.cache.replace(flow, &self.routes, seen, now) {
            self.table.set_server_moved(id, false);
        }
    }

    /// Routes the packets of flows that match one of these filters through a worker from now on.
    /// Watched flows that no longer match are added to the cache again with their next packet.
    pub(crate) fn watch_flows(&mut self, filters: Vec<TraceFilter>) {
        self.bypass = CacheBypass::new(filters);
    }

    /// Whether [`FlowTracker::withdraw_watched`] has more flows to check.
    pub(crate) fn has_flows_to_withdraw(&self) -> bool {
        self.bypass.next_place().is_some()
    }

    /// Removes watched flows from the cache, a slice of the table at a time.
    pub(crate) fn withdraw_watched(&mut self) {
        let Some(from) = self.bypass.next_place() else { return };
        let (cached, next) = self.table.cached_from(from, BUDGET);
        let (table, bypass) = (&self.table, &mut self.bypass);
        let watched: Vec<FlowId> =
            cached.into_iter().filter(|id| bypass.must_bypass(table.get(*id))).collect();
        for some in watched.chunks(FLUSH_EVERY) {
            some.iter().for_each(|id| self.withdraw(*id));
            self.flush_cache();
        }
        self.bypass.continue_at(next);
    }

    /// Removes a flow from the cache, after the table has taken over its progress there.
    pub(super) fn withdraw(&mut self, id: FlowId) {
        if let Some(last) = self.last_in_cache(id) {
            self.table.postpone_deadline(id, last);
        }
        // If the flow turned out to be over, it has left the cache already.
        self.cache.remove(self.table.get(id));
        self.table.set_cached(id, false);
    }
}
