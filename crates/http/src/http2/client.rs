//! HTTP/2 connection of a client: its streams, each with one request, and its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use convey_http2::{
    ClientConnection, ConnectionLimits, EmptyFrames, ErrorCode, PREFACE, ReceivedRequest, RefusedRequest,
    Scratch,
};
use convey_model::HttpLimits;
use convey_proxy::{ClientStream, StreamEnd};
use convey_stream::{ByteStream, More};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::{RESET_STREAMS, stream};
use crate::local_reply::{ANSWER_TIME, LocalReplyReason};
use crate::record::RequestRecord;
use crate::server::WorkerServer;
use crate::stack::DecideRequest;
use crate::streams::connection::StreamCounts;
use crate::streams::serving::{self, StreamConnection};
use crate::streams::websocket;
use crate::time_limit::TimeLimit;
use crate::{buffer, linger};

/// Receive window of a stream in bytes: the maximum part of a request that no server has accepted
/// yet.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Receive window of a connection in bytes.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Maximum window in bytes (RFC 9113, section 6.9.1).
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// Maximum number of bytes that are read before other connections of the thread get a turn.
const AT_ONCE: usize = 64 * 1024;

/// Number of unsent bytes from which on a send does not wait for other responses.
const FULL: usize = 16 * 1024;

/// Minimum number of bytes that a client has to read in [`ANSWER_TIME`] to get the rest of its
/// responses before an idle connection ends.
const MIN_PROGRESS: u64 = 4 * 1024;

/// Number of faults of one client that end its connection.
const MAX_FAULTS: usize = 1_024;

/// Number of reset streams, in addition to the concurrent ones, whose late frames are ignored. A
/// server that goes down ends all streams of a client at once.
const MAX_RESETS: usize = 256;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

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
    server: &Arc<WorkerServer<S>>,
    mut received: BytesMut,
    time_limit: &mut TimeLimit,
) -> StreamEnd {
    let newest = client.newest();
    let (malformed, is_shared) = (AtomicU64::new(0), client.is_trusted_proxy(&newest));
    let limits = limits_of(newest.config.http_limits(), is_shared);
    drop(newest);
    let shared = SharedConnection::new(ClientConnection::new(limits));
    received.advance(PREFACE.len());
    let connection = Http2 {
        client,
        bytes,
        shared: &shared,
        received,
        has_more: true,
        allowance: AT_ONCE,
        began: Instant::now(),
        refuses_at: None,
        has_waited: false,
        sent: 0,
        malformed: &malformed,
    };
    let counts = StreamCounts::new(is_shared, Some(&malformed));
    let end = serving::serve(client, connection, counts, |request| {
        stream::serve(client, server.clone(), request, &shared)
    });
    let end = end.await;
    linger::close(bytes, time_limit).await;
    end
}

/// Connection as its streams share it. All of them belong to one task, so no lock waits.
pub(super) struct SharedConnection {
    connection: Mutex<ClientConnection>,
    /// Time limits of earlier requests, which later ones use again.
    time_limits: Mutex<Vec<TimeLimit>>,
}

impl SharedConnection {
    fn new(connection: ClientConnection) -> SharedConnection {
        SharedConnection { connection: Mutex::new(connection), time_limits: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ClientConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn time_limits(&self) -> MutexGuard<'_, Vec<TimeLimit>> {
        self.time_limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Socket of a connection.
struct Http2<'a> {
    client: &'a ClientStream,
    bytes: &'a mut ByteStream,
    shared: &'a SharedConnection,
    /// Received bytes that were not handled: an incomplete frame, or frames behind many requests.
    received: BytesMut,
    /// Whether `received` may have whole frames.
    has_more: bool,
    /// Number of bytes that are still read before other connections of the thread get a turn.
    allowance: usize,
    began: Instant,
    /// Time at which the connection refuses further streams, although the client has not answered
    /// the announcement of the end.
    refuses_at: Option<Instant>,
    /// Whether the unsent bytes have waited for other responses, or wait for the client.
    has_waited: bool,
    /// Number of bytes that were sent since the last [`StreamConnection::is_sending`].
    sent: u64,
    /// Number of malformed requests, which do not become streams.
    malformed: &'a AtomicU64,
}

impl Http2<'_> {
    /// Returns the next request. Sends what the streams have queued, in one write, once there is
    /// nothing to read.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<ReceivedRequest, StreamEnd>> {
        let shared = self.shared;
        let mut connection = shared.lock();
        loop {
            // The heads of responses need no window: a client that does not read begins no further
            // requests.
            if connection.is_reading()
                && let Some(request) = connection.next_request()
            {
                return Poll::Ready(Ok(request));
            }
            let read = self.poll_read(cx, &mut connection);
            for refused in connection.take_refused() {
                self.note_refused(refused);
            }
            match read {
                Poll::Ready(Ok(true)) => continue,
                Poll::Ready(Err(end)) => return Poll::Ready(Err(end)),
                Poll::Ready(Ok(false)) | Poll::Pending => {}
            }
            if read.is_pending() && self.waits_for_others(cx, &connection) {
                return Poll::Pending;
            }
            ready!(self.poll_send(cx, &mut connection))?;
            if connection.is_over() {
                return Poll::Ready(Err(StreamEnd::Closed));
            }
            if read.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Reads and handles bytes. Returns whether there were any; false if the client has to read
    /// first.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut ClientConnection,
    ) -> Poll<Result<bool, StreamEnd>> {
        if !connection.is_reading() {
            return Poll::Ready(Ok(false));
        }
        if self.has_more {
            self.has_more = false;
            self.handle_received(connection);
            return Poll::Ready(Ok(true));
        }
        if self.allowance == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        buffer::with(|buffer| {
            let room = &mut buffer[..self.allowance];
            let n = ready!(self.bytes.poll_read(cx, room)).unwrap_or(0);
            if n == 0 {
                return Poll::Ready(Err(StreamEnd::Closed));
            }
            self.allowance -= n;
            self.client.count_bytes(n as u64, 0);
            if self.received.is_empty() {
                let handled = self.handle(connection, &room[..n]);
                self.received.extend_from_slice(&room[handled..n]);
            } else {
                self.received.extend_from_slice(&room[..n]);
                self.handle_received(connection);
            }
            Poll::Ready(Ok(true))
        })
    }

    fn handle_received(&mut self, connection: &mut ClientConnection) {
        let mut received = std::mem::take(&mut self.received);
        let handled = self.handle(connection, &received);
        received.advance(handled);
        if !received.is_empty() {
            self.received = received;
        }
    }

    /// Handles received bytes. Returns their number.
    fn handle(&mut self, connection: &mut ClientConnection, bytes: &[u8]) -> usize {
        let handled =
            SCRATCH.with_borrow_mut(|scratch| connection.receive(bytes, || self.began.elapsed(), scratch));
        self.has_more = handled < bytes.len() && connection.has_requests();
        handled
    }

    /// Whether a send waits for one turn of the thread: other responses that have arrived by then
    /// are sent in the same write.
    fn waits_for_others(&mut self, cx: &mut Context<'_>, connection: &ClientConnection) -> bool {
        let is_worth = (1..FULL).contains(&connection.unsent().len()) && connection.has_streams();
        if self.has_waited || !is_worth {
            return false;
        }
        self.has_waited = true;
        // Wakes this task after the other tasks of the thread that have input.
        let _ = pin!(yield_now()).poll(cx);
        true
    }

    /// Sends all unsent bytes.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut ClientConnection,
    ) -> Poll<Result<(), StreamEnd>> {
        while !connection.unsent().is_empty() {
            let Poll::Ready(sent) = self.bytes.poll_write(cx, connection.unsent(), More::No) else {
                connection.has_offered();
                self.has_waited = true;
                return Poll::Pending;
            };
            let Ok(sent) = sent else { return Poll::Ready(Err(StreamEnd::Closed)) };
            self.client.count_bytes(0, sent as u64);
            self.sent += sent as u64;
            connection.has_sent(sent);
        }
        self.has_waited = false;
        if let Some(buffer) = connection.take_empty_buffer() {
            buffer::give_back(buffer);
        }
        Poll::Ready(Ok(()))
    }

    fn note_refused(&self, refused: RefusedRequest) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
        let record = RequestRecord::begin(self.client, "2");
        record.end_refused(self.client, LocalReplyReason::Malformed(refused.fault));
    }
}

impl StreamConnection for Http2<'_> {
    type Stream = ReceivedRequest;

    const IDLE_END: Duration = ANSWER_TIME;

    async fn accept(&mut self, _: bool) -> Result<ReceivedRequest, StreamEnd> {
        poll_fn(|cx| {
            let polled = self.poll_request(cx);
            if polled.is_pending() {
                self.allowance = AT_ONCE;
            }
            polled
        })
        .await
    }

    async fn announce_end(&mut self, _: u64) {
        if self.shared.lock().announce_end() {
            self.refuses_at = Some(Instant::now() + ANSWER_TIME);
        }
    }

    fn refuses_at(&self) -> Option<Instant> {
        self.refuses_at
    }

    fn is_sending(&mut self) -> bool {
        let has_progress = std::mem::take(&mut self.sent) >= MIN_PROGRESS;
        has_progress && !self.shared.lock().unsent().is_empty()
    }

    /// Announces the end. The connection refuses further streams after a round trip, or after some
    /// time if the client does not answer.
    async fn refuse_streams(&mut self) {
        self.announce_end(0).await;
        if self.refuses_at.take_if(|at| *at <= Instant::now()).is_some() {
            self.shared.lock().refuse_streams();
        }
    }

    fn abort(&mut self) {
        self.shared.lock().fail(ErrorCode::ENHANCE_YOUR_CALM);
    }
}

impl Drop for Http2<'_> {
    fn drop(&mut self) {
        self.shared.lock().close_all();
    }
}

/// Returns the limits of a connection. `is_shared`: its streams belong to many clients of a proxy.
fn limits_of(limits: &HttpLimits, is_shared: bool) -> ConnectionLimits {
    let of_client = ConnectionLimits {
        streams: limits.streams,
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        head: limits.head,
        faults: MAX_FAULTS,
        remembered_resets: limits.streams as usize + MAX_RESETS,
        empty_frames: EmptyFrames::OF_CLIENT,
        websocket_key: websocket::new_key,
        new_buffer: buffer::take_spare,
    };
    if !is_shared {
        return of_client;
    }
    ConnectionLimits {
        // A body that no server accepts yet must not hold up the bodies of other clients.
        connection_window: limits.streams.saturating_mul(STREAM_WINDOW).clamp(CONNECTION_WINDOW, MAX_WINDOW),
        // Each request causes at most one fault. So the connection reaches its maximum number of
        // requests first, and ends gracefully.
        faults: (limits.requests as usize).saturating_add(RESET_STREAMS),
        remembered_resets: RESET_STREAMS,
        empty_frames: EmptyFrames::SHARED,
        ..of_client
    }
}
