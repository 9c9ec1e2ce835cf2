//! Common parts of clients' HTTP/2 and HTTP/3 connections: time limits, and counts of reset
//! streams.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use convey_proxy::ClientStream;
use convey_snapshot::stats::Counter;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

/// Maximum time in which streams have to end once their connection is over.
pub(crate) const ENDING: Duration = Duration::from_secs(2);

/// Number of bytes by which the library's limit for a head exceeds convey's limit. The library
/// counts 32 bytes more for each field, and convey replies to a head that is too long.
pub(crate) const HEAD_ROOM: u32 = 64 * 1024;

/// Number of streams that a client may reset early, in addition to half of the streams that it has
/// opened, before its connection ends.
const MAX_RESETS: u64 = 100;

/// Age of a stream below which a reset is early even if the response had begun.
const EARLY: Duration = Duration::from_secs(1);

/// Whether the reset of a stream counts as early. A client may cancel a long response.
pub(crate) fn is_early_reset(has_response: bool, age: Duration) -> bool {
    !has_response || age < EARLY
}

/// Counts of the streams of a connection so far.
#[derive(Debug)]
pub(crate) struct StreamCounts {
    /// Whether the streams belong to many clients of a proxy.
    is_shared: bool,
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

impl StreamCounts {
    /// Creates the counts of a new connection. `is_shared` if its streams belong to many clients of
    /// a proxy.
    pub(crate) fn new(is_shared: bool) -> StreamCounts {
        StreamCounts { is_shared, begun: 0, reset: 0 }
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

/// Waits until a condition holds, such as a drain of the worker. A change of the condition has to
/// wake the task.
pub(crate) async fn until_true(condition: impl Fn() -> bool) {
    poll_fn(|_| if condition() { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Waits until the streams of a connection that is over have ended. Those that take too long are
/// dropped, and log that the client has left.
pub(crate) async fn end_streams<F: Future>(client: &ClientStream, mut streams: FuturesUnordered<F>) {
    let _ = timeout(ENDING, async { while streams.next().await.is_some() {} }).await;
    client.note_early_end(Counter::ClientReset);
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
        let verdict = |begun, reset| StreamCounts { begun, reset, ..StreamCounts::new(false) }.verdict();
        assert_eq!(verdict(100, 150), ResetVerdict::Fine);
        assert_eq!(verdict(100, 151), ResetVerdict::EndInOrder);
        assert_eq!(verdict(100, 250), ResetVerdict::EndInOrder);
        assert_eq!(verdict(100, 251), ResetVerdict::EndAtOnce);
    }

    #[test]
    fn connection_of_a_proxy_never_ends_at_once() {
        let verdict = |begun, reset| StreamCounts { begun, reset, ..StreamCounts::new(true) }.verdict();
        assert_eq!(verdict(100, 150), ResetVerdict::Fine);
        assert_eq!(verdict(10_000, 10_000), ResetVerdict::EndInOrder);
    }
}
