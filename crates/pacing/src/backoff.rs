//! Exponential back-off with jitter for retries.

use std::time::Duration;

/// Policy for the delays between attempts. The delay is at most `first` after the first failure,
/// and doubles with each further failure in a row, up to `cap`. Jitter shortens each delay at
/// random, so that nodes that fail together do not retry together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackoffPolicy {
    /// Delay after the first failure, before jitter shortens it.
    pub first: Duration,
    /// Upper bound of all delays.
    pub cap: Duration,
    /// Largest fraction by which jitter shortens a delay, from 0 (no jitter) to 1.
    pub jitter: f64,
    /// Minimum duration of a success that makes the delays start again at `first`. After a shorter
    /// success, the delays continue to grow.
    pub reset_after: Duration,
}

impl BackoffPolicy {
    /// Returns the delay after this many failures in a row. `random` is a random number from 0
    /// (shortest delay) to 1 (longest delay).
    #[must_use]
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        // 31 doublings suffice to reach any reasonable cap.
        let doublings = failures.saturating_sub(1).min(31);
        let longest = self.first.saturating_mul(1 << doublings).min(self.cap);
        let taken_off = self.jitter.clamp(0.0, 1.0) * (1.0 - random.clamp(0.0, 1.0));
        longest.saturating_sub(longest.mul_f64(taken_off))
    }
}

/// Back-off state for one target.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: BackoffPolicy,
    /// Number of failures in a row.
    failures: u32,
}

impl Backoff {
    /// Creates the state for a target that has not failed yet.
    pub const fn new(policy: BackoffPolicy) -> Backoff {
        Backoff { policy, failures: 0 }
    }

    /// Counts a failure. Returns the delay before the next attempt. For `random`, see
    /// [`BackoffPolicy::delay`].
    pub fn next_delay(&mut self, random: f64) -> Duration {
        self.next_delay_up_to(self.policy.cap, random)
    }

    /// Counts a failure. Returns the delay before the next attempt, with this cap instead of the
    /// policy's cap.
    pub fn next_delay_up_to(&mut self, cap: Duration, random: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        BackoffPolicy { cap, ..self.policy }.delay(self.failures, random)
    }

    /// Records a success that has lasted for this time. If the time is at least
    /// [`BackoffPolicy::reset_after`], the delays start again at the first delay.
    pub fn on_success(&mut self, lasted: Duration) {
        if lasted >= self.policy.reset_after {
            self.reset();
        }
    }

    /// Makes the delays start again at the first delay.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BackoffPolicy = BackoffPolicy {
        first: Duration::from_millis(800),
        cap: Duration::from_secs(30),
        jitter: 0.5,
        reset_after: Duration::from_secs(15),
    };

    fn delays(backoff: &mut Backoff, random: f64, count: u32) -> Vec<u128> {
        (0..count).map(|_| backoff.next_delay(random).as_millis()).collect()
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        let longest = delays(&mut Backoff::new(POLICY), 1.0, 8);
        assert_eq!(longest, [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(POLICY.delay(u32::MAX, 1.0), POLICY.cap);
        assert_eq!(POLICY.delay(0, 1.0), POLICY.first);
    }

    #[test]
    fn jitter_takes_off_up_to_its_share() {
        assert_eq!(delays(&mut Backoff::new(POLICY), 0.0, 3), [400, 800, 1_600]);
        assert_eq!(delays(&mut Backoff::new(POLICY), 0.5, 3), [600, 1_200, 2_400]);
        assert_eq!([-1.0, 2.0].map(|random| POLICY.delay(9, random).as_secs()), [15, 30]);
        let exact = BackoffPolicy { jitter: 0.0, cap: Duration::MAX, ..POLICY };
        assert_eq!(exact.delay(1, 0.0), exact.first);
    }

    #[test]
    fn backoff_starts_again_after_a_success_that_lasts() {
        let mut backoff = Backoff::new(POLICY);
        delays(&mut backoff, 1.0, 5);
        backoff.on_success(Duration::from_millis(14_999));
        assert_eq!(backoff.next_delay(1.0).as_millis(), 25_600);
        backoff.on_success(POLICY.reset_after);
        assert_eq!(backoff.next_delay(1.0), POLICY.first);
    }

    #[test]
    fn cap_of_one_delay_replaces_the_policys() {
        let mut backoff = Backoff::new(POLICY);
        delays(&mut backoff, 1.0, 5);
        assert_eq!(backoff.next_delay_up_to(Duration::from_secs(10), 1.0).as_secs(), 10);
        assert_eq!(backoff.next_delay_up_to(Duration::from_secs(60), 1.0).as_millis(), 51_200);
    }
}
