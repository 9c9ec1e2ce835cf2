//! Servers and files that a client's streams use at the same time, and the client's share of them.

use std::future::poll_fn;
use std::task::Poll;

use convey_http_core::BodyFraming;
use convey_model::client_of;
use convey_proxy::HeldResource;
use convey_snapshot::stats::Counter;

use super::{Forwarding, StallLimit};
use crate::ends::ClientEnd;
use crate::frames::{FrameClient, WaitingFrames};
use crate::http2::{StreamClient, Upload};

/// Error: the client's streams already use their share of servers and files.
pub(crate) struct ClientHasShare;

impl Forwarding<'_, '_> {
    /// Counts the server or the file that a stream uses against the client's share. `None`: the
    /// client speaks HTTP/1.1, so its connection uses only one at a time.
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

    /// Sends the rest of a response to the client's stream. Returns an error if the client reads
    /// nothing for too long.
    pub(super) async fn write_rest(&mut self, mut rest: WaitingFrames) -> Result<(), Counter> {
        let (time_limit, record) = (&mut *self.time_limit, &mut *self.record);
        let period = self.timeouts.send;
        let (client, mut stall) = (self.client, StallLimit::of_reader(period));
        let ClientEnd::Stream(stream) = &mut *self.end else { return Ok(()) };
        let mut end = FrameClient::Stream(&mut **stream);
        poll_fn(|cx| {
            let mut taken = 0;
            let sent = rest.poll_send(cx, &mut end, &mut taken);
            if taken > 0 {
                record.count(0, taken);
                stall.has_taken(taken);
                time_limit.renew(period);
            }
            match sent {
                Poll::Ready(sent) => Poll::Ready(sent.map_err(|_| Counter::ClientReset)),
                Poll::Pending if end.poll_reset(cx).is_ready() => Poll::Ready(Err(Counter::ClientReset)),
                Poll::Pending => {
                    stall.poll_over(cx, time_limit, client, || None).map(|()| Err(Counter::ClientTooSlow))
                }
            }
        })
        .await
    }
}
