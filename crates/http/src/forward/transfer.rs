//! Transfer of a request and its response between a client and a server: as bytes between two
//! connections of HTTP/1, otherwise as frames.

use bytes::BytesMut;
use convey_http_core::{BodyDecoder, Exchange, ExchangeState};
use convey_model::HttpLimits;
use convey_proxy::HeldResource;
use convey_stream::{ByteStream, PollClock};
use convey_upstream::Permit;
use tokio::time::Instant;

use super::Forwarding;
use super::drive::Driver;
use crate::compress::Compression;
use crate::ends::{ClientEnd, ServerEnd};
use crate::frames::{
    FrameClient, FrameServer, FrameTransfer, Http1Client, Http1Server, Http2Server, ToClient, WaitingFrames,
};
use crate::held_responses::WaitingClient;
use crate::hooks::Hooks;
use crate::transfer::{ResponseChanges, RunningTransfer, Sockets, Transfer, TransferEnd};

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
    /// Moves the request and its response, until the transfer ends or too few bytes move for too
    /// long.
    pub(super) async fn transfer(
        &mut self,
        permit: &Permit,
        server: &mut ServerEnd,
        held: Option<&HeldResource>,
    ) -> Transferred {
        let head = self.begin(permit, server);
        let mut driver = Driver {
            worker: self.worker,
            client: self.client,
            request: self.request,
            route: self.route,
            timeouts: self.timeouts,
            time_limit: self.time_limit,
            record: self.record,
            is_last: self.is_last,
            is_stream: self.end.is_stream(),
        };
        let (received, hooks) = (&mut *self.received, &mut *self.hooks);
        let (client, server) = match (&mut *self.end, server) {
            (ClientEnd::Socket(client), ServerEnd::Socket(server)) if !hooks.want_bodies() => {
                let pipes = driver.client.pipes();
                let sockets = Sockets { client, server: server.stream(), pipes };
                return driver.move_bytes(sockets, hooks, (head, received), permit).await;
            }
            (ClientEnd::Socket(client), server) => {
                let client = Http1Client::new(client, received, driver.decoder());
                (FrameClient::Http1(Box::new(client)), server)
            }
            (ClientEnd::Stream(stream), server) => (FrameClient::Stream(&mut **stream), server),
        };
        let server = match server {
            ServerEnd::Socket(server) => FrameServer::Http1(driver.http1_server(server.stream(), head)),
            ServerEnd::Stream(stream) => {
                let limits = driver.limits().response_head;
                FrameServer::Http2(Http2Server { stream: &mut *stream, limits, unreleased: 0 })
            }
        };
        // Boxed, so that the state of frames is not a part of each HTTP/1.1 request.
        Box::pin(driver.move_frames((client, server), hooks, permit, held)).await
    }
}

impl<'d> Driver<'d> {
    /// Moves the request and its response between two connections of HTTP/1. `head` is the head for
    /// the server, `received` are the bytes after the client's head.
    async fn move_bytes(
        &mut self,
        sockets: Sockets<'_>,
        hooks: &mut Hooks,
        (head, received): (Vec<u8>, &mut BytesMut),
        permit: &Permit,
    ) -> Transferred {
        let sent = PollClock::now();
        let mut transfer = Transfer::new(sockets, self.exchange(), head, received, self.changes(hooks));
        let end = self.run(&mut transfer, permit, None).await;
        let (status, is_clean, is_torn) = (transfer.meter().status, transfer.is_clean(), transfer.is_torn());
        let mut state = transfer.into_state();
        if is_torn {
            state.note_answer();
        }
        Transferred { end, state, status, is_clean, sent, rest: None }
    }

    /// Moves the request and its response in frames.
    async fn move_frames<'t>(
        &'t mut self,
        (client, server): (FrameClient<'t>, FrameServer<'t>),
        hooks: &'t mut Hooks,
        permit: &Permit,
        held: Option<&HeldResource>,
    ) -> Transferred
    where
        'd: 't,
    {
        let (limits, sent) = (self.limits(), PollClock::now());
        let mut state = ExchangeState::new(self.request.head());
        if self.is_last {
            state.set_last();
        }
        let to_client = ToClient {
            changes: self.changes(hooks),
            stream_of: self.is_stream.then(|| self.waiting_client()),
            tunnel_key: self.is_stream.then(|| self.tunnel_key()).flatten(),
        };
        let mut transfer = FrameTransfer::new(client, server, state, limits.body, to_client);
        let end = self.run(&mut transfer, permit, held).await;
        let (status, is_clean, is_torn) = (transfer.meter().status, transfer.is_clean(), transfer.is_torn());
        let did_nothing = matches!(end, Some(TransferEnd::ServerRefused | TransferEnd::ServerBusy));
        let body_back = if did_nothing { transfer.take_body_back() } else { None };
        let (mut state, rest) = transfer.into_rest();
        if is_torn {
            state.note_answer();
        }
        if let Some(len) = body_back {
            state.note_body_taken_back();
            self.record.took_back(len);
        }
        Transferred { end, state, status, is_clean, sent, rest: Some(rest).filter(|rest| !rest.is_sent()) }
    }

    /// Begins the exchange of a request between two connections of HTTP/1.
    fn exchange(&self) -> Exchange {
        let (limits, mut exchange) = (self.limits(), Exchange::new(self.request.head()));
        exchange.limit_response(limits.response_head);
        if self.is_last {
            exchange.state_mut().set_last();
        }
        if let Some(most) = limits.body {
            exchange.limit_body(most);
        }
        exchange
    }

    fn limits(&self) -> HttpLimits {
        self.request.frontend().config.http_limits()
    }

    fn changes<'t>(&self, hooks: &'t mut Hooks) -> ResponseChanges<'t>
    where
        'd: 't,
    {
        let compression = Compression::of(self.client, self.request, self.route, &self.worker.encoders);
        ResponseChanges { fields: &self.route.response, compression, hooks }
    }

    fn waiting_client(&self) -> WaitingClient<'d> {
        WaitingClient { ip: self.request.client().ip(), budget: &self.worker.held }
    }

    /// `Sec-WebSocket-Key` of a request that asks for a tunnel.
    fn tunnel_key(&self) -> Option<&'d [u8]> {
        let head = self.request.head();
        head.field("sec-websocket-key").filter(|_| head.upgrade().is_some())
    }

    /// Decoder of the request's body.
    fn decoder(&self) -> BodyDecoder {
        let mut decoder = BodyDecoder::of_request(self.request.head().framing());
        if let Some(most) = self.limits().body {
            decoder.limit(most);
        }
        decoder
    }

    fn http1_server<'s>(&self, socket: &'s mut ByteStream, head: Vec<u8>) -> Http1Server<'s> {
        let request = self.request.head();
        let kind = (request.method(), request.framing());
        Http1Server::new(socket, head, kind, self.limits().response_head)
    }
}
