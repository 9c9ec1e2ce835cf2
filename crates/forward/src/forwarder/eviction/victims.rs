//! Search for the flow to evict: a flow that is half-open or over, or a stream that is not in use.

use std::time::Duration;

use super::in_use::Search;
use super::{Eviction, UDP_SILENCE};
use crate::flow::Class;
use crate::forwarder::tracker::FlowTracker;
use crate::queues::Resource;
use crate::workers::Others;
use crate::{AddrPort, FlowId, TrafficKind, View};
use convey_model::{Shortage, Timestamp};

/// Half-open flows are crowded when they exceed the capacity divided by this number. While they are
/// fewer, their handshakes get time to finish; otherwise clients of a busy balancer would evict
/// each other.
const HALF_OPEN_SHARE: u32 = 8;

/// Minimum number of half-open connections that counts as crowded, whatever the capacity.
/// Established connections may have left little room, and an attacker who forges this many SYNs a
/// second would shut out every client.
const MIN_CROWD: u32 = 32;

/// Upper bound for the duration of most handshakes: a connection that has been half-open for longer
/// may be evicted even if half-open flows are few.
const HANDSHAKE: Duration = Duration::from_millis(100);

/// Upper bound for the flows that a search for an idle flow examines.
pub(super) const MAX_LOOKED_AT: u32 = 64;

/// Upper bound for the flows whose cache entries are looked up before a flow is evicted. The
/// lookups take about 0.2 ms. In DSR the cache may have forwarded data of all of them.
pub(super) const MAX_ASKED: u32 = 256;

/// A resource that has run out, and that an evicted flow frees.
#[derive(Clone, Copy)]
pub(super) struct EvictionRequest {
    pub(super) resource: Resource,
    pub(super) shortage: Shortage,
    /// Total number of units of the resource.
    pub(super) all: u32,
    /// Evictable flows of other workers that hold the resource.
    pub(super) others: Others,
}

impl Eviction {
    /// Flow to evict so that a new flow gets its SNAT port towards a server.
    pub(crate) fn find_for_port(
        &mut self,
        tracker: &mut FlowTracker,
        server: AddrPort,
        protocol: u8,
        now: Timestamp,
    ) -> Option<FlowId> {
        let request = EvictionRequest {
            resource: Resource::Port(server),
            shortage: Shortage::SnatPorts,
            all: tracker.ports().map_or(0, |ports| ports.towards(&server.addr)),
            others: Others::default(),
        };
        self.find_victim(tracker, request, [TrafficKind::new(View::BothSides, protocol)].into_iter(), now)
    }

    /// Flow to evict. The first choice is a flow that is half-open or over, of the first of these
    /// kinds that has such a flow; then a stream that is not in use; then a UDP flow that was
    /// answered within the last second and may become a stream.
    pub(super) fn find_victim(
        &mut self,
        tracker: &mut FlowTracker,
        request: EvictionRequest,
        kinds: impl Iterator<Item = TrafficKind> + Clone,
        now: Timestamp,
    ) -> Option<FlowId> {
        let resource = request.resource;
        let mut all = kinds.clone();
        let mut udp = kinds.filter(|kind| kind.is_udp());
        all.find_map(|kind| self.find_unestablished(tracker, request, kind, now))
            .or_else(|| {
                udp.clone().find_map(|kind| {
                    self.find_idle(tracker, Search { resource, kind, class: Class::Doubtful }, now)
                })
            })
            .or_else(|| {
                udp.find_map(|kind| {
                    first_useful(tracker, Search { resource, kind, class: Class::Closing }, now)
                })
            })
    }

    /// First choice for eviction: a connection that is over, then the connection that has been
    /// half-open for longest. A UDP flow whose server has answered is mostly complete, and is
    /// evicted before UDP flows that wait for an answer. If most UDP flows wait for an answer,
    /// convey takes the waiting flows for forged, and evicts them first.
    fn find_unestablished(
        &mut self,
        tracker: &mut FlowTracker,
        request: EvictionRequest,
        kind: TrafficKind,
        now: Timestamp,
    ) -> Option<FlowId> {
        let EvictionRequest { resource, shortage, .. } = request;
        let closing = Search { resource, kind, class: Class::Closing };
        if !kind.is_udp() {
            // A connection that is over has given its slots back.
            let has_more = shortage == Shortage::SnatPorts;
            let over = has_more.then(|| first_useful(tracker, closing, now)).flatten();
            return over.or_else(|| self.find_half_open(tracker, request, kind, now));
        }
        let count = |class| tracker.table().count_of(resource, kind, class);
        let most_wait = count(Class::HalfOpen) > count(Class::Closing);
        if most_wait && let Some(id) = self.find_half_open(tracker, request, kind, now) {
            return Some(id);
        }
        let is_no_crowd = EvictionRequest { all: u32::MAX, ..request };
        self.find_idle(tracker, closing, now).or_else(|| self.find_half_open(tracker, is_no_crowd, kind, now))
    }

    /// If half-open flows are crowded, the flow that has been half-open for longest; otherwise a
    /// flow that has been silent for too long.
    fn find_half_open(
        &mut self,
        tracker: &mut FlowTracker,
        request: EvictionRequest,
        kind: TrafficKind,
        now: Timestamp,
    ) -> Option<FlowId> {
        let search = Search { resource: request.resource, kind, class: Class::HalfOpen };
        for _ in 0..MAX_ASKED {
            let half_open = search.count(tracker);
            let id = first_useful(tracker, search, now)?;
            if !tracker.has_got_further(id) {
                let half_open = half_open.saturating_add(request.others.unestablished);
                let is_crowded = if kind.is_udp() { is_crowded } else { is_crowded_or_many };
                let is_crowded = is_crowded(half_open, request.all);
                return if is_crowded { Some(id) } else { self.find_idle(tracker, search, now) };
            }
        }
        None
    }

    /// Flow of this class that has been idle for longest, among at most `MAX_LOOKED_AT` flows;
    /// `None` if all of these were in use until just now.
    ///
    /// Packets do not move their flow in its queue. A flow that was in use since it was queued is
    /// moved to the end, so the next idle flow is mostly the flow that has been idle for longest.
    pub(super) fn find_idle(
        &mut self,
        tracker: &mut FlowTracker,
        search: Search,
        now: Timestamp,
    ) -> Option<FlowId> {
        if self.in_use.are_all(search, now) {
            return None;
        }
        let Search { resource, kind, class } = search;
        let is_handshake = class == Class::HalfOpen && !kind.is_udp();
        let patience = if is_handshake { HANDSHAKE } else { UDP_SILENCE };
        let idle = |last: Timestamp| now.since(last) >= patience;
        self.candidates.clear();
        let count = search.count(tracker);
        let (mut longest, mut was_looked_at) = (None, count <= MAX_LOOKED_AT);
        for _ in 0..count.min(MAX_LOOKED_AT) {
            let Some(id) = tracker.table_mut().first_of(resource, kind, class) else { break };
            if !is_useful(tracker, resource, id) {
                tracker.table_mut().move_to_back(id, now);
                continue;
            }
            if class == Class::HalfOpen && tracker.has_got_further(id) {
                continue;
            }
            let since = Timestamp(tracker.flow(id).since);
            // A flow that was in use a moment ago needs no lookup.
            let last = if idle(since) { last_in_use(tracker, id, class).max(since) } else { since };
            if idle(last) && last == since {
                longest = Some((last, id));
                break;
            }
            was_looked_at |= !idle(since);
            self.candidates.push((last, id));
            tracker.table_mut().move_to_back(id, last);
        }
        self.candidates.sort_unstable_by_key(|(last, _)| *last);
        self.candidates.iter().for_each(|(last, id)| tracker.table_mut().move_to_back(*id, *last));
        let idle_for_longest = self.candidates.first().copied().filter(|(last, _)| idle(*last));
        let longest = longest.into_iter().chain(idle_for_longest).min_by_key(|(last, _)| *last);
        if longest.is_none() && was_looked_at {
            self.in_use.note(search, now);
        }
        longest.map(|(_, id)| id)
    }
}

/// Flow of this class that has held a resource for longest, among the flows whose eviction helps a
/// new flow. A SNAT port may be useless for new flows, if its address is no longer used for the
/// server or a frontend listens on it. Some flows with such ports are moved to the end of their
/// queue.
fn first_useful(tracker: &mut FlowTracker, search: Search, now: Timestamp) -> Option<FlowId> {
    for _ in 0..MAX_LOOKED_AT {
        let id = tracker.table_mut().first_of(search.resource, search.kind, search.class)?;
        if is_useful(tracker, search.resource, id) {
            return Some(id);
        }
        tracker.table_mut().move_to_back(id, now);
    }
    None
}

fn is_useful(tracker: &FlowTracker, resource: Resource, id: FlowId) -> bool {
    let snat = tracker.flow(id).server();
    !matches!(resource, Resource::Port(..))
        || tracker.ports().is_some_and(|ports| ports.may_have(&snat.src, AddrPort::destination(&snat)))
}

/// Time of the last use of a flow of this class: by the client of a half-open flow, or by the
/// server of a UDP flow that was answered.
fn last_in_use(tracker: &mut FlowTracker, id: FlowId, class: Class) -> Timestamp {
    match class {
        Class::HalfOpen => tracker.table().last_extension(tracker.flow(id)),
        _ => tracker.last_use(id),
    }
}

/// Whether `half_open` half-open flows are crowded, if the resource has `all` units: see
/// `HALF_OPEN_SHARE`.
pub(super) fn is_crowded(half_open: u32, all: u32) -> bool {
    half_open.saturating_mul(HALF_OPEN_SHARE) > all
}

/// Whether `half_open` half-open connections are crowded, if the resource has `all` units. True
/// also from `MIN_CROWD` half-open connections on, whatever the number of units.
pub(super) fn is_crowded_or_many(half_open: u32, all: u32) -> bool {
    half_open >= MIN_CROWD || is_crowded(half_open, all)
}
