//! How fast a request's body comes.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// How long a client may be slow.
const GRACE: Duration = Duration::from_secs(10);

/// The pace of a body, over the time in which the client is waited for: that a server takes it slowly is no fault of the client's.
#[derive(Debug)]
pub(crate) struct BodyPace {
    /// Bytes a second; `None`: it may be as slow as it likes.
    slowest: Option<NonZeroU32>,
    bytes: u64,
    waited: Duration,
    waits_since: Option<Instant>,
}

impl BodyPace {
    pub(crate) fn new(slowest: Option<NonZeroU32>) -> BodyPace {
        BodyPace { slowest, bytes: 0, waited: Duration::ZERO, waits_since: None }
    }

    /// So many bytes have come, and the client is waited for from now on, or is not. Returns whether it is too slow.
    pub(crate) fn is_too_slow(&mut self, bytes: u64, is_awaited: bool, now: impl Fn() -> Instant) -> bool {
        let Some(slowest) = self.slowest else { return false };
        let now = now();
        if let Some(since) = self.waits_since.take() {
            self.waited += now - since;
        }
        self.bytes += bytes;
        self.waits_since = is_awaited.then_some(now);
        let due = self.waited.as_secs() * u64::from(slowest.get());
        is_awaited && self.waited > GRACE && self.bytes < due
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a moment to count from")]
mod tests {
    use super::*;

    /// The second in which a client is too slow that sends so many bytes each second, and is waited for all the time or not at all.
    fn too_slow_after(bytes: u64, is_awaited: bool) -> Option<u64> {
        let (mut pace, began) = (BodyPace::new(NonZeroU32::new(100)), Instant::now());
        let at = |second| began + Duration::from_secs(second);
        (0..100).find(|second| pace.is_too_slow(bytes, is_awaited, || at(*second)))
    }

    #[test]
    fn only_a_client_that_is_waited_for_is_too_slow() {
        assert_eq!(too_slow_after(1, true), Some(11));
        assert_eq!(too_slow_after(101, true), None);
        assert_eq!(too_slow_after(0, false), None);
    }
}
