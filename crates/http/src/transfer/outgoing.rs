//! What one side of a transfer has not taken yet.

use std::io;
use std::task::{Context, Poll};

use convey_proxy::More;

use crate::ends::End;

/// Bytes that the other side has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
}

impl Outgoing {
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes what is left. Its memory is given back with the last of it.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut impl End,
        more: More,
    ) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            match to.poll_write(cx, &self.bytes[self.sent..], more) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(sent) => self.sent += sent?,
            }
        }
        if self.sent > 0 {
            *self = Outgoing::default();
        }
        Poll::Ready(Ok(()))
    }

    /// Writes these bytes, where nothing is left, and keeps what the other side does not take. Returns how many it took.
    pub(super) fn write(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut impl End,
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
