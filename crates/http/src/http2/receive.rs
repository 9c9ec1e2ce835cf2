//! Received data of streams. The library buffers each frame separately, and ends a connection with
//! many short buffered frames. So convey takes unread data out of the library before the library
//! reads on.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use h2::RecvStream;
use h2::client::ResponseFuture;
use http::{HeaderMap, Response};

use super::library::broken;
use crate::data_queue::DataQueue;

/// Limit of the library for buffered frames: none, because a [`ReceiveQueue`] bounds them. The
/// library never stops counting the frames of reset streams, so any limit would end a long-lived
/// connection.
pub(super) const DATA_FRAME_BUDGET: usize = usize::MAX;

/// Maximum number of interim responses that wait for their reader. Further interim responses are
/// dropped.
const MAX_INTERIM: usize = 4;

/// Queue of a connection's streams that have received something. It also bounds how much the
/// library may read from the connection.
pub(super) struct ReceiveQueue {
    arrived: Mutex<VecDeque<Weak<StreamReceiver>>>,
    /// Maximum number of bytes that the library reads before convey takes the data.
    at_once: usize,
    /// Number of bytes that the library may still read before convey takes the data.
    allowance: AtomicUsize,
}

impl ReceiveQueue {
    /// Creates a queue in which the library reads `at_once` bytes before convey takes the data.
    /// This bounds memory: a frame with data has at least 10 bytes, and the library needs up to 300
    /// bytes of memory for it.
    pub(super) fn new(at_once: usize) -> Arc<ReceiveQueue> {
        Arc::new(ReceiveQueue { arrived: Mutex::default(), at_once, allowance: at_once.into() })
    }

    /// Takes unread data out of the library, then polls the library's connection. A new stream that
    /// the connection returns may have data, too. So all polls until the next pending one share one
    /// allowance.
    pub(super) fn poll<T>(&self, poll: impl FnOnce() -> Poll<T>) -> Poll<T> {
        self.take_unread();
        let polled = poll();
        if polled.is_pending() {
            self.allowance.store(self.at_once, Ordering::Relaxed);
        }
        polled
    }

    /// Number of bytes that the library may read now.
    pub(super) fn allowance(&self) -> usize {
        self.allowance.load(Ordering::Relaxed)
    }

    /// Notes that the library has read `len` bytes of its allowance.
    pub(super) fn has_read(&self, len: usize) {
        self.allowance.fetch_sub(len, Ordering::Relaxed);
    }

    fn take_unread(&self) {
        let count = lock(&self.arrived).len();
        for _ in 0..count {
            let next = lock(&self.arrived).pop_front();
            if let Some(stream) = next.and_then(|stream| stream.upgrade()) {
                stream.has_arrived.store(false, Ordering::Relaxed);
                stream.take_unread();
            }
        }
    }
}

/// Receiving side of a stream to a server: a response. After its drop, the library
/// discards all further data of the stream.
pub(crate) struct ReceivedStream(Arc<StreamReceiver>);

/// Waker of a stream for the library. It queues the stream, and wakes the stream's reader.
struct StreamReceiver {
    received: Mutex<Received>,
    /// Whether the stream is in the queue.
    has_arrived: AtomicBool,
    reader: AtomicWaker,
    queue: Arc<ReceiveQueue>,
}

/// Unread heads and data of a stream.
#[derive(Default)]
struct Received {
    heads: VecDeque<ReceivedHead>,
    /// Bounded by the stream's window.
    data: DataQueue,
    library: LibraryStream,
}

/// The library's stream.
#[derive(Default)]
enum LibraryStream {
    Response(ResponseFuture),
    Body(RecvStream),
    #[default]
    Dropped,
}

/// Head of a response.
pub(super) enum ReceivedHead {
    Interim(Response<()>),
    /// The final response. `is_over`: nothing follows its head.
    Last {
        response: Response<()>,
        is_over: bool,
    },
}

impl ReceivedStream {
    /// Returns the receiver of a response, for a stream to a server.
    pub(super) fn of_response(response: ResponseFuture, queue: Arc<ReceiveQueue>) -> ReceivedStream {
        ReceivedStream::new(LibraryStream::Response(response), queue)
    }

    fn new(library: LibraryStream, queue: Arc<ReceiveQueue>) -> ReceivedStream {
        let received = Mutex::new(Received { library, ..Received::default() });
        let (has_arrived, reader) = (AtomicBool::new(false), AtomicWaker::new());
        let receiver = Arc::new(StreamReceiver { received, has_arrived, reader, queue });
        // The stream is queued, so that the library gets its waker at the next poll of the queue.
        receiver.wake_by_ref();
        ReceivedStream(receiver)
    }

    /// Returns the next head of a response.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ReceivedHead>> {
        self.poll(cx, |received, cx| match received.heads.pop_front() {
            Some(head) => Poll::Ready(Ok(head)),
            None => received.library.poll_head(cx),
        })
    }

    /// Returns the fault with which the stream has ended, if any. Unread data stays available.
    pub(super) fn fault(&self) -> Option<io::Error> {
        self.0.with(Received::take_unread)
    }

    fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Received, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.0.reader.register(cx.waker());
        self.0.with(poll)
    }
}

impl ReceivedStream {
    /// Receives the next data, of about `most` bytes; `None` after the last data.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Option<io::Result<Bytes>>> {
        self.poll(cx, |received, cx| {
            if let (true, LibraryStream::Body(body)) = (received.data.is_empty(), &mut received.library) {
                match ready!(body.poll_data(cx)) {
                    Some(Ok(data)) if data.len() > most => received.data.put(data),
                    data => return Poll::Ready(data.map(|data| data.map_err(broken))),
                }
            }
            received.data.take(most).map_or(Poll::Pending, |data| Poll::Ready(Some(Ok(data))))
        })
    }

    /// Receives the trailers after the last data.
    pub(super) fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<HeaderMap>>> {
        self.poll(cx, |received, cx| match &mut received.library {
            LibraryStream::Body(body) => body.poll_trailers(cx).map_err(broken),
            _ => Poll::Pending,
        })
    }

    /// Lets the server send `len` bytes again, because as many received bytes have left convey.
    pub(super) fn release(&mut self, len: usize) -> io::Result<()> {
        match &mut lock(&self.0.received).library {
            LibraryStream::Body(body) => body.flow_control().release_capacity(len).map_err(broken),
            _ => Ok(()),
        }
    }
}

impl Drop for ReceivedStream {
    fn drop(&mut self) {
        // This breaks a cycle: the library holds the receiver as a waker, and the receiver holds
        // the library's stream.
        let received = mem::take(&mut *lock(&self.0.received));
        drop(received);
    }
}

impl StreamReceiver {
    fn take_unread(self: &Arc<Self>) {
        let _ = self.with(Received::take_unread);
    }

    fn with<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Received, &mut Context<'_>) -> T) -> T {
        let waker = Waker::from(self.clone());
        poll(&mut lock(&self.received), &mut Context::from_waker(&waker))
    }
}

impl Wake for StreamReceiver {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// The library calls this method while it holds a lock of its own, so the method must not call
    /// the library.
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.has_arrived.swap(true, Ordering::Relaxed) {
            lock(&self.queue.arrived).push_back(Arc::downgrade(self));
        }
        self.reader.wake();
    }
}

impl Received {
    /// Takes all heads and data out of the library. Returns the fault of the body, if any. If there
    /// is an error, or the end of the stream, the library returns it again to the reader.
    fn take_unread(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        while let Poll::Ready(Ok(head)) = self.library.poll_head(cx) {
            if matches!(head, ReceivedHead::Last { .. }) || self.heads.len() < MAX_INTERIM {
                self.heads.push_back(head);
            }
        }
        let LibraryStream::Body(body) = &mut self.library else { return None };
        loop {
            match body.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => self.data.put(data),
                Poll::Ready(Some(Err(error))) => return Some(broken(error)),
                Poll::Ready(None) | Poll::Pending => return None,
            }
        }
    }
}

impl LibraryStream {
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ReceivedHead>> {
        let LibraryStream::Response(response) = self else { return Poll::Pending };
        if let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
            return Poll::Ready(interim.map(ReceivedHead::Interim).map_err(broken));
        }
        let (head, body) = ready!(Pin::new(response).poll(cx)).map_err(broken)?.into_parts();
        let (response, is_over) = (Response::from_parts(head, ()), body.is_end_stream());
        *self = LibraryStream::Body(body);
        Poll::Ready(Ok(ReceivedHead::Last { response, is_over }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
