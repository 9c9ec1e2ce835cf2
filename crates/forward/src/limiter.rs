//! Rate limiter: allows at most a given number of events per second.

use convey_model::Timestamp;

const SECOND: u64 = 1_000_000_000;

/// Token bucket with a capacity of one second's tokens.
#[derive(Debug)]
pub(super) struct Limiter {
    per_second: u64,
    tokens: u64,
    refilled: Timestamp,
}

impl Limiter {
    pub(super) fn new(per_second: u64) -> Limiter {
        Limiter { per_second, tokens: per_second, refilled: Timestamp::default() }
    }

    /// Whether one more event is allowed now.
    pub(super) fn allow(&mut self, now: Timestamp) -> bool {
        let passed = now.0.saturating_sub(self.refilled.0).min(SECOND);
        let earned = passed * self.per_second / SECOND;
        if earned > 0 {
            self.tokens = (self.tokens + earned).min(self.per_second);
            // Advance only by the time of the earned tokens; the rest counts towards the next
            // token.
            self.refilled.0 = now.0 - (passed - (earned * SECOND).div_ceil(self.per_second));
        }
        let allowed = self.tokens > 0;
        self.tokens -= u64::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_a_second_is_allowed_and_then_the_rate() {
        let mut limiter = Limiter::new(10);
        let allowed =
            |limiter: &mut Limiter, now, tries| (0..tries).filter(|_| limiter.allow(Timestamp(now))).count();
        assert_eq!(allowed(&mut limiter, 0, 100), 10);
        assert_eq!(allowed(&mut limiter, SECOND / 2, 100), 5);
        assert_eq!(allowed(&mut limiter, SECOND / 2 + 1, 100), 0);
        assert_eq!(allowed(&mut limiter, 100 * SECOND, 100), 10);
    }

    #[test]
    fn however_often_it_is_asked_it_allows_its_rate() {
        for every in [100_000, 700_000, 1_500_000, 1_999_999] {
            let mut limiter = Limiter::new(1000);
            let times = (0..=10 * SECOND).step_by(every);
            let (asked, last) = (times.clone().count() as u64, times.clone().last().unwrap());
            let allowed = times.filter(|&now| limiter.allow(Timestamp(now))).count() as u64;
            let burst_and_earned = 1_000 + last * 1_000 / SECOND;
            assert_eq!(allowed, asked.min(burst_and_earned), "asked every {every} ns");
        }
    }
}
