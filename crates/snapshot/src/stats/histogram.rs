//! Histograms of durations. On the hot path, a duration costs two plain adds on cache lines of its
//! own core.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

/// Number of upper bounds of every histogram. One more bucket has no upper bound.
const BOUNDS: usize = 15;

/// Upper bounds of buckets in microseconds, in ascending order.
pub(crate) type Bounds = [u64; BOUNDS];

/// Upper bounds for durations of connects: from 0.1 milliseconds, typical for a host on the link,
/// to 5 seconds, longer than any client waits.
pub(crate) const CONNECT_TIMES: Bounds = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000,
];

/// Upper bounds for durations of responses: from 0.5 milliseconds to one minute.
pub(crate) const ANSWER_TIMES: Bounds = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 60_000_000,
];

/// Upper bounds for durations of sessions: from one millisecond to one day.
pub(crate) const SESSION_TIMES: Bounds = {
    const SECOND: u64 = 1_000_000;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    [
        1_000,
        5_000,
        25_000,
        100_000,
        250_000,
        SECOND,
        5 * SECOND,
        15 * SECOND,
        MINUTE,
        5 * MINUTE,
        15 * MINUTE,
        HOUR,
        4 * HOUR,
        12 * HOUR,
        24 * HOUR,
    ]
};

/// Histogram of durations. Each core writes a set of buckets of its own, and readers sum up the
/// sets.
pub struct Histogram {
    bounds: &'static Bounds,
    cores: Box<[CachePadded<Core>]>,
}

#[derive(Default)]
struct Core {
    buckets: [AtomicU64; BOUNDS + 1],
    /// Sum of the durations in microseconds. In nanoseconds, the sum of many long sessions could
    /// overflow.
    sum: AtomicU64,
}

/// Number of durations in each bucket of a histogram at one moment, and their sum in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistogramCounts {
    buckets: [u64; BOUNDS + 1],
    sum: u64,
}

/// Content of a histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Upper bounds in seconds, in ascending order, each with the number of durations up to that
    /// bound.
    pub buckets: Vec<(f64, u64)>,
    /// Number of all durations, including those above the last bound.
    pub count: u64,
    /// Sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Creates an empty histogram for `cores` cores, each with a single writer.
    pub(crate) fn new(bounds: &'static Bounds, cores: usize) -> Self {
        Histogram { bounds, cores: (0..cores).map(|_| CachePadded::default()).collect() }
    }

    /// Adds a duration. Each core has a single writer.
    pub fn record(&self, core: usize, time: Duration) {
        let micros = in_microseconds(time);
        let core = &self.cores[core];
        add(&core.buckets[self.bounds.partition_point(|&bound| bound < micros)], 1);
        add(&core.sum, micros);
    }

    /// Sums up the durations of all cores. While writers continue, the sum of durations may be
    /// ahead of the buckets.
    pub fn read(&self) -> Distribution {
        self.distribution(&self.counts())
    }

    /// Numbers of durations of all cores, by bucket.
    pub fn counts(&self) -> HistogramCounts {
        let in_bucket = |bucket: usize| {
            let of_core = |core: &CachePadded<Core>| core.buckets[bucket].load(Ordering::Relaxed);
            self.cores.iter().map(of_core).sum()
        };
        let buckets = std::array::from_fn(in_bucket);
        let sum = self.cores.iter().map(|core| core.sum.load(Ordering::Relaxed)).sum();
        HistogramCounts { buckets, sum }
    }

    /// Distribution of durations that this histogram has counted.
    pub fn distribution(&self, counts: &HistogramCounts) -> Distribution {
        let mut count = 0;
        let buckets = self.bounds.iter().zip(counts.buckets).map(|(&bound, in_bucket)| {
            count += in_bucket;
            (seconds(bound), count)
        });
        let buckets = buckets.collect();
        Distribution { buckets, count: count + counts.buckets[BOUNDS], sum: seconds(counts.sum) }
    }
}

impl HistogramCounts {
    /// Durations that were counted after `before`.
    pub fn since(&self, before: &HistogramCounts) -> HistogramCounts {
        HistogramCounts {
            buckets: std::array::from_fn(|at| self.buckets[at].saturating_sub(before.buckets[at])),
            sum: self.sum.saturating_sub(before.sum),
        }
    }
}

/// Duration in microseconds, rounded up. In 128 bits, as of [`Duration::as_micros`], a division takes
/// longer than the rest of a record.
fn in_microseconds(time: Duration) -> u64 {
    let below = time.subsec_nanos().div_ceil(1_000);
    time.as_secs().saturating_mul(1_000_000).saturating_add(below.into())
}

impl Distribution {
    /// Average duration in seconds; `None` if the histogram is empty.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Quantile in seconds for a share from 0 to 1; `None` if the histogram is empty. Like
    /// Prometheus, the estimate assumes that durations spread evenly in their bucket. Durations
    /// above the last bound count as that bound.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.count as f64;
        let (mut from, mut below) = (0.0, 0);
        for &(bound, count) in &self.buckets {
            if count > below && count as f64 >= rank {
                return Some(from + (bound - from) * (rank - below as f64) / (count - below) as f64);
            }
            (from, below) = (bound, count);
        }
        (self.count > 0).then_some(from)
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram").field("count", &self.read().count).finish_non_exhaustive()
    }
}

fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn time_counts_in_the_first_bucket_with_a_bound_not_below() {
        let histogram = Histogram::new(&CONNECT_TIMES, 2);
        let just_above = MILLISECOND + Duration::from_nanos(1);
        for (core, time) in [(0, Duration::ZERO), (0, MILLISECOND), (1, just_above), (1, Duration::MAX)] {
            histogram.record(core, time);
        }
        let Distribution { buckets, count, .. } = histogram.read();
        let at_most = |bound| buckets.iter().find(|(at, _)| *at == bound).unwrap().1;
        assert_eq!([0.0001, 0.0005, 0.001, 0.0025, 5.0].map(at_most), [1, 1, 2, 3, 3]);
        assert_eq!(count, 4);
    }

    #[test]
    fn the_mean_is_exact_and_quantiles_are_as_near_as_their_bucket() {
        let histogram = Histogram::new(&CONNECT_TIMES, 1);
        assert_eq!((histogram.read().mean(), histogram.read().quantile(0.5)), (None, None));
        (1..=100).for_each(|n| histogram.record(0, n * MILLISECOND));
        let times = histogram.read();
        assert_eq!((times.count, times.sum), (100, 5.05));
        assert!((times.mean().unwrap() - 0.0505).abs() < 1e-9);
        for share in [0.25, 0.5, 0.75, 0.99] {
            let found = times.quantile(share).unwrap();
            assert!((found - share / 10.0).abs() < 1e-9, "{share}: {found}");
        }
        assert_eq!(times.quantile(1.0), Some(0.1));
        (0..900).for_each(|_| histogram.record(0, Duration::from_secs(60)));
        assert_eq!(histogram.read().quantile(0.5), Some(5.0), "what is beyond all bounds is the last one");
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [CONNECT_TIMES, SESSION_TIMES] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }
}
