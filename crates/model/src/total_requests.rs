//! Requests of all clients together, at a frontend, a route or a backend, against a rate. Pure.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::{Timestamp, TotalRate};

/// Recent requests of all clients, as the level of a leaky bucket that all workers share. A reload
/// keeps the level, even if it changes the rate.
///
/// A worker takes the room for several requests at once, so that workers rarely write to the shared
/// number. All workers together hold at most 1/128 of the burst in advance. The less room is left,
/// the less a worker takes, and at last for one request at a time.
#[derive(Debug)]
pub struct TotalRequests {
    /// A `Level`.
    level: AtomicU64,
    cores: u32,
    /// Requests that each core may still admit without the shared level. Each core is the only
    /// writer of its number.
    in_advance: OnceLock<Box<[CachePadded<AtomicU32>]>>,
}

/// Parts of a request in a level. So fine that the rounding of a leak does not add up.
const UNIT: u64 = 1 << 12;

/// Length of a tick in nanoseconds, about a millisecond.
const TICK: u64 = 1 << 20;

/// Ticks by which another worker's clock may be ahead.
const AHEAD: u32 = 1 << 20;

/// Share of the burst that all cores together may hold in advance.
const ADVANCE: u32 = 128;

/// Level of the bucket at a tick.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// Requests in the bucket, in parts of 1/[`UNIT`].
    parts: u64,
    tick: u32,
}

impl TotalRequests {
    /// Creates an empty bucket for workers on `cores` cores.
    pub fn new(cores: usize) -> TotalRequests {
        let cores = u32::try_from(cores).unwrap_or(u32::MAX).max(1);
        TotalRequests { level: AtomicU64::new(0), cores, in_advance: OnceLock::new() }
    }

    /// Whether a further request is within the rate. Changes nothing.
    pub fn has_room(&self, rate: TotalRate, core: usize, now: Timestamp) -> bool {
        let in_advance = self.in_advance.get().map_or(0, |cells| cells[core].load(Ordering::Relaxed));
        in_advance > 0 || self.room(rate, now) > 0
    }

    /// Counts a request. Returns false, and does not count it, if it is above the rate.
    pub fn take(&self, rate: TotalRate, core: usize, now: Timestamp) -> bool {
        let most = rate.burst().get() / ADVANCE / self.cores;
        if most < 2 {
            return self.add(1, rate, now);
        }
        let cell = &self.cells()[core];
        // More than `most` was taken before a reload lowered the rate.
        let held = Some(cell.load(Ordering::Relaxed)).filter(|held| *held <= most).unwrap_or(0);
        if held > 0 {
            cell.store(held - 1, Ordering::Relaxed);
            return true;
        }
        let share = (self.room(rate, now) / (8 * self.cores)).clamp(1, most);
        let taken = self.add(share, rate, now);
        cell.store(if taken { share - 1 } else { 0 }, Ordering::Relaxed);
        taken
    }

    /// Takes back a counted request, because another limit refuses it.
    pub fn refund(&self) {
        let without = |level: u64| {
            let level = Level::of(level);
            Some(Level { parts: level.parts.saturating_sub(UNIT), ..level }.to_bits())
        };
        let _ = self.level.fetch_update(Ordering::Relaxed, Ordering::Relaxed, without);
    }

    /// Number of requests that may come now at once, on all workers together.
    pub fn left(&self, rate: TotalRate, now: Timestamp) -> u32 {
        let cells = self.in_advance.get().into_iter().flatten();
        let held: u32 = cells.map(|cell| cell.load(Ordering::Relaxed)).sum();
        self.room(rate, now).saturating_add(held).min(rate.burst().get())
    }

    fn cells(&self) -> &[CachePadded<AtomicU32>] {
        self.in_advance.get_or_init(|| (0..self.cores).map(|_| CachePadded::default()).collect())
    }

    /// Number of further requests for which the shared level has room.
    fn room(&self, rate: TotalRate, now: Timestamp) -> u32 {
        Level::of(self.level.load(Ordering::Relaxed)).at(rate, now).room(rate)
    }

    /// Adds `n` requests to the shared level, if it has room for them.
    fn add(&self, n: u32, rate: TotalRate, now: Timestamp) -> bool {
        let with = |level: u64| {
            let level = Level::of(level).at(rate, now);
            let parts = level.parts + u64::from(n) * UNIT;
            (level.room(rate) >= n).then(|| Level { parts, ..level }.to_bits())
        };
        self.level.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok()
    }
}

impl Level {
    fn of(bits: u64) -> Level {
        Level { parts: bits >> 32, tick: bits as u32 }
    }

    fn to_bits(self) -> u64 {
        self.parts << 32 | u64::from(self.tick)
    }

    /// Level at a later time: the bucket leaks `rate` requests a second.
    fn at(self, rate: TotalRate, now: Timestamp) -> Level {
        let tick = (now.0 / TICK) as u32;
        let ticks = tick.wrapping_sub(self.tick);
        if ticks.wrapping_neg() <= AHEAD {
            return self;
        }
        let leak = u128::from(rate.per_second.get()) * u128::from(ticks) * u128::from(TICK * UNIT);
        let leak = u64::try_from(leak / 1_000_000_000).unwrap_or(u64::MAX);
        Level { parts: self.parts.saturating_sub(leak), tick }
    }

    /// Number of whole requests up to the burst. A burst that a reload has lowered may leave the
    /// level above it.
    fn room(self, rate: TotalRate) -> u32 {
        let whole = u64::from(rate.burst().get()) * UNIT;
        (whole.saturating_sub(self.parts) / UNIT) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Barrier;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    fn rate(per_second: u32, burst: Option<u32>) -> TotalRate {
        let number = |n| NonZeroU32::new(n).unwrap();
        TotalRate { per_second: number(per_second), burst: burst.map(number) }
    }

    /// Requests that workers may send from `from` to `to`, in milliseconds, one a worker and step.
    fn admitted(total: &TotalRequests, rate: TotalRate, (from, to): (u64, u64), cores: usize) -> u32 {
        let mut admitted = 0;
        for time in from * 10..to * 10 {
            for core in 0..cores {
                // A worker's clock is up to a millisecond behind.
                let now = Timestamp(time * MILLISECOND / 10 - core as u64 * MILLISECOND / 8);
                admitted += u32::from(total.take(rate, core, now));
            }
        }
        admitted
    }

    fn assert_within_a_percent(found: u32, expected: u32) {
        assert!(found.abs_diff(expected) * 100 <= expected.max(100), "{found}, expected {expected}");
    }

    #[test]
    fn workers_together_admit_the_rate_within_one_percent() {
        for cores in [1, 4, 8] {
            for per_second in [100, 1_000, 7_777, 30_000] {
                let (total, rate) = (TotalRequests::new(cores), rate(per_second, None));
                // Each worker tries 10,000 requests a second.
                let burst_and_second = admitted(&total, rate, (1_000, 2_000), cores);
                let attempts = 10_000 * cores as u32;
                assert_within_a_percent(burst_and_second, (2 * per_second).min(attempts));
                if attempts > per_second * 2 {
                    let next = admitted(&total, rate, (2_000, 7_000), cores);
                    assert_within_a_percent(next, 5 * per_second);
                }
            }
        }
    }

    #[test]
    fn threads_together_admit_the_burst_exactly_and_no_more() {
        for burst in [1, 10, 1_000, 100_000] {
            let (total, rate) = (TotalRequests::new(4), rate(1, Some(burst)));
            let start = Barrier::new(4);
            let admitted: u32 = thread::scope(|scope| {
                let worker = |core| {
                    let (total, start) = (&total, &start);
                    scope.spawn(move || {
                        start.wait();
                        let now = Timestamp(TICK * 5);
                        (0..burst).filter(|_| total.take(rate, core, now)).count() as u32
                    })
                };
                let workers: Vec<_> = (0..4).map(worker).collect();
                workers.into_iter().map(|worker| worker.join().unwrap()).sum()
            });
            assert_eq!(admitted, burst);
            assert!(
                !total.has_room(rate, 0, Timestamp(TICK * 5)) && total.left(rate, Timestamp(TICK * 5)) == 0
            );
        }
    }

    #[test]
    fn reload_with_another_rate_keeps_the_count() {
        let (total, now) = (TotalRequests::new(1), Timestamp(3 * TICK));
        let take = |rate, n| (0..n).filter(|_| total.take(rate, 0, now)).count();
        assert_eq!(take(rate(100, None), 60), 60);
        assert_eq!(total.left(rate(80, None), now), 20);
        assert_eq!(total.left(rate(1_000, None), now), 940);
        assert_eq!(take(rate(10, None), 5), 0, "it has sent more than 10 recently");
        assert_eq!(take(rate(100, None), 60), 40);
        // What a worker holds in advance at a high rate is not for a low one.
        let (total, high) = (TotalRequests::new(1), rate(1_000_000, None));
        assert!(total.take(high, 0, now) && total.cells()[0].load(Ordering::Relaxed) > 1_000);
        let low = (0..5_000).filter(|_| total.take(rate(1_000, None), 0, now)).count();
        assert!(low <= 1_000, "{low}");
    }

    #[test]
    fn refunded_request_leaves_room_for_another() {
        let (total, rate, now) = (TotalRequests::new(2), rate(1, Some(3)), Timestamp(TICK));
        assert!((0..3).all(|_| total.take(rate, 1, now)) && !total.take(rate, 0, now));
        total.refund();
        assert!(total.has_room(rate, 0, now) && total.take(rate, 0, now) && !total.take(rate, 0, now));
    }

    #[test]
    fn long_pause_empties_the_bucket_and_an_old_clock_does_not_fill_it() {
        let (total, rate) = (TotalRequests::new(1), rate(1, Some(2)));
        let second = 1_000 * MILLISECOND;
        for pause in [3 * second, 86_400 * second, 30 * 86_400 * second] {
            let begin = Timestamp(500 * 86_400 * second);
            let total = TotalRequests::new(1);
            assert!(total.take(rate, 0, begin) && total.take(rate, 0, begin) && !total.take(rate, 0, begin));
            assert!(!total.take(rate, 0, Timestamp(begin.0 - 2 * second)));
            assert_eq!(total.left(rate, Timestamp(begin.0 + pause)), 2);
        }
        assert_eq!(total.left(rate, Timestamp(0)), 2);
    }

    proptest! {
        #[test]
        fn requests_never_exceed_the_burst_and_the_rate(
            per_second in 1..2_000_u32,
            burst in 1..3_000_u32,
            steps in proptest::collection::vec((0..3_usize, 0..40_000_000_u64, 1..60_u32), 1..200),
        ) {
            let (total, rate) = (TotalRequests::new(3), rate(per_second, Some(burst)));
            let (mut now, mut admitted) = (0, 0);
            for (core, wait, tries) in steps {
                now += wait;
                admitted += (0..tries).filter(|_| total.take(rate, core, Timestamp(now))).count() as u64;
                let most = u64::from(burst) + 1 + u64::from(per_second) * (now + 2 * TICK) / 1_000_000_000;
                prop_assert!(admitted <= most + u64::from(burst / ADVANCE), "{} of {}", admitted, most);
            }
        }
    }
}
