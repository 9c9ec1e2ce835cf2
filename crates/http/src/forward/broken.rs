//! Attempts that end before the client has the whole response.

use convey_http_core::{ExchangeState, RetryCause, ServerFault};
use convey_snapshot::stats::Counter;
use convey_upstream::{Attempts, Permit};

use super::{Attempt, Forwarding, RequestEnd, unanswered};
use crate::local_reply::LocalReplyReason;
use crate::streams::body::ResetReason;
use crate::transfer::TransferEnd;

impl Forwarding<'_, '_> {
    /// Handles a transfer that ended before the client had the whole response.
    pub(super) fn broken(
        &self,
        end: TransferEnd,
        state: &ExchangeState,
        (permit, is_kept): (&Permit, bool),
        attempts: &mut Attempts,
    ) -> Attempt {
        let reason = match end {
            TransferEnd::ClientGone => return Attempt::Over(RequestEnd::Broken(Counter::ClientReset)),
            TransferEnd::ClientTooSlow => return Attempt::Over(RequestEnd::Broken(Counter::ClientTooSlow)),
            TransferEnd::ClientFault(fault) => {
                return Attempt::Over(match state.has_answered() {
                    true => RequestEnd::Broken(Counter::ClientReset),
                    false => unanswered(LocalReplyReason::Malformed(fault)),
                });
            }
            TransferEnd::CompressionFailed => {
                return Attempt::Over(RequestEnd::Broken(Counter::CompressionFailed));
            }
            TransferEnd::ServerFault(ServerFault::Closed) if state.is_server_silent() => {
                LocalReplyReason::ServerReset
            }
            TransferEnd::ServerFault(fault) => LocalReplyReason::ServerFault(fault),
            TransferEnd::ServerRefused if state.may_be_sent_elsewhere() && attempts.was_refused() => {
                // This is not a failure: the server closes its connection gracefully.
                return Attempt::Again(LocalReplyReason::ServerReset);
            }
            TransferEnd::ServerBusy if state.may_be_sent_elsewhere() && !attempts.are_over() => {
                attempts.repeat();
                return Attempt::Again(LocalReplyReason::ServerReset);
            }
            TransferEnd::ServerReset(_)
            | TransferEnd::ServerRefused
            | TransferEnd::ServerBusy
            | TransferEnd::ServerDown
            | TransferEnd::OverTime
            | TransferEnd::Discarded(_)
            | TransferEnd::Whole => LocalReplyReason::ServerReset,
        };
        if state.has_answered() {
            return Attempt::Over(match end {
                TransferEnd::ServerReset(reset) => RequestEnd::ServerReset(reset),
                TransferEnd::ServerDown => RequestEnd::Broken(Counter::ServerGone),
                _ => RequestEnd::Broken(Counter::ServerReset),
            });
        }
        attempts.repeat();
        let is_broken_off = reason == LocalReplyReason::ServerReset;
        let was_closed = is_kept && is_broken_off && end != TransferEnd::ServerDown;
        if end == TransferEnd::ServerDown {
            // Health checks have already noticed that the server is down.
            attempts.pass_over(permit);
        } else if was_closed {
            // The server had closed the idle connection before. That is not a failure, but it has
            // probably closed its other idle connections, too.
            self.worker.idle.forget(self.place(permit));
            if self.route.retry.is_some() {
                attempts.allow_another();
            }
        } else {
            permit.reset(self.client.failures());
            attempts.pass_over(permit);
        }
        let may_retry = was_closed && state.may_be_repeated() || self.may_retry(RetryCause::Reset, state);
        if is_broken_off && may_retry && !attempts.are_over() {
            return if was_closed { Attempt::Again(reason) } else { Attempt::AgainWithin(reason) };
        }
        Attempt::Over(match end {
            TransferEnd::ServerReset(reset) if self.passes_early(reset) => RequestEnd::ServerReset(reset),
            _ => unanswered(reason),
        })
    }

    /// Whether the client gets this reset instead of a local reply. gRPC has a status for it
    /// (`CANCELLED` or `RESOURCE_EXHAUSTED`), and takes a 502 for an outage (`UNAVAILABLE`).
    fn passes_early(&self, reset: ResetReason) -> bool {
        reset != ResetReason::Internal && self.end.is_stream() && self.request.head().is_grpc()
    }
}

/// Returns the end of a request in which too few bytes moved for too long (`is_stalled`), or that
/// took too long as a whole. `awaits_server`: the server has the whole request, or does not accept
/// the part that convey has received.
pub(super) fn timed_out(state: &ExchangeState, awaits_server: bool, is_stalled: bool) -> RequestEnd {
    match (state.has_answered(), awaits_server, is_stalled) {
        (true, _, true) => RequestEnd::Broken(Counter::IdleTimeout),
        (true, _, false) => RequestEnd::Broken(Counter::RequestDeadline),
        (false, true, true) => unanswered(LocalReplyReason::ServerTimeout),
        (false, true, false) => unanswered(LocalReplyReason::RequestDeadline),
        (false, false, _) => unanswered(LocalReplyReason::RequestTimeout),
    }
}
