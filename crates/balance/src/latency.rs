//! Moving averages of a server's response times and failures, from which [`ewma`](crate::Ewma)
//! computes the cost of the server.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Time in which the averages decay by a factor of e. So the cost of a server without requests
/// falls until it gets requests again.
const MEMORY: Duration = Duration::from_secs(10);

/// Minimum weight of a new response time in the average.
const LEAST_PART: f64 = 0.1;

/// Weights of a new failure and of a new success in the failure rate.
const FAILURE_PART: f64 = 0.25;
const SUCCESS_PART: f64 = 0.05;

/// Response time in microseconds that is added to all servers' averages. Differences far below it
/// come from the host's scheduler, and hardly change the choice.
const FLOOR_US: f64 = 1_000.0;

/// An answer is overdue after this multiple of the server's average, plus [`FLOOR_US`].
const USUAL_SILENCE: f64 = 3.0;

/// Cost of a server without history while a request probes it: higher than any other server's cost.
const PROBED_COST: f64 = 1e9;

/// Maximum difference between workers' clocks in milliseconds. An answer that is at most this far
/// in the future counts as just received.
const MAX_CLOCK_STEP_MS: u32 = 60_000;

/// Factor by which constant failures raise the cost of a server. The cost grows with the square of
/// the failure rate, so one failure in a hundred answers changes the cost little.
const FAILING_COSTS: f64 = 1_000.0;

/// Moving averages of one server's response times and failures ("Peak EWMA").
///
/// The average rises immediately to a slower response time, and falls gradually to a faster one. A
/// single slow answer does not change the average; a second slow answer in a row raises it.
///
/// If two threads record answers simultaneously, one answer may be lost.
#[derive(Debug, Default)]
pub struct AnswerTimes {
    /// Average response time (high half), and last response time, both in microseconds as `f32`.
    times: AtomicU64,
    /// Failure rate as `f32` (high half), and time of the last answer in milliseconds.
    failing: AtomicU64,
    /// Number of pending requests.
    awaited: AtomicU32,
}

impl AnswerTimes {
    /// Records an answer that arrived `took` after its request. `now` is the time since any fixed
    /// point.
    pub fn answered(&self, took: Duration, is_failure: bool, now: Duration) {
        let (average, last) = self.times();
        let (failing, elapsed) = self.failing(now);
        let took = took.as_secs_f64() * 1e6;
        let kept = (-elapsed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        let failing = if is_failure {
            failing + (1.0 - failing) * FAILURE_PART
        } else {
            failing * (1.0 - SUCCESS_PART)
        };
        // A server that fails fast is not a fast server: failures never lower the average.
        let average = match took.min(last) {
            peak if peak > average => peak,
            _ if is_failure => average,
            _ => average + (took - average) * (1.0 - kept).max(LEAST_PART),
        };
        self.times.store(pair(average, took), Ordering::Relaxed);
        self.failing
            .store(u64::from((failing as f32).to_bits()) << 32 | u64::from(millis(now)), Ordering::Relaxed);
    }

    /// Records a sent request. It is pending until [`AnswerTimes::ends`].
    pub fn begins(&self) {
        self.awaited.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a request was answered or abandoned.
    pub fn ends(&self) {
        self.awaited.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether any request is pending.
    fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > 0
    }

    /// Cost of sending a request to this server at the time `now`, at least 1, regardless of the
    /// server's number of open connections. `None` if the server has no history and no pending
    /// request, so that the next request may probe the server.
    pub fn cost(&self, now: Duration) -> Option<f64> {
        let is_awaited = self.is_awaited();
        if !self.has_history() {
            return is_awaited.then_some(PROBED_COST);
        }
        let (average, _) = self.times();
        let (failing, elapsed) = self.failing(now);
        let expected = if is_awaited {
            // While a request is pending, the average does not decay. Once its answer is overdue,
            // the cost grows with the time since the last answer.
            average.max(silence_us(average, elapsed))
        } else {
            average * (-elapsed.as_secs_f64() / MEMORY.as_secs_f64()).exp()
        };
        Some((FLOOR_US + expected) * (1.0 + failing * failing * FAILING_COSTS) / FLOOR_US)
    }

    /// Whether an answer of the server is overdue.
    pub fn is_silent(&self, now: Duration) -> bool {
        self.is_awaited() && silence_us(self.times().0, self.failing(now).1) > 0.0
    }

    /// Whether the server has answered before.
    fn has_history(&self) -> bool {
        self.times.load(Ordering::Relaxed) != 0 || self.failing.load(Ordering::Relaxed) != 0
    }

    /// Average response time; zero if the server has not answered.
    pub fn average(&self) -> Duration {
        Duration::from_secs_f64(self.times().0 / 1e6)
    }

    /// Average and last response time, in microseconds.
    fn times(&self) -> (f64, f64) {
        let times = self.times.load(Ordering::Relaxed);
        (f32::from_bits((times >> 32) as u32).into(), f32::from_bits(times as u32).into())
    }

    /// Failure rate after decay until `now`, and the time since the last answer.
    fn failing(&self, now: Duration) -> (f64, Duration) {
        let failing = self.failing.load(Ordering::Relaxed);
        // The millisecond clock wraps every 49 days.
        let elapsed = match millis(now).wrapping_sub(failing as u32) {
            step if step > u32::MAX - MAX_CLOCK_STEP_MS => Duration::ZERO,
            elapsed => Duration::from_millis(elapsed.into()),
        };
        let kept = (-elapsed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        (f64::from(f32::from_bits((failing >> 32) as u32)) * kept, elapsed)
    }
}

/// Microseconds by which an answer is overdue, if the last answer came `elapsed` ago and the
/// average response time is `average` microseconds; 0 if the answer is not overdue.
fn silence_us(average: f64, elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() * 1e6 - USUAL_SILENCE * average - FLOOR_US).max(0.0)
}

fn millis(now: Duration) -> u32 {
    now.as_millis() as u32
}

fn pair(high: f64, low: f64) -> u64 {
    u64::from((high as f32).to_bits()) << 32 | u64::from((low as f32).to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Averages of a server whose answers took these milliseconds, one answer every 10 ms.
    fn after(answers: &[u32]) -> AnswerTimes {
        let times = AnswerTimes::default();
        for (number, took) in (1..).zip(answers) {
            times.answered(*took * MS, false, number * 10 * MS);
        }
        times
    }

    #[test]
    fn average_ignores_one_slow_response_and_follows_two() {
        let usual = after(&[2; 50]);
        let one = after(&[&[2; 50][..], &[80]].concat());
        let two = after(&[&[2; 50][..], &[80, 80]].concat());
        assert!(one.average() < 12 * MS, "{:?}", one.average());
        assert!(two.average() >= 79 * MS, "{:?}", two.average());
        assert!(usual.average().abs_diff(2 * MS) < MS / 10, "{:?}", usual.average());
        let again = after(&[&[2; 50][..], &[80, 80], &[2; 40]].concat());
        assert!(again.average() < 4 * MS, "{:?}", again.average());
    }

    #[test]
    fn slow_or_failing_server_costs_more_until_it_recovers() {
        let (fast, slow) = (after(&[2; 50]), after(&[52; 50]));
        let now = 510 * MS;
        let cost = |times: &AnswerTimes| times.cost(now).unwrap();
        assert!(cost(&slow) > 10.0 * cost(&fast));
        let before = cost(&fast);
        for _ in 0..10 {
            fast.answered(Duration::ZERO, true, now);
        }
        assert!(cost(&fast) > 40.0 * before, "fails at once: {}", cost(&fast));
        for _ in 0..100 {
            fast.answered(2 * MS, false, now);
        }
        assert!(cost(&fast) < 2.0 * before, "has recovered: {}", cost(&fast));
    }

    #[test]
    fn cost_of_an_idle_server_decays() {
        let slow = after(&[500; 10]);
        let cost = |times: &AnswerTimes, now| times.cost(now).unwrap();
        assert!(cost(&slow, 100 * MS) > 400.0);
        assert!(cost(&slow, Duration::from_secs(120)) < 1.1);
        // The millisecond clock wraps between the two answers and the reading.
        let late = AnswerTimes::default();
        let end = Duration::from_millis(u32::MAX.into());
        (0..2).for_each(|_| late.answered(500 * MS, false, end));
        assert!(cost(&late, end + 10 * MS) > 400.0);
    }

    #[test]
    fn history_outlives_clock_steps_and_races_of_workers() {
        let slow = after(&[500; 10]);
        let now = 100 * MS;
        let cost = |now| slow.cost(now).unwrap();
        assert!(cost(now - MS) > 400.0 && cost(now - 50 * MS) > 400.0, "{} {}", cost(now - MS), cost(now));
        slow.answered(500 * MS, true, now - 7 * MS);
        assert!(cost(now) > 400.0 && slow.average() > 400 * MS);
    }

    #[test]
    fn server_without_history_is_worth_one_probe() {
        let new = AnswerTimes::default();
        assert_eq!(new.cost(5 * MS), None);
        new.begins();
        assert_eq!(new.cost(5 * MS), Some(PROBED_COST));
        new.ends();
        new.answered(2 * MS, false, 8 * MS);
        assert!((1.0..4.0).contains(&new.cost(9 * MS).unwrap()));
    }

    #[test]
    fn server_that_falls_silent_costs_more_until_it_answers() {
        let fast = after(&[2; 50]);
        let at = |seconds| fast.cost(500 * MS + Duration::from_secs(seconds)).unwrap();
        assert!(at(60) < 1.1, "nobody waits for it");
        fast.begins();
        assert!(at(1) > 900.0 && at(4) > 3.0 * at(1), "{} {}", at(1), at(4));
    }
}
