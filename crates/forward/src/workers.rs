//! State that workers share. All workers share the connection slots of frontends and servers, but
//! each worker only evicts its own flows. Each worker therefore publishes the number of its
//! evictable flows, and a worker without evictable flows requests a slot from the other workers.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use super::clients::ClientCounts;
use super::flow::{Class, Flow};
use super::queues::Resource;
use super::state::View;
use convey_model::Timestamp;

/// Number of frontends, and of servers, with counters of their own; a power of two. If there are
/// more, some share a counter.
const COUNTED_TARGETS: usize = 1_024;

/// Upper bound for the frontends and servers with pending slot requests.
const MAX_REQUESTS: usize = 64;

/// Handle of one worker to the state that workers share.
#[derive(Debug, Clone)]
pub struct WorkerPeers {
    /// `None` if there are no other workers.
    shared: Option<Arc<Shared>>,
    own: usize,
    clients: ClientCounts,
}

#[derive(Debug)]
struct Shared {
    /// Counts of each worker, which is their only writer.
    counts: Box<[Counts]>,
    /// Number of slots that are requested.
    pending: AtomicU32,
    /// Requests in 64 bits: frontend or server, number of slots, and time of the last request; 0 is
    /// free.
    requests: [AtomicU64; MAX_REQUESTS],
}

/// Evictable flows of one worker, by the frontends and the servers whose slots they hold.
#[derive(Debug)]
#[repr(align(128))]
struct Counts {
    unestablished: [[AtomicU32; COUNTED_TARGETS]; 2],
    streams: [[AtomicU32; COUNTED_TARGETS]; 2],
    /// Evicted flows whose slots still count as taken.
    leaving: [[AtomicU32; COUNTED_TARGETS]; 2],
}

/// Request for slots of one frontend or server.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotRequest {
    place: usize,
    entry: u64,
}

/// Evictable flows of other workers that hold a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Others {
    /// Half-open connections, and UDP flows that are no streams.
    pub(super) unestablished: u32,
    pub(super) streams: u32,
}

impl WorkerPeers {
    /// Handle of a single worker.
    pub fn alone() -> WorkerPeers {
        WorkerPeers { shared: None, own: 0, clients: ClientCounts::together(1).remove(0) }
    }

    /// Handles of this many workers, each for a forwarder.
    pub fn together(workers: usize) -> Vec<WorkerPeers> {
        let new = || Shared {
            counts: (0..workers).map(|_| Counts::new()).collect(),
            pending: AtomicU32::new(0),
            requests: [const { AtomicU64::new(0) }; MAX_REQUESTS],
        };
        let shared = (workers > 1).then(new).map(Arc::new);
        let clients = ClientCounts::together(workers).into_iter().enumerate();
        clients.map(|(own, clients)| WorkerPeers { shared: shared.clone(), own, clients }).collect()
    }

    /// Open flows of clients, at this worker and the others.
    pub(super) fn clients(&self) -> &ClientCounts {
        &self.clients
    }

    /// Number of workers.
    pub(super) fn len(&self) -> u32 {
        self.shared.as_ref().map_or(1, |shared| shared.counts.len() as u32)
    }

    /// Notes that a flow of this worker has entered or left this class.
    #[inline]
    pub(super) fn note(&self, flow: &Flow, class: Class, is_in: bool) {
        // In DSR, packets that open a flow can be forged in any client's name.
        if class.is_open() && flow.view() == View::BothSides {
            self.clients.note(flow, is_in);
        }
        let Some(shared) = &self.shared else { return };
        let counts = &shared.counts[self.own];
        let of_class = match class {
            Class::HalfOpen => &counts.unestablished,
            Class::Closing if flow.kind().is_udp() => &counts.unestablished,
            Class::Doubtful if flow.kind().is_udp() => &counts.streams,
            // The flow is not evicted for slots, or has given them back.
            _ => return,
        };
        for (counts, id) in of_class.iter().zip([flow.frontend_id(), flow.server_id()]) {
            change(&counts[id as usize % COUNTED_TARGETS], is_in);
        }
    }

    /// Notes that a flow of this worker with slots of this frontend and server is evicted. The
    /// flow's slots count as taken until they are given back.
    pub(super) fn note_evicted(&self, frontend: u32, server: u32) {
        self.note_leaving(frontend, server, true);
    }

    /// Notes that the slots of an evicted flow have been given back, or that the flow stays.
    pub(super) fn note_released(&self, frontend: u32, server: u32) {
        self.note_leaving(frontend, server, false);
    }

    fn note_leaving(&self, frontend: u32, server: u32, is_leaving: bool) {
        let Some(shared) = &self.shared else { return };
        let counts = &shared.counts[self.own].leaving;
        for (counts, id) in counts.iter().zip([frontend, server]) {
            change(&counts[id as usize % COUNTED_TARGETS], is_leaving);
        }
    }

    /// Number of taken slots that will soon be given back. Read this number before the number of
    /// taken slots.
    pub(super) fn leaving(&self, resource: Resource) -> u32 {
        let (Some(shared), Some((kind, id))) = (&self.shared, kind_and_id(resource)) else { return 0 };
        let of = |counts: &Counts| counts.leaving[kind][id as usize % COUNTED_TARGETS].load(Acquire);
        shared.counts.iter().map(of).fold(0, u32::saturating_add)
    }

    /// Number of evictable flows of other workers that hold a slot, according to the counts that
    /// these workers have published.
    pub(super) fn of_other_workers(&self, resource: Resource) -> Others {
        let (Some(shared), Some((kind, id))) = (&self.shared, kind_and_id(resource)) else {
            return Others::default();
        };
        let others = shared.counts.iter().enumerate().filter(|(number, _)| *number != self.own);
        let of = |counts: &[[AtomicU32; COUNTED_TARGETS]; 2]| {
            counts[kind][id as usize % COUNTED_TARGETS].load(Relaxed)
        };
        others.fold(Others::default(), |sum, (_, counts)| Others {
            unestablished: sum.unestablished.saturating_add(of(&counts.unestablished)),
            streams: sum.streams.saturating_add(of(&counts.streams)),
        })
    }

    /// Requests a slot of a frontend or server from the other workers; at most `most` requests are
    /// pending at a time. Returns whether the request was published.
    pub(super) fn request(&self, resource: Resource, most: u32, now: Timestamp) -> bool {
        let (Some(shared), Some((kind, id))) = (&self.shared, kind_and_id(resource)) else { return false };
        let (name, at) = (packed::name(kind, id), packed::at(now));
        let mut is_published = false;
        if let Some(known) = shared.requests.iter().find(|entry| packed::is_of(entry.load(Relaxed), name)) {
            let one_more = |entry| {
                let slots = packed::slots(entry);
                (packed::is_of(entry, name) && slots < most.min(packed::MAX_SLOTS))
                    .then(|| packed::pack(name, slots + 1, at))
            };
            is_published = known.fetch_update(Relaxed, Relaxed, one_more).is_ok();
        } else if most > 0 {
            let first = packed::pack(name, 1, at);
            is_published = (shared.requests.iter())
                .any(|entry| entry.compare_exchange(0, first, Relaxed, Relaxed).is_ok());
        }
        shared.pending.fetch_add(u32::from(is_published), Relaxed);
        is_published
    }

    /// Whether any slot is requested.
    #[inline]
    pub(super) fn has_requests(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.pending.load(Relaxed) != 0)
    }

    /// Pending requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = SlotRequest> + '_ {
        let entries = self.shared.iter().flat_map(|shared| shared.requests.iter().enumerate());
        let requests = entries.map(|(place, entry)| SlotRequest { place, entry: entry.load(Acquire) });
        requests.filter(|request| packed::slots(request.entry) > 0)
    }

    /// Promises to give back one of the requested slots. Returns `false` if the request has
    /// changed: another worker has promised the slot, or more slots are requested.
    pub(super) fn grant(&self, request: &mut SlotRequest) -> bool {
        let left = match packed::slots(request.entry) {
            0 => return false,
            1 => 0,
            _ => request.entry - packed::ONE_SLOT,
        };
        self.change(request, left)
    }

    /// Removes a request that is no longer needed.
    pub(super) fn withdraw(&self, mut request: SlotRequest) {
        self.change(&mut request, 0);
    }

    fn change(&self, request: &mut SlotRequest, to: u64) -> bool {
        let Some(shared) = &self.shared else { return false };
        let SlotRequest { place, entry } = *request;
        let is_changed = shared.requests[place].compare_exchange(entry, to, AcqRel, Relaxed).is_ok();
        if is_changed {
            shared.pending.fetch_sub(packed::slots(entry) - packed::slots(to), Relaxed);
            request.entry = to;
        }
        is_changed
    }
}

impl SlotRequest {
    /// Requested slot.
    pub(super) fn resource(self) -> Resource {
        packed::resource(self.entry)
    }

    /// Time of the last request for the slot.
    pub(super) fn at(self, now: Timestamp) -> Timestamp {
        packed::time(self.entry, now)
    }
}

/// Increments or decrements a count that has no other writer.
fn change(count: &AtomicU32, is_more: bool) {
    let before = count.load(Relaxed);
    count.store(if is_more { before.wrapping_add(1) } else { before.wrapping_sub(1) }, Release);
}

impl Counts {
    fn new() -> Counts {
        let none = || [const { [const { AtomicU32::new(0) }; COUNTED_TARGETS] }; 2];
        Counts { unestablished: none(), streams: none(), leaving: none() }
    }
}

fn kind_and_id(resource: Resource) -> Option<(usize, u32)> {
    match resource {
        Resource::FrontendSlot(id) => Some((0, id)),
        Resource::ServerSlot(id) => Some((1, id)),
        Resource::TableEntry | Resource::Port(..) => None,
    }
}

/// A request in 64 bits: 32 for the number of a frontend or server, 1 for which of the two, 8 for
/// the number of slots, 23 for the time in milliseconds.
mod packed {
    use super::{Duration, Resource, Timestamp};

    pub(super) const MAX_SLOTS: u32 = 0xff;
    pub(super) const ONE_SLOT: u64 = 1 << SLOTS;
    const SLOTS: u32 = 33;
    const TIME: u32 = 41;
    /// Times repeat after 2.3 hours.
    const TIMES: u64 = 1 << (64 - TIME);

    pub(super) fn name(kind: usize, id: u32) -> u64 {
        (kind as u64) << 32 | u64::from(id)
    }

    pub(super) fn at(now: Timestamp) -> u64 {
        now.0 / 1_000_000 % TIMES
    }

    pub(super) fn pack(name: u64, slots: u32, at: u64) -> u64 {
        name | u64::from(slots) << SLOTS | at << TIME
    }

    pub(super) fn slots(entry: u64) -> u32 {
        (entry >> SLOTS) as u32 & MAX_SLOTS
    }

    pub(super) fn is_of(entry: u64, name: u64) -> bool {
        slots(entry) > 0 && entry % ONE_SLOT == name
    }

    pub(super) fn resource(entry: u64) -> Resource {
        let id = entry as u32;
        if entry >> 32 & 1 == 0 { Resource::FrontendSlot(id) } else { Resource::ServerSlot(id) }
    }

    /// Time of the request, at most `now`: the clock of another worker may be a little ahead.
    pub(super) fn time(entry: u64, now: Timestamp) -> Timestamp {
        let ago = (at(now) + TIMES - (entry >> TIME)) % TIMES;
        let ago = if ago < TIMES / 2 { ago } else { 0 };
        Timestamp(now.0.saturating_sub(Duration::from_millis(ago).as_nanos() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Resource = Resource::ServerSlot(7);

    fn at(millis: u64) -> Timestamp {
        Timestamp(millis * 1_000_000)
    }

    /// Requested resources that this worker sees, with their times.
    fn asked(worker: &WorkerPeers, now: u64) -> Vec<(Resource, Timestamp)> {
        worker.requests().map(|request| (request.resource(), request.at(at(now)))).collect()
    }

    #[test]
    fn a_slot_that_is_asked_for_is_granted_once() {
        let workers = WorkerPeers::together(3);
        assert!(
            !workers[1].has_requests() && workers[0].request(SLOT, 5, at(1_000)) && workers[1].has_requests()
        );
        assert_eq!(asked(&workers[1], 1_200), [(SLOT, at(1_000))]);
        let [mut one, mut other] = [1, 2].map(|n: usize| workers[n].requests().next().unwrap());
        assert!(workers[1].grant(&mut one) && !workers[2].grant(&mut other) && !workers[1].grant(&mut one));
        assert!(workers.iter().all(|worker| !worker.has_requests()));
    }

    #[test]
    fn eviction_requests_are_bounded_by_capacity_and_by_need() {
        let workers = WorkerPeers::together(2);
        assert!(!workers[0].request(SLOT, 0, at(0)));
        assert!(
            (0..3).all(|n| workers[n % 2].request(SLOT, 3, at(n as u64)))
                && !workers[0].request(SLOT, 3, at(9))
        );
        assert_eq!(asked(&workers[1], 9), [(SLOT, at(2))]);
        for id in 1..MAX_REQUESTS as u32 {
            assert!(workers[0].request(Resource::FrontendSlot(id), 1, at(9)));
        }
        assert!(!workers[0].request(Resource::FrontendSlot(0), 1, at(9)));
        let of_slot = workers[1].requests().find(|request| request.resource() == SLOT).unwrap();
        workers[1].withdraw(of_slot);
        assert!(workers[0].request(Resource::FrontendSlot(0), 1, at(9)));
        workers[1].requests().for_each(|request| workers[1].withdraw(request));
        assert!(!workers[0].has_requests());
    }

    #[test]
    fn outdated_withdrawal_leaves_a_newer_eviction_request() {
        let workers = WorkerPeers::together(2);
        workers[0].request(SLOT, 2, at(0));
        let before = workers[1].requests().next().unwrap();
        workers[0].request(SLOT, 2, at(1));
        workers[1].withdraw(before);
        assert_eq!(asked(&workers[1], 1), [(SLOT, at(1))]);
    }

    #[test]
    fn evicted_slots_are_visible_to_all_workers_until_released() {
        let workers = WorkerPeers::together(3);
        workers[1].note_evicted(3, 7);
        workers[2].note_evicted(4, 7);
        let leaving = |resource| workers[0].leaving(resource);
        assert_eq!([SLOT, Resource::FrontendSlot(3), Resource::FrontendSlot(7)].map(leaving), [2, 1, 0]);
        workers[1].note_released(3, 7);
        assert_eq!([SLOT, Resource::FrontendSlot(3)].map(leaving), [1, 0]);
    }

    #[test]
    fn eviction_request_time_is_valid_for_an_hour() {
        let workers = WorkerPeers::together(2);
        let day = 24 * 3_600_000;
        workers[0].request(SLOT, 1, at(day));
        let when = |now| asked(&workers[1], now)[0].1;
        assert_eq!([when(day), when(day + 3_600_000)], [at(day); 2]);
        assert_eq!(when(day - 5), at(day - 5));
    }

    #[test]
    fn a_lone_worker_has_nobody_to_ask() {
        let [alone] = WorkerPeers::together(1).try_into().unwrap();
        assert!(!alone.request(SLOT, 9, at(0)) && !alone.has_requests());
        assert_eq!(alone.of_other_workers(SLOT), Others::default());
    }
}
