//! State of a stream (RFC 9113, section 5.1).

use std::task::{Context, Waker};

use bytes::{Bytes, BytesMut};
use convey_http_core::{Frame, Malformed};

use crate::frame::ErrorCode;
use crate::windows::ReceiveWindow;

/// Stream of a connection, from its request until [`close`](crate::ClientConnection::close).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    pub(crate) slot: u32,
    pub(crate) id: u32,
}

impl StreamKey {
    /// Number of the stream on its connection.
    pub fn id(self) -> u32 {
        self.id
    }
}

/// Reason why a stream has ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFault {
    /// The client has reset the stream.
    Reset(ErrorCode),
    /// The client has sent a malformed body, for which the stream was reset.
    Malformed,
    /// The connection is over, or convey has reset the stream for another reason.
    Gone,
}

/// A client's stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: u32,
    /// Whether the client has sent its whole request.
    pub(crate) is_received: bool,
    /// Whether the whole response was sent.
    pub(crate) is_sent: bool,
    /// Reason of an early end.
    pub(crate) fault: Option<StreamFault>,
    pub(crate) window: ReceiveWindow,
    /// Received data. Bounded by the window.
    pub(crate) data: BytesMut,
    /// Bytes of the body that still use the connection's window: unread ones, and read ones that
    /// were not released.
    pub(crate) held: u32,
    /// Rest of the body, if the head announces its length.
    pub(crate) content_left: Option<u64>,
    /// Last frame of the request, once it has arrived.
    pub(crate) last: Option<Result<Frame<Bytes>, Malformed>>,
    /// Changes of the stream's send window since its begin.
    pub(crate) send_delta: i64,
    /// Bytes that the stream may send without another check of the windows.
    pub(crate) reserved: u32,
    /// Whether the stream is in the connection's queue for room.
    pub(crate) is_queued: bool,
    /// Whether the stream was woken because there is room, and has not asked for it yet.
    pub(crate) is_called: bool,
    waker: Option<Waker>,
    is_waiting: bool,
}

impl Stream {
    pub(crate) fn new(id: u32, window: u32) -> Stream {
        Stream {
            id,
            is_received: false,
            is_sent: false,
            fault: None,
            window: ReceiveWindow::new(window),
            data: BytesMut::new(),
            held: 0,
            content_left: None,
            last: None,
            send_delta: 0,
            reserved: 0,
            is_queued: false,
            is_called: false,
            waker: None,
            is_waiting: false,
        }
    }

    /// Whether both sides have ended the stream, or one has reset it.
    pub(crate) fn is_over(&self) -> bool {
        self.fault.is_some() || self.is_received && self.is_sent
    }

    /// Wakes the task at the next change of the stream.
    pub(crate) fn wait(&mut self, cx: &Context<'_>) {
        self.is_waiting = true;
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    /// Notes a change of the stream.
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.is_waiting)
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }
}
