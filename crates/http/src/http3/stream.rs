//! One request stream of an HTTP/3 client: the request, its body, and the body of the response.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use convey_http_core::{Frame, HeadLimits, Malformed};
use convey_proxy::ClientStream;
use convey_snapshot::stats::Counter;
use futures_util::FutureExt;
use h3::error::{Code, ConnectionError, LocalError, StreamError};
use h3::server::{RequestResolver, RequestStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use tokio::sync::watch;
use tokio::time::timeout;

use super::field_section::HIDDEN_PROTOCOL;
use super::quic::{QuicConnection, SendingStream, Stopped, StreamNotes, broken};
use super::receiving::{ReceivingStream, SharedReceiver};
use crate::linger::LINGER;
use crate::local_reply::LocalReplyReason;
use crate::record::RequestRecord;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::body::{BodyFault, DataSink, DataSource, ResetReason};
use crate::streams::serving::StreamOutcome;
use crate::streams::{self, ArrivedRequest, ClientRequest, IncomingStream, StreamOfClient, heads};

/// Header that warns the server of a possible replay: the request came as early data (RFC 8470,
/// section 5.1).
const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// Progress of the client's handshake.
#[derive(Clone)]
pub(super) struct HandshakeState {
    pub(super) is_over: watch::Receiver<bool>,
    /// Whether the client's address was validated before the handshake.
    pub(super) is_address_proven: bool,
}

/// Serves a client's stream.
pub(super) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    server: WorkerServer<S>,
    resolver: RequestResolver<QuicConnection, Bytes>,
    notes: StreamNotes,
    handshake: HandshakeState,
) -> StreamOutcome {
    let limits = client.newest().config.http_limits();
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
        let mut source =
            ClientData { stream: receive, receiver: receiver.clone(), first: None, trailers: None };
        let has_body = source.has_body(request).await;
        let has_data = has_body && source.trailers.is_none();
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
    let sending = SendingHead { stream: Some(respond), stopped: Some(notes.stopped) };
    let mut stream = ClientRequest::new(head.as_deref().ok(), source, sending);
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
        return *handshake.is_over.borrow();
    }
    // The handshake has its own timeout.
    let _ = handshake.is_over.wait_for(|is| *is).await;
    true
}

/// The request's body.
struct ClientData {
    stream: RequestStream<ReceivingStream, Bytes>,
    receiver: SharedReceiver,
    /// Result of the first read, which shows whether the request has data; `Some(None)`: it has
    /// none.
    first: Option<Option<io::Result<Bytes>>>,
    /// Trailers that were received before the body was read, so the body has no data.
    trailers: Option<HeaderMap>,
}

impl ClientData {
    /// Whether the request has a body: data or trailers. If the method usually has none, or if the
    /// content length is 0, this waits for the first data or the end of the stream, which usually
    /// arrives with the head.
    async fn has_body(&mut self, request: &Request<()>) -> bool {
        let says_none = heads::says_no_body(request.headers());
        if request.headers().contains_key(CONTENT_LENGTH) && !says_none {
            return true;
        }
        let usually_none = [Method::GET, Method::HEAD, Method::OPTIONS, Method::DELETE, Method::TRACE];
        let waits = says_none || usually_none.contains(request.method());
        let first = poll_fn(|cx| match self.poll_library(cx) {
            Poll::Pending if !waits => Poll::Ready(None),
            first => first.map(Some),
        });
        self.first = first.await;
        if !matches!(self.first, Some(None)) {
            return true;
        }
        // Without data, a body may still have trailers. An error is returned again later.
        match poll_fn(|cx| self.stream.poll_recv_trailers(cx)).await {
            Ok(trailers) => {
                self.trailers = trailers;
                self.trailers.is_some()
            }
            Err(_) => true,
        }
    }

    fn poll_library(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let data = ready!(self.stream.poll_recv_data(cx));
        let data = data.map(|data| data.map(|mut data| data.copy_to_bytes(data.remaining())));
        if let Ok(Some(data)) = &data {
            self.receiver.note_taken(data.len());
        }
        Poll::Ready(data.map_err(broken).transpose())
    }
}

impl DataSource for ClientData {
    fn poll_data(&mut self, cx: &mut Context<'_>, _: usize) -> Poll<Option<io::Result<Bytes>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(first),
            None => self.poll_library(cx),
        }
    }

    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        let trailers = match self.trailers.take() {
            Some(trailers) => Some(trailers),
            None => ready!(self.stream.poll_recv_trailers(cx)).map_err(broken)?,
        };
        let last = match self.receiver.fault() {
            Some(fault) => Err(fault),
            None => heads::last_frame(trailers.as_ref(), &HeadLimits::OF_REQUEST_TRAILERS),
        };
        Poll::Ready(last.map_err(|fault| BodyFault::new(fault).into()))
    }

    /// Does nothing: the QUIC library extends the client's flow control when data is read.
    fn release(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }
}

/// Sender of the response's head.
struct SendingHead {
    /// `None` once the head was sent.
    stream: Option<RequestStream<SendingStream, Bytes>>,
    stopped: Option<Stopped>,
}

impl StreamOfClient for SendingHead {
    type Source = ClientData;
    type Sink = SendingBody;

    fn send_interim(&mut self, response: Response<()>) -> io::Result<()> {
        self.stream.as_mut().map_or(Ok(()), |stream| begin(stream.send_response(response)))
    }

    fn send_response(&mut self, response: Response<()>, _: bool) -> io::Result<SendingBody> {
        let stream = self.stream.take().zip(self.stopped.take());
        let (mut stream, stopped) = stream.ok_or(io::ErrorKind::BrokenPipe)?;
        begin(stream.send_response(response))?;
        Ok(SendingBody { stream, stopped })
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().map_or(Poll::Ready(Ok(())), |stream| flush(stream, cx))
    }

    fn reset(&mut self, reason: ResetReason) {
        if let Some(stream) = &mut self.stream {
            stream.stop_stream(code(reason));
        }
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.stopped.as_mut().map_or(Poll::Pending, |stopped| stopped.poll(cx))
    }
}

/// The response's body.
struct SendingBody {
    stream: RequestStream<SendingStream, Bytes>,
    stopped: Stopped,
}

impl DataSink for SendingBody {
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(cx))?;
        Poll::Ready(Ok(wanted))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        flush(&mut self.stream, cx)
    }

    fn send(&mut self, data: Bytes, _: bool) -> io::Result<()> {
        begin(self.stream.send_data(data))
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()> {
        begin(self.stream.send_trailers(trailers))
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(self.stream.finish()).poll(cx).map_err(broken)
    }

    fn reset(&mut self, reason: ResetReason) {
        self.stream.stop_stream(code(reason));
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

fn code(reason: ResetReason) -> Code {
    match reason {
        ResetReason::Cancelled => Code::H3_REQUEST_CANCELLED,
        ResetReason::Overloaded => Code::H3_EXCESSIVE_LOAD,
        ResetReason::Internal => Code::H3_INTERNAL_ERROR,
    }
}
