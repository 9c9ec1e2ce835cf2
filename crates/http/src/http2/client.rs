//! HTTP/2 connection of a client: its streams, each with one request, and its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use convey_model::HttpLimits;
use convey_proxy::{ClientStream, StreamEnd};
use convey_snapshot::stats::Counter;
use convey_stream::ByteStream;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::Reason;
use h2::server::Builder;
use tokio::time::{Instant, sleep_until, timeout};

use super::frame_filter::{EmptyFrames, FieldFilter, Sender};
use super::io::{Connection, CountedStream};
use super::receive::{DATA_FRAME_BUDGET, ReceiveQueue};
use super::{RESET_STREAMS, RESET_TIME, stream};
use crate::linger;
use crate::local_reply::ANSWER_TIME;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::connection::{HEAD_ROOM, ResetVerdict, StreamCounts, end_streams, until_true};
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
    let newest = || client.newest().config.http_limits();
    let limits = newest();
    let (malformed, is_shared) = (AtomicU64::new(0), client.is_trusted_proxy(&client.newest()));
    let counted = CountedStream { client, stream: &mut *bytes, malformed: &malformed };
    let queue = ReceiveQueue::new(STREAM_WINDOW as usize);
    let filtered = Connection::new(counted, received, filter(&limits, is_shared), queue.clone());
    let handshake = builder(&limits, is_shared).handshake::<_, Bytes>(filtered);
    let mut connection = match timeout(limits.head_timeout, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(_)) => return StreamEnd::Early(Counter::ClientReset),
        Err(_) => return StreamEnd::Early(Counter::FirstByteTimeout),
    };
    let (mut streams, mut is_ending) = (FuturesUnordered::new(), false);
    let mut counts = StreamCounts::new(is_shared);
    let mut max_requests = limits.requests;
    let is_last = |counts: &StreamCounts, max: u32| {
        let begun = counts.begun + malformed.load(Ordering::Relaxed);
        begun >= max.into() || counts.verdict() != ResetVerdict::Fine || client.is_draining()
    };
    // Time at which a connection without streams ends.
    let mut until = Instant::now() + limits.keep_alive;
    loop {
        tokio::select! {
            biased;
            Some(was_reset) = streams.next(), if !streams.is_empty() => {
                until = Instant::now() + if is_ending { ANSWER_TIME } else { newest().keep_alive };
                counts.reset += u64::from(was_reset);
                if counts.verdict() == ResetVerdict::EndAtOnce {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                }
            }
            () = until_true(|| is_last(&counts, max_requests)), if !is_ending => {
                (is_ending, until) = (true, Instant::now() + ANSWER_TIME);
                connection.graceful_shutdown();
            }
            accepted = poll_fn(|cx| queue.poll(|| connection.poll_accept(cx))) => match accepted {
                Some(Ok((request, respond))) => {
                    counts.begun += 1;
                    // If the frontend is gone, the connection ends after the requests that are
                    // already on their way.
                    max_requests = if client.is_served() { newest().requests } else { 0 };
                    streams.push(stream::serve(client, server.clone(), request, respond, queue.clone()));
                }
                Some(Err(_)) | None => break,
            },
            () = sleep_until(until), if streams.is_empty() => {
                // The client has not reacted to the graceful shutdown: convey closes the
                // connection.
                if is_ending {
                    break;
                }
                (is_ending, until) = (true, Instant::now() + ANSWER_TIME);
                connection.graceful_shutdown();
            }
        }
    }
    // The library notifies the streams when the connection is dropped, not when it fails. They log
    // their end.
    drop(connection);
    end_streams(client, streams).await;
    linger::close(bytes, time_limit).await;
    StreamEnd::Closed
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
