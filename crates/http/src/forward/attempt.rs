//! One attempt at a server, and what follows from its end.

use std::future::poll_fn;

use convey_http_core::ExchangeEnd;
use convey_snapshot::stats::Counter;
use convey_upstream::{Attempts, Permit, ServerAnswer};

use super::broken::timed_out;
use super::deadline::before;
use super::transfer::Transferred;
use super::{Attempt, Forwarding, Reached, RequestEnd, answer_now};
use crate::ends::ServerEnd;
use crate::transfer::TransferEnd;

impl Forwarding<'_, '_> {
    /// Runs one exchange with one server.
    pub(super) async fn attempt(&mut self, reached: Reached, attempts: &mut Attempts) -> Attempt {
        let mut reached = match reached {
            Reached { permit, server: ServerEnd::Socket(server), is_kept, .. } if self.moves_bytes() => {
                let mut running = self.start(permit, server, is_kept, attempts);
                let end = poll_fn(|cx| self.poll_running(&mut running, attempts, cx)).await;
                return self.conclude(running, end, attempts);
            }
            reached => reached,
        };
        if let (false, ServerEnd::Socket(server)) = (self.end.is_stream(), &reached.server) {
            self.client.goes_to(&reached.permit, server);
        }
        reached.permit.count(Counter::Requests, 1);
        // Boxed, so that the state of frames is not a part of each exchange of HTTP/1.
        let mut transferred = Box::pin(self.transfer(&mut reached, attempts)).await;
        let attempt = self.settle(reached, &transferred, attempts);
        if let (Attempt::Over(RequestEnd::Answered { .. }), Some(rest)) = (&attempt, transferred.rest.take())
            && let Err(reason) = Box::pin(before(self.timeouts.deadline, self.write_rest(rest)))
                .await
                .unwrap_or(Err(Counter::RequestDeadline))
        {
            return Attempt::Over(RequestEnd::Broken(reason));
        }
        attempt
    }

    /// Decides what follows from the end of a transfer, and releases the server.
    pub(super) fn settle(
        &mut self,
        mut reached: Reached,
        transferred: &Transferred,
        attempts: &mut Attempts,
    ) -> Attempt {
        let Transferred { end, state, status, is_clean, sent, .. } = transferred;
        let Reached { permit, server, is_kept, .. } = &mut reached;
        let is_stalled = end.is_none();
        let Some(end) = end.filter(|end| *end != TransferEnd::OverTime) else {
            let awaits_server = state.is_request_whole() || !is_clean;
            if status.is_none() && awaits_server && (is_stalled || self.is_servers_delay(*sent)) {
                if let ServerEnd::Stream(stream) = server {
                    stream.retire_connection();
                }
                permit.answered_with(answer_now(self.client, None, *sent), self.client.failures());
                if is_stalled && let Some(again) = self.retry_after_timeout(permit, state, attempts) {
                    return again;
                }
            }
            return Attempt::Over(timed_out(state, awaits_server, is_stalled));
        };
        if let (TransferEnd::ServerRefused, ServerEnd::Stream(stream)) = (end, &mut *server) {
            stream.was_refused();
        }
        if let TransferEnd::Discarded(status) = end {
            return self.discard(reached, transferred, status);
        }
        if end == TransferEnd::Whole {
            return Attempt::Over(self.answered(reached, transferred));
        }
        if status.is_none() && !*is_kept && end.is_of_server() {
            let ServerAnswer { took, now, .. } = answer_now(self.client, None, *sent);
            permit.failed_after(took, now);
        }
        self.broken(end, state, (permit, *is_kept), attempts)
    }

    /// Releases the server of a whole response: it becomes free for other requests, even if the
    /// client reads the rest of the response slowly.
    fn answered(&mut self, reached: Reached, transferred: &Transferred) -> RequestEnd {
        let Transferred { state, is_clean, rest, .. } = transferred;
        let ExchangeEnd { client_stays, server_stays } = state.end();
        let Reached { permit, server, .. } = reached;
        permit.count(Counter::BytesTx, rest.as_ref().map_or(0, |rest| rest.len() as u64));
        self.release((permit, server), server_stays && *is_clean);
        RequestEnd::Answered {
            client_stays: client_stays && !state.has_changed(),
            is_silent: state.is_request_whole()
                && self.received.is_empty()
                && !self.request.head().keeps_alive(),
        }
    }

    /// Releases a server. `is_clean`: its connection can serve another request.
    pub(super) fn release(&self, (permit, server): (Permit, ServerEnd), is_clean: bool) {
        match server {
            ServerEnd::Socket(server) if is_clean && permit.send_proxy().is_none() => {
                self.worker.idle.put(self.place(&permit), server);
            }
            ServerEnd::Socket(mut server) => server.close_in_order(),
            ServerEnd::Stream(stream) => drop(stream),
        }
    }
}
