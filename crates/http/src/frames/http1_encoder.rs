//! Sending side of a connection of HTTP/1 in a [`FrameTransfer`](super::FrameTransfer).

use std::io;
use std::task::{Context, Poll};

use convey_http_core::{BodyEncoder, BodyFraming, Trailers};
use convey_stream::{ByteStream, More};

use crate::transfer::Outgoing;

/// Encoder of a message of HTTP/1, with the bytes that the receiver has not accepted yet.
pub(super) struct Http1Encoder {
    body: BodyEncoder,
    out: Outgoing,
}

impl Http1Encoder {
    /// Creates the encoder of a message with this head and body.
    pub(super) fn new(head: Vec<u8>, framing: BodyFraming) -> Http1Encoder {
        Http1Encoder { body: BodyEncoder::new(framing), out: Outgoing::new(head) }
    }

    /// Appends a head with `write`.
    pub(super) fn append_head(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.append(write);
    }

    /// Sets the encoder of the body that follows.
    pub(super) fn set_body(&mut self, body: BodyEncoder) {
        self.body = body;
    }

    /// Appends data of the body. `is_last` if neither data nor trailers follow.
    pub(super) fn append_data(&mut self, data: &[u8], is_last: bool) {
        let body = self.body;
        self.out.append(|out| body.data(data, out));
        if is_last {
            self.append_end(None);
        }
    }

    /// Appends the end of the body.
    pub(super) fn append_end(&mut self, trailers: Option<&Trailers>) {
        let body = self.body;
        self.out.append(|out| body.end(trailers, out));
    }

    /// Number of bytes that the receiver has not accepted yet.
    pub(super) fn left(&self) -> usize {
        self.out.left()
    }

    /// Whether the receiver has accepted only a part of the bytes.
    pub(super) fn is_torn(&self) -> bool {
        self.out.is_torn()
    }

    /// Writes the remaining bytes to the receiver.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut ByteStream,
        more: More,
    ) -> Poll<io::Result<()>> {
        self.out.poll_flush(cx, to, more)
    }
}
