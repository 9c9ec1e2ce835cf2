//! Counts of the streams of a client's HTTP/2 or HTTP/3 connection, and of the streams that the
//! client has reset early.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of bytes by which the library's limit for a head exceeds convey's limit. The library
/// counts 32 bytes more for each field, and convey replies to a head that is too long.
pub(crate) const HEAD_ROOM: u32 = 64 * 1024;

/// Number of streams that a client may reset early, in addition to half of the streams that it has
/// opened, before its connection ends.
const MAX_RESETS: u64 = 100;

/// Age of a stream below which a reset is early even if the response had begun.
const EARLY: Duration = Duration::from_secs(1);

/// Whether the reset of a stream counts as early. Later resets are normal: a client may cancel a
/// long response.
pub(crate) fn is_early_reset(has_response: bool, age: Duration) -> bool {
    !has_response || age < EARLY
}

/// Counts of the streams of a connection so far.
#[derive(Debug)]
pub(crate) struct StreamCounts<'a> {
    /// Whether the streams belong to many clients of a proxy.
    is_shared: bool,
    /// Number of malformed requests that did not become streams, if the version has such requests.
    malformed: Option<&'a AtomicU64>,
    /// Number of streams that the client has opened.
    pub(crate) begun: u64,
    /// Number of streams that the client has reset early.
    pub(crate) reset: u64,
}

/// Consequence of early resets for their connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetVerdict {
    Fine,
    /// The connection accepts no further streams. Open streams continue.
    EndInOrder,
    /// The connection ends immediately: the client resets further streams although its connection
    /// accepts no new ones.
    EndAtOnce,
}

impl<'a> StreamCounts<'a> {
    /// Creates the counts of a new connection. `is_shared` if its streams belong to many clients of
    /// a proxy. `malformed` is the number of requests that are refused before they become streams.
    pub(crate) fn new(is_shared: bool, malformed: Option<&'a AtomicU64>) -> StreamCounts<'a> {
        StreamCounts { is_shared, malformed, begun: 0, reset: 0 }
    }

    /// Whether the client has sent this number of requests.
    pub(crate) fn has_begun(&self, requests: u32) -> bool {
        let malformed = self.malformed.map_or(0, |malformed| malformed.load(Ordering::Relaxed));
        self.begun + malformed >= requests.into()
    }

    /// Returns the consequence of the client's early resets so far.
    pub(crate) fn verdict(&self) -> ResetVerdict {
        match self.reset.saturating_sub(MAX_RESETS + self.begun / 2) {
            0 => ResetVerdict::Fine,
            _ if self.is_shared => ResetVerdict::EndInOrder,
            1..=MAX_RESETS => ResetVerdict::EndInOrder,
            _ => ResetVerdict::EndAtOnce,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_counts_only_if_it_is_early() {
        let second = Duration::from_secs(1);
        assert!(is_early_reset(false, 60 * second) && is_early_reset(true, second / 2));
        assert!(!is_early_reset(true, second));
    }

    #[test]
    fn connection_ends_in_order_before_it_ends_at_once() {
        let verdict =
            |begun, reset| StreamCounts { begun, reset, ..StreamCounts::new(false, None) }.verdict();
        assert_eq!(verdict(100, 150), ResetVerdict::Fine);
        assert_eq!(verdict(100, 151), ResetVerdict::EndInOrder);
        assert_eq!(verdict(100, 250), ResetVerdict::EndInOrder);
        assert_eq!(verdict(100, 251), ResetVerdict::EndAtOnce);
    }

    #[test]
    fn malformed_requests_count_as_requests() {
        let malformed = AtomicU64::new(2);
        let counts = StreamCounts { begun: 3, ..StreamCounts::new(false, Some(&malformed)) };
        assert!(counts.has_begun(5) && !counts.has_begun(6));
    }

    #[test]
    fn connection_of_a_proxy_never_ends_at_once() {
        let verdict = |begun, reset| StreamCounts { begun, reset, ..StreamCounts::new(true, None) }.verdict();
        assert_eq!(verdict(100, 150), ResetVerdict::Fine);
        assert_eq!(verdict(10_000, 10_000), ResetVerdict::EndInOrder);
    }
}
