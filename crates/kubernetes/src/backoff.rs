//! Pauses between attempts to reach an API server.

use std::time::Duration;

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(800);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// After so long without a pause they begin anew.
const CALM: Duration = Duration::from_secs(120);

/// Pauses that double, each up to twice as long by chance.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    last: Option<(Instant, Duration)>,
}

impl Backoff {
    /// Returns the next pause.
    pub(crate) fn next(&mut self, now: Instant) -> Duration {
        self.pause(now, fastrand::f32())
    }

    /// `chance` is from 0 to 1.
    fn pause(&mut self, now: Instant, chance: f32) -> Duration {
        let pause = match self.last {
            Some((begin, pause)) if now.duration_since(begin) <= CALM => (pause * 2).min(MAX_PAUSE),
            _ => FIRST_PAUSE,
        };
        self.last = Some((now, pause));
        pause + pause.mul_f32(chance)
    }

    /// The next pause is the first one.
    pub(crate) fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::now;

    #[test]
    fn pauses_double_up_to_30_seconds_and_begin_anew_after_calm() {
        let (mut backoff, begin) = (Backoff::default(), now());
        let pauses: Vec<u128> = (0..7).map(|_| backoff.pause(begin, 0.0).as_millis()).collect();
        assert_eq!(pauses, [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000]);
        assert_eq!(backoff.pause(begin + CALM, 1.0), 2 * MAX_PAUSE);
        let later = begin + 2 * CALM + Duration::from_millis(1);
        assert_eq!(backoff.pause(later, 0.5).as_millis(), 1_200);
        backoff.pause(later, 0.0);
        backoff.reset();
        assert_eq!(backoff.pause(later, 0.0), FIRST_PAUSE);
    }
}
