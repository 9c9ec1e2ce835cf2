//! Counters of the packet modes in addition to traffic: drops by reason, SYNs, and table usage.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crossbeam_utils::CachePadded;

use convey_model::{CacheOutcome, DropReason, Handshakes, Layer, Shortage};

/// Upper bound for the state numbers of [`Gauge::Flows`], exclusive.
pub const STATES: usize = 16;

/// Gauge of a worker: a value that can fall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauge {
    /// Flows in the state with this number, below [`STATES`].
    Flows(usize),
    /// Flows in which both sides may still send data.
    OpenFlows,
    /// SNAT ports in use.
    SnatPorts,
    /// Flows whose packets the kernel's flow cache forwards.
    CachedFlows,
}

/// Counters of the packet modes. Each thread of the pipeline writes a set of its own.
#[derive(Debug)]
pub struct PacketStats {
    threads: Box<[CachePadded<ThreadCounts>]>,
    /// Number of packets for each result of a lookup in the flow cache, counted by the kernel.
    outcomes: [AtomicU64; CacheOutcome::ALL.len()],
    /// Packets dropped by the kernel, counted by the kernel.
    kernel_drops: Drops,
    /// Number of changes of the flow cache that the kernel refused, counted by the thread that
    /// writes the cache.
    cache_failures: AtomicU64,
    cache_entries_lost: AtomicU64,
    /// Layer that forwards packets of open flows, by the name of the receiving interface.
    layers: RwLock<BTreeMap<String, Layer>>,
}

/// SYNs to frontends and their outcomes since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Syns {
    /// SYNs that reached a worker.
    pub begun: u64,
    /// Connections whose handshakes were completed.
    pub finished: u64,
    /// SYNs that the kernel dropped because of a flood.
    pub refused: u64,
    /// SYNs that the kernel dropped, and that reached a worker when the client repeated them.
    pub repeated: u64,
    /// SYNs of flows that were evicted in favour of another flow, in less time than a handshake
    /// takes.
    pub displaced: u64,
    /// Frames dropped because the receive buffer was full. They may or may not have been SYNs.
    pub overrun: u64,
}

#[derive(Debug, Default)]
struct ThreadCounts {
    drops: Drops,
    /// Drops that another thread reports for this thread.
    reported_drops: Drops,
    passed: AtomicU64,
    untracked: AtomicU64,
    capture_errors: AtomicU64,
    begun: AtomicU64,
    finished: AtomicU64,
    displaced: AtomicU64,
    evicted: [AtomicU64; Shortage::ALL.len()],
    gauges: [AtomicU64; STATES + 3],
}

/// Counters of dropped packets, indexed by the number of the reason.
#[derive(Debug)]
struct Drops([AtomicU64; DropReason::ALL.len()]);

// The standard library implements `Default` only for arrays of up to 32 elements.
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
    /// Creates counters at zero for this many threads.
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

    /// Counts packets that a thread dropped.
    #[inline]
    pub fn dropped(&self, thread: usize, reason: DropReason, n: u64) {
        add(self.threads[thread].drops.of(reason), n);
    }

    /// Counts packets that a thread received and that convey leaves to the host.
    #[inline]
    pub fn passed(&self, thread: usize, n: u64) {
        add(&self.threads[thread].passed, n);
    }

    /// Counts packets that a thread forwarded without a flow because the table was full.
    pub fn untracked(&self, thread: usize, n: u64) {
        add(&self.threads[thread].untracked, n);
    }

    /// Counts frames that a capture thread could not read.
    pub fn capture_errors(&self, thread: usize, n: u64) {
        add(&self.threads[thread].capture_errors, n);
    }

    /// Counts frames that the kernel dropped before a capture thread could read them. Another
    /// thread reports them, so they have a separate counter.
    pub fn overrun(&self, thread: usize, n: u64) {
        add(self.threads[thread].reported_drops.of(DropReason::CaptureOverrun), n);
    }

    /// Sets a thread's totals of handshakes.
    pub fn set_handshakes(&self, thread: usize, handshakes: Handshakes) {
        let Handshakes { begun, finished, displaced } = handshakes;
        let thread = &self.threads[thread];
        thread.begun.store(begun, Ordering::Relaxed);
        thread.finished.store(finished, Ordering::Relaxed);
        thread.displaced.store(displaced, Ordering::Relaxed);
    }

    /// Sets a thread's total of evicted flows.
    pub fn set_evicted(&self, thread: usize, shortage: Shortage, n: u64) {
        self.threads[thread].evicted[shortage as usize].store(n, Ordering::Relaxed);
    }

    /// Sets a gauge of a thread.
    pub fn set(&self, thread: usize, gauge: Gauge, n: u64) {
        self.threads[thread].gauges[index(gauge)].store(n, Ordering::Relaxed);
    }

    /// Sets the flow cache's total for a result of a lookup.
    pub fn set_outcome(&self, outcome: CacheOutcome, n: u64) {
        self.outcomes[outcome as usize].store(n, Ordering::Relaxed);
    }

    /// Sets the total of SYNs that the kernel dropped.
    pub fn set_syns_refused(&self, n: u64) {
        self.kernel_drops.of(DropReason::SynLimited).store(n, Ordering::Relaxed);
    }

    /// Sets the total of packets that the flow cache dropped for this reason.
    pub fn set_kernel_drops(&self, reason: DropReason, n: u64) {
        self.kernel_drops.of(reason).store(n, Ordering::Relaxed);
    }

    /// Sets the number of changes of the flow cache that the kernel refused.
    pub fn set_cache_failures(&self, n: u64) {
        self.cache_failures.store(n, Ordering::Relaxed);
    }

    /// Number of changes of the flow cache that the kernel refused.
    pub fn cache_failures(&self) -> u64 {
        self.cache_failures.load(Ordering::Relaxed)
    }

    /// Sets the number of flow cache entries that the kernel refused to remove and that convey no
    /// longer retries.
    pub fn set_cache_entries_lost(&self, n: u64) {
        self.cache_entries_lost.store(n, Ordering::Relaxed);
    }

    /// Number of flow cache entries that the kernel refused to remove and that convey no longer
    /// retries.
    pub fn cache_entries_lost(&self) -> u64 {
        self.cache_entries_lost.load(Ordering::Relaxed)
    }

    /// Sets the layer that forwards packets of open flows received on an interface.
    pub fn set_layer(&self, interface: &str, layer: Layer) {
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        layers.insert(interface.to_owned(), layer);
    }

    /// Removes the layer of an interface that is gone.
    pub fn remove_layer(&self, interface: &str) {
        self.layers.write().unwrap_or_else(PoisonError::into_inner).remove(interface);
    }

    /// Number of packets with this result of a lookup in the flow cache.
    pub fn outcome(&self, outcome: CacheOutcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    /// Layers that forward packets of open flows, by the receiving interface.
    pub fn layers(&self) -> BTreeMap<String, Layer> {
        self.layers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of packets dropped for a reason, by all threads and the kernel.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.sum(|thread| thread.drops.of(reason))
            + self.sum(|thread| thread.reported_drops.of(reason))
            + self.kernel_drops.of(reason).load(Ordering::Relaxed)
    }

    /// Numbers of SYNs and their outcomes, summed over all threads.
    pub fn syns(&self) -> Syns {
        // `finished` is read first: a handshake that completes between the reads must not count as
        // finished before it counts as begun.
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

    /// Number of flows evicted because of a shortage, over all threads.
    pub fn evicted(&self, shortage: Shortage) -> u64 {
        self.sum(|thread| &thread.evicted[shortage as usize])
    }

    /// Number of frames that could not be read, over all threads.
    pub fn all_capture_errors(&self) -> u64 {
        self.sum(|thread| &thread.capture_errors)
    }

    /// Number of packets that convey left to the host, over all threads.
    pub fn all_passed(&self) -> u64 {
        self.sum(|thread| &thread.passed)
    }

    /// Number of packets forwarded without a flow because the table was full, over all threads.
    pub fn all_untracked(&self) -> u64 {
        self.sum(|thread| &thread.untracked)
    }

    /// Value of a gauge, summed over all threads.
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

/// Adds by a plain load and store, because each cell has a single writer.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_threads_are_summed() {
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
