//! How long a server's answers take, and how many of them fail: averages of the last ones, by which [`ewma`](crate::Ewma) chooses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How fast what was seen is forgotten: by a factor of e in this time. A server that is asked nothing gets better by that, so it
/// is asked again.
const MEMORY: Duration = Duration::from_secs(10);

/// The least part that a new answer has in the average.
const LEAST_PART: f64 = 0.1;

/// How much a failure and a success move the part that fails.
const FAILURE_PART: f64 = 0.25;
const SUCCESS_PART: f64 = 0.05;

/// Answers that differ by less than this are equal: the host's scheduler decides about them.
const FLOOR_US: f64 = 1_000.0;

/// What fails always costs so many times more. By the square of the part that fails: one failure of a hundred answers costs little.
const FAILING_COSTS: f64 = 1_000.0;

/// What is known of one server's answers. Writers on several threads may lose one of two answers that come at once.
///
/// "Peak EWMA": an average that follows a server that gets slower at once, and one that gets faster by and by. One slow
/// answer alone is taken for chance; the second one counts.
#[derive(Debug, Default)]
pub struct AnswerTimes {
    /// Microseconds on average, and of the last answer (two `f32`).
    times: AtomicU64,
    /// The part that fails (an `f32`), and when the last answer came, in milliseconds.
    failing: AtomicU64,
}

impl AnswerTimes {
    /// An answer came `took` after its request, and whether it was a failure. `now` is the time since any fixed moment.
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
        // What fails at once is not fast: a failure makes no average smaller.
        let average = match took.min(last) {
            peak if peak > average => peak,
            _ if is_failure => average,
            _ => average + (took - average) * (1.0 - kept).max(LEAST_PART),
        };
        self.times.store(pair(average, took), Ordering::Relaxed);
        self.failing
            .store(u64::from((failing as f32).to_bits()) << 32 | u64::from(millis(now)), Ordering::Relaxed);
    }

    /// What an answer of this server costs now, if it had nothing else to do: for comparing servers, at least 1.
    pub fn cost(&self, now: Duration) -> f64 {
        let (average, _) = self.times();
        let (failing, elapsed) = self.failing(now);
        let kept = (-elapsed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        let expected = FLOOR_US + average * kept;
        expected * (1.0 + failing * failing * FAILING_COSTS) / FLOOR_US
    }

    /// The average time of an answer.
    pub fn average(&self) -> Duration {
        Duration::from_secs_f64(self.times().0 / 1e6)
    }

    /// The average and the last, in microseconds.
    fn times(&self) -> (f64, f64) {
        let times = self.times.load(Ordering::Relaxed);
        (f32::from_bits((times >> 32) as u32).into(), f32::from_bits(times as u32).into())
    }

    /// The part that fails, as far as that is not forgotten, and how long ago the last answer came.
    fn failing(&self, now: Duration) -> (f64, Duration) {
        let failing = self.failing.load(Ordering::Relaxed);
        // The clock of milliseconds begins again every 49 days.
        let elapsed = Duration::from_millis(millis(now).wrapping_sub(failing as u32).into());
        let kept = (-elapsed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        (f64::from(f32::from_bits((failing >> 32) as u32)) * kept, elapsed)
    }
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

    /// After answers of these milliseconds, one each 10 ms.
    fn after(answers: &[u32]) -> AnswerTimes {
        let times = AnswerTimes::default();
        for (number, took) in (1..).zip(answers) {
            times.answered(*took * MS, false, number * 10 * MS);
        }
        times
    }

    #[test]
    fn one_slow_answer_is_chance_and_the_second_counts_at_once() {
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
    fn who_is_slow_or_failing_costs_more() {
        let (fast, slow) = (after(&[2; 50]), after(&[52; 50]));
        let now = 510 * MS;
        assert!(slow.cost(now) > 10.0 * fast.cost(now));
        let before = fast.cost(now);
        for _ in 0..10 {
            fast.answered(Duration::ZERO, true, now);
        }
        assert!(fast.cost(now) > 40.0 * before, "fails at once: {}", fast.cost(now));
        for _ in 0..100 {
            fast.answered(2 * MS, false, now);
        }
        assert!(fast.cost(now) < 2.0 * before, "has recovered: {}", fast.cost(now));
    }

    #[test]
    fn what_is_not_asked_is_forgiven() {
        let slow = after(&[500; 10]);
        let new = AnswerTimes::default().cost(MS);
        assert!(slow.cost(100 * MS) > 400.0 * new);
        assert!(slow.cost(Duration::from_secs(120)) < 1.1 * new);
        // The clock of milliseconds begins again meanwhile.
        let late = AnswerTimes::default();
        let end = Duration::from_millis(u32::MAX.into());
        (0..2).for_each(|_| late.answered(500 * MS, false, end));
        assert!(late.cost(end + 10 * MS) > 400.0 * new);
    }
}
