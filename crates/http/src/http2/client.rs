//! HTTP/2 connection of a client: its streams, each with one request, and its end.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use convey_model::HttpLimits;
use convey_proxy::{ClientStream, StreamEnd};
use convey_snapshot::stats::Counter;
use convey_stream::ByteStream;
use h2::server::{self, Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::time::timeout;

use super::frame_filter::{EmptyFrames, FieldFilter, Sender};
use super::io::{Connection, CountedStream};
use super::receive::{DATA_FRAME_BUDGET, ReceiveQueue};
use super::{RESET_STREAMS, RESET_TIME, stream};
use crate::linger;
use crate::local_reply::ANSWER_TIME;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::connection::{HEAD_ROOM, StreamCounts};
use crate::streams::serving::{self, StreamConnection};
use crate::time_limit::TimeLimit;

/// Connection preface of an HTTP/2 client (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Receive window of a stream in bytes: the maximum part of a request that no server has accepted
/// yet.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Receive window of a connection in bytes.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Maximum window in bytes (RFC 9113, section 6.9.1).
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// Maximum number of bytes that a stream buffers for the client.
const SEND_BUFFER: usize = 16 * 1024;

/// Whether the received bytes begin with the HTTP/2 preface; `None` if more bytes are needed.
pub(crate) fn has_preface(received: &[u8]) -> Option<bool> {
    let len = received.len().min(PREFACE.len());
    match received[..len] == PREFACE[..len] {
        false => Some(false),
        true => (len == PREFACE.len()).then_some(true),
    }
}

/// Serves a client until its connection is over. `received` begins with the preface.
pub(crate) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    bytes: &mut ByteStream,
    server: &WorkerServer<S>,
    received: BytesMut,
    time_limit: &mut TimeLimit,
) -> StreamEnd {
    let limits = client.newest().config.http_limits();
    let (malformed, is_shared) = (AtomicU64::new(0), client.is_trusted_proxy(&client.newest()));
    let counted = CountedStream { client, stream: &mut *bytes, malformed: &malformed };
    let queue = ReceiveQueue::new(STREAM_WINDOW as usize);
    let filtered = Connection::new(counted, received, filter(&limits, is_shared), queue.clone());
    let handshake = builder(&limits, is_shared).handshake::<_, Bytes>(filtered);
    let library = match timeout(limits.head_timeout, handshake).await {
        Ok(Ok(library)) => library,
        Ok(Err(_)) => return StreamEnd::Early(Counter::ClientReset),
        Err(_) => return StreamEnd::Early(Counter::FirstByteTimeout),
    };
    let counts = StreamCounts::new(is_shared, Some(&malformed));
    let connection = Http2 { library, queue: queue.clone() };
    let end = serving::serve(client, connection, counts, |(request, respond)| {
        stream::serve(client, server.clone(), request, respond, queue.clone())
    });
    let end = end.await;
    linger::close(bytes, time_limit).await;
    end
}

/// HTTP/2 connection of the library.
struct Http2<'a> {
    library: server::Connection<Connection<CountedStream<'a>>, Bytes>,
    queue: Arc<ReceiveQueue>,
}

impl StreamConnection for Http2<'_> {
    type Stream = (Request<RecvStream>, SendResponse<Bytes>);

    const IDLE_END: Duration = ANSWER_TIME;

    async fn accept(&mut self, _: bool) -> Result<Self::Stream, StreamEnd> {
        let Http2 { library, queue } = self;
        let accepted = poll_fn(|cx| queue.poll(|| library.poll_accept(cx))).await;
        accepted.and_then(Result::ok).ok_or(StreamEnd::Closed)
    }

    async fn announce_end(&mut self, _: u64) {
        self.library.graceful_shutdown();
    }

    /// Announces the end. The library refuses further streams after a round trip.
    async fn refuse_streams(&mut self) {
        self.library.graceful_shutdown();
    }

    fn abort(&mut self) {
        self.library.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    }
}

fn filter(limits: &HttpLimits, is_shared: bool) -> FieldFilter {
    let empty_frames = if is_shared { EmptyFrames::SHARED } else { EmptyFrames::OF_CLIENT };
    FieldFilter::new(Sender::Client, limits.head.bytes + HEAD_ROOM as usize, empty_frames)
}

/// Returns the settings of a connection. `is_shared`: its streams belong to many clients of a
/// proxy.
fn builder(limits: &HttpLimits, is_shared: bool) -> Builder {
    let mut builder = Builder::new();
    let mut window = CONNECTION_WINDOW;
    if is_shared {
        // A body that no server accepts yet must not hold up the bodies of other clients.
        window = limits.streams.saturating_mul(STREAM_WINDOW).clamp(CONNECTION_WINDOW, MAX_WINDOW);
        // Each request causes at most one error. So the connection reaches its maximum number of
        // requests first, and ends gracefully.
        let errors = (limits.requests as usize).saturating_add(RESET_STREAMS);
        builder
            .max_concurrent_reset_streams(RESET_STREAMS)
            .reset_stream_duration(RESET_TIME)
            .max_local_error_reset_streams(Some(errors));
    }
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(limits.streams)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window)
        .data_frame_budget(DATA_FRAME_BUDGET)
        // `ReceiveQueue` limits the number of these streams.
        .max_pending_accept_reset_streams(usize::MAX)
        .max_header_list_size(limits.head.bytes as u32 + HEAD_ROOM)
        .max_send_buffer_size(SEND_BUFFER);
    builder
}
