//! The usual exchange: between two connections of HTTP/1, whose bytes pass as they came.
//!
//! A running exchange is one value in one box, which each poll changes in place. So thousands of
//! exchanges that wait for their servers take little memory, and a poll touches few cache lines.

use std::task::{Context, Poll};

use convey_http_core::{Exchange, FieldRules};
use convey_proxy::ServerStream;
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pool, WorkerArc};
use convey_upstream::{Attempts, Permit, Unavailable};

use super::drive::{DriveState, Driver};
use super::reversal::RewrittenRequest;
use super::transfer::Transferred;
use super::{Attempt, Beginning, Forwarding, Reached, StatusRetry, reason_of, unanswered};
use crate::compress::CompressionTerms;
use crate::ends::{ClientEnd, ServerEnd};
use crate::transfer::{ResponseChanges, Transfer, TransferEnd, TransferState};

/// Exchange between two connections of HTTP/1, between two polls.
pub(super) struct RunningExchange {
    permit: Permit,
    server: Box<ServerStream>,
    /// Whether the connection to the server was idle before.
    is_kept: bool,
    /// Rules for the fields of the response, if the server adds to those of the request.
    rules: Option<Box<FieldRules>>,
    transfer: TransferState,
    drive: DriveState,
}

impl Forwarding<'_, '_> {
    /// Begins the exchange if that needs no wait: a server has a free slot, and an idle connection.
    ///
    /// # Errors
    /// Returns what was done so far.
    pub(super) fn begin_at_once(
        &mut self,
        pool: &WorkerArc<Pool>,
        attempts: &mut Attempts,
    ) -> Result<Box<RunningExchange>, Beginning> {
        if !self.moves_bytes() {
            return Err(Beginning::Waits);
        }
        let mut permit = match attempts.next_at_once(&self.pick_context(pool), pool) {
            Ok(permit) => permit,
            Err(Unavailable::Full) => return Err(Beginning::Waits),
            Err(unavailable) => {
                return Err(Beginning::Failed(Attempt::Over(unanswered(reason_of(unavailable)))));
            }
        };
        self.record.tries(self.client, &permit, None);
        match self.kept_connection(&mut permit, attempts) {
            Some(server) => Ok(self.start(permit, server, true, attempts)),
            None => Err(Beginning::Picked(permit)),
        }
    }

    /// Whether bytes pass as they came: the client has a connection of HTTP/1, no hook wants to see
    /// bodies, and convey keeps no body for a retry.
    pub(super) fn moves_bytes(&self) -> bool {
        !self.end.is_stream() && !self.hooks.want_bodies() && !self.keeps_body()
    }

    /// Begins the exchange over this connection to the server of the permit.
    pub(super) fn start(
        &mut self,
        permit: Permit,
        server: Box<ServerStream>,
        is_kept: bool,
        attempts: &Attempts,
    ) -> Box<RunningExchange> {
        self.client.goes_to(&permit, &server);
        permit.count(Counter::Requests, 1);
        let transfer = TransferState::new(self.exchange(), self.head_as_text(&permit));
        let drive = DriveState::begin(self.client, self.request, &self.timeouts, &permit, self.time_limit);
        let rules = self.rules_with_affinity(&permit, attempts);
        Box::new(RunningExchange { permit, server, is_kept, rules, transfer, drive })
    }

    /// Moves the request and its response. `Ready`: the transfer has ended, or too few bytes have
    /// moved for too long (`None`).
    pub(super) fn poll_running(
        &mut self,
        running: &mut RunningExchange,
        attempts: &mut Attempts,
        cx: &mut Context<'_>,
    ) -> Poll<Option<TransferEnd>> {
        let RunningExchange { permit, server, rules, transfer, drive, .. } = running;
        // Only a client with a socket has such an exchange.
        let ClientEnd::Socket(client) = &mut *self.end else { return Poll::Ready(None) };
        let (request, route, began) = (self.request, self.route, self.record.began);
        let (of, by) = ((self.worker, self.client), (request, route.retry.as_deref()));
        let mut retry = StatusRetry::new(of, by, began, permit, attempts);
        let mut transfer = Transfer {
            client,
            server: server.stream(),
            received: self.received,
            changes: ResponseChanges {
                fields: rules.as_deref().unwrap_or_else(|| request.response_changes(route)),
                rewritten: RewrittenRequest::of(self.client, request, route, permit),
                terms: CompressionTerms::of(self.client, request, route, &self.worker.encoders),
                hooks: self.hooks,
                retry: retry.as_mut(),
            },
            pipes: self.client.pipes(),
            state: transfer,
        };
        let (client, time_limit, record) = (self.client, &mut *self.time_limit, &mut *self.record);
        let mut driver = Driver { client, time_limit, record, permit, held: None };
        drive.poll(cx, &mut transfer, &mut driver)
    }

    /// Ends an exchange whose transfer has ended.
    pub(super) fn conclude(
        &mut self,
        running: Box<RunningExchange>,
        end: Option<TransferEnd>,
        attempts: &mut Attempts,
    ) -> Attempt {
        let RunningExchange { permit, server, is_kept, transfer, drive, .. } = *running;
        let mut state = transfer.progress().clone();
        if matches!(&*self.end, ClientEnd::Socket(client) if transfer.is_torn(client)) {
            state.note_answer();
        }
        let (status, is_clean) = (transfer.status(), transfer.is_clean());
        let transferred = Transferred { end, state, status, is_clean, sent: drive.sent, rest: None };
        let reached = Reached { permit, held: None, server: ServerEnd::Socket(server), is_kept };
        self.settle(reached, &transferred, attempts)
    }

    /// Progress of a request that is about to be sent.
    fn exchange(&self) -> Exchange {
        let limits = self.request.frontend().config.http_limits();
        let mut exchange = Exchange::new(self.request.head());
        exchange.limit_response(limits.response_head);
        if self.is_last {
            exchange.state_mut().set_last();
        }
        if let Some(most) = self.request.max_body() {
            exchange.limit_body(most);
        }
        exchange
    }
}

/// Bytes of a running exchange.
#[cfg(test)]
pub(crate) const EXCHANGE_SIZE: usize = size_of::<RunningExchange>();
