//! Endpoints of a transfer: sockets, and HTTP/2 and HTTP/3 streams with the same interface.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use convey_proxy::ServerStream;
use convey_stream::{ByteStream, More};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::http2::OutgoingStream;
use crate::streams::IncomingStream;

/// Upper bound for the bytes that a TLS session has read from its socket, and that convey has not
/// read from the session.
const MAX_WITHIN_TLS: u64 = 64 * 1024;

/// Endpoint of a transfer, which reads and writes bytes of HTTP/1.1.
pub(crate) trait End {
    /// Reads available bytes into `buffer`. Returns their number; 0: the peer has sent its last
    /// byte.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes bytes. Returns how many of them the endpoint has accepted.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>>;

    /// Returns how many of `most` bytes a stream accepts without buffering them. Pending: none at
    /// the moment. A socket returns `most`, because only a write shows whether it has room.
    fn poll_room(&mut self, _: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(most))
    }

    /// Returns the endpoint's own socket if the kernel may move bytes between it and other sockets.
    fn socket(&self) -> Option<&TcpStream>;

    /// Whether this is a stream. The flow control of its peer may hold up written bytes for any
    /// time.
    fn is_stream(&self) -> bool {
        false
    }

    /// Waits until the peer resets a stream. A socket reports a reset when it is read or written.
    fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<io::Error> {
        Poll::Pending
    }

    /// State of a socket that convey does not read at the moment; `None` for a stream.
    fn unread(&self) -> Option<UnreadSocket> {
        None
    }

    /// Whether a write has begun that has to be repeated with the same bytes.
    fn is_writing(&self) -> bool {
        false
    }

    /// Closes the write side of a socket. A stream ends by its own framing.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// The client's endpoint.
pub(crate) enum ClientEnd<'a> {
    Socket(&'a mut ByteStream),
    Stream(&'a mut dyn IncomingStream),
}

/// The server's endpoint.
pub(crate) enum ServerEnd {
    Socket(ServerStream),
    Stream(Box<OutgoingStream>),
}

/// State of a socket that convey does not read at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnreadSocket {
    /// Whether the connection is broken.
    pub(crate) is_reset: bool,
    /// Whether the peer has closed its side of a connection without TLS.
    pub(crate) is_closed: bool,
    /// Upper bound for the bytes that can still be read.
    pub(crate) bytes: u64,
}

impl UnreadSocket {
    fn of(stream: &ByteStream) -> UnreadSocket {
        let (tcp, is_plain) = (stream.tcp(), stream.plain().is_some());
        let mut polled = [PollFd::new(tcp, PollFlags::RDHUP)];
        let _ = poll(&mut polled, Some(&Timespec::default()));
        let state = polled[0].revents();
        let bytes = ioctl_fionread(tcp).unwrap_or_default() + if is_plain { 0 } else { MAX_WITHIN_TLS };
        UnreadSocket {
            is_reset: state.contains(PollFlags::ERR),
            is_closed: is_plain && state.contains(PollFlags::RDHUP),
            bytes,
        }
    }
}

impl ClientEnd<'_> {
    /// Waits until the client's endpoint accepts bytes without delay. Returns their number, from 1
    /// to `most`. A pending write is complete then.
    pub(crate) fn poll_writable(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(socket) => socket.poll_writable(cx).map_ok(|()| most),
            ClientEnd::Stream(stream) => stream.poll_room(cx, most),
        }
    }

    /// Waits until the client has left: it has reset its connection or its stream, or has closed
    /// its side before the body of its request was complete. `missing` is the number of bytes that
    /// this body still lacks. Received bytes stay unread. A client that closes its side after its
    /// whole request may still wait for the response.
    pub(crate) async fn left(&mut self, missing: u64) {
        match self {
            ClientEnd::Socket(socket) => {
                let (tcp, is_plain) = (socket.tcp(), socket.plain().is_some());
                // convey uses no urgent data, so this wakes up only at the end of the connection,
                // even if unread bytes come before the end.
                let ended = tcp.ready(Interest::PRIORITY | Interest::ERROR).await;
                let waits = || ioctl_fionread(tcp).unwrap_or_default();
                let may_be_whole = ended.is_ok_and(|ended| !ended.is_error() && !ended.is_write_closed())
                    && (!is_plain || waits() >= missing);
                if may_be_whole {
                    let _ = tcp.ready(Interest::ERROR).await;
                }
            }
            ClientEnd::Stream(stream) => _ = poll_fn(|cx| stream.poll_reset(cx)).await,
        }
    }
}

impl End for ClientEnd<'_> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(socket) => socket.poll_read(cx, buffer),
            ClientEnd::Stream(stream) => stream.poll_read(cx, buffer),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(socket) => socket.poll_write(cx, bytes, more),
            ClientEnd::Stream(stream) => stream.poll_write(cx, bytes),
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(_) => Poll::Ready(Ok(most)),
            ClientEnd::Stream(stream) => stream.poll_room(cx, most),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            ClientEnd::Socket(socket) => socket.plain(),
            ClientEnd::Stream(_) => None,
        }
    }

    fn is_stream(&self) -> bool {
        matches!(self, ClientEnd::Stream(_))
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            ClientEnd::Socket(_) => Poll::Pending,
            ClientEnd::Stream(stream) => stream.poll_reset(cx),
        }
    }

    fn unread(&self) -> Option<UnreadSocket> {
        match self {
            ClientEnd::Socket(socket) => Some(UnreadSocket::of(socket)),
            ClientEnd::Stream(_) => None,
        }
    }

    fn is_writing(&self) -> bool {
        matches!(self, ClientEnd::Socket(socket) if socket.is_writing())
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            ClientEnd::Socket(socket) => socket.poll_shutdown(cx).map(drop),
            ClientEnd::Stream(_) => Poll::Ready(()),
        }
    }
}

impl End for ServerEnd {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            ServerEnd::Socket(server) => server.stream().poll_read(cx, buffer),
            ServerEnd::Stream(stream) => stream.poll_read(cx, buffer),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        match self {
            ServerEnd::Socket(server) => server.stream().poll_write(cx, bytes, more),
            ServerEnd::Stream(stream) => stream.poll_write(cx, bytes),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            ServerEnd::Socket(server) => server.plain(),
            ServerEnd::Stream(_) => None,
        }
    }

    fn is_stream(&self) -> bool {
        matches!(self, ServerEnd::Stream(_))
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            ServerEnd::Socket(_) => Poll::Pending,
            ServerEnd::Stream(stream) => stream.poll_reset(cx),
        }
    }

    fn unread(&self) -> Option<UnreadSocket> {
        match self {
            ServerEnd::Socket(server) => Some(UnreadSocket::of(server.bytes())),
            ServerEnd::Stream(_) => None,
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            ServerEnd::Socket(server) => server.stream().poll_shutdown(cx).map(drop),
            ServerEnd::Stream(_) => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
impl End for ByteStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        ByteStream::poll_read(self, cx, buffer)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        ByteStream::poll_write(self, cx, bytes, more)
    }

    fn socket(&self) -> Option<&TcpStream> {
        self.plain()
    }

    fn unread(&self) -> Option<UnreadSocket> {
        Some(UnreadSocket::of(self))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_shutdown(cx).map(drop)
    }
}
