//! QUIC connection for the HTTP/3 library: refuses streams after the end, and resets unfinished
//! streams.

use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::stream::{self, BoxStream, StreamExt};
use h3::error::Code;
use h3::quic::{
    BidiStream, Connection, ConnectionErrorIncoming, OpenStreams, RecvStream, SendStream,
    StreamErrorIncoming, StreamId, WriteBuf,
};
use quinn::{ConnectionError, VarInt, WriteError};

use super::frames::{FrameFilter, StreamKind};
use super::receiving::{ReceivingStream, ResetWatcher, SharedReceiver};

/// A client's connection.
pub(super) struct QuicConnection {
    connection: quinn::Connection,
    /// Bidirectional streams that the client opens.
    requests: BoxStream<'static, Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>>,
    /// Unidirectional streams that the client opens.
    one_way: BoxStream<'static, Result<quinn::RecvStream, ConnectionError>>,
    max_frame: u64,
    notes: NotesQueue,
    /// Whether the connection accepts no more streams.
    is_ending: Arc<AtomicBool>,
    /// Number of streams that the client opened after `is_ending` was set.
    rejected: u64,
}

/// Maximum number of streams that a client may open after GOAWAY. Some were sent before the client
/// received it.
const MAX_REJECTED: u64 = 1_000;

/// Data about a new stream. The HTTP/3 library does not provide this data.
pub(super) struct StreamNotes {
    /// Whether the stream was opened before the end of the handshake (0-RTT).
    pub(super) is_early: bool,
    /// Receiving direction of the stream.
    pub(super) receiver: SharedReceiver,
    pub(super) stopped: Stopped,
}

/// Notes on the streams that the library is about to accept, in this order. The connection and its
/// task belong to one thread, so no lock waits.
#[derive(Clone)]
pub(super) struct NotesQueue(Arc<Mutex<VecDeque<StreamNotes>>>);

impl NotesQueue {
    fn push(&self, notes: StreamNotes) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(notes);
    }

    /// Takes the notes on the stream that the library has accepted.
    pub(super) fn take(&self) -> Option<StreamNotes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Reports once that the client has received everything, has stopped reading, or has reset its
/// request.
pub(super) struct Stopped(Option<(StoppedSending, ResetWatcher)>);

/// Completes when the client has received everything, or has stopped reading.
type StoppedSending = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Stopped {
    /// Waits until the client has received everything, has stopped reading, or has reset its
    /// request. Do not send anything afterwards.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some((stopped, request)) = &mut self.0 else { return Poll::Pending };
        if stopped.as_mut().poll(cx).is_pending() {
            ready!(request.poll(cx));
        }
        self.0 = None;
        Poll::Ready(io::ErrorKind::ConnectionReset.into())
    }
}

impl QuicConnection {
    /// Creates a connection that accepts frames of at most `max_frame` bytes, except DATA. Returns
    /// also the notes on each stream, in the order in which the library accepts streams.
    pub(super) fn new(
        connection: quinn::Connection,
        max_frame: u64,
        is_ending: Arc<AtomicBool>,
    ) -> (QuicConnection, NotesQueue) {
        let notes = NotesQueue(Arc::new(Mutex::new(VecDeque::with_capacity(1))));
        let requests = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_bi().await, connection))
        });
        let one_way = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_uni().await, connection))
        });
        let (requests, one_way) = (requests.boxed(), one_way.boxed());
        let received = notes.clone();
        (QuicConnection { connection, requests, one_way, max_frame, notes, is_ending, rejected: 0 }, received)
    }
}

impl QuicConnection {
    /// Rejects a stream as unprocessed, so that the client may retry elsewhere (RFC 9114, section
    /// 4.1.1).
    fn reject(&mut self, mut send: quinn::SendStream, mut receive: quinn::RecvStream) {
        let code = number(Code::H3_REQUEST_REJECTED.value());
        let _ = (receive.stop(code), send.reset(code));
        self.rejected += 1;
        if self.rejected > MAX_REJECTED {
            self.connection.close(number(Code::H3_EXCESSIVE_LOAD.value()), b"");
        }
    }
}

impl Connection<Bytes> for QuicConnection {
    type RecvStream = ReceivingStream;
    type OpenStreams = QuicOpener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ReceivingStream, ConnectionErrorIncoming>> {
        let Some(stream) = ready!(self.one_way.poll_next_unpin(cx)) else { return Poll::Pending };
        let stream = stream.map_err(|error| of_connection(&error))?;
        Poll::Ready(Ok(ReceivingStream::new(stream, FrameFilter::new(StreamKind::OneWay, self.max_frame))))
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BothWays, ConnectionErrorIncoming>> {
        let (send, receive) = loop {
            let Some(stream) = ready!(self.requests.poll_next_unpin(cx)) else { return Poll::Pending };
            let (send, receive) = stream.map_err(|error| of_connection(&error))?;
            if !self.is_ending.load(Ordering::Relaxed) {
                break (send, receive);
            }
            self.reject(send, receive);
        };
        let receive_filter = FrameFilter::new(StreamKind::Request, self.max_frame);
        let (is_early, stopped) = (receive.is_0rtt(), send.stopped());
        let receiving = ReceivingStream::new(receive, receive_filter);
        let (receiver, watcher) = (receiving.share(), ResetWatcher::new(receiving.share()));
        let stopped = Stopped(Some((Box::pin(async { _ = stopped.await }), watcher)));
        self.notes.push(StreamNotes { is_early, receiver, stopped });
        Poll::Ready(Ok(BothWays { sending: SendingStream::new(send, false), receiving }))
    }

    fn opener(&self) -> QuicOpener {
        QuicOpener(self.connection.clone())
    }
}

impl OpenStreams<Bytes> for QuicConnection {
    type BidiStream = BothWays;
    type SendStream = SendingStream;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BothWays, StreamErrorIncoming>> {
        self.opener().poll_open_bidi(cx)
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendingStream, StreamErrorIncoming>> {
        self.opener().poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener().close(code, reason);
    }
}

/// Opens streams to a client.
pub(super) struct QuicOpener(quinn::Connection);

impl OpenStreams<Bytes> for QuicOpener {
    type BidiStream = BothWays;
    type SendStream = SendingStream;

    /// Returns an error: a server opens no bidirectional streams.
    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<BothWays, StreamErrorIncoming>> {
        Poll::Ready(Err(StreamErrorIncoming::Unknown("a server opens no such streams".into())))
    }

    /// Opens one of the three unidirectional streams of a server. A client that allows fewer
    /// violates the protocol (RFC 9114, section 6.2).
    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendingStream, StreamErrorIncoming>> {
        let opened = pin!(self.0.open_uni());
        let opened = ready!(opened.poll(cx)).map_err(|error| of_stream(of_connection(&error)))?;
        Poll::Ready(Ok(SendingStream::new(opened, true)))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.0.close(number(code.value()), reason);
    }
}

/// Bidirectional stream.
pub(super) struct BothWays {
    sending: SendingStream,
    receiving: ReceivingStream,
}

impl BidiStream<Bytes> for BothWays {
    type SendStream = SendingStream;
    type RecvStream = ReceivingStream;

    fn split(self) -> (SendingStream, ReceivingStream) {
        (self.sending, self.receiving)
    }
}

impl SendStream<Bytes> for BothWays {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.sending.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.sending.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.sending.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.sending.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.sending.send_id()
    }
}

impl RecvStream for BothWays {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.receiving.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.receiving.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.receiving.recv_id()
    }
}

/// Sending direction of a stream. A drop before its end resets it, because the client's data is
/// incomplete.
pub(super) struct SendingStream {
    stream: quinn::SendStream,
    /// Frames that wait to be written: the frames of one turn of the library, and one piece of a
    /// body.
    writing: VecDeque<WriteBuf<Bytes>>,
    /// Whether flow control blocked the last write.
    is_blocked: bool,
    is_over: bool,
    /// Whether the stream lives as long as its connection. Such a stream seldom sends, so it keeps
    /// no memory for frames.
    is_lasting: bool,
}

impl SendingStream {
    fn new(stream: quinn::SendStream, is_lasting: bool) -> SendingStream {
        let writing = VecDeque::new();
        SendingStream { stream, writing, is_blocked: false, is_over: false, is_lasting }
    }
}

impl SendStream<Bytes> for SendingStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        // When the connection's window opens, the library wakes all streams, and the first one uses
        // the whole window. Without a random choice, two streams would alternate, and the others
        // would starve.
        if std::mem::take(&mut self.is_blocked) && fastrand::bool() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        while let Some(frame) = self.writing.front_mut() {
            while frame.has_remaining() {
                let written = Pin::new(&mut self.stream).poll_write(cx, frame.chunk());
                self.is_blocked = written.is_pending();
                frame.advance(ready!(written).map_err(|error| of_write(&error))?);
            }
            self.writing.pop_front();
        }
        if self.is_lasting {
            self.writing = VecDeque::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Queues a frame. An empty DATA frame is not written: the caller sends it to wait for the
    /// queued frames.
    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        const EMPTY: [u8; 2] = [0, 0];
        let frame = data.into();
        if frame.remaining() != EMPTY.len() || frame.chunk() != EMPTY {
            self.writing.push_back(frame);
        }
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        if std::mem::replace(&mut self.is_over, true) {
            return Poll::Ready(Ok(()));
        }
        let finished = self.stream.finish();
        Poll::Ready(finished.map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))))
    }

    fn reset(&mut self, code: u64) {
        self.is_over = true;
        let _ = self.stream.reset(number(code));
    }

    fn send_id(&self) -> StreamId {
        id(self.stream.id())
    }
}

impl Drop for SendingStream {
    fn drop(&mut self) {
        if !self.is_over {
            self.reset(Code::H3_INTERNAL_ERROR.value());
        }
    }
}

/// Converts a stream error to an I/O error.
pub(super) fn broken(error: h3::error::StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// Converts an error code for the QUIC library.
pub(super) fn number(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// Converts the id of a stream for the HTTP/3 library.
pub(super) fn id(id: quinn::StreamId) -> StreamId {
    // Both libraries allow the same range of ids.
    StreamId::try_from(u64::from(id)).expect("a number of QUIC is one of HTTP/3")
}

/// Converts the error of a connection to the error of its streams.
pub(super) fn of_stream(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

/// Converts the error of a connection for the HTTP/3 library.
pub(super) fn of_connection(error: &ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other.clone())),
    }
}

fn of_write(error: &WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        WriteError::ConnectionLost(error) => of_stream(of_connection(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other.clone())),
    }
}
