//! Connection table of one worker: bounded size, no resizing, no allocation per packet.

mod births;
mod deadlines;
mod eviction;
mod handover;
mod sources;
mod spare_memory;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::births::Births;
use self::deadlines::in_ticks;
use self::sources::SourceCounts;
use self::spare_memory::Peak;
use super::cache::Progress;
use super::flow::{AtSource, Class, Flow, NewFlow};
use super::handshake::{HandshakeEvent, HandshakeStep};
use super::hop_use::HopUse;
use super::index::Index;
use super::list::{FlowList, TIMER};
use super::state::{Direction, FlowState, Segment, View};
use super::table_quota::{TableQuota, TrafficKind};
use super::wheel::{Slot, Wheel, tick, tick_from};
use super::workers::WorkerPeers;
use convey_model::{FlowKey, FlowTimeouts, Timestamp};

/// Identifier of a flow for as long as the flow is in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId(pub(super) u32);

/// Result of recording a flow.
#[derive(Debug)]
pub struct Inserted {
    /// Identifier of the new flow.
    pub id: FlowId,
    /// Flow that was evicted for the new one.
    pub evicted: Option<Flow>,
}

/// Capacity that the list of newly opened flows keeps when it is drained. It is enough for most
/// bursts.
const OPENED: usize = 4_096;

/// Error for a table without room: all flows that might be evicted are open, and open flows are not
/// evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The whole table is full.
    Table,
    /// The quota of the flow's kind is used up.
    Quota,
}

/// Connection table: flows by the keys of their packets, each with a deadline that its packets
/// extend.
#[derive(Debug)]
pub struct FlowTable {
    /// Records used so far, up to the capacity. A record without a slot of the timer wheel is
    /// vacant.
    flows: Vec<Flow>,
    births: Births,
    vacant: FlowList<TIMER>,
    index: Index,
    wheel: Wheel,
    quota: TableQuota,
    hop_use: HopUse,
    /// Flows opened since the last [`FlowTable::next_opened`], which may exceed the limits of their
    /// clients.
    opened: Vec<FlowId>,
    /// Counts of open flows by source.
    sources: SourceCounts,
    counts: [u32; FlowState::ALL.len()],
    cached: u32,
    /// Number of completed handshakes.
    finished: u64,
    /// Completed handshakes that were not reported yet.
    completed: Vec<HandshakeEvent>,
    /// Timeout of each state, in ticks.
    timeouts: [u32; FlowState::ALL.len()],
    capacity: u32,
    peak: Peak,
    seed: u64,
}

impl FlowTable {
    /// Upper bound for the capacity of a table.
    pub const MAX_CAPACITY: u32 = 1 << 30;

    /// Creates a table for up to `capacity` flows, at least one and at most
    /// [`FlowTable::MAX_CAPACITY`]. `seed` must be a secret: an attacker who has it can choose keys
    /// that collide.
    ///
    /// The memory is reserved here and never grows. The kernel provides it when flows first use it,
    /// and gets it back after a flood: see [`FlowTable::release_memory`].
    pub fn new(capacity: u32, timeouts: &FlowTimeouts, seed: u64) -> Self {
        let capacity = capacity.clamp(1, Self::MAX_CAPACITY);
        FlowTable {
            flows: Vec::with_capacity(capacity as usize),
            births: Births::new(capacity, (seed >> 32) as u32),
            vacant: FlowList::EMPTY,
            index: Index::new(2 * capacity as usize),
            wheel: Wheel::new(),
            quota: TableQuota::new(capacity),
            hop_use: HopUse::new(),
            opened: Vec::with_capacity(OPENED),
            sources: SourceCounts::default(),
            counts: Default::default(),
            cached: 0,
            finished: 0,
            completed: Vec::new(),
            timeouts: in_ticks(timeouts),
            capacity,
            peak: Peak::default(),
            seed,
        }
    }

    /// Reserved bytes: 160 for each flow of the capacity, and 32 KiB.
    #[cfg(test)]
    fn memory(&self) -> usize {
        self.capacity as usize * size_of::<Flow>()
            + self.births.memory()
            + self.index.memory()
            + self.wheel.memory()
    }

    /// Maximum number of flows.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Current number of flows.
    #[cfg(any(test, feature = "test-util"))]
    pub fn len(&self) -> u32 {
        self.quota.len()
    }

    /// Whether the table is empty.
    #[cfg(any(test, feature = "test-util"))]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Current number of flows in this state.
    pub fn count(&self, state: FlowState) -> u32 {
        self.counts[state as usize]
    }

    /// Number of flows that send to each next hop.
    pub(super) fn hop_use(&self) -> &HopUse {
        &self.hop_use
    }

    /// Current number of open flows, as far as convey can see: the connection has begun and has not
    /// ended.
    pub fn open(&self) -> u32 {
        self.quota.open() + self.count(FlowState::HandshakeOnly)
    }

    /// Current number of flows with entries in the flow cache.
    pub fn cached(&self) -> u32 {
        self.cached
    }

    /// Number of handshakes completed so far.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Handshakes completed since the last call.
    pub(super) fn take_completed(&mut self) -> impl Iterator<Item = HandshakeEvent> {
        self.completed.drain(..)
    }

    /// Flow that packets with this key belong to, and their direction.
    #[inline]
    pub fn lookup(&self, key: &FlowKey) -> Option<(FlowId, Direction)> {
        self.index.find(self.hash(key), |id, direction| self.get(id).matches(direction, key))
    }

    /// Prefetches into the CPU cache the memory that lookups of these keys will read. Use it for
    /// the keys of a batch of packets if the table is larger than the cache: the waits for memory
    /// then overlap instead of adding up.
    pub fn prefetch<'a>(&self, keys: impl IntoIterator<Item = &'a FlowKey>) {
        const AT_ONCE: usize = 32;
        let mut hashes = [0; AT_ONCE];
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            // Loads whose result is not used: safe Rust has no other prefetch instruction.
            let (mut read, mut n) = (0, 0);
            for (hash, key) in hashes.iter_mut().zip(&mut keys) {
                *hash = self.hash(key);
                read ^= self.index.first(*hash);
                n += 1;
            }
            for &hash in &hashes[..n] {
                if let Some((id, _)) = self.index.find(hash, |_, _| true) {
                    let flow = self.get(id);
                    read ^= u64::from(flow.deadline ^ flow.last_ack());
                }
            }
            std::hint::black_box(read);
        }
    }

    /// Flow with this identifier, which must be in the table.
    #[inline]
    pub fn get(&self, id: FlowId) -> &Flow {
        &self.flows[id.0 as usize]
    }

    /// Makes convey cut packets of this flow to its client; higher values mean shorter pieces.
    pub(super) fn set_narrow(&mut self, id: FlowId, narrowness: u8) {
        self.flows[id.0 as usize].set_narrow(narrowness);
    }

    /// Stops cutting packets of this flow to its client. Returns whether the flow exists and its
    /// packets were cut.
    pub(super) fn set_wide(&mut self, id: FlowId) -> bool {
        let Some(flow) = self.flows.get_mut(id.0 as usize) else { return false };
        let is_narrow = flow.slot != Slot::NONE && flow.is_narrow();
        if is_narrow {
            flow.set_wide();
        }
        is_narrow
    }

    /// Notes whether the flow cache has entries for this flow.
    pub(super) fn set_cached(&mut self, id: FlowId, cached: bool) {
        let flow = &mut self.flows[id.0 as usize];
        self.cached -= u32::from(flow.is_cached());
        flow.set_cached(cached);
        self.cached += u32::from(cached);
    }

    /// Notes whether the flow cache expects packets of a flow's server on an interface other than
    /// the interface of the next hop to the server.
    pub(super) fn set_server_moved(&mut self, id: FlowId, moved: bool) {
        self.flows[id.0 as usize].set_server_moved(moved);
    }

    /// Changes the next hop of a flow's packets in this direction.
    pub fn set_next_hop(&mut self, id: FlowId, direction: Direction, next_hop: u32) {
        let flow = &mut self.flows[id.0 as usize];
        self.hop_use.end(flow.next_hops());
        flow.set_next_hop(direction, next_hop);
        self.hop_use.begin(flow.next_hops());
    }

    /// Shares the number of evictable flows with the other workers. Call it before the first flow
    /// is recorded.
    pub(super) fn work_with(&mut self, workers: WorkerPeers) {
        workers.clients().reserve(self.capacity, self.seed);
        self.quota.work_with(workers);
    }

    /// Divides the table among these kinds from now on.
    pub(crate) fn divide_among(&mut self, kinds: impl Iterator<Item = TrafficKind>) {
        self.quota.divide_among(kinds);
    }

    /// Records a flow. Neither of its keys may be in the table. If there is no room for its kind,
    /// another flow is evicted: first the flow that has been closing for longest, then the flow
    /// that has been half-open for longest. In DSR, the last resort is the flow that has been open
    /// for longest and whose beginning was not seen.
    ///
    /// # Errors
    /// [`Full`] if there is no room and no flow may be evicted.
    pub fn insert(&mut self, new: &NewFlow, now: Timestamp) -> Result<Inserted, Full> {
        debug_assert!(self.lookup(&new.client).is_none(), "{:?} is there", new.client);
        let evicted = self.victim(TrafficKind::new(new.view, new.client.protocol))?.map(|id| self.remove(id));
        let mut flow = Flow::new(new);
        flow.deadline = tick_from(now) + self.timeouts[flow.state as usize];
        self.counts[flow.state as usize] += 1;
        let (class, at_source) = (flow.class(), flow.at_source());
        let id = self.place(flow, now);
        self.wheel.start_if_empty(tick(now));
        self.wheel.add(&mut self.flows, id.0);
        self.quota.insert(&mut self.flows, id.0, class, now);
        self.note_at_source(id, AtSource::Nothing, at_source);
        self.index.insert(self.hash(&new.client), id, Direction::ToServer);
        if new.view == View::BothSides {
            self.index.insert(self.hash(&new.server), id, Direction::ToClient);
        }
        Ok(Inserted { id, evicted })
    }

    /// Applies a segment that has passed at time `at` to its flow: updates the state and extends
    /// the deadline. During the handshake and after the end, few segments extend the deadline: see
    /// `Flow::is_extended_by`.
    #[inline]
    pub fn on_segment(&mut self, id: FlowId, direction: Direction, segment: Segment, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        let state = flow.apply_segment(direction, segment);
        if state.is_udp() && direction == Direction::ToClient {
            flow.note_answer(tick(at));
        }
        let is_kept = flow.is_extended_by(direction, segment);
        self.go_on(id, state, is_kept, at);
    }

    /// Notes that the server of a UDP flow has sent in this tick. The deadline of the flow does not
    /// change.
    pub(super) fn note_answer(&mut self, id: FlowId, tick: u32) {
        let flow = &mut self.flows[id.0 as usize];
        flow.note_answer(tick.max(flow.last_answer()));
    }

    /// Flows with cache entries among the next `budget` places, starting with `from`; and the next
    /// place to continue with, `None` at the end.
    pub(super) fn cached_from(&self, from: u32, budget: u32) -> (Vec<FlowId>, Option<u32>) {
        let used = self.flows.len() as u32;
        let end = from.saturating_add(budget).min(used);
        let is_cached = |id: &u32| {
            let flow = &self.flows[*id as usize];
            flow.slot != Slot::NONE && flow.is_cached()
        };
        ((from..end).filter(is_cached).map(FlowId).collect(), (end < used).then_some(end))
    }

    /// Applies a FIN that the flow cache has forwarded at time `at`. The cache has verified its
    /// sequence numbers.
    pub(super) fn on_fin_event(&mut self, id: FlowId, direction: Direction, fin: Segment, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        let state = flow.apply_cached_fin(direction, fin);
        let is_kept = flow.is_extended_by(direction, fin);
        self.go_on(id, state, is_kept, at);
    }

    #[inline]
    fn go_on(&mut self, id: FlowId, state: FlowState, is_kept: bool, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        let deadline = tick_from(at) + self.timeouts[state as usize];
        if state != flow.state {
            let is_same_handshake = flow.state.is_handshake() && state.is_handshake();
            // A SYN that was not reported may have followed this event, which arrives late.
            flow.deadline = if is_same_handshake { flow.deadline.max(deadline) } else { deadline };
            self.set_state(id, state, at);
        } else if is_kept {
            flow.deadline = deadline;
        }
        self.requeue_if_earlier(id);
    }

    /// Opens a flow whose handshake was completed in the flow cache by time `at`. `progress` is the
    /// progress of its client at that time.
    pub(super) fn open_by(&mut self, id: FlowId, progress: Progress, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        let state = flow.catch_up(Some(progress), None);
        flow.deadline = tick_from(at) + self.timeouts[state as usize];
        self.set_state(id, state, at);
        self.requeue_if_earlier(id);
    }

    /// Applies the progress of client and server that the flow cache has seen. The deadline of the
    /// flow does not change.
    pub(super) fn catch_up(&mut self, id: FlowId, client: Option<Progress>, server: Option<Progress>) {
        let flow = &mut self.flows[id.0 as usize];
        let state = flow.catch_up(client, server);
        if state != flow.state {
            // With time 0, the queue treats the change as made right after the latest other change.
            self.set_state(id, state, Timestamp::default());
        }
    }

    /// Removes a flow, which must be in the table, and returns its record.
    pub fn remove(&mut self, id: FlowId) -> Flow {
        let flow = self.get(id).clone();
        self.index.remove(self.hash(&flow.client()), id, Direction::ToServer);
        if flow.view() == View::BothSides {
            self.index.remove(self.hash(&flow.server()), id, Direction::ToClient);
        }
        self.hop_use.end(flow.next_hops());
        self.quota.remove(&mut self.flows, id.0, flow.class());
        self.note_at_source(id, flow.at_source(), AtSource::Nothing);
        self.wheel.remove(&mut self.flows, id.0);
        self.vacant.push(&mut self.flows, id.0);
        self.counts[flow.state as usize] -= 1;
        self.cached -= u32::from(flow.is_cached());
        flow
    }

    /// Passes a slice of the flows to `keep` and removes those for which it returns `false`. The
    /// first call has `from` 0; each call covers `budget` places and returns the place to continue
    /// with, `None` at the end. A flow that exists during the whole sweep is passed once. Remaining
    /// flows follow the current timeouts afterwards.
    pub fn sweep(
        &mut self,
        now: Timestamp,
        from: u32,
        budget: u32,
        mut keep: impl FnMut(FlowId, &mut Flow) -> bool,
    ) -> Option<u32> {
        let (used, now) = (self.flows.len() as u32, tick_from(now));
        let end = from.saturating_add(budget).min(used);
        for id in from..end {
            let flow = &mut self.flows[id as usize];
            if flow.slot == Slot::NONE {
                continue;
            }
            let (before, is_kept) = (flow.next_hops(), keep(FlowId(id), flow));
            if flow.next_hops() != before {
                self.hop_use.end(before);
                self.hop_use.begin(flow.next_hops());
            }
            if is_kept {
                flow.deadline = flow.deadline.min(now + self.timeouts[flow.state as usize]);
                self.requeue_if_earlier(FlowId(id));
            } else {
                self.remove(FlowId(id));
            }
        }
        (end < used).then_some(end)
    }

    fn set_state(&mut self, id: FlowId, state: FlowState, at: Timestamp) {
        let flow = &mut self.flows[id.0 as usize];
        let (class, at_source) = (flow.class(), flow.at_source());
        self.counts[flow.state as usize] -= 1;
        self.counts[state as usize] += 1;
        if flow.state.is_handshake() && !state.is_handshake() && state != FlowState::Closed {
            self.finished += 1;
            self.completed.push(flow.handshake(HandshakeStep::Completed));
        }
        flow.state = state;
        let (new_class, new_at_source) = (flow.class(), flow.at_source());
        self.note_at_source(id, at_source, new_at_source);
        if new_class != class {
            self.quota.leave(&mut self.flows, id.0, class);
            self.quota.enter(&mut self.flows, id.0, new_class, at);
        }
        let flow = self.get(id);
        let is_opened = match flow.view() {
            View::BothSides => new_class == Class::Open && !class.is_open(),
            View::ClientSide => at_source == AtSource::Nothing && flow.is_counted(),
        };
        if is_opened && self.opened.len() < OPENED.max(self.capacity as usize) {
            self.opened.push(id);
        }
    }

    /// Stores a record in a vacant place, preferably in the place that was vacated last: it is
    /// still in the CPU cache.
    fn place(&mut self, flow: Flow, began: Timestamp) -> FlowId {
        self.hop_use.begin(flow.next_hops());
        let id = match self.vacant.last() {
            Some(id) => {
                self.vacant.remove(&mut self.flows, id);
                self.flows[id as usize] = flow;
                FlowId(id)
            }
            None => {
                self.flows.push(flow);
                FlowId(self.flows.len() as u32 - 1)
            }
        };
        self.births.note(id, began);
        id
    }

    #[inline]
    fn hash(&self, key: &FlowKey) -> u32 {
        // Hash whole words: a load that spans smaller stores waits until they retire, and so until
        // all loads of earlier packets are done. Packets would then wait for memory one after
        // another.
        let ports = u64::from(key.src_port) | u64::from(key.dst_port) << 16 | u64::from(key.protocol) << 32;
        let (src, dst) = (key.src.words(), key.dst.words());
        let mut bytes = [0; 40];
        for (to, word) in bytes.chunks_exact_mut(8).zip([src[0], src[1], dst[0], dst[1], ports]) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        xxh3_64_with_seed(&bytes, self.seed) as u32
    }
}

#[cfg(test)]
mod tests;
