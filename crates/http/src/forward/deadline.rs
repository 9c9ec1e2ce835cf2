//! Time limit for a whole request: `timeouts.request`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use convey_snapshot::stats::Counter;
use convey_stream::PollClock;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Forwarding, RequestEnd, unanswered};
use crate::local_reply::LocalReplyReason;

/// Timer of the time at which a request has to be over.
pub(super) struct Deadline(Pin<Box<Sleep>>);

impl Deadline {
    pub(super) fn new(at: Instant) -> Deadline {
        Deadline(Box::pin(sleep_until(at)))
    }

    /// Waits until the request has to be over. tokio's budget of a task does not apply, as in
    /// [`TimeLimit`](crate::time_limit::TimeLimit).
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut unconstrained(self.0.as_mut())).poll(cx)
    }
}

impl Forwarding<'_, '_> {
    /// Whether the client has used up the time of its request before convey had the head.
    pub(super) fn came_too_late(&self) -> bool {
        self.timeouts.deadline.is_some_and(|at| at <= PollClock::now())
    }

    /// End of a request that is over time, and that no server has.
    pub(super) fn over_time(&self) -> RequestEnd {
        match self.record.has_begun_response() {
            true => RequestEnd::Broken(Counter::RequestDeadline),
            false => unanswered(LocalReplyReason::RequestDeadline),
        }
    }

    /// Whether the end of a request that is over time is a failure of its server, which has it since
    /// `sent`. It is one if the server had most of the time. Otherwise clients that send slowly
    /// could have healthy servers ejected.
    pub(super) fn is_servers_delay(&self, sent: Instant) -> bool {
        let Some(deadline) = self.timeouts.deadline else { return false };
        // The time in which a client sent its body is not the server's.
        self.request.head().framing().is_empty() && deadline - sent > sent - self.request.first_byte()
    }
}

/// Waits for a future, but not beyond this time (`None`).
pub(super) async fn before<T>(at: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    let Some(at) = at else { return Some(future.await) };
    tokio::select! {
        biased;
        output = future => Some(output),
        () = unconstrained(sleep_until(at)) => None,
    }
}
