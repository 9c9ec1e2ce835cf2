//! Forwarding of a request: the choice of a server, a connection to it, and retries where the
//! request may be repeated.

mod affinity;
mod attempt;
mod broken;
mod deadline;
mod drive;
mod exchange;
mod head;
mod held;
mod reach;
mod retry;
mod reversal;
mod stall;
mod timeouts;
mod transfer;
mod unread;

use std::future::poll_fn;
use std::io;

use bytes::BytesMut;
use convey_proxy::{ClientStream, HeldResource};
use convey_snapshot::stats::Counter;
use convey_snapshot::{HttpRoute, Pool, WorkerArc};
use convey_stream::PollClock;
use convey_upstream::{Attempts, Permit, PickContext, ServerAnswer, Unavailable};
use tokio::time::Instant;

use crate::ends::{ClientEnd, ServerEnd};
use crate::files;
use crate::hooks::Hooks;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::record::RequestRecord;
use crate::request::HttpRequest;
use crate::streams::body::ResetReason;
use crate::time_limit::TimeLimit;
use crate::worker::HttpWorker;
use deadline::before;
#[cfg(test)]
pub(crate) use exchange::EXCHANGE_SIZE;
use head::missing;
pub(crate) use held::ClientHasShare;
pub(crate) use retry::StatusRetry;
pub(crate) use reversal::RewrittenRequest;
pub(crate) use stall::StallLimit;
pub(crate) use timeouts::RequestTimeouts;

/// A request for a server, while it is forwarded.
pub(crate) struct Forwarding<'a, 'b> {
    pub(crate) worker: &'a HttpWorker,
    pub(crate) client: &'a ClientStream,
    pub(crate) end: &'a mut ClientEnd<'b>,
    pub(crate) request: &'a HttpRequest,
    pub(crate) route: &'a HttpRoute,
    /// Bytes that the client has sent after the head.
    pub(crate) received: &'a mut BytesMut,
    /// Whether this is the last request that convey reads from the client's connection.
    pub(crate) is_last: bool,
    pub(crate) timeouts: RequestTimeouts,
    pub(crate) time_limit: &'a mut TimeLimit,
    pub(crate) record: &'a mut RequestRecord,
    pub(crate) hooks: &'a mut Hooks,
}

/// Outcome of a forwarded request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    /// The client has the whole response.
    Answered {
        /// The client may send another request.
        client_stays: bool,
        /// The client has sent nothing beyond the request, and announced that it sends no other
        /// request.
        is_silent: bool,
    },
    /// The client has received nothing: convey has to send a local reply.
    Unanswered(LocalReply),
    /// The client has left, or has received only a part of the response. Its connection ends for
    /// this reason.
    Broken(Counter),
    /// The server has reset its stream. The client's stream is reset for the same reason.
    ServerReset(ResetReason),
}

/// Reason why a request has no connection to its server.
enum Unreached {
    /// The connection could not be opened.
    Failed(io::Error),
    /// The HTTP/2 connections had no room for the client in time.
    Full,
    ClientLeft,
}

impl From<io::Error> for Unreached {
    fn from(error: io::Error) -> Unreached {
        Unreached::Failed(error)
    }
}

/// State of a request before the attempts of [`Forwarding::run_from`].
enum Beginning {
    /// The request has to wait, for a slot or for a connection.
    Waits,
    /// A server was picked, to which there is no idle connection. The client uses no stream.
    Picked(Permit),
    /// The first attempt was made.
    Failed(Attempt),
}

/// Server of one attempt, and what is held for it.
struct Reached {
    permit: Permit,
    held: Option<HeldResource>,
    server: ServerEnd,
    /// Whether the connection was idle before.
    is_kept: bool,
}

/// Outcome of one attempt.
enum Attempt {
    Over(RequestEnd),
    /// Another attempt may succeed, and needs no retry budget.
    Again(LocalReplyReason),
    /// The server has failed. Another attempt may succeed, if the backend's retry budget allows it.
    AgainWithin(LocalReplyReason),
    /// The response was discarded. The server of the next attempt is picked.
    Discarded,
}

impl Forwarding<'_, '_> {
    /// Sends the request to a server of this pool, or serves one of its files, and sends the
    /// response to the client.
    pub(crate) async fn run(&mut self, pool: &WorkerArc<Pool>) -> RequestEnd {
        if self.came_too_late() {
            return unanswered(LocalReplyReason::RequestTimeout);
        }
        if let Some(of_pool) = &pool.config.files {
            // Boxed, because requests that go to a server do not need this state.
            let served = before(self.timeouts.deadline, files::serve(self, pool.shared(), of_pool));
            return Box::pin(served).await.unwrap_or_else(|| self.over_time());
        }
        let mut attempts = Attempts::default();
        if let Some(server) = self.request.chosen() {
            attempts.prefer(server);
        } else if let Some(index) = pool.named_in(self.request.head()) {
            attempts.return_to(pool.servers[index].live.id);
        }
        self.apply_retry_rules(&mut attempts, pool);
        let beginning = match self.begin_at_once(pool, &mut attempts) {
            Ok(mut running) => {
                let end = poll_fn(|cx| self.poll_running(&mut running, &mut attempts, cx)).await;
                match self.conclude(running, end, &mut attempts) {
                    Attempt::Over(end) => return end,
                    failed => Beginning::Failed(failed),
                }
            }
            Err(beginning) => beginning,
        };
        // Boxed, so that the usual request does not reserve memory for waits and further attempts.
        Box::pin(self.run_from(pool.clone(), attempts, beginning)).await
    }

    /// Makes the attempts that remain after `beginning`, with all waits that they need.
    async fn run_from(
        &mut self,
        mut pool: WorkerArc<Pool>,
        mut attempts: Attempts,
        beginning: Beginning,
    ) -> RequestEnd {
        let (mut failed, mut picked) = (None, None);
        let deadline = self.timeouts.deadline;
        match beginning {
            Beginning::Waits => {}
            Beginning::Picked(permit) => picked = Some(permit),
            Beginning::Failed(attempt) => match self.after(attempt, &mut pool) {
                Ok(reason) => failed = reason,
                Err(end) => return end,
            },
        }
        loop {
            let (mut permit, held) = match picked.take() {
                Some(permit) => (permit, None),
                None => match before(deadline, self.take_server(&pool, &mut attempts, failed)).await {
                    Some(Ok(taken)) => taken,
                    Some(Err(end)) => return end,
                    None => return self.over_time(),
                },
            };
            let connected = before(deadline, self.connection(&mut permit, &mut attempts)).await;
            let (server, is_kept) = match connected {
                None => return self.over_time(),
                Some(Ok(found)) => found,
                Some(Err(unreached)) => {
                    failed = Some(match unreached {
                        Unreached::Failed(_) if !self.retries_connects() => {
                            return unanswered(LocalReplyReason::ConnectFailed);
                        }
                        Unreached::Failed(_) => LocalReplyReason::ConnectFailed,
                        Unreached::Full => LocalReplyReason::QueueTimeout,
                        Unreached::ClientLeft => return RequestEnd::Broken(Counter::ClientReset),
                    });
                    pool = self.client.newest_pool(&pool);
                    continue;
                }
            };
            let attempt = self.attempt(Reached { permit, held, server, is_kept }, &mut attempts).await;
            match self.after(attempt, &mut pool) {
                Ok(reason) => failed = reason,
                Err(end) => return end,
            }
        }
    }

    /// Picks a server for the next attempt, and waits for a slot if there is none. `failed` is the
    /// reason for which the last attempt failed.
    ///
    /// # Errors
    /// Returns the end of the request.
    async fn take_server(
        &mut self,
        pool: &WorkerArc<Pool>,
        attempts: &mut Attempts,
        failed: Option<LocalReplyReason>,
    ) -> Result<(Permit, Option<HeldResource>), RequestEnd> {
        let (pick, connect_time) = (self.pick_context(pool), self.timeouts.connect);
        let newest = || self.client.newest_pool(pool);
        let turn = attempts.next_in_turn(&pick, pool, connect_time, newest);
        let turn = tokio::select! {
            biased;
            turn = turn => turn,
            () = self.end.left(missing(self.request, self.received)) => {
                return Err(RequestEnd::Broken(Counter::ClientReset));
            }
        };
        let permit = turn.map_err(|unavailable| unanswered(reason_after(failed, unavailable)))?;
        let held = self.hold().map_err(|_| unanswered(LocalReplyReason::QueueTimeout))?;
        self.record.tries(self.client, &permit, failed);
        Ok((permit, held))
    }

    fn pick_context(&self, pool: &Pool) -> PickContext {
        pick_context(self.client, self.request, self.record.began, pool)
    }

    /// Returns the reason for which the attempt failed, if another one follows it in the newest
    /// pool; otherwise the end of the request as an error. `None`: the reason is noted already.
    fn after(
        &self,
        attempt: Attempt,
        pool: &mut WorkerArc<Pool>,
    ) -> Result<Option<LocalReplyReason>, RequestEnd> {
        let reason = match attempt {
            Attempt::Over(end) => return Err(end),
            Attempt::Again(reason) => Some(reason),
            Attempt::Discarded => None,
            Attempt::AgainWithin(reason) if self.worker.budgets.spend(pool) => Some(reason),
            Attempt::AgainWithin(reason) => return Err(unanswered(reason)),
        };
        *pool = self.client.newest_pool(pool);
        Ok(reason)
    }
}

/// Context of a pick for a request that arrived at `began`.
fn pick_context(client: &ClientStream, request: &HttpRequest, began: Instant, pool: &Pool) -> PickContext {
    PickContext {
        client: request.client(),
        request: pool.hash_of(request.head(), request.field_trust()),
        ..client.pick_context(began)
    }
}

/// Returns the server's answer to a request sent at `sent`: its status, or `None` for no answer.
fn answer_now(client: &ClientStream, status: Option<u16>, sent: Instant) -> ServerAnswer {
    let now = PollClock::now();
    ServerAnswer { status, took: now - sent, now: client.timestamp(now) }
}

fn unanswered(reason: LocalReplyReason) -> RequestEnd {
    RequestEnd::Unanswered(reason.into())
}

/// Reason for a local reply after the last attempt. `failed` is the reason for which that attempt
/// failed. A lack of local ports is reported as such.
fn reason_after(failed: Option<LocalReplyReason>, unavailable: Unavailable) -> LocalReplyReason {
    match failed {
        Some(failed) if unavailable != Unavailable::NoLocalPort => failed,
        _ => reason_of(unavailable),
    }
}

/// Reason for a local reply in place of a server's response.
fn reason_of(unavailable: Unavailable) -> LocalReplyReason {
    match unavailable {
        Unavailable::NoServer => LocalReplyReason::NoServer,
        Unavailable::Full => LocalReplyReason::QueueTimeout,
        Unavailable::NoLocalPort => LocalReplyReason::NoLocalPort,
        Unavailable::Failed | Unavailable::NoResources => LocalReplyReason::ConnectFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_local_ports_is_reported_after_failed_attempts() {
        let failed = LocalReplyReason::ConnectFailed;
        for (failed, unavailable, reported) in [
            (Some(failed), Unavailable::NoLocalPort, LocalReplyReason::NoLocalPort),
            (Some(failed), Unavailable::Failed, failed),
            (Some(failed), Unavailable::Full, failed),
            (Some(LocalReplyReason::ServerReset), Unavailable::Failed, LocalReplyReason::ServerReset),
            (None, Unavailable::NoServer, LocalReplyReason::NoServer),
        ] {
            assert_eq!(reason_after(failed, unavailable), reported);
        }
    }
}
