//! Reads from and writes to a socket. They bypass the C library, whose wrappers make each call a
//! thread cancellation point.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Whether more bytes or the end of the stream follow a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Nothing follows yet: the kernel sends the bytes immediately.
    No,
    /// More bytes follow immediately: the kernel may send them in one segment.
    Data,
    /// The end of the stream follows immediately: the kernel may send both in one segment.
    End,
}

impl More {
    fn flags(self) -> SendFlags {
        match self {
            More::No => SendFlags::NOSIGNAL,
            More::Data | More::End => SendFlags::NOSIGNAL | SendFlags::MORE,
        }
    }
}

/// Reads the bytes that have arrived. Returns 0 at the end of the stream.
pub(super) fn poll_read(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        if let Some(read) = try_read(stream, buffer) {
            return Poll::Ready(read);
        }
    }
}

/// Writes as many bytes as the kernel accepts. Returns their number.
pub(super) fn poll_write(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    bytes: &[u8],
    more: More,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        if let Some(sent) = try_write(stream, bytes, more) {
            return Poll::Ready(sent);
        }
    }
}

/// Writes several parts in their order, as many bytes as the kernel accepts. Returns their number.
pub(super) fn poll_write_vectored(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match stream.try_write_vectored(parts) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

/// Writes as many bytes as the kernel accepts immediately. Returns their number; `None` if it
/// accepts none. Does not register a waker.
pub fn try_write(stream: &TcpStream, bytes: &[u8], more: More) -> Option<io::Result<usize>> {
    attempt(stream, Interest::WRITABLE, bytes.len(), || send(stream, bytes, more.flags()))
}

/// Reads the bytes that have arrived already. Returns their number, 0 at the end of the stream;
/// `None` if no bytes have arrived. Does not register a waker.
pub fn try_read(stream: &TcpStream, buffer: &mut [u8]) -> Option<io::Result<usize>> {
    let size = buffer.len();
    attempt(stream, Interest::READABLE, size, || {
        recv(stream, &mut *buffer, RecvFlags::empty()).map(|(n, _)| n)
    })
}

/// Makes a system call that may move up to `most` bytes. If the call moves fewer, the socket is
/// empty or full. Then the readiness of the socket is cleared immediately, which saves another
/// system call that would return `WouldBlock`.
fn attempt(
    stream: &TcpStream,
    interest: Interest,
    most: usize,
    call: impl FnOnce() -> rustix::io::Result<usize>,
) -> Option<io::Result<usize>> {
    let mut moved = None;
    let outcome = stream.try_io(interest, || {
        let n = call()?;
        moved = Some(n);
        if 0 < n && n < most { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match (moved, outcome) {
        (Some(n), _) => Some(Ok(n)),
        (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Some(Err(error)),
        (None, _) => None,
    }
}
