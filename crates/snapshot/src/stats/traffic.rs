//! Traffic counters. On the hot path, a count costs one plain add on a cache line of its own core.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::counters::Counter;

/// Traffic counters of one frontend, backend or server. Each core writes a set of its own, and
/// readers sum up the sets.
pub struct Traffic {
    cores: Box<[CachePadded<[AtomicU64; Counter::COUNT]>]>,
}

impl Traffic {
    /// Creates counters at zero for `cores` cores, each with a single writer.
    pub fn new(cores: usize) -> Self {
        let zeroes = || CachePadded::new([const { AtomicU64::new(0) }; Counter::COUNT]);
        Traffic { cores: (0..cores).map(|_| zeroes()).collect() }
    }

    /// Adds to a counter of one core. Each core has a single writer, so this is a plain load and
    /// store, without a locked instruction or a cache line shared with another core.
    #[inline]
    pub fn add(&self, core: usize, counter: Counter, n: u64) {
        let cell = &self.cores[core][counter as usize];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sum of a counter over all cores.
    pub fn sum(&self, counter: Counter) -> u64 {
        sum(&self.cores, counter)
    }

    /// Number of open connections.
    pub fn current(&self) -> u64 {
        self.current_in(0..self.cores.len())
    }

    /// Number of open connections that these cores count: opened minus closed.
    pub fn current_in(&self, cores: Range<usize>) -> u64 {
        // Closed is read first: a connection that opens and closes between the reads must not make
        // the difference negative.
        let closed = sum(&self.cores[cores.clone()], Counter::Closed);
        sum(&self.cores[cores], Counter::Opened).saturating_sub(closed)
    }
}

fn sum(cores: &[CachePadded<[AtomicU64; Counter::COUNT]>], counter: Counter) -> u64 {
    cores.iter().map(|core| core[counter as usize].load(Ordering::Relaxed)).sum()
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic").field("current", &self.current()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_what_all_cores_added() {
        let traffic = Traffic::new(3);
        traffic.add(0, Counter::BytesRx, 5);
        traffic.add(2, Counter::BytesRx, 7);
        traffic.add(2, Counter::BytesTx, 1);
        assert_eq!(traffic.sum(Counter::BytesRx), 12);
        assert_eq!(traffic.sum(Counter::BytesTx), 1);
    }

    #[test]
    fn each_way_of_forwarding_knows_its_own_open_connections() {
        let traffic = Traffic::new(3);
        traffic.add(0, Counter::Opened, 1_000);
        traffic.add(1, Counter::Opened, 5);
        traffic.add(2, Counter::Opened, 3);
        traffic.add(2, Counter::Closed, 2);
        assert_eq!(
            (traffic.current_in(0..1), traffic.current_in(1..3), traffic.current()),
            (1_000, 6, 1_006)
        );
    }

    #[test]
    fn a_connection_may_end_on_another_core_than_it_began() {
        let traffic = Traffic::new(2);
        traffic.add(0, Counter::Opened, 2);
        traffic.add(1, Counter::Closed, 1);
        assert_eq!(traffic.current(), 1);
    }
}
