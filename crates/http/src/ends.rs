//! Endpoints of a request, the client's and the server's: sockets, or streams of HTTP/2 and HTTP/3.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use convey_proxy::ServerStream;
use convey_stream::ByteStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::http2::OutgoingStream;
use crate::streams::IncomingStream;

/// Maximum number of bytes of further requests that convey reads from a client's connection of
/// HTTP/1 while a request runs.
pub(crate) const MAX_AHEAD: usize = 16 * 1024;

/// Upper bound for the bytes that a TLS session has read from its socket, and that convey has not
/// read from the session.
const MAX_WITHIN_TLS: u64 = 64 * 1024;

/// The client's endpoint.
pub(crate) enum ClientEnd<'a> {
    Socket(&'a mut ByteStream),
    Stream(&'a mut dyn IncomingStream),
}

/// The server's endpoint.
pub(crate) enum ServerEnd {
    Socket(Box<ServerStream>),
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
    pub(crate) fn of(stream: &ByteStream) -> UnreadSocket {
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
    /// to `most`. A pending write is complete then. A stream may accept fewer bytes later.
    pub(crate) fn poll_writable(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(socket) => socket.poll_writable(cx).map_ok(|()| most),
            ClientEnd::Stream(stream) => {
                let room = ready!(stream.poll_room(cx, most));
                // The bytes may have to be read first, and other streams must not wait for a disk.
                stream.free_room();
                Poll::Ready(room)
            }
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

    /// The connection's own socket, if the kernel may move bytes between it and other sockets.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            ClientEnd::Socket(socket) => socket.plain(),
            ClientEnd::Stream(_) => None,
        }
    }

    /// Whether a write has begun that has to be repeated with the same bytes.
    pub(crate) fn is_writing(&self) -> bool {
        matches!(self, ClientEnd::Socket(socket) if socket.is_writing())
    }

    /// Whether this is a stream.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, ClientEnd::Stream(_))
    }
}
