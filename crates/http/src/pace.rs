//! Minimum rate of a request's body.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Time for which a client may be slower than the minimum rate.
const GRACE: Duration = Duration::from_secs(10);

/// Rate of a body, over the time in which convey waits for the client: a slow server does not count
/// against the client.
#[derive(Debug)]
pub(crate) struct BodyPace {
    /// Minimum rate in bytes a second.
    slowest: NonZeroU32,
    bytes: u64,
    waited: Duration,
    waits_since: Option<Instant>,
}

impl BodyPace {
    pub(crate) fn new(slowest: NonZeroU32) -> BodyPace {
        BodyPace { slowest, bytes: 0, waited: Duration::ZERO, waits_since: None }
    }

    /// Notes received bytes, and whether convey waits for the client from now on. Returns whether
    /// the client is too slow.
    pub(crate) fn is_too_slow(&mut self, bytes: u64, is_awaited: bool, now: Instant) -> bool {
        if let Some(since) = self.waits_since.take() {
            self.waited += now - since;
        }
        self.bytes += bytes;
        self.waits_since = is_awaited.then_some(now);
        let due = self.waited.as_secs() * u64::from(self.slowest.get());
        is_awaited && self.waited > GRACE && self.bytes < due
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a moment to count from")]
mod tests {
    use super::*;

    /// Returns the second in which a client that sends `bytes` a second is found too slow.
    /// `is_awaited`: convey waits for the client all the time; otherwise never.
    fn too_slow_after(bytes: u64, is_awaited: bool) -> Option<u64> {
        let (mut pace, began) = (BodyPace::new(NonZeroU32::new(100).unwrap()), Instant::now());
        let at = |second| began + Duration::from_secs(second);
        (0..100).find(|second| pace.is_too_slow(bytes, is_awaited, at(*second)))
    }

    #[test]
    fn client_is_too_slow_only_while_its_bytes_are_awaited() {
        assert_eq!(too_slow_after(1, true), Some(11));
        assert_eq!(too_slow_after(101, true), None);
        assert_eq!(too_slow_after(0, false), None);
    }
}
