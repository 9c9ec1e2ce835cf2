//! Retries by the rules of a route (`retry`). Without rules, convey retries failed connects, and
//! resets of idempotent requests.
//!
//! By status, the next server is picked before the response is discarded: if no other server is
//! free, the client gets the response as it is.

use std::fmt;

use convey_http_core::{ExchangeState, RetryCause, RetryRules};
use convey_proxy::ClientStream;
use convey_snapshot::Pool;
use convey_snapshot::stats::Counter;
use convey_upstream::{Attempts, Permit};
use tokio::time::Instant;

use super::transfer::Transferred;
use super::{Attempt, Forwarding, Reached, answer_now, pick_context};
use crate::local_reply::LocalReplyReason;
use crate::request::HttpRequest;
use crate::worker::HttpWorker;

/// Decides at the head of a response whether the response is discarded, because another server gets
/// the request.
pub(crate) struct StatusRetry<'a> {
    rules: &'a RetryRules,
    worker: &'a HttpWorker,
    client: &'a ClientStream,
    request: &'a HttpRequest,
    /// Time at which the request arrived.
    began: Instant,
    permit: &'a Permit,
    attempts: &'a mut Attempts,
}

impl fmt::Debug for StatusRetry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusRetry").field("rules", self.rules).finish_non_exhaustive()
    }
}

impl<'a> StatusRetry<'a> {
    /// Returns the decision for a request at the server of this permit; `None`: the rules of the
    /// route list no status.
    pub(super) fn new(
        (worker, client): (&'a HttpWorker, &'a ClientStream),
        (request, rules): (&'a HttpRequest, Option<&'a RetryRules>),
        began: Instant,
        permit: &'a Permit,
        attempts: &'a mut Attempts,
    ) -> Option<StatusRetry<'a>> {
        let rules = rules.filter(|rules| rules.have_statuses())?;
        Some(StatusRetry { rules, worker, client, request, began, permit, attempts })
    }

    /// Whether the response with this status is discarded. If so, the next server is picked.
    pub(crate) fn discards(&mut self, status: u16, state: &ExchangeState) -> bool {
        if !self.rules.allow(RetryCause::Status(status), state) {
            return false;
        }
        self.attempts.note_refused_answer(self.permit);
        if self.attempts.are_over() {
            return false;
        }
        let pool = self.client.newest_pool(self.permit.worker_pool());
        if !self.worker.budgets.spend(&pool) {
            return false;
        }
        let pick = pick_context(self.client, self.request, self.began, &pool);
        let is_picked = self.attempts.pick_ahead(&pick, &pool);
        if !is_picked {
            self.worker.budgets.give_back(&pool);
        }
        is_picked
    }
}

impl Forwarding<'_, '_> {
    /// Applies the rules of the route to the attempts of a new request.
    pub(super) fn apply_retry_rules(&mut self, attempts: &mut Attempts, pool: &Pool) {
        let rules = self.route.retry.as_deref();
        self.worker.budgets.earn(pool, rules.is_some_and(RetryRules::have_statuses));
        let Some(rules) = rules else { return };
        attempts.limit_to(rules.attempts);
        if let Some(time) = rules.time_of_attempt(self.request.head()) {
            self.timeouts.response = self.timeouts.response.min(time);
        }
    }

    /// Whether the body of the request is kept, so that another server can get it, too.
    pub(super) fn keeps_body(&self) -> bool {
        let head = self.request.head();
        let may_repeat = |rules: &RetryRules| rules.may_repeat(head.method());
        self.route.retry.as_deref().is_some_and(may_repeat) && !head.framing().is_empty()
    }

    /// Whether another server may get the request after this failure.
    pub(super) fn may_retry(&self, cause: RetryCause, state: &ExchangeState) -> bool {
        match &self.route.retry {
            Some(rules) => rules.allow(cause, state),
            None => cause == RetryCause::Reset && state.may_be_repeated(),
        }
    }

    /// Whether a request whose connection could not be opened may go to another server.
    pub(super) fn retries_connects(&self) -> bool {
        self.route.retry.as_ref().is_none_or(|rules| rules.covers(RetryCause::Connect))
    }

    /// Returns another attempt after a server that sent no head of a response in time; `None`: the
    /// request ends.
    pub(super) fn retry_after_timeout(
        &self,
        permit: &Permit,
        state: &ExchangeState,
        attempts: &mut Attempts,
    ) -> Option<Attempt> {
        if !self.may_retry(RetryCause::Timeout, state) {
            return None;
        }
        attempts.repeat();
        attempts.pass_over(permit);
        (!attempts.are_over()).then_some(Attempt::AgainWithin(LocalReplyReason::ServerTimeout))
    }

    /// Ends an attempt whose response is discarded. The connection stays usable if the whole
    /// response has arrived already.
    pub(super) fn discard(&mut self, reached: Reached, transferred: &Transferred, status: u16) -> Attempt {
        let Transferred { state, is_clean, sent, .. } = transferred;
        let Reached { permit, server, .. } = reached;
        permit.count(Counter::of_status(status), 1);
        permit.answered_with(answer_now(self.client, Some(status), *sent), self.client.failures());
        self.record.discards(self.client, status);
        self.release((permit, server), state.end().server_stays && *is_clean);
        Attempt::Discarded
    }
}
