//! HTTP/2 stream of a client, and the data of HTTP/2 streams in both directions.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_http_core::Malformed;
use convey_proxy::ClientStream;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::time::timeout;

use super::receive::{ReceiveQueue, ReceivedStream};
use crate::local_reply::LocalReplyReason;
use crate::record::RequestRecord;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::body::{BodyFault, DataSink, ResetReason};
use crate::streams::serving::StreamOutcome;
use crate::streams::{self, ArrivedRequest, ClientRequest, StreamOfClient, heads};

/// Serves a client's stream.
pub(super) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    server: WorkerServer<S>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    queue: Arc<ReceiveQueue>,
) -> StreamOutcome {
    let record = RequestRecord::begin(client, "2").on_stream(respond.stream_id().as_u32().into());
    let (mut parts, mut body) = request.into_parts();
    if let Some(protocol) = parts.extensions.remove::<Protocol>() {
        parts.extensions.insert(heads::Tunnel(Bytes::copy_from_slice(protocol.as_str().as_bytes())));
    }
    let limits = client.newest().config.http_limits();
    let arrived = ArrivedRequest::new(client, record, Request::from_parts(parts, ()), limits.head);
    if heads::says_no_body(arrived.request.headers()) && !body.is_end_stream() {
        let refused = match timeout(limits.head_timeout, ends_empty(&mut body)).await {
            Ok(true) => None,
            Ok(false) => Some(LocalReplyReason::Malformed(Malformed::ContentLength)),
            Err(_) => Some(LocalReplyReason::RequestTimeout),
        };
        if let Some(reason) = refused {
            arrived.refuse(reason);
            return StreamOutcome::Served;
        }
    }
    let (record, request) = arrived.take();
    let (parts, ()) = request.into_parts();
    let head = heads::request_from(&parts, !body.is_end_stream(), &limits.head).map(Arc::new);
    let body = ReceivedStream::of_body(body, queue);
    let mut stream = ClientRequest::new(head.as_deref().ok(), body, respond);
    streams::serve(client, server, head, &mut stream, record).await
}

/// Waits for the end of a body whose head announces that it is empty. Returns false if the body has
/// data.
async fn ends_empty(body: &mut RecvStream) -> bool {
    loop {
        match body.data().await {
            Some(Ok(_)) => {}
            // Other errors are handled when the request is served.
            Some(Err(error)) => return !is_malformed(&error),
            None => return true,
        }
    }
}

/// Whether the library has reset the stream because of what the peer sent after the head.
fn is_malformed(error: &h2::Error) -> bool {
    error.is_library() && error.is_reset() && error.reason() == Some(Reason::PROTOCOL_ERROR)
}

impl StreamOfClient for SendResponse<Bytes> {
    type Source = ReceivedStream;
    type Sink = SendStream<Bytes>;

    fn send_interim(&mut self, response: Response<()>) -> io::Result<()> {
        self.send_informational(response).map_err(broken)
    }

    fn send_response(&mut self, response: Response<()>, is_over: bool) -> io::Result<SendStream<Bytes>> {
        SendResponse::send_response(self, response, is_over).map_err(broken)
    }

    fn reset(&mut self, reason: ResetReason) {
        self.send_reset(code_of(reason));
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        SendResponse::poll_reset(self, cx).map(reset_with)
    }
}

impl DataSink for SendStream<Bytes> {
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.reserve_capacity(wanted);
        while self.capacity() == 0 {
            match ready!(self.poll_capacity(cx)) {
                Some(room) => _ = room.map_err(broken)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        Poll::Ready(Ok(self.capacity()))
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        self.send_data(data, is_last).map_err(broken)
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()> {
        SendStream::send_trailers(self, trailers).map_err(broken)
    }

    fn reset(&mut self, reason: ResetReason) {
        self.send_reset(code_of(reason));
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        SendStream::poll_reset(self, cx).map(reset_with)
    }
}

fn code_of(reason: ResetReason) -> Reason {
    match reason {
        ResetReason::Cancelled => Reason::CANCEL,
        ResetReason::Overloaded => Reason::ENHANCE_YOUR_CALM,
        ResetReason::Internal => Reason::INTERNAL_ERROR,
    }
}

fn reset_with(reason: Result<Reason, h2::Error>) -> io::Error {
    match reason {
        Ok(Reason::REFUSED_STREAM) => io::ErrorKind::ResourceBusy.into(),
        Ok(_) => io::ErrorKind::ConnectionReset.into(),
        Err(error) => broken(error),
    }
}

/// Converts a stream error to an I/O error. `ConnectionRefused` and `ResourceBusy` mean that the
/// other side has not processed the request (RFC 9113, section 8.7), because it ends the connection
/// or is overloaded. The error of another reset contains its [`ResetReason`].
pub(super) fn broken(error: h2::Error) -> io::Error {
    if is_malformed(&error) {
        return BodyFault::new(Malformed::Trailers).into();
    }
    if error.is_remote() && error.is_reset() {
        match error.reason() {
            Some(Reason::CANCEL) => return ResetReason::Cancelled.into(),
            Some(Reason::ENHANCE_YOUR_CALM) => return ResetReason::Overloaded.into(),
            _ => {}
        }
    }
    // When the peer gracefully ends a connection, the library returns this error only for streams
    // that the peer has not processed.
    let kind = match error.is_remote() {
        true if error.is_go_away() => io::ErrorKind::ConnectionRefused,
        true if error.reason() == Some(Reason::REFUSED_STREAM) => io::ErrorKind::ResourceBusy,
        _ => io::ErrorKind::ConnectionReset,
    };
    match error.is_io() {
        true => error.into_io().unwrap_or_else(|| kind.into()),
        false => io::Error::new(kind, error),
    }
}
