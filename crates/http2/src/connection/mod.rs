//! Connection of a client.

mod data;
mod ending;
mod queue;
mod receive;
mod respond;
mod sections;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use convey_http_core::{Malformed, RequestHead};

use crate::frame::put_window_update;
use crate::hpack::{Decoder, Encoder};
use crate::limits::ConnectionLimits;
use crate::stream::StreamKey;
use crate::streams::Streams;
use crate::windows::{DEFAULT_WINDOW, ReceiveWindow};
use data::DataFrame;
use ending::End;
use sections::PartialSection;

/// Number of unsent bytes from which on no further data is accepted, and no further bytes of the
/// client are read. Heads of responses may exceed it, one for each stream.
const MAX_UNSENT: usize = 64 * 1024;

/// Maximum number of received requests that wait for [`ClientConnection::next_request`].
const MAX_WAITING: usize = 128;

/// Number of streams that the client may have reset, and whose requests are not over yet, in
/// addition to the concurrent ones.
const MAX_RESET: usize = 256;

/// HTTP/2 connection of a client, without its socket.
#[derive(Debug)]
pub struct ClientConnection {
    limits: ConnectionLimits,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams,
    /// Section of which frames are missing.
    section: Option<Box<PartialSection>>,
    /// DATA frame of which bytes are missing.
    data: Option<DataFrame>,
    /// Last stream of the client.
    last_stream: u32,
    /// Last stream before the end of the connection, for GOAWAY.
    last_accepted: u32,
    /// Last stream up to which the client has left out no number.
    last_in_order: u32,
    window: ReceiveWindow,
    waiting: VecDeque<ReceivedRequest>,
    refused: Vec<RefusedRequest>,
    /// Streams that were reset, and whose late frames are ignored, the oldest first.
    resets: VecDeque<u32>,
    /// Number of faults of the client that have reset a stream.
    faults: usize,
    /// Frames for the client, of which the first `sent` bytes were sent.
    out: Vec<u8>,
    sent: usize,
    /// Place in `out` of the last DATA frame; `None`: it cannot be changed any more.
    last_data: Option<usize>,
    /// Number of bytes of data that the client accepts on all streams together.
    send_window: i64,
    /// Initial send window of a stream.
    initial_window: i64,
    /// Bytes that streams may send without another check of the windows.
    reserved: usize,
    /// Streams that wait for room on the connection, the longest waiting first.
    queue: VecDeque<StreamKey>,
    /// Number of streams that were woken because there is room, and have not asked for it yet.
    called: usize,
    end: End,
}

/// Request that a client has sent.
#[derive(Debug)]
pub struct ReceivedRequest {
    /// Its stream.
    pub stream: StreamKey,
    /// Its head. An error if HTTP/1.1 cannot express the head, or if it exceeds the limits.
    pub head: Result<Arc<RequestHead>, Malformed>,
    /// The head announces an empty body, but the stream continues: the head of the request if it
    /// ends without data and without trailers.
    pub if_empty: Option<Result<Arc<RequestHead>, Malformed>>,
}

/// Malformed request, whose stream was reset, or whose head is so long that its connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedRequest {
    /// Kind of the fault.
    pub fault: Malformed,
}

impl ClientConnection {
    /// Creates a connection. The client's preface was received; the settings of the connection are
    /// the first bytes for the client.
    pub fn new(limits: ConnectionLimits) -> ClientConnection {
        let mut out = Vec::with_capacity(64);
        settings::put(&limits, &mut out);
        let window = limits.connection_window.max(DEFAULT_WINDOW);
        if window > DEFAULT_WINDOW {
            put_window_update(0, window - DEFAULT_WINDOW, &mut out);
        }
        ClientConnection {
            limits,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            streams: Streams::default(),
            section: None,
            data: None,
            last_stream: 0,
            last_accepted: 0,
            last_in_order: 0,
            window: ReceiveWindow::new(window),
            waiting: VecDeque::new(),
            refused: Vec::new(),
            resets: VecDeque::new(),
            faults: 0,
            out,
            sent: 0,
            last_data: None,
            send_window: DEFAULT_WINDOW.into(),
            initial_window: DEFAULT_WINDOW.into(),
            reserved: 0,
            queue: VecDeque::new(),
            called: 0,
            end: End::Open,
        }
    }

    /// Returns the next request.
    pub fn next_request(&mut self) -> Option<ReceivedRequest> {
        self.waiting.pop_front()
    }

    /// Whether a request waits for [`ClientConnection::next_request`].
    pub fn has_requests(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the malformed requests since the last call.
    pub fn take_refused(&mut self) -> Vec<RefusedRequest> {
        std::mem::take(&mut self.refused)
    }

    /// Bytes for the client.
    pub fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Notes that the first `len` unsent bytes were sent. Wakes streams that wait for room.
    pub fn has_sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.out.len() || self.sent >= MAX_UNSENT {
            self.out.drain(..self.sent);
            (self.sent, self.last_data) = (0, None);
        }
        if self.unsent().len() <= MAX_UNSENT / 2 {
            self.wake_queue();
        }
    }

    /// Notes that all unsent bytes were passed to a transport, which has not accepted them, and may
    /// have encrypted them already. They do not change any more.
    pub fn has_offered(&mut self) {
        self.last_data = None;
    }

    /// Returns the buffer of the sent bytes, if there are no others. An idle connection keeps no
    /// buffer.
    pub fn take_empty_buffer(&mut self) -> Option<Vec<u8>> {
        let is_unused = self.out.is_empty() && self.out.capacity() > 0;
        is_unused.then(|| std::mem::take(&mut self.out))
    }

    /// Makes sure that there is a buffer for the client.
    fn prepare_buffer(&mut self) {
        if self.out.capacity() == 0 {
            self.out = (self.limits.new_buffer)();
        }
    }

    /// Whether the connection reads from the client. It does not while the client does not read the
    /// answers to its frames.
    pub fn is_reading(&self) -> bool {
        self.unsent().len() < MAX_UNSENT && !self.is_over()
    }

    /// Whether a response is missing, wholly or in part.
    pub fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Lets the client send `len` bytes again on the connection.
    fn free_window(&mut self, len: u32) {
        if let Some(increment) = self.window.free(len)
            && self.end != End::Over
        {
            put_window_update(0, increment, &mut self.out);
        }
    }

    /// Notes a stream that was reset.
    fn remember_reset(&mut self, stream: u32) {
        if self.resets.len() >= self.limits.remembered_resets {
            self.resets.pop_front();
        }
        self.resets.push_back(stream);
    }
}
