//! Servers that a client's streams hold.

use std::future::poll_fn;
use std::task::Poll;

use convey_proxy::{HeldServer, More};
use convey_snapshot::stats::Counter;

use super::Forwarding;
use crate::ends::End;
use crate::transfer::Outgoing;

/// A client's streams hold as many servers as they may.
pub(super) struct ClientHasShare;

impl Forwarding<'_, '_> {
    /// Counts the server that a stream, or a request of a client whom a trusted proxy has named, takes.
    ///
    /// # Errors
    /// The client has its share.
    pub(super) fn hold_server(&self) -> Result<Option<HeldServer>, ClientHasShare> {
        let (is_stream, named) = (self.end.is_stream(), self.request.named().map(|client| client.ip()));
        if !is_stream && named.is_none() {
            return Ok(None);
        }
        let held = self.client.hold_server(named, is_stream);
        if held.is_none() {
            self.client.count(Counter::DroppedClientLimit, 1);
        }
        held.map(Some).ok_or(ClientHasShare)
    }

    /// Has the client's stream take the rest of a response, unless it takes nothing for too long.
    pub(super) async fn write_rest(&mut self, mut rest: Outgoing) -> Result<(), Counter> {
        let (time_limit, record, idle) = (&mut *self.time_limit, &mut *self.record, self.timeouts.idle);
        let end = &mut *self.end;
        poll_fn(|cx| {
            let before = rest.left();
            let flushed = rest.poll_flush(cx, end, More::No);
            let taken = (before - rest.left()) as u64;
            if taken > 0 {
                record.count(0, taken);
                time_limit.renew(idle);
            }
            match flushed {
                Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| Counter::ClientReset)),
                Poll::Pending if end.poll_reset(cx).is_ready() => Poll::Ready(Err(Counter::ClientReset)),
                Poll::Pending => time_limit.poll_over(cx).map(|()| Err(Counter::IdleTimeout)),
            }
        })
        .await
    }
}
