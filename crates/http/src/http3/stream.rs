//! Stream of an HTTP/3 client: its request, and the response.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_http_core::{Malformed, OutgoingResponse, Trailers};
use convey_proxy::ClientStream;
use convey_snapshot::stats::Counter;
use futures_util::FutureExt;
use h3::error::{Code, ConnectionError, LocalError, StreamError};
use h3::server::{RequestResolver, RequestStream};
use http::{HeaderName, HeaderValue, Method, Request};
use tokio::sync::watch;
use tokio::time::timeout;

use super::body::ClientData;
use super::field_section::HIDDEN_PROTOCOL;
use super::quic::{QuicConnection, SendingStream, Stopped, StreamNotes, broken};
use crate::linger::LINGER;
use crate::local_reply::LocalReplyReason;
use crate::record::RequestRecord;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::body::ResetReason;
use crate::streams::serving::StreamOutcome;
use crate::streams::{self, ArrivedRequest, IncomingBody, IncomingStream, RequestBody, heads};

/// Header that warns the server of a possible replay: the request came as early data (RFC 8470,
/// section 5.1).
const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// Progress of the client's handshake.
#[derive(Clone)]
pub(super) struct HandshakeState {
    /// Whether the handshake is over; `None` if it was over before HTTP/3 began.
    pub(super) is_over: Option<watch::Receiver<bool>>,
    /// Whether the client's address was validated before the handshake.
    pub(super) is_address_proven: bool,
}

impl HandshakeState {
    fn is_over(&self) -> bool {
        self.is_over.as_ref().is_none_or(|is_over| *is_over.borrow())
    }
}

/// Serves a client's stream.
pub(super) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    server: Arc<WorkerServer<S>>,
    resolver: RequestResolver<QuicConnection, Bytes>,
    notes: StreamNotes,
    handshake: HandshakeState,
) -> StreamOutcome {
    let limits = *client.newest().config.http_limits();
    let (is_early, receiver) = (notes.is_early, notes.receiver);
    let mut arrived = None;
    let head = async {
        let resolved = resolver.resolve_request().await;
        let (mut request, stream) = resolved.map_err(|error| refusal(&error, receiver.fault()))?;
        if let Some(protocol) = receiver.protocol() {
            request.headers_mut().remove(HIDDEN_PROTOCOL);
            request.extensions_mut().insert(heads::Tunnel(protocol));
        }
        // The library shows the number without its two lowest bits, which are 0 in requests.
        let record = RequestRecord::begin(client, "3").on_stream(stream.id().index() << 2);
        let arrived = arrived.insert(ArrivedRequest::new(client, record, request, limits.head));
        let request = arrived.head();
        if is_early && !await_handshake(request, handshake).await {
            request.headers_mut().insert(EARLY_DATA, HeaderValue::from_static("1"));
        }
        let (respond, receive) = stream.split();
        let mut source = ClientData::new(receive, receiver.clone());
        let has_body = source.has_body(request).await;
        let has_data = has_body && !source.has_trailers_alone();
        Ok((respond, source, (has_body, has_data)))
    };
    let head = timeout(limits.head_timeout, head).await;
    // A stream that is dropped is reset.
    let (arrived, (respond, source, (has_body, has_data))) = match (arrived, head) {
        (Some(arrived), Ok(Ok(rest))) => (arrived, rest),
        (arrived, head) => {
            let late = LocalReplyReason::RequestTimeout;
            match arrived {
                Some(arrived) => arrived.refuse(late),
                None => end_without_head(client, head.map_or(Some(late), |head| head.err().flatten())),
            }
            return StreamOutcome::Reset;
        }
    };
    let (request, record) = arrived.take();
    let head = match receiver.fault().or_else(|| malformed(&request, has_data)) {
        Some(fault) => Err(fault),
        None => heads::request_from(&request.into_parts().0, has_body, &limits.head).map(Arc::new),
    };
    let body = RequestBody::of_head(source, head.as_deref().ok());
    let mut stream = Http3Stream { body, respond, stopped: notes.stopped };
    let outcome = streams::serve(client, server, head, &mut stream, record).await;
    if outcome == StreamOutcome::Served {
        // The connection may be closed once the client has everything, and not before.
        let _ = timeout(LINGER, poll_fn(|cx| stream.poll_reset(cx))).await;
    }
    outcome
}

/// Ends the record of a request whose head could not be read: it is refused for this reason. `None`:
/// its client has reset the stream, or has left.
fn end_without_head(client: &ClientStream, reason: Option<LocalReplyReason>) {
    let mut record = RequestRecord::begin(client, "3");
    match reason {
        Some(reason) => record.refused(reason),
        None => record.broke(Counter::ClientReset),
    }
    record.end_undecided(client, None);
}

/// Reason to refuse a request whose head could not be read; `None` if the client reset the stream,
/// or its connection has ended. `fault` comes from the frame filter.
fn refusal(error: &StreamError, fault: Option<Malformed>) -> Option<LocalReplyReason> {
    let malformed = match error {
        StreamError::StreamError { code: Code::H3_MESSAGE_ERROR, .. } => Malformed::Http3Message,
        StreamError::HeaderTooBig { .. } => Malformed::HeadTooLong,
        // This error ends the connection. The pattern has braces because the library made the
        // variant non-exhaustive.
        StreamError::ConnectionError {
            0:
                ConnectionError::Local {
                    error: LocalError::Application { code: Code::QPACK_DECOMPRESSION_FAILED, .. },
                    ..
                },
            ..
        } => Malformed::Http3Message,
        _ => fault.filter(|fault| *fault == Malformed::HeadTooLong)?,
    };
    Some(LocalReplyReason::Malformed(fault.unwrap_or(malformed)))
}

/// Reason why a request is malformed although the HTTP/3 library accepted it.
fn malformed(request: &Request<()>, has_data: bool) -> Option<Malformed> {
    let uri = request.uri();
    let is_tunnel = request.extensions().get::<heads::Tunnel>().is_some();
    if (request.method() != Method::CONNECT || is_tunnel)
        && (uri.scheme().is_none() || uri.path_and_query().is_none())
    {
        return Some(Malformed::PseudoField);
    }
    (has_data && heads::says_no_body(request.headers())).then_some(Malformed::ContentLength)
}

/// Waits for the end of the handshake, unless the method is safe and the client's address is
/// validated, so that a replay does no harm. Returns whether the handshake is over.
async fn await_handshake(request: &Request<()>, mut handshake: HandshakeState) -> bool {
    if request.method().is_safe() && handshake.is_address_proven {
        return handshake.is_over();
    }
    // The handshake has its own timeout.
    if let Some(is_over) = &mut handshake.is_over {
        let _ = is_over.wait_for(|is| *is).await;
    }
    true
}

/// Stream of a client, whose request is served.
struct Http3Stream {
    body: RequestBody<ClientData>,
    respond: RequestStream<SendingStream, Bytes>,
    stopped: Stopped,
}

impl IncomingStream for Http3Stream {
    fn body(&mut self) -> &mut dyn IncomingBody {
        &mut self.body
    }

    fn send_interim(&mut self, response: &OutgoingResponse<'_>) -> io::Result<()> {
        begin(self.respond.send_response(heads::response_to(response)?))
    }

    fn send_head(&mut self, response: &OutgoingResponse<'_>, _: bool) -> io::Result<usize> {
        begin(self.respond.send_response(heads::response_to(response)?))?;
        Ok(response.head_len())
    }

    fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        ready!(flush(&mut self.respond, cx))?;
        Poll::Ready(Ok(most))
    }

    fn send_data(&mut self, data: Bytes, _: bool) -> io::Result<()> {
        begin(self.respond.send_data(data))
    }

    fn send_trailers(&mut self, trailers: &Trailers) -> io::Result<()> {
        begin(self.respond.send_trailers(heads::trailers_to(trailers)?))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        flush(&mut self.respond, cx)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(self.respond.finish()).poll(cx).map_err(broken)
    }

    fn reset(&mut self, reason: ResetReason) {
        self.respond.stop_stream(match reason {
            ResetReason::Cancelled => Code::H3_REQUEST_CANCELLED,
            ResetReason::Overloaded => Code::H3_EXCESSIVE_LOAD,
            ResetReason::Internal => Code::H3_INTERNAL_ERROR,
        });
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.stopped.poll(cx)
    }
}

/// Makes the library start to send. Bytes that do not fit stay in [`SendingStream`], which sends
/// them later.
fn begin(sending: impl Future<Output = Result<(), h3::error::StreamError>>) -> io::Result<()> {
    sending.now_or_never().unwrap_or(Ok(())).map_err(broken)
}

/// Waits until the connection has accepted all sent frames.
fn flush(stream: &mut RequestStream<SendingStream, Bytes>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    // The empty frame is not sent: see `SendingStream::send_data`.
    pin!(stream.send_data(Bytes::new())).poll(cx).map_err(broken)
}
