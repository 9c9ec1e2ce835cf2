//! The two sides of a transfer: sockets, or streams of HTTP/2 and HTTP/3 that look like one.

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

/// Upper bound for the bytes that a TLS session has read of its socket and nobody has read of the
/// session.
const MAX_WITHIN_TLS: u64 = 64 * 1024;

/// A side, as bytes of HTTP/1.1.
pub(crate) trait End {
    /// Reads what is there; 0 is the end.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes what the side takes.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>>;

    /// For how many of `most` bytes a stream has room: what is more would have to be kept. Pending:
    /// none now. A socket says so when it is written to.
    fn poll_room(&mut self, _: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(most))
    }

    /// The socket, if it has one of its own and the kernel may move bytes between that and others.
    fn socket(&self) -> Option<&TcpStream>;

    /// Whether it is a stream, whose other side may hold up what is written for as long as it
    /// likes.
    fn is_stream(&self) -> bool {
        false
    }

    /// Waits until the other side resets a stream. A socket reports that when it is read or
    /// written.
    fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<io::Error> {
        Poll::Pending
    }

    /// State of a socket that nobody reads; `None`: it is a stream.
    fn unread(&self) -> Option<UnreadSocket> {
        None
    }

    /// Whether a write has begun that is to be repeated with the same bytes.
    fn is_writing(&self) -> bool {
        false
    }

    /// Nothing else is written. What speaks HTTP/2 knows that by itself.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// The side of the client.
pub(crate) enum ClientEnd<'a> {
    Socket(&'a mut ByteStream),
    Stream(&'a mut dyn IncomingStream),
}

/// The side of the server.
pub(crate) enum ServerEnd {
    Socket(ServerStream),
    Stream(Box<OutgoingStream>),
}

/// State of a socket that nobody reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnreadSocket {
    /// Whether the connection is broken.
    pub(crate) is_reset: bool,
    /// Whether the other side has closed a plain connection.
    pub(crate) is_closed: bool,
    /// Bytes that can still be read, at most.
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
    /// Waits until the client's side accepts bytes without delay. Returns how many, from 1 to
    /// `most`. A pending write is complete then.
    pub(crate) fn poll_writable(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(socket) => socket.poll_writable(cx).map_ok(|()| most),
            ClientEnd::Stream(stream) => stream.poll_room(cx, most),
        }
    }

    /// Waits until the client has reset its connection or the stream, or has closed its side before
    /// the body of its request was whole, of which so many bytes are `missing`. What it has sent
    /// stays unread. A client that closes its side behind its request may still wait for the
    /// response.
    pub(crate) async fn left(&mut self, missing: u64) {
        match self {
            ClientEnd::Socket(socket) => {
                let (tcp, is_plain) = (socket.tcp(), socket.plain().is_some());
                // Nobody asks for urgent data, so this wakes at the end alone, also behind bytes
                // that wait.
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
