//! Forwarding of a request: the choice of a server, a connection to it, and retries where the
//! request may be repeated.

mod broken;
mod drive;
mod head;
mod held;
mod stall;
mod transfer;
mod unread;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use convey_http_core::ExchangeEnd;
use convey_model::{HttpVersion, Timeouts};
use convey_proxy::{ClientStream, HeldResource, NewConnection, ServerStream};
use convey_snapshot::stats::Counter;
use convey_snapshot::{HttpRoute, Pool};
use convey_stream::PollClock;
use convey_tls::SpokenWithin;
use convey_upstream::{Attempts, Permit, PickContext, ServerAnswer, Unavailable};
use log::debug;
use tokio::time::Instant;

use crate::ends::{ClientEnd, ServerEnd};
use crate::hooks::Hooks;
use crate::http2::{FoundStream, OpeningConnection};
use crate::idle::ServerPlace;
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::record::RequestRecord;
use crate::request::HttpRequest;
use crate::streams::body::ResetReason;
use crate::time_limit::TimeLimit;
use crate::transfer::TransferEnd;
use crate::worker::HttpWorker;
use crate::{files, http2};
use broken::timed_out;
use head::missing;
pub(crate) use held::ClientHasShare;
pub(crate) use stall::StallLimit;
use transfer::Transferred;

/// Maximum idle time of a connection for a request that must not be repeated. The server may just
/// have closed a connection that was idle for longer.
const FRESH: Duration = Duration::from_secs(1);

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
    pub(crate) timeouts: Timeouts,
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
}

impl Forwarding<'_, '_> {
    /// Sends the request to a server of this pool, or serves one of its files, and sends the
    /// response to the client.
    pub(crate) async fn run(&mut self, pool: &Arc<Pool>) -> RequestEnd {
        if let Some(of_pool) = &pool.config.files {
            // Boxed, because requests that go to a server do not need this state.
            return Box::pin(files::serve(self, pool, of_pool)).await;
        }
        let (mut attempts, mut pool) = (Attempts::default(), pool.clone());
        let downstream = PickContext {
            client: self.request.client(),
            request: pool.hash_of(self.request.head()),
            ..self.client.pick_context(self.record.began)
        };
        if let Some(server) = self.request.chosen() {
            attempts.prefer(server);
        }
        self.worker.budgets.earn(&pool);
        let mut failed = None;
        loop {
            let newest = || self.client.newest_pool(&pool);
            let connect_time = self.timeouts.connect;
            let turn = attempts.next_in_turn(&downstream, &pool, connect_time, newest);
            let turn = tokio::select! {
                biased;
                turn = turn => turn,
                () = self.end.left(missing(self.request, self.received)) => return RequestEnd::Broken(Counter::ClientReset),
            };
            let mut permit = match turn {
                Ok(permit) => permit,
                Err(unavailable) => return unanswered(failed.unwrap_or(reason_of(unavailable))),
            };
            let Ok(held) = self.hold() else {
                return unanswered(LocalReplyReason::QueueTimeout);
            };
            self.record.tries(self.client, &permit, failed);
            let (server, is_kept) = match self.connection(&mut permit, &mut attempts).await {
                Ok(found) => found,
                Err(unreached) => {
                    failed = Some(match unreached {
                        Unreached::Failed(_) => LocalReplyReason::ConnectFailed,
                        Unreached::Full => LocalReplyReason::QueueTimeout,
                        Unreached::ClientLeft => return RequestEnd::Broken(Counter::ClientReset),
                    });
                    pool = self.client.newest_pool(&pool);
                    continue;
                }
            };
            match self.attempt(Reached { permit, held, server, is_kept }, &mut attempts).await {
                Attempt::Over(forwarded) => return forwarded,
                Attempt::Again(reason) => failed = Some(reason),
                Attempt::AgainWithin(reason) if self.worker.budgets.spend(&pool) => failed = Some(reason),
                Attempt::AgainWithin(reason) => return unanswered(reason),
            }
            pool = self.client.newest_pool(&pool);
        }
    }

    /// Returns a connection to the server of the permit, and whether the connection is a reused
    /// one.
    ///
    /// # Errors
    /// Returns the reason why there is no connection.
    async fn connection(
        &mut self,
        permit: &mut Permit,
        attempts: &mut Attempts,
    ) -> Result<(ServerEnd, bool), Unreached> {
        let speaks_http2 = self.speaks_http2(permit);
        // After a failure, convey trusts no idle connection.
        if !speaks_http2 && !attempts.have_begun() {
            let most = if self.may_go_twice() { Duration::MAX } else { FRESH };
            if let Some(kept) = self.worker.idle.take(self.place(permit), most) {
                permit.opened();
                self.record.connected(self.client, true);
                return Ok((ServerEnd::Socket(kept), true));
            }
        }
        let began = PollClock::now();
        let opened = match speaks_http2 {
            // Boxed, so that the state of HTTP/2 is not a part of each HTTP/1.1 request.
            true => Box::pin(self.stream(permit)).await,
            // Boxed, because most requests reuse a connection.
            false => Box::pin(self.socket(permit)).await.map(|server| (server, true)),
        };
        match opened {
            Ok((server, is_new)) => {
                if is_new {
                    permit.connected(PollClock::now() - began);
                } else {
                    permit.opened();
                }
                self.record.connected(self.client, !is_new);
                Ok((server, false))
            }
            Err(Unreached::Failed(error)) => {
                let client = self.client.client();
                debug!("{client}: cannot connect to server {}: {error}", permit.name());
                self.record.connect_failed(self.client, &error);
                let ServerAnswer { took, now, .. } = answer_now(self.client, None, began);
                permit.failed_after(took, now);
                attempts.failed(permit, &error, self.client.failures());
                Err(Unreached::Failed(error))
            }
            Err(unreached) => {
                attempts.pass_over(permit);
                Err(unreached)
            }
        }
    }

    /// Opens a connection to the server of the permit. If the server chose HTTP/2 in the TLS
    /// handshake, also opens a stream on the connection.
    async fn socket(&mut self, permit: &Permit) -> Result<ServerEnd, Unreached> {
        let within = self.timeouts.connect;
        let mut server = self.open(permit, None).await?;
        if self.chose_http2(permit, &mut server).unwrap_or(false) {
            let connections = self.worker.http2.of(self.place(permit));
            let opening = OpeningConnection::new(connections, self.stream_client());
            return Ok(ServerEnd::Stream(
                Box::pin(http2::connect(opening, server, permit.name(), within)).await?,
            ));
        }
        Ok(ServerEnd::Socket(Box::new(server)))
    }

    /// Returns a stream to the server of the permit, and whether the connection of the stream is
    /// new.
    async fn stream(&mut self, permit: &Permit) -> Result<(ServerEnd, bool), Unreached> {
        let within = self.timeouts.connect;
        let (connections, client) = (self.worker.http2.of(self.place(permit)), self.stream_client());
        let left = self.end.left(missing(self.request, self.received));
        // After a failure, too, the request uses a shared connection: `take` returns no ended
        // connection, and new connections for refused streams would increase the server's load.
        let (stream, is_new) = match http2::take(&connections, client, within, left).await? {
            FoundStream::Stream(stream) => (stream, false),
            FoundStream::Nothing(opening) => {
                let mut server = self.open(permit, Some(&opening)).await?;
                if !self.chose_http2(permit, &mut server).unwrap_or(true) {
                    return Ok((ServerEnd::Socket(Box::new(server)), true));
                }
                (http2::connect(opening, server, permit.name(), within).await?, true)
            }
            FoundStream::Full => return Err(Unreached::Full),
            FoundStream::BeyondShare => {
                self.client.count(Counter::DroppedClientLimit, 1);
                return Err(Unreached::Full);
            }
            FoundStream::ClientLeft => return Err(Unreached::ClientLeft),
        };
        Ok((ServerEnd::Stream(stream), is_new))
    }

    /// Opens a connection to the server of the permit. A client that leaves ends this, unless other
    /// requests wait for a shared connection (`opening`).
    async fn open(
        &mut self,
        permit: &Permit,
        opening: Option<&OpeningConnection>,
    ) -> Result<ServerStream, Unreached> {
        let opened = self.client.connect(permit, self.new_connection(permit));
        let left = self.end.left(missing(self.request, self.received));
        let left = async {
            left.await;
            if let Some(opening) = opening {
                opening.unawaited().await;
            }
        };
        tokio::select! {
            biased;
            opened = opened => Ok(opened?),
            () = left => Err(Unreached::ClientLeft),
        }
    }

    /// Properties of a new connection to the server of the permit.
    fn new_connection(&self, permit: &Permit) -> NewConnection {
        NewConnection {
            named: self.request.named(),
            is_upload: !self.request.head().framing().is_empty(),
            within: self.timeouts.connect,
            within_tls: self.within_tls(permit),
        }
    }

    /// Whether the server of the permit gets requests over HTTP/2.
    fn speaks_http2(&self, permit: &Permit) -> bool {
        match permit.http_version() {
            HttpVersion::H1 => false,
            HttpVersion::H2 => true,
            // Upgrades are of HTTP/1.1.
            HttpVersion::Auto if self.request.head().upgrade().is_some() => false,
            // The server's last choice applies; the server may choose anew with each connection.
            HttpVersion::Auto if permit.has_tls() => permit.server().live.speaks_http2(),
            HttpVersion::Auto => self.end.is_stream(),
        }
    }

    /// Runs one exchange with one server.
    async fn attempt(&mut self, mut reached: Reached, attempts: &mut Attempts) -> Attempt {
        let Reached { permit, held, server, is_kept } = &mut reached;
        let is_kept = *is_kept;
        if let (false, ServerEnd::Socket(server)) = (self.end.is_stream(), &*server) {
            self.client.goes_to(permit, server);
        }
        permit.count(Counter::Requests, 1);
        let Transferred { end, state, status, is_clean, sent, rest } =
            self.transfer(permit, server, held.as_ref()).await;
        let Some(end) = end else {
            let awaits_server = state.is_request_whole() || !is_clean;
            if status.is_none() && awaits_server {
                if let ServerEnd::Stream(stream) = server {
                    stream.retire_connection();
                }
                permit.answered_with(answer_now(self.client, None, sent), self.client.failures());
            }
            return Attempt::Over(timed_out(&state, awaits_server));
        };
        if let (TransferEnd::ServerRefused, ServerEnd::Stream(stream)) = (end, &mut *server) {
            stream.was_refused();
        }
        if end == TransferEnd::Whole {
            let ExchangeEnd { client_stays, server_stays } = state.end();
            let is_reusable = server_stays && is_clean && permit.send_proxy().is_none();
            let place = self.place(permit);
            let Reached { permit, held, server, .. } = reached;
            match server {
                ServerEnd::Socket(server) if is_reusable => self.worker.idle.put(place, server),
                ServerEnd::Socket(mut server) => server.close_in_order(),
                ServerEnd::Stream(stream) => drop(stream),
            }
            // The server becomes free for other requests, even if the client reads the rest slowly.
            permit.count(Counter::BytesTx, rest.as_ref().map_or(0, |rest| rest.len() as u64));
            drop((permit, held));
            if let Some(rest) = rest
                && let Err(reason) = Box::pin(self.write_rest(rest)).await
            {
                return Attempt::Over(RequestEnd::Broken(reason));
            }
            return Attempt::Over(RequestEnd::Answered {
                client_stays: client_stays && !state.has_changed(),
                is_silent: state.is_request_whole()
                    && self.received.is_empty()
                    && !self.request.head().keeps_alive(),
            });
        }
        if status.is_none() && !is_kept && end.is_of_server() {
            let ServerAnswer { took, now, .. } = answer_now(self.client, None, sent);
            permit.failed_after(took, now);
        }
        self.broken(end, &state, (permit, is_kept), attempts)
    }

    /// HTTP versions that convey offers a server in the TLS handshake.
    fn within_tls(&self, permit: &Permit) -> SpokenWithin {
        match permit.http_version() {
            HttpVersion::H1 => SpokenWithin::Http1,
            HttpVersion::H2 => SpokenWithin::Http2,
            HttpVersion::Auto if self.request.head().upgrade().is_some() => SpokenWithin::Http1,
            HttpVersion::Auto => SpokenWithin::Http,
        }
    }

    /// Whether the server chose HTTP/2; `None` if it had no choice.
    fn chose_http2(&self, permit: &Permit, server: &mut ServerStream) -> Option<bool> {
        let has_choice = self.within_tls(permit) == SpokenWithin::Http && permit.has_tls();
        has_choice.then(|| {
            let is_http2 = server.stream().protocol() == Some(b"h2");
            permit.server().live.note_http2(is_http2);
            is_http2
        })
    }

    fn may_go_twice(&self) -> bool {
        self.request.head().method().is_idempotent()
    }

    fn place(&self, permit: &Permit) -> ServerPlace {
        ServerPlace {
            id: permit.server().live.id,
            addr: self.client.address_of(permit),
            tls: permit.tls_id(),
        }
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

/// Reason for a local reply in place of a server's response.
fn reason_of(unavailable: Unavailable) -> LocalReplyReason {
    match unavailable {
        Unavailable::NoServer => LocalReplyReason::NoServer,
        Unavailable::Full => LocalReplyReason::QueueTimeout,
        Unavailable::NoLocalPort => LocalReplyReason::NoLocalPort,
        Unavailable::Failed | Unavailable::NoResources => LocalReplyReason::ConnectFailed,
    }
}
