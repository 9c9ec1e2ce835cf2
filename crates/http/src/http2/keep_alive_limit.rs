//! Estimate of the number of requests after which a server ends a connection.

use std::time::Duration;

use tokio::time::Instant;

/// Time after which a [`KeepAliveLimit`] is forgotten, because the server's configuration may have
/// changed.
const MEMORY: Duration = Duration::from_secs(300);

/// Number of requests after which a server has gracefully ended a connection. If two connections in
/// a row end at the same number, convey begins no further requests on a connection that has had
/// this number of requests: the server would refuse them. A single end may have another reason,
/// such as a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeepAliveLimit {
    pub(super) requests: usize,
    /// Number of connections in a row that have ended at this number of requests.
    ends: u32,
    seen: Instant,
}

impl KeepAliveLimit {
    /// Returns the limit after a connection has ended at this number of requests.
    pub(super) fn after_end(before: Option<KeepAliveLimit>, requests: usize, now: Instant) -> KeepAliveLimit {
        let ends = before.filter(|before| before.requests == requests).map_or(0, |before| before.ends);
        KeepAliveLimit { requests, ends: ends.saturating_add(1), seen: now }
    }

    pub(super) fn is_believed(&self) -> bool {
        self.ends >= 2
    }

    /// Whether the limit was seen too long ago.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        now - self.seen >= MEMORY
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any time will do")]
mod tests {
    use super::*;

    #[test]
    fn limit_is_believed_after_two_ends_at_one_count() {
        let now = Instant::now();
        let mut limit = None;
        for (requests, is_believed) in [(1, false), (1_000, false), (1_000, true), (1_000, true), (7, false)]
        {
            let next = KeepAliveLimit::after_end(limit, requests, now);
            assert_eq!((next.requests, next.is_believed()), (requests, is_believed));
            limit = Some(next);
        }
    }
}
