//! A request on its way: a server, a connection to it, and another one where the request may be repeated.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use convey_http_core::{
    ClientIdentity, Exchange, ExchangeEnd, PathPrefix, RequestChanges, RequestHead, ServerFault,
    write_request,
};
use convey_proxy::{Attempts, ClientStream, Permit, ServerAnswer, ServerStream, Unavailable};
use convey_snapshot::stats::Counter;
use convey_snapshot::{HttpFrontend, HttpRoute, Pool};
use log::debug;
use tokio::time::Instant;

use crate::answer::AnswerReason;
use crate::record::RequestRecord;
use crate::time_limit::TimeLimit;
use crate::transfer::{Ends, Transfer, TransferEnd};
use crate::{budgets, idle};

/// How long a server may take to the head of its response, unless the configuration allows less.
const RESPONSE_TIME: Duration = Duration::from_secs(60);

/// A connection that has waited for so long may have been closed by its server just now. A request that cannot be repeated does not
/// go there.
const FRESH: Duration = Duration::from_secs(1);

/// A request that is to go to a server.
#[derive(Debug)]
pub(crate) struct Forwarding<'a> {
    pub(crate) client: &'a ClientStream,
    pub(crate) head: &'a RequestHead,
    /// What the client has sent behind the head.
    pub(crate) received: &'a mut BytesMut,
    pub(crate) http: &'a HttpFrontend,
    pub(crate) route: &'a HttpRoute,
    /// The prefix of the path by which the route was found.
    pub(crate) prefix: Option<&'a PathPrefix>,
    /// No other request is read from the client after this one.
    pub(crate) is_last: bool,
    pub(crate) time_limit: &'a mut TimeLimit,
    pub(crate) record: &'a mut RequestRecord,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    /// The client has the whole response.
    Answered {
        /// It may send another request.
        client_stays: bool,
        /// It has sent no more than it was asked for, and said that it sends nothing else.
        is_silent: bool,
    },
    /// The client has got nothing: convey has to answer.
    Unanswered(AnswerReason),
    /// The client has got a part. Its connection is over, for this reason.
    Broken(Counter),
}

/// What came of a transfer.
struct Transferred {
    /// `None`: nothing moved for too long.
    end: Option<TransferEnd>,
    exchange: Exchange,
    status: Option<u16>,
    /// The server has the whole request, and sent nothing behind its response.
    is_clean: bool,
    /// When it began.
    sent: Instant,
}

/// What became of one attempt.
enum Attempt {
    Over(RequestEnd),
    /// Another one may fare better.
    Again(AnswerReason),
    /// The same, if the backend's retry budget allows it: the server has failed.
    AgainWithin(AnswerReason),
}

impl Forwarding<'_> {
    /// Sends the request to a server of this pool, and the response to the client.
    pub(crate) async fn run(mut self, pool: &Arc<Pool>) -> RequestEnd {
        let (mut attempts, mut pool) = (Attempts::default(), pool.clone());
        let downstream = self.client.downstream(self.record.began);
        budgets::earn(&pool);
        let mut failed = None;
        loop {
            let newest = || self.client.newest_pool(&pool);
            let connect_time = self.client.timeouts().connect;
            let mut permit = match attempts.next_in_turn(&downstream, &pool, connect_time, newest).await {
                Ok(permit) => permit,
                Err(unavailable) => return RequestEnd::Unanswered(failed.unwrap_or(reason_of(unavailable))),
            };
            self.record.tries(&permit, self.client.address_of(&permit));
            let (server, is_kept) = match self.connection(&mut permit, &mut attempts).await {
                Some(found) => {
                    self.record.connected();
                    found
                }
                None => {
                    failed = Some(AnswerReason::ConnectFailed);
                    pool = self.client.newest_pool(&pool);
                    continue;
                }
            };
            match self.attempt(permit, server, is_kept, &mut attempts).await {
                Attempt::Over(forwarded) => return forwarded,
                Attempt::Again(reason) => failed = Some(reason),
                Attempt::AgainWithin(reason) if budgets::spend(&pool) => failed = Some(reason),
                Attempt::AgainWithin(reason) => return RequestEnd::Unanswered(reason),
            }
            pool = self.client.newest_pool(&pool);
        }
    }

    /// A connection to the server of the permit, and whether it has served a request before. `None`: there is none to be had.
    async fn connection(&self, permit: &mut Permit, attempts: &mut Attempts) -> Option<(ServerStream, bool)> {
        let most = if self.may_go_twice() { Duration::MAX } else { FRESH };
        // After a failure nothing that has waited is believed in.
        if !attempts.have_begun()
            && let Some(kept) = idle::take(self.place(permit), most)
        {
            permit.opened();
            return Some((kept, true));
        }
        let began = Instant::now();
        match self.client.connect(permit).await {
            Ok(server) => {
                permit.connected(began.elapsed());
                Some((server, false))
            }
            Err(error) => {
                let client = self.client.client();
                debug!("{client}: cannot connect to server {}: {error}", permit.name());
                let ServerAnswer { took, now, .. } = answer_now(self.client, None, began);
                permit.failed_after(took, now);
                attempts.failed(permit, &error, self.client.failures());
                None
            }
        }
    }

    /// One exchange with one server.
    async fn attempt(
        &mut self,
        permit: Permit,
        mut server: ServerStream,
        is_kept: bool,
        attempts: &mut Attempts,
    ) -> Attempt {
        self.client.goes_to(&permit, &server);
        permit.count(Counter::Requests, 1);
        let Transferred { end, exchange, status, is_clean, sent } = self.transfer(&permit, &server).await;
        if let Some(status) = status {
            permit.count(Counter::of_status(status), 1);
            self.client.count(Counter::of_status(status), 1);
            self.record.has_status(status);
        }
        let Some(end) = end else {
            if status.is_none() && exchange.is_request_whole() {
                permit.answered_with(answer_now(self.client, None, sent), self.client.failures());
            }
            return Attempt::Over(timed_out(&exchange));
        };
        if end == TransferEnd::Whole {
            let ExchangeEnd { client_stays, server_stays } = exchange.end();
            if server_stays && is_clean && permit.send_proxy().is_none() {
                idle::put(self.place(&permit), server);
            } else {
                server.close_in_order();
            }
            return Attempt::Over(RequestEnd::Answered {
                client_stays: client_stays && !exchange.has_changed(),
                is_silent: exchange.is_request_whole()
                    && self.received.is_empty()
                    && !self.head.keeps_alive(),
            });
        }
        if status.is_none() && !is_kept && end.is_of_server() {
            let ServerAnswer { took, now, .. } = answer_now(self.client, None, sent);
            permit.failed_after(took, now);
        }
        self.broken(end, &exchange, (&permit, is_kept), attempts)
    }

    /// Moves the request and its response, until that ends or nothing moves for too long.
    async fn transfer(&mut self, permit: &Permit, server: &ServerStream) -> Transferred {
        let mut exchange = Exchange::new(self.head);
        if self.is_last {
            exchange.is_last();
        }
        let mut transfer = Transfer::new(exchange, self.request(), self.received, &self.route.response);
        let idle = self.client.timeouts().idle;
        let silence = RESPONSE_TIME.min(idle);
        self.time_limit.renew(silence);
        let (sent, mut is_told) = (Instant::now(), false);
        let (client, time_limit, record) = (self.client, &mut *self.time_limit, &mut *self.record);
        let end = poll_fn(|cx| {
            let ends = Ends { client: client.stream(), server: server.stream() };
            let polled = transfer.poll(cx, ends);
            if transfer.status.is_some() && !is_told {
                is_told = true;
                permit.answered_with(answer_now(client, transfer.status, sent), client.failures());
            }
            let (rx, tx) = std::mem::take(&mut transfer.moved);
            let body = std::mem::take(&mut transfer.body);
            if (rx, tx, body) != (0, 0, 0) {
                client.count_bytes(rx, tx);
                record.count(body, tx);
                permit.count(Counter::BytesRx, body);
                permit.count(Counter::BytesTx, tx);
                time_limit.renew(if transfer.status.is_some() { idle } else { silence });
            }
            match polled {
                Poll::Ready(end) => Poll::Ready(Some(end)),
                Poll::Pending => time_limit.poll_over(cx).map(|()| None),
            }
        })
        .await;
        let is_clean = transfer.is_with_server() && !transfer.has_surplus;
        let Transfer { exchange, status, .. } = transfer;
        Transferred { end, exchange, status, is_clean, sent }
    }

    /// The transfer ended before the client had the whole response.
    fn broken(
        &self,
        end: TransferEnd,
        exchange: &Exchange,
        (permit, is_kept): (&Permit, bool),
        attempts: &mut Attempts,
    ) -> Attempt {
        let reason = match end {
            TransferEnd::ClientGone => return Attempt::Over(RequestEnd::Broken(Counter::ClientReset)),
            TransferEnd::ClientFault(fault) => {
                return Attempt::Over(match exchange.has_answered() {
                    true => RequestEnd::Broken(Counter::ClientReset),
                    false => RequestEnd::Unanswered(AnswerReason::Malformed(fault)),
                });
            }
            TransferEnd::ServerFault(ServerFault::Closed) if exchange.has_sent_nothing_back() => {
                AnswerReason::ServerReset
            }
            TransferEnd::ServerFault(fault) => AnswerReason::ServerFault(fault),
            TransferEnd::ServerReset | TransferEnd::Whole => AnswerReason::ServerReset,
        };
        if exchange.has_answered() {
            return Attempt::Over(RequestEnd::Broken(Counter::ServerReset));
        }
        attempts.repeat();
        let is_broken_off = reason == AnswerReason::ServerReset;
        if is_kept && is_broken_off {
            // The server had closed it before: no fault, and no other of these is better.
            idle::forget(self.place(permit));
        } else {
            permit.reset(self.client.failures());
            attempts.pass_over(permit);
        }
        if is_broken_off && exchange.may_be_repeated() && !attempts.are_over() {
            return if is_kept { Attempt::Again(reason) } else { Attempt::AgainWithin(reason) };
        }
        Attempt::Over(RequestEnd::Unanswered(reason))
    }

    /// The head as the server gets it.
    fn request(&self) -> Vec<u8> {
        let client = self.client.client().ip();
        let is_trusted = self.client.frontend().config.trusts_proxy(client);
        let changes = RequestChanges {
            client: ClientIdentity { ip: client, scheme: "http", is_trusted },
            forwarded: self.http.forwarded,
            host: self.route.rewrite_host.as_deref(),
            path: self.prefix.zip(self.route.rewrite_path.as_deref()),
            fields: &self.route.request,
        };
        let mut head = Vec::with_capacity(512);
        write_request(self.head, &changes, &mut head);
        head
    }

    fn may_go_twice(&self) -> bool {
        self.head.method().is_idempotent()
    }

    fn place(&self, permit: &Permit) -> (u32, SocketAddr) {
        (permit.server().live.id, self.client.address_of(permit))
    }
}

/// What a server has answered just now, or has not, to what was sent then.
fn answer_now(client: &ClientStream, status: Option<u16>, sent: Instant) -> ServerAnswer {
    let now = Instant::now();
    ServerAnswer { status, took: now - sent, now: client.timestamp(now) }
}

/// Why convey answers in place of a server.
fn reason_of(unavailable: Unavailable) -> AnswerReason {
    match unavailable {
        Unavailable::NoServer => AnswerReason::NoServer,
        Unavailable::Full => AnswerReason::QueueTimeout,
        Unavailable::NoLocalPort => AnswerReason::NoLocalPort,
        Unavailable::Failed | Unavailable::NoResources => AnswerReason::ConnectFailed,
    }
}

/// Nothing has moved for too long.
fn timed_out(exchange: &Exchange) -> RequestEnd {
    match (exchange.has_answered(), exchange.is_request_whole()) {
        (true, _) => RequestEnd::Broken(Counter::IdleTimeout),
        (false, true) => RequestEnd::Unanswered(AnswerReason::ServerTimeout),
        (false, false) => RequestEnd::Unanswered(AnswerReason::RequestTimeout),
    }
}
