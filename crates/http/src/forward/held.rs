//! Servers and files that a client's streams use at the same time, and the client's share of them.

use std::future::poll_fn;
use std::task::Poll;

use convey_http_core::BodyFraming;
use convey_model::client_of;
use convey_proxy::HeldResource;
use convey_snapshot::stats::Counter;
use convey_stream::More;

use super::{Forwarding, StallLimit};
use crate::ends::End;
use crate::http2::{StreamClient, Upload};
use crate::transfer::Outgoing;

/// Error: the client's streams already use their share of servers and files.
pub(crate) struct ClientHasShare;

impl Forwarding<'_, '_> {
    /// Counts the server or the file that a stream uses for the client's share. `None`: the client
    /// speaks HTTP/1.1, so its connection uses only one at a time.
    ///
    /// # Errors
    /// The client has reached its share.
    pub(crate) fn hold(&self) -> Result<Option<HeldResource>, ClientHasShare> {
        if !self.end.is_stream() {
            return Ok(None);
        }
        let held = self.client.hold(self.request.named().map(|client| client.ip()));
        if held.is_none() {
            self.client.count(Counter::DroppedClientLimit, 1);
        }
        held.map(Some).ok_or(ClientHasShare)
    }

    /// Describes the client of this request for a stream to an HTTP/2 server: its share, and its
    /// upload.
    pub(super) fn stream_client(&self) -> StreamClient {
        let (ip, head) = (self.request.client().ip(), self.request.head());
        let length = match head.framing() {
            BodyFraming::Empty => Some(0),
            BodyFraming::Length(length) => Some(length),
            _ => None,
        };
        let has_share = !self.request.frontend().config.trusts(ip);
        let client = client_of(ip);
        let upload = (length != Some(0)).then_some(Upload { client, length });
        StreamClient { sharing: has_share.then_some(client), upload }
    }

    /// Writes the rest of a response to the client's stream, unless the client reads nothing for
    /// too long.
    pub(super) async fn write_rest(&mut self, mut rest: Outgoing) -> Result<(), Counter> {
        let (time_limit, record, idle) = (&mut *self.time_limit, &mut *self.record, self.timeouts.idle);
        let (client, end, mut stall) = (self.client, &mut *self.end, StallLimit::of_reader(idle));
        poll_fn(|cx| {
            let before = rest.left();
            let flushed = rest.poll_flush(cx, end, More::No);
            let taken = (before - rest.left()) as u64;
            if taken > 0 {
                record.count(0, taken);
                stall.has_taken(taken);
                time_limit.renew(idle);
            }
            match flushed {
                Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| Counter::ClientReset)),
                Poll::Pending if end.poll_reset(cx).is_ready() => Poll::Ready(Err(Counter::ClientReset)),
                Poll::Pending => {
                    stall.poll_over(cx, time_limit, client, || None).map(|()| Err(Counter::IdleTimeout))
                }
            }
        })
        .await
    }
}
