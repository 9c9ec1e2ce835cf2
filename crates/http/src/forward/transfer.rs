//! Transfer of a request and its response in frames: at least one of the two sides uses a stream, or
//! a hook wants to see bodies.

use std::future::poll_fn;

use convey_http_core::{BodyDecoder, ExchangeState, RequestHead, ServerFault};
use convey_upstream::Attempts;
use tokio::time::Instant;

use super::drive::{DriveState, Driver};
use super::reversal::RewrittenRequest;
use super::{Forwarding, Reached, StatusRetry};
use crate::compress::CompressionTerms;
use crate::ends::{ClientEnd, ServerEnd};
use crate::frames::{
    FrameClient, FrameServer, FrameTransfer, Http1Client, Http1Server, Http2Server, ToClient, WaitingFrames,
};
use crate::held_responses::WaitingClient;
use crate::request::HttpRequest;
use crate::transfer::{ResponseChanges, RunningTransfer, TransferEnd};

/// Outcome of a transfer.
pub(super) struct Transferred {
    /// End of the transfer; `None`: too few bytes moved for too long.
    pub(super) end: Option<TransferEnd>,
    pub(super) state: ExchangeState,
    pub(super) status: Option<u16>,
    /// Whether the server has accepted all received bytes of the request, and sent nothing after
    /// its response.
    pub(super) is_clean: bool,
    /// Time at which the transfer began.
    pub(super) sent: Instant,
    /// Rest of a whole response that the client has not accepted yet; `None`: the client has all of
    /// it.
    pub(super) rest: Option<WaitingFrames>,
}

impl Forwarding<'_, '_> {
    /// Moves the request and its response in frames, until the transfer ends or too few bytes move
    /// for too long.
    pub(super) async fn transfer(&mut self, reached: &mut Reached, attempts: &mut Attempts) -> Transferred {
        let Reached { permit, held, server, .. } = reached;
        let (request, limits) = (self.request, self.request.frontend().config.http_limits());
        let server = match server {
            ServerEnd::Socket(server) => {
                let (head, kind) =
                    (self.head_as_text(permit), (request.head().method(), request.head().framing()));
                FrameServer::Http1(Http1Server::new(server.stream(), head, kind, limits.response_head))
            }
            ServerEnd::Stream(stream) => {
                self.begin_stream(permit, stream);
                FrameServer::Http2(Http2Server { stream, limits: limits.response_head, unreleased: 0 })
            }
        };
        let mut state = ExchangeState::new(request.head());
        if self.is_last {
            state.set_last();
        }
        let mut drive = DriveState::begin(self.client, request, &self.timeouts, permit, self.time_limit);
        let (is_stream, keeps_body, began) = (self.end.is_stream(), self.keeps_body(), self.record.began);
        let rules = self.rules_with_affinity(permit, attempts);
        let (of, by) = ((self.worker, self.client), (request, self.route.retry.as_deref()));
        // Boxed, because most routes have no rules.
        let mut retry = StatusRetry::new(of, by, began, permit, attempts).map(Box::new);
        let client = match &mut *self.end {
            ClientEnd::Socket(client) => {
                let decoder = decoder(request);
                FrameClient::Http1(Box::new(Http1Client::new(client, self.received, decoder)))
            }
            ClientEnd::Stream(stream) => FrameClient::Stream(&mut **stream),
        };
        let to_client = ToClient {
            changes: ResponseChanges {
                fields: rules.as_deref().unwrap_or_else(|| request.response_changes(self.route)),
                rewritten: RewrittenRequest::of(self.client, request, self.route, permit),
                terms: CompressionTerms::of(self.client, request, self.route, &self.worker.encoders),
                hooks: self.hooks,
                retry: retry.as_deref_mut(),
            },
            stream_of: is_stream
                .then(|| WaitingClient { ip: request.client().ip(), budget: &self.worker.held }),
            tunnel_key: is_stream.then(|| tunnel_key(request.head())).flatten(),
        };
        let (client_of, time_limit, record) = (self.client, &mut *self.time_limit, &mut *self.record);
        let mut driver = Driver { client: client_of, time_limit, record, permit, held: held.as_ref() };
        let mut transfer = FrameTransfer::new(client, server, state, request.max_body(), to_client);
        if keeps_body {
            transfer.keep_body();
        }
        let end = poll_fn(|cx| drive.poll(cx, &mut transfer, &mut driver)).await;
        let (transferred, body_back) = outcome(end, transfer, keeps_body, drive.sent);
        if let Some(len) = body_back {
            self.record.took_back(len);
        }
        transferred
    }
}

/// Returns the outcome of an ended transfer, and the number of bytes of the request's body that can
/// be sent again to another server. `keeps_body`: the rules of the route let another server get the
/// body.
fn outcome(
    end: Option<TransferEnd>,
    mut transfer: FrameTransfer<'_>,
    keeps_body: bool,
    sent: Instant,
) -> (Transferred, Option<u64>) {
    let (status, is_clean, is_torn) = (transfer.meter().status, transfer.is_clean(), transfer.is_torn());
    let may_be_sent_again = match end {
        Some(TransferEnd::ServerRefused | TransferEnd::ServerBusy) => true,
        Some(
            TransferEnd::ServerReset(_)
            | TransferEnd::ServerDown
            | TransferEnd::ServerFault(ServerFault::Closed)
            | TransferEnd::Discarded(_),
        )
        | None => keeps_body && status.is_none(),
        Some(_) => false,
    };
    let body_back = if may_be_sent_again { transfer.take_body_back() } else { None };
    let (mut state, rest) = transfer.into_rest();
    if is_torn {
        state.note_answer();
    }
    if body_back.is_some() {
        state.note_body_taken_back();
    }
    let rest = Some(rest).filter(|rest| !rest.is_sent());
    (Transferred { end, state, status, is_clean, sent, rest }, body_back)
}

/// `Sec-WebSocket-Key` of a request that asks for a tunnel.
fn tunnel_key(head: &RequestHead) -> Option<&[u8]> {
    head.field("sec-websocket-key").filter(|_| head.upgrade().is_some())
}

/// Decoder of the request's body.
fn decoder(request: &HttpRequest) -> BodyDecoder {
    let mut decoder = BodyDecoder::of_request(request.head().framing());
    if let Some(most) = request.max_body() {
        decoder.limit(most);
    }
    decoder
}
