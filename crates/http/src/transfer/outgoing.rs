//! Buffer for bytes that one side of a transfer has not accepted yet.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use convey_stream::{ByteStream, More};

use crate::buffer;

/// Bytes that their receiver has not accepted yet.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    sent: usize,
    /// Whether the receiver has accepted a part of the bytes.
    has_sent_part: bool,
}

impl Outgoing {
    pub(crate) fn new(bytes: Vec<u8>) -> Outgoing {
        Outgoing { bytes, ..Outgoing::default() }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether the receiver has accepted only a part of the bytes.
    pub(crate) fn is_torn(&self) -> bool {
        self.has_sent_part && self.left() > 0
    }

    /// Appends bytes with `write`.
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the remaining bytes, and frees the memory of written bytes.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut ByteStream,
        more: More,
    ) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            match to.poll_write(cx, &self.bytes[self.sent..], more) {
                Poll::Pending => {
                    self.forget_sent();
                    return Poll::Pending;
                }
                Poll::Ready(sent) => self.sent += sent?,
            }
            self.has_sent_part = true;
        }
        if self.sent > 0 {
            buffer::give_back(std::mem::take(&mut self.bytes));
            *self = Outgoing::default();
        }
        Poll::Ready(Ok(()))
    }

    /// Frees the sent bytes once they are at least as many as the remaining ones. Otherwise, the
    /// buffer would grow without bound while bytes are appended.
    fn forget_sent(&mut self) {
        if self.sent >= self.left() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Writes the buffered bytes and these bytes behind them to a connection without TLS. Buffers
    /// the bytes that the receiver does not accept. Returns the number of accepted bytes.
    pub(super) fn write_behind(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut ByteStream,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let parts = [IoSlice::new(&self.bytes[self.sent..]), IoSlice::new(bytes)];
        let sent = match to.poll_write_vectored(cx, &parts) {
            Poll::Pending => 0,
            Poll::Ready(sent) => sent?,
        };
        self.has_sent_part |= sent > 0;
        let of_buffer = sent.min(self.left());
        self.sent += of_buffer;
        self.put(&bytes[sent - of_buffer..]);
        Ok(sent)
    }

    /// Writes these bytes, and buffers the bytes that the receiver does not accept. Call this only
    /// if the buffer is empty. Returns the number of accepted bytes.
    pub(super) fn write(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut ByteStream,
        bytes: &[u8],
        more: More,
    ) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let sent = match to.poll_write(cx, bytes, more) {
            Poll::Pending => 0,
            Poll::Ready(sent) => sent?,
        };
        self.put(&bytes[sent..]);
        Ok(sent)
    }
}
