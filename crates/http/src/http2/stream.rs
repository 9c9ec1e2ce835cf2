//! HTTP/2 stream of a client.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_http_core::{Frame, Malformed, OutgoingResponse, RequestHead, Trailers};
use convey_http2::{ErrorCode, ReceivedRequest, StreamFault, StreamKey};
use convey_model::HttpLimits;
use convey_proxy::ClientStream;
use tokio::time::timeout;

use super::client::SharedConnection;
use crate::local_reply::LocalReplyReason;
use crate::record::RequestRecord;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::body::{BodyFault, DataSource, ResetReason};
use crate::streams::serving::StreamOutcome;
use crate::streams::{self, ArrivedRequest, IncomingBody, IncomingStream, RequestBody};
use crate::time_limit::TimeLimit;

/// Maximum number of time limits that a connection keeps for later streams.
const MAX_TIME_LIMITS: usize = 8;

/// Serves a client's stream.
pub(super) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    server: Arc<WorkerServer<S>>,
    request: ReceivedRequest,
    connection: &SharedConnection,
) -> StreamOutcome {
    let ReceivedRequest { stream: key, mut head, if_empty } = request;
    let source = BodySource { connection, key };
    let mut record = RequestRecord::begin(client, "2").on_stream(key.id().into());
    if let Some(if_empty) = if_empty {
        let arrived = Box::pin(await_end(client, record, (head, if_empty), source)).await;
        (record, head) = match arrived {
            Some(arrived) => arrived,
            None => return StreamOutcome::Served,
        };
    }
    let body = RequestBody::of_head(source, head.as_deref().ok());
    let mut stream = Http2Stream { connection, key, body };
    streams::serve(client, server, head, &mut stream, record).await
}

/// Head of a request, or the reason to refuse it.
type Head = Result<Arc<RequestHead>, Malformed>;

/// Waits for the end of a body whose head announces that it is empty. `heads` are the request's head
/// with a body, and without one. Returns the head of the request; `None`: the body has data, or does
/// not end in time, so that the request was refused.
async fn await_end(
    client: &ClientStream,
    record: RequestRecord,
    heads: (Head, Head),
    source: BodySource<'_>,
) -> Option<(RequestRecord, Head)> {
    let HttpLimits { head: head_limits, head_timeout, .. } = *client.newest().config.http_limits();
    let (with_body, if_empty) = heads;
    let arrived = ArrivedRequest::new(client, record, with_body, head_limits);
    let refused = match timeout(head_timeout, poll_fn(|cx| source.poll_empty(cx))).await {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault),
        Err(_) => Some(LocalReplyReason::RequestTimeout),
    };
    if let Some(reason) = refused {
        arrived.refuse(reason);
        source.connection.lock().close(source.key);
        return None;
    }
    let (with_body, record) = arrived.take();
    let is_empty = source.connection.lock().has_ended_without_trailers(source.key);
    Some((record, if is_empty { if_empty } else { with_body }))
}

/// Body of a stream's request.
#[derive(Clone, Copy)]
struct BodySource<'a> {
    connection: &'a SharedConnection,
    key: StreamKey,
}

impl BodySource<'_> {
    /// Waits for the end of a body that has to be empty. Errors that do not concern the body are
    /// handled when the request is served.
    fn poll_empty(&self, cx: &Context<'_>) -> Poll<Result<(), LocalReplyReason>> {
        let data = ready!(self.connection.lock().poll_data(self.key, cx, usize::MAX));
        Poll::Ready(match data {
            Some(Err(StreamFault::Malformed)) => Err(LocalReplyReason::Malformed(Malformed::ContentLength)),
            _ => Ok(()),
        })
    }
}

impl DataSource for BodySource<'_> {
    fn poll_data(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Option<io::Result<Bytes>>> {
        let data = ready!(self.connection.lock().poll_data(self.key, cx, most));
        Poll::Ready(data.map(|data| data.map_err(broken)))
    }

    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        let last = ready!(self.connection.lock().poll_last(self.key, cx)).map_err(broken)?;
        Poll::Ready(last.map_err(|fault| BodyFault::new(fault).into()))
    }

    fn release(&mut self, len: usize) -> io::Result<()> {
        self.connection.lock().release(self.key, len).map_err(broken)
    }
}

/// Stream of a client, whose request is served.
struct Http2Stream<'a> {
    connection: &'a SharedConnection,
    key: StreamKey,
    body: RequestBody<BodySource<'a>>,
}

impl IncomingStream for Http2Stream<'_> {
    fn body(&mut self) -> &mut dyn IncomingBody {
        &mut self.body
    }

    fn send_interim(&mut self, response: &OutgoingResponse<'_>) -> io::Result<()> {
        let mut connection = self.connection.lock();
        // A server may send many long ones, and a client that does not read bounds only the others.
        if response.status() != 100 && !connection.is_reading() {
            return Ok(());
        }
        connection.send_head(self.key, response, false).map(drop).map_err(unsendable)
    }

    fn send_head(&mut self, response: &OutgoingResponse<'_>, is_over: bool) -> io::Result<usize> {
        self.connection.lock().send_head(self.key, response, is_over).map_err(unsendable)
    }

    fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        self.connection.lock().poll_room(self.key, cx, most).map_err(unsendable)
    }

    fn free_room(&mut self) {
        self.connection.lock().free_room(self.key);
    }

    fn send_data(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        self.connection.lock().send_data(self.key, &data, is_last).map_err(unsendable)
    }

    fn send_copy(&mut self, data: &[u8]) -> io::Result<()> {
        self.connection.lock().send_data(self.key, data, false).map_err(unsendable)
    }

    fn send_trailers(&mut self, trailers: &Trailers) -> io::Result<()> {
        self.connection.lock().send_trailers(self.key, trailers).map_err(unsendable)
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self, reason: ResetReason) {
        let code = match reason {
            ResetReason::Cancelled => ErrorCode::CANCEL,
            ResetReason::Overloaded => ErrorCode::ENHANCE_YOUR_CALM,
            ResetReason::Internal => ErrorCode::INTERNAL_ERROR,
        };
        self.connection.lock().reset(self.key, code);
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.connection.lock().poll_reset(self.key, cx).map(|_| io::ErrorKind::ConnectionReset.into())
    }

    fn take_time_limit(&mut self) -> Option<TimeLimit> {
        self.connection.time_limits().pop()
    }

    fn keep_time_limit(&mut self, time_limit: TimeLimit) {
        let mut kept = self.connection.time_limits();
        if kept.len() < MAX_TIME_LIMITS {
            kept.push(time_limit);
        }
    }
}

impl Drop for Http2Stream<'_> {
    fn drop(&mut self) {
        self.connection.lock().close(self.key);
    }
}

fn broken(fault: StreamFault) -> io::Error {
    match fault {
        StreamFault::Malformed => BodyFault::new(Malformed::Trailers).into(),
        StreamFault::Reset(ErrorCode::CANCEL) => ResetReason::Cancelled.into(),
        StreamFault::Reset(ErrorCode::ENHANCE_YOUR_CALM) => ResetReason::Overloaded.into(),
        StreamFault::Reset(_) | StreamFault::Gone => io::ErrorKind::ConnectionReset.into(),
    }
}

fn unsendable(_: StreamFault) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
