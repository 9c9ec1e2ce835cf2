//! Loop of a client's HTTP/2 or HTTP/3 connection: serves its streams, and ends it in order.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::{Future, pending, poll_fn};
use std::task::Poll;
use std::time::Duration;

use convey_proxy::{ClientStream, StreamEnd};
use convey_snapshot::stats::Counter;
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{ResetVerdict, StreamCounts};
use super::stream_set::StreamSet;
use crate::local_reply::ANSWER_TIME;

/// Maximum time in which streams have to end once their connection is over.
pub(crate) const ENDING: Duration = Duration::from_secs(2);

/// Connection of one HTTP version.
pub(crate) trait StreamConnection: Send {
    /// New stream of the client.
    type Stream: Send;

    /// Time after the announced end of an idle connection until convey closes it.
    const IDLE_END: Duration;

    /// Waits for the next stream that the client opens. The future may be dropped at any time.
    /// `is_idle` if the connection has no streams.
    ///
    /// # Errors
    /// The connection accepts no further streams (`Closed`), or ends immediately (`Early`).
    fn accept(&mut self, is_idle: bool) -> impl Future<Output = Result<Self::Stream, StreamEnd>> + Send;

    /// Announces to the client that the connection will end, so that it opens no further streams.
    /// The connection still accepts streams that are on their way. `begun` is the number of streams
    /// so far. Also called after each stream that follows the announcement.
    fn announce_end(&mut self, begun: u64) -> impl Future<Output = ()> + Send;

    /// Time at which the connection has to refuse further streams; `None` if the connection refuses
    /// them by itself.
    fn refuses_at(&self) -> Option<Instant> {
        None
    }

    /// Whether responses that are complete still wait for the client, and the client has accepted a
    /// part of them since the last call. Such a connection is not idle.
    fn is_sending(&mut self) -> bool {
        false
    }

    /// Accepts no further streams.
    fn refuse_streams(&mut self) -> impl Future<Output = ()> + Send;

    /// Ends the connection immediately, because the client resets too many streams.
    fn abort(&mut self);
}

/// How a client's stream ended, for its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamOutcome {
    Served,
    /// The client has reset the stream early.
    Reset,
}

/// Serves the streams of a connection until it is over. `begin` returns the future that serves one
/// stream. The rare steps at the end are boxed, so that an idle connection reserves no memory for
/// them.
#[expect(clippy::manual_async_fn, reason = "it would have a second place for each argument")]
pub(crate) fn serve<C: StreamConnection, F: Future<Output = StreamOutcome>>(
    client: &ClientStream,
    mut connection: C,
    mut counts: StreamCounts<'_>,
    begin: impl Fn(C::Stream) -> F,
) -> impl Future<Output = StreamEnd> {
    async move {
        let newest = || *client.newest().config.http_limits();
        let (mut streams, mut is_ending) = (StreamSet::new(), false);
        let mut max_requests = newest().requests;
        // Time at which a connection without streams ends.
        let mut until = Instant::now() + newest().keep_alive;
        loop {
            let (is_idle, refuses_at) = (streams.is_empty(), connection.refuses_at());
            tokio::select! {
                biased;
                outcome = streams.next(), if !is_idle => {
                    counts.reset += u64::from(outcome == StreamOutcome::Reset);
                    match counts.verdict() {
                        ResetVerdict::Fine => {}
                        ResetVerdict::EndInOrder => {
                            is_ending = true;
                            Box::pin(connection.refuse_streams()).await;
                        }
                        ResetVerdict::EndAtOnce => connection.abort(),
                    }
                    if streams.is_empty() {
                        until = Instant::now() + if is_ending { ANSWER_TIME } else { newest().keep_alive };
                    }
                }
                () = until_true(|| counts.has_begun(max_requests) || client.is_draining()), if !is_ending => {
                    Box::pin(connection.announce_end(counts.begun)).await;
                    // Later than the time at which the connection refuses streams.
                    (is_ending, until) = (true, Instant::now() + ANSWER_TIME);
                }
                accepted = connection.accept(is_idle) => match accepted {
                    Ok(stream) => {
                        counts.begun += 1;
                        streams.push(begin(stream));
                        // If the frontend is gone, the connection ends after the requests that are
                        // already on their way.
                        max_requests = if client.is_served() { newest().requests } else { 0 };
                        if is_ending {
                            Box::pin(connection.announce_end(counts.begun)).await;
                        }
                    }
                    Err(StreamEnd::Early(reason)) => {
                        // The requests of the streams log this reason, too.
                        client.note_early_end(reason);
                        return StreamEnd::Early(reason);
                    }
                    Err(_) => break,
                },
                refuses = until_first(refuses_at, is_idle.then_some(until)) => match refuses {
                    true => Box::pin(connection.refuse_streams()).await,
                    // The client has not reacted to the announcement: convey closes the connection.
                    false if is_ending && !connection.is_sending() => break,
                    false => {
                        Box::pin(connection.announce_end(counts.begun)).await;
                        (is_ending, until) = (true, Instant::now() + C::IDLE_END);
                    }
                },
            }
        }
        // The libraries notify the streams when the connection is dropped. They log their end.
        drop(connection);
        let _ = timeout(ENDING, streams.all_ended()).await;
        // Streams that take too long are dropped, and log that the client has left.
        client.note_early_end(Counter::ClientReset);
        StreamEnd::Closed
    }
}

/// Waits until a condition holds, such as a drain of the worker. A change of the condition has to
/// wake the task.
async fn until_true(condition: impl Fn() -> bool) {
    poll_fn(|_| if condition() { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Waits until the earlier of two times, and returns whether it is the first one. Without a time, it
/// never returns.
async fn until_first(first: Option<Instant>, second: Option<Instant>) -> bool {
    let is_first = first.is_some_and(|first| second.is_none_or(|second| first <= second));
    match if is_first { first } else { second } {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
    is_first
}
