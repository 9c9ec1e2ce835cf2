//! Transfer of one request and its response as frames, when the client or the server uses a stream
//! of HTTP/2 or HTTP/3. Between two connections of HTTP/1, [`transfer`](crate::transfer) moves
//! bytes.
//!
//! - `client` and `server` are the endpoints: streams, or the connections of `http1_client` and
//!   `http1_server`.
//! - `up` moves the request, `down` the response.
//! - `response_body` compresses the response, and stores what its client does not accept yet.
//!
//! A server is free once it has sent its whole response, even if the client has read only a part:
//! the rest waits in a bounded buffer.

mod client;
mod down;
mod http1_client;
mod http1_encoder;
mod http1_server;
mod response_body;
mod server;
#[cfg(test)]
mod tests;
mod unread;
mod up;

use std::task::{Context, Poll};

use bytes::Bytes;
use convey_http_core::{ExchangeState, FieldRules, Frame};
use convey_proxy::ClientStream;

use crate::compress::CompressionTerms;
use crate::forward::{RewrittenRequest, StatusRetry};
use crate::held_responses::WaitingClient;
use crate::record::RequestRecord;
use crate::transfer::{ResponseChanges, RunningTransfer, Step, TransferEnd, TransferMeter};
use response_body::ResponseBody;

pub(crate) use client::FrameClient;
pub(crate) use http1_client::Http1Client;
pub(crate) use http1_server::Http1Server;
pub(crate) use response_body::WaitingFrames;
pub(crate) use server::{FrameServer, Http2Server};

/// Transfer of a request to a server and of the response to the client.
pub(crate) struct FrameTransfer<'a> {
    client: FrameClient<'a>,
    server: FrameServer<'a>,
    state: ExchangeState,
    /// Configured changes of the response's fields.
    fields: &'a FieldRules,
    /// Rewritten request, by which URLs and cookies are translated; `None`: they stay.
    rewritten: Option<RewrittenRequest<'a>>,
    /// Terms of the response's compression; `None`: it is not compressed.
    terms: Option<CompressionTerms<'a>>,
    /// Retry by the status of the response; `None`: the client gets each response.
    retry: Option<&'a mut StatusRetry<'a>>,
    meter: TransferMeter,
    /// The client, if it uses a stream: convey may buffer the response for it.
    stream_of: Option<WaitingClient<'a>>,
    /// `Sec-WebSocket-Key` of the server's request, if the client's stream asks for a tunnel.
    tunnel_key: Option<&'a [u8]>,
    /// Maximum number of further bytes of the request's body; `None`: no limit.
    body_left: Option<u64>,
    /// Number of bytes of data that the client has sent.
    data_up: u64,
    /// Frame of the request that the server has no room for.
    next: Option<Frame<Bytes>>,
    /// Whether the last frame of the request was sent.
    is_up_over: bool,
    /// Whether a write to the server has failed, so that the server accepts no more bytes. Its
    /// response may still arrive.
    server_takes_nothing: bool,
    body: ResponseBody<'a>,
    /// Whether the client has accepted all of the data that waited last, and this data had at least
    /// `ALWAYS_HELD` bytes.
    takes_frames: bool,
    /// Whether the transfer waits for bytes of the client, and so notices its end.
    reads_client: bool,
    /// Whether the transfer waits for bytes of the server.
    reads_server: bool,
}

/// How a response is passed to its client.
pub(crate) struct ToClient<'a> {
    pub(crate) changes: ResponseChanges<'a>,
    /// The client, if it uses a stream.
    pub(crate) stream_of: Option<WaitingClient<'a>>,
    /// `Sec-WebSocket-Key` of the server's request, if the client's stream asks for a tunnel.
    pub(crate) tunnel_key: Option<&'a [u8]>,
}

impl<'a> FrameTransfer<'a> {
    /// Creates the transfer of a request whose head was sent, or is in the server's buffer.
    /// `body_limit` is the maximum number of bytes of the request's body.
    pub(crate) fn new(
        client: FrameClient<'a>,
        server: FrameServer<'a>,
        state: ExchangeState,
        body_limit: Option<u64>,
        to_client: ToClient<'a>,
    ) -> FrameTransfer<'a> {
        let ToClient { changes, stream_of, tunnel_key } = to_client;
        let ResponseChanges { fields, rewritten, terms, hooks, retry } = changes;
        let mut transfer = FrameTransfer {
            client,
            server,
            is_up_over: state.is_request_whole(),
            state,
            fields,
            rewritten,
            meter: TransferMeter::default(),
            stream_of,
            tunnel_key,
            body_left: body_limit,
            data_up: 0,
            next: None,
            server_takes_nothing: false,
            terms,
            retry,
            body: ResponseBody::new(hooks),
            takes_frames: false,
            reads_client: false,
            reads_server: false,
        };
        // A server of HTTP/2 may refuse a request after it has accepted a part of the body.
        if let FrameServer::Http2(_) = transfer.server {
            transfer.client.keep_body();
        }
        transfer
    }

    /// Keeps the body of the request for a retry.
    pub(crate) fn keep_body(&mut self) {
        self.client.keep_body();
    }

    /// Makes the forwarded part of the request's body available for a retry. Returns the number of
    /// its bytes; `None`: a byte was not kept.
    pub(crate) fn take_body_back(&mut self) -> Option<u64> {
        let data = self.data_up;
        self.client.take_body_back().inspect(|_| self.body.hooks.will_repeat(data))
    }

    /// Whether the server has accepted all received bytes of the request, and sent nothing after
    /// its response. Otherwise, its connection must not be reused.
    pub(crate) fn is_clean(&self) -> bool {
        self.is_with_server() && !self.server.has_surplus()
    }

    /// Whether the client has received only a part of the sent bytes, so that no other response
    /// can follow.
    pub(crate) fn is_torn(&self) -> bool {
        matches!(&self.client, FrameClient::Http1(client) if client.is_torn())
    }

    /// Ends the transfer. Returns the progress of the exchange, and the frames that the client has
    /// not accepted yet.
    pub(crate) fn into_rest(self) -> (ExchangeState, WaitingFrames) {
        (self.state, self.body.waiting)
    }

    fn is_with_server(&self) -> bool {
        !self.server_takes_nothing && self.next.is_none() && self.server.left() == 0
    }
}

impl RunningTransfer for FrameTransfer<'_> {
    fn has_sent_request(&self) -> bool {
        self.is_up_over && !self.state.has_changed() && self.is_with_server()
    }

    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        FrameTransfer::poll_up(self, cx)
    }

    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        FrameTransfer::poll_down(self, cx)
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<TransferEnd> {
        FrameTransfer::poll_reset(self, cx)
    }

    fn is_compressing(&self) -> bool {
        self.body.compression.is_on()
    }

    fn server_takes_nothing(&self) -> bool {
        self.server_takes_nothing
    }

    fn meter(&self) -> &TransferMeter {
        &self.meter
    }

    fn meter_mut(&mut self) -> &mut TransferMeter {
        &mut self.meter
    }

    fn state(&self) -> &ExchangeState {
        &self.state
    }

    fn count_compression(&mut self, client: &ClientStream, record: &mut RequestRecord) {
        self.body.compression.count(client, record);
    }

    fn waiting_for_client(&self) -> u64 {
        let in_buffer = if let FrameClient::Http1(client) = &self.client { client.left() } else { 0 };
        (self.body.waiting.len() + in_buffer) as u64
    }

    fn has_unread_socket(&self) -> bool {
        !self.reads_client && matches!(self.client, FrameClient::Http1(_))
            || !self.reads_server && matches!(self.server, FrameServer::Http1(_))
    }

    fn unread_end(&self) -> Option<TransferEnd> {
        FrameTransfer::unread_end(self)
    }
}
