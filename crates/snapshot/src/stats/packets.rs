//! What the packet modes count besides traffic: drops by reason, and how full the tables are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crossbeam_utils::CachePadded;

use convey_model::{CacheOutcome, DropReason, Handshakes, Layer, Shortage};

/// Most states that flows can have; the code that counts them must not have more.
pub const STATES: usize = 16;

/// What a worker has just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauge {
    /// Flows in the state with this number, below [`STATES`].
    Flows(usize),
    /// Of all flows, those whose both sides may have something to say.
    OpenFlows,
    /// SNAT ports in use.
    SnatPorts,
    /// Flows whose packets the kernel's flow cache forwards.
    CachedFlows,
}

/// A set of counters for each thread of the pipeline; each has one writer.
#[derive(Debug)]
pub struct PacketStats {
    threads: Box<[CachePadded<ThreadCounts>]>,
    /// Counted by the kernel.
    outcomes: [AtomicU64; CacheOutcome::ALL.len()],
    /// Counted by the kernel.
    kernel_drops: Drops,
    /// Counted by who writes it.
    cache_failures: AtomicU64,
    cache_entries_lost: AtomicU64,
    /// By the names of the interfaces that are captured.
    layers: RwLock<BTreeMap<String, Layer>>,
}

/// What has become of SYNs to frontends since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Syns {
    /// SYNs that reached a worker.
    pub begun: u64,
    /// Connections that were opened: their handshakes are complete.
    pub finished: u64,
    /// SYNs that the kernel dropped because of a flood.
    pub refused: u64,
    /// Of those that were dropped, the ones that came again and reached a worker.
    pub repeated: u64,
    /// Those whose flow gave way to another's in less time than it takes to finish a handshake.
    pub displaced: u64,
    /// Frames that found no room in the receive buffer, SYNs or not.
    pub overrun: u64,
}

#[derive(Debug, Default)]
struct ThreadCounts {
    drops: Drops,
    /// Drops that another thread reports.
    reported_drops: Drops,
    passed: AtomicU64,
    unrecorded: AtomicU64,
    capture_errors: AtomicU64,
    begun: AtomicU64,
    finished: AtomicU64,
    displaced: AtomicU64,
    evicted: [AtomicU64; Shortage::ALL.len()],
    gauges: [AtomicU64; STATES + 3],
}

/// By the numbers of their reasons.
#[derive(Debug)]
struct Drops([AtomicU64; DropReason::ALL.len()]);

// The standard library has it for arrays of up to 32.
impl Default for Drops {
    fn default() -> Drops {
        Drops([const { AtomicU64::new(0) }; DropReason::ALL.len()])
    }
}

impl Drops {
    fn of(&self, reason: DropReason) -> &AtomicU64 {
        &self.0[reason as usize]
    }
}

impl PacketStats {
    /// Zeroes, for this many threads.
    pub fn new(threads: usize) -> PacketStats {
        PacketStats {
            threads: (0..threads).map(|_| CachePadded::default()).collect(),
            outcomes: Default::default(),
            kernel_drops: Drops::default(),
            cache_failures: AtomicU64::default(),
            cache_entries_lost: AtomicU64::default(),
            layers: RwLock::default(),
        }
    }

    /// A thread dropped packets.
    #[inline]
    pub fn dropped(&self, thread: usize, reason: DropReason, n: u64) {
        add(self.threads[thread].drops.of(reason), n);
    }

    /// A thread met packets that are none of ours.
    #[inline]
    pub fn passed(&self, thread: usize, n: u64) {
        add(&self.threads[thread].passed, n);
    }

    /// A thread forwarded packets of no flow, the table being full.
    pub fn unrecorded(&self, thread: usize, n: u64) {
        add(&self.threads[thread].unrecorded, n);
    }

    /// A capture thread could not read some frames.
    pub fn capture_errors(&self, thread: usize, n: u64) {
        add(&self.threads[thread].capture_errors, n);
    }

    /// The kernel dropped frames before a capture thread could read them. Not told by that thread, so it has a
    /// cell of its own.
    pub fn overrun(&self, thread: usize, n: u64) {
        add(self.threads[thread].reported_drops.of(DropReason::CaptureOverrun), n);
    }

    /// What has become of handshakes so far that a thread has to do with.
    pub fn set_handshakes(&self, thread: usize, handshakes: Handshakes) {
        let Handshakes { begun, finished, displaced } = handshakes;
        let thread = &self.threads[thread];
        thread.begun.store(begun, Ordering::Relaxed);
        thread.finished.store(finished, Ordering::Relaxed);
        thread.displaced.store(displaced, Ordering::Relaxed);
    }

    /// How many of a thread's flows have given way to others so far.
    pub fn set_evicted(&self, thread: usize, shortage: Shortage, n: u64) {
        self.threads[thread].evicted[shortage as usize].store(n, Ordering::Relaxed);
    }

    /// What a thread has now.
    pub fn set(&self, thread: usize, gauge: Gauge, n: u64) {
        self.threads[thread].gauges[index(gauge)].store(n, Ordering::Relaxed);
    }

    /// What the flow cache has done so far.
    pub fn set_outcome(&self, outcome: CacheOutcome, n: u64) {
        self.outcomes[outcome as usize].store(n, Ordering::Relaxed);
    }

    /// How many SYNs the kernel has dropped so far.
    pub fn set_syns_refused(&self, n: u64) {
        self.kernel_drops.of(DropReason::SynLimited).store(n, Ordering::Relaxed);
    }

    /// Sets how many packets the flow cache has dropped for this reason so far.
    pub fn set_kernel_drops(&self, reason: DropReason, n: u64) {
        self.kernel_drops.of(reason).store(n, Ordering::Relaxed);
    }

    /// How often the kernel has refused to change the flow cache so far.
    pub fn set_cache_failures(&self, n: u64) {
        self.cache_failures.store(n, Ordering::Relaxed);
    }

    /// How often the kernel has refused to change the flow cache.
    pub fn cache_failures(&self) -> u64 {
        self.cache_failures.load(Ordering::Relaxed)
    }

    /// How many entries the kernel has refused to remove so far that nobody tries to remove again.
    pub fn set_cache_entries_lost(&self, n: u64) {
        self.cache_entries_lost.store(n, Ordering::Relaxed);
    }

    /// How many entries of the flow cache the kernel has refused to remove that nobody tries to remove again.
    pub fn cache_entries_lost(&self) -> u64 {
        self.cache_entries_lost.load(Ordering::Relaxed)
    }

    /// Says who forwards open flows that come in on an interface from now on.
    pub fn set_layer(&self, interface: &str, layer: Layer) {
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        layers.insert(interface.to_owned(), layer);
    }

    /// An interface is gone.
    pub fn forget_layer(&self, interface: &str) {
        self.layers.write().unwrap_or_else(PoisonError::into_inner).remove(interface);
    }

    /// Packets of which the flow cache has made this.
    pub fn outcome(&self, outcome: CacheOutcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// The part that forwards open flows, by the interface that they come in on.
    pub fn layers(&self) -> BTreeMap<String, Layer> {
        self.layers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Packets dropped for a reason, by all threads and the kernel.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.sum(|thread| thread.drops.of(reason))
            + self.sum(|thread| thread.reported_drops.of(reason))
            + self.kernel_drops.of(reason).load(Ordering::Relaxed)
    }

    /// What has become of SYNs.
    pub fn syns(&self) -> Syns {
        // Finished is read first: a handshake in between must not be finished before it began.
        let finished = self.sum(|thread| &thread.finished);
        Syns {
            finished,
            begun: self.sum(|thread| &thread.begun),
            refused: self.kernel_drops.of(DropReason::SynLimited).load(Ordering::Relaxed),
            repeated: self.outcome(CacheOutcome::CameAgain),
            displaced: self.sum(|thread| &thread.displaced),
            overrun: self.drops(DropReason::CaptureOverrun),
        }
    }

    /// Flows that gave way to others before they were over, by all threads.
    pub fn evicted(&self, shortage: Shortage) -> u64 {
        self.sum(|thread| &thread.evicted[shortage as usize])
    }

    /// Frames that could not be read.
    pub fn all_capture_errors(&self) -> u64 {
        self.sum(|thread| &thread.capture_errors)
    }

    /// Packets that were none of ours.
    pub fn all_passed(&self) -> u64 {
        self.sum(|thread| &thread.passed)
    }

    /// Packets that were forwarded though the table had no room for their flow.
    pub fn all_unrecorded(&self) -> u64 {
        self.sum(|thread| &thread.unrecorded)
    }

    /// What all threads have together.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.sum(|thread| &thread.gauges[index(gauge)])
    }

    fn sum(&self, of: impl Fn(&ThreadCounts) -> &AtomicU64) -> u64 {
        self.threads.iter().map(|thread| of(thread).load(Ordering::Relaxed)).sum()
    }
}

fn index(gauge: Gauge) -> usize {
    match gauge {
        Gauge::Flows(state) => state,
        Gauge::OpenFlows => STATES,
        Gauge::SnatPorts => STATES + 1,
        Gauge::CachedFlows => STATES + 2,
    }
}

/// A plain load and store: nobody else writes.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_threads_counted_is_summed() {
        let stats = PacketStats::new(3);
        stats.dropped(0, DropReason::NoFlow, 2);
        stats.dropped(2, DropReason::NoFlow, 3);
        stats.set(1, Gauge::Flows(2), 7);
        stats.set(1, Gauge::Flows(2), 5);
        stats.set(2, Gauge::SnatPorts, 9);
        assert_eq!(stats.drops(DropReason::NoFlow), 5);
        assert_eq!((stats.gauge(Gauge::Flows(2)), stats.gauge(Gauge::SnatPorts)), (5, 9));
    }

    #[test]
    fn syns_that_the_kernel_dropped_are_drops_like_others() {
        let stats = PacketStats::new(2);
        stats.set_handshakes(0, Handshakes { begun: 7, finished: 5, displaced: 1 });
        stats.set_handshakes(1, Handshakes { begun: 2, finished: 1, displaced: 1 });
        stats.set_syns_refused(40);
        stats.set_outcome(CacheOutcome::CameAgain, 3);
        stats.overrun(0, 5);
        let syns = Syns { begun: 9, finished: 6, refused: 40, repeated: 3, displaced: 2, overrun: 5 };
        assert_eq!(stats.syns(), syns);
        assert_eq!(stats.drops(DropReason::SynLimited), 40);
    }

    #[test]
    fn drops_that_others_count_are_added_to_those_of_the_threads() {
        let stats = PacketStats::new(2);
        stats.dropped(0, DropReason::CaptureOverrun, 1);
        stats.overrun(0, 2);
        stats.overrun(1, 4);
        stats.dropped(1, DropReason::FinQueueFull, 8);
        stats.set_kernel_drops(DropReason::FinQueueFull, 16);
        assert_eq!(stats.drops(DropReason::CaptureOverrun), 7);
        assert_eq!(stats.drops(DropReason::FinQueueFull), 24);
        assert_eq!(DropReason::ALL.map(|reason| stats.drops(reason)).iter().sum::<u64>(), 31);
    }

    #[test]
    fn every_gauge_is_a_number_of_its_own() {
        let stats = PacketStats::new(1);
        let gauges: Vec<Gauge> = (0..STATES)
            .map(Gauge::Flows)
            .chain([Gauge::OpenFlows, Gauge::SnatPorts, Gauge::CachedFlows])
            .collect();
        (1..).zip(&gauges).for_each(|(value, gauge)| stats.set(0, *gauge, value));
        let read: Vec<u64> = gauges.iter().map(|gauge| stats.gauge(*gauge)).collect();
        assert_eq!(read, (1..=gauges.len() as u64).collect::<Vec<_>>());
    }
}
