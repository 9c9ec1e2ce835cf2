//! A connection of QUIC as the library of HTTP/3 uses it: what it reads is bounded, and what it
//! does not finish is reset.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use convey_http_core::Malformed;
use futures_util::stream::{self, BoxStream, StreamExt};
use h3::error::Code;
use h3::quic::{
    BidiStream, Connection, ConnectionErrorIncoming, OpenStreams, RecvStream, SendStream,
    StreamErrorIncoming, StreamId, WriteBuf,
};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};
use tokio::io::ReadBuf;
use tokio::sync::mpsc;

use super::frames::{FrameFilter, StreamKind};

/// Most bytes that are read of a stream at once.
const READ: usize = 16 * 1024;

/// Most bytes of data that the library holds of a stream.
const MAX_UNREAD: usize = 32 * 1024;

/// A client's connection.
pub(super) struct QuicConnection {
    connection: quinn::Connection,
    /// Streams in both directions that the client opens, and those in one.
    requests: BoxStream<'static, Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>>,
    one_way: BoxStream<'static, Result<quinn::RecvStream, ConnectionError>>,
    max_frame: u64,
    notes: mpsc::UnboundedSender<StreamNotes>,
    /// Whether no further stream is taken, and how many have come nevertheless.
    is_ending: Arc<AtomicBool>,
    rejected: u64,
}

/// How many streams a client may begin that has been told that none is taken. Some may have been on
/// their way.
const MAX_REJECTED: u64 = 1_000;

/// What is known of a stream that has just been opened, beside what the library of HTTP/3 tells.
pub(super) struct StreamNotes {
    /// Whether it came before the handshake was over.
    pub(super) is_early: bool,
    /// Data that the library has read of it and nobody has taken.
    pub(super) unread: Arc<AtomicUsize>,
    /// Why the request is malformed, as far as the library does not say so.
    pub(super) fault: Arc<OnceLock<Malformed>>,
    pub(super) stopped: Stopped,
}

/// Reports once that the client has all that was sent, wants no more of it, or has reset its
/// request.
pub(super) struct Stopped(Option<(StoppedSending, SharedReceive)>);

/// Ends when the client has all that was sent, or wants no more of it.
type StoppedSending = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Stopped {
    /// Waits for that. Nothing is to be sent then.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some((stopped, request)) = &mut self.0 else { return Poll::Pending };
        if stopped.as_mut().poll(cx).is_pending() {
            ready!(request.poll_reset(cx));
        }
        self.0 = None;
        Poll::Ready(io::ErrorKind::ConnectionReset.into())
    }
}

/// A stream's direction from the client: one side reads it, another one waits for its reset while
/// nobody reads.
#[derive(Clone)]
struct SharedReceive(Arc<Mutex<quinn::RecvStream>>);

impl SharedReceive {
    fn lock(&self) -> MutexGuard<'_, quinn::RecvStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the client resets the direction, also before data that nobody has read.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut stream = self.lock();
        let reset = pin!(stream.received_reset());
        match ready!(reset.poll(cx)) {
            // It has come whole.
            Ok(None) => Poll::Pending,
            Ok(Some(_)) | Err(_) => Poll::Ready(()),
        }
    }
}

impl QuicConnection {
    /// With frames of so many bytes at most, but for data; and what is known of each stream, in the
    /// order in which the library accepts them.
    pub(super) fn new(
        connection: quinn::Connection,
        max_frame: u64,
        is_ending: Arc<AtomicBool>,
    ) -> (QuicConnection, mpsc::UnboundedReceiver<StreamNotes>) {
        let (notes, received) = mpsc::unbounded_channel();
        let requests = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_bi().await, connection))
        });
        let one_way = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_uni().await, connection))
        });
        let (requests, one_way) = (requests.boxed(), one_way.boxed());
        (QuicConnection { connection, requests, one_way, max_frame, notes, is_ending, rejected: 0 }, received)
    }
}

impl QuicConnection {
    /// Says that nothing of a stream was looked at, so that its client may ask elsewhere (RFC 9114,
    /// section 4.1.1).
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
        let notes = StreamNotes {
            is_early,
            unread: receiving.unread.clone(),
            fault: receiving.fault.clone(),
            stopped: Stopped(Some((Box::pin(async { _ = stopped.await }), receiving.stream.clone()))),
        };
        let _ = self.notes.send(notes);
        Poll::Ready(Ok(BothWays { sending: SendingStream::new(send), receiving }))
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

    /// A server opens none.
    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<BothWays, StreamErrorIncoming>> {
        Poll::Ready(Err(StreamErrorIncoming::Unknown("a server opens no such streams".into())))
    }

    /// There are three of them, at the begin of a connection: a client that takes fewer breaks the
    /// protocol (RFC 9114, section 6.2).
    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendingStream, StreamErrorIncoming>> {
        let opened = pin!(self.0.open_uni());
        let opened = ready!(opened.poll(cx)).map_err(|error| of_stream(of_connection(&error)))?;
        Poll::Ready(Ok(SendingStream::new(opened)))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.0.close(number(code.value()), reason);
    }
}

/// A stream in both directions.
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

/// The direction from the client.
pub(super) struct ReceivingStream {
    stream: SharedReceive,
    filter: FrameFilter,
    unread: Arc<AtomicUsize>,
    fault: Arc<OnceLock<Malformed>>,
}

impl ReceivingStream {
    fn new(stream: quinn::RecvStream, filter: FrameFilter) -> ReceivingStream {
        let stream = SharedReceive(Arc::new(Mutex::new(stream)));
        ReceivingStream { stream, filter, unread: Arc::default(), fault: Arc::default() }
    }
}

impl RecvStream for ReceivingStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // The library asks at each of its turns, also while it holds some. It has something to give
        // then, and comes again.
        if self.unread.load(Ordering::Relaxed) > MAX_UNREAD {
            return Poll::Pending;
        }
        // On the stack: a stream that waits keeps no room, and what has come gets as much as it
        // needs.
        let mut room = [MaybeUninit::uninit(); READ];
        loop {
            let mut room = ReadBuf::uninit(&mut room);
            let result = ready!(self.stream.lock().poll_read_buf(cx, &mut room));
            result.map_err(|error| of_read(&error))?;
            if room.filled().is_empty() {
                let rest = self.filter.end();
                return Poll::Ready(Ok((!rest.is_empty()).then(|| rest.freeze())));
            }
            let passed = self.filter.pass(room.filled().into());
            if let Some(fault) = self.filter.fault() {
                self.fault.get_or_init(|| fault);
            }
            let (passed, data) = match passed {
                Ok(passed) => passed,
                Err(_) => {
                    let code = Code::H3_EXCESSIVE_LOAD.value();
                    let _ = self.stream.lock().stop(number(code));
                    return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code: code }));
                }
            };
            self.unread.fetch_add(data, Ordering::Relaxed);
            if !passed.is_empty() {
                return Poll::Ready(Ok(Some(passed.freeze())));
            }
        }
    }

    fn stop_sending(&mut self, code: u64) {
        let _ = self.stream.lock().stop(number(code));
    }

    fn recv_id(&self) -> StreamId {
        id(self.stream.lock().id())
    }
}

/// The direction to the client. Dropped before it has finished, it is reset: what the client has is
/// not the whole.
pub(super) struct SendingStream {
    stream: quinn::SendStream,
    /// Frames that are to be written: those that one turn makes, and one piece of a body.
    writing: VecDeque<WriteBuf<Bytes>>,
    /// Whether the last write found no room.
    is_blocked: bool,
    is_over: bool,
}

impl SendingStream {
    fn new(stream: quinn::SendStream) -> SendingStream {
        SendingStream { stream, writing: VecDeque::new(), is_blocked: false, is_over: false }
    }
}

impl SendStream<Bytes> for SendingStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        // The library wakes all streams of a connection that has room again, and the first one
        // takes it all. Its order would be that of two streams by turns: the others never get any.
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
        Poll::Ready(Ok(()))
    }

    /// An empty frame of data says nothing, and is not written: by it one waits until the others
    /// are.
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
        self.is_over = true;
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

/// A fault of a stream for those who move bytes.
pub(super) fn broken(error: h3::error::StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// A code, as the library of QUIC has it.
pub(super) fn number(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

fn id(id: quinn::StreamId) -> StreamId {
    // Both libraries have the same range.
    StreamId::try_from(u64::from(id)).expect("a number of QUIC is one of HTTP/3")
}

fn of_stream(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn of_connection(error: &ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other.clone())),
    }
}

fn of_read(error: &ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        ReadError::ConnectionLost(error) => of_stream(of_connection(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other.clone())),
    }
}

fn of_write(error: &WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        WriteError::ConnectionLost(error) => of_stream(of_connection(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other.clone())),
    }
}
