//! What connections of HTTP/2 and HTTP/3 have in common.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use convey_proxy::ClientStream;

/// How long streams may take to end once their connection is over.
pub(crate) const ENDING: Duration = Duration::from_secs(2);

/// How much more of a head the library takes than convey does, which answers what is too long. It counts 32 bytes more for each field.
pub(crate) const HEAD_ROOM: u32 = 64 * 1024;

/// How many streams a client may reset beyond half of those that it has begun, before its connection ends.
const MAX_RESETS: u64 = 100;

/// The streams of a connection so far.
#[derive(Debug, Default)]
pub(crate) struct StreamCounts {
    /// Those that the client has begun.
    pub(crate) begun: u64,
    /// Of these, those that it has reset.
    pub(crate) reset: u64,
}

impl StreamCounts {
    /// Whether the client resets streams over and over.
    pub(crate) fn are_reset_too_often(&self) -> bool {
        self.reset > MAX_RESETS + self.begun / 2
    }
}

/// Waits until the worker drains, which wakes the task.
pub(crate) async fn drains(client: &ClientStream) {
    poll_fn(|_| if client.is_draining() { Poll::Ready(()) } else { Poll::Pending }).await;
}
