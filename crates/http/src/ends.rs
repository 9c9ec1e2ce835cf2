//! The two sides of a transfer: sockets, or streams of HTTP/2 that look like one.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use convey_proxy::{More, ServerStream, poll_read, poll_write};
use rustix::net::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::http2::{IncomingStream, OutgoingStream};

/// A side, as bytes of HTTP/1.1.
pub(crate) trait End {
    /// Reads what is there; 0 is the end.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes what the side takes.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>>;

    /// The socket, if it has one of its own.
    fn socket(&self) -> Option<&TcpStream>;

    /// Nothing else is written. What speaks HTTP/2 knows that by itself.
    fn close(&self) {
        if let Some(socket) = self.socket() {
            let _ = shutdown(socket, Shutdown::Write);
        }
    }
}

/// The side of the client.
pub(crate) enum ClientEnd<'a> {
    Socket(&'a TcpStream),
    Stream(&'a mut IncomingStream),
}

/// The side of the server.
pub(crate) enum ServerEnd {
    Socket(ServerStream),
    Stream(Box<OutgoingStream>),
}

impl ClientEnd<'_> {
    /// Whether it speaks HTTP/2.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, ClientEnd::Stream(_))
    }

    /// Waits until the client has closed its side of the connection, or reset that or the stream. What it has sent stays unread.
    pub(crate) async fn left(&mut self) {
        match self {
            // Nobody asks for urgent data, so this tells of the end alone, also behind bytes that wait.
            ClientEnd::Socket(socket) => _ = socket.ready(Interest::PRIORITY).await,
            ClientEnd::Stream(stream) => _ = poll_fn(|cx| stream.poll_reset(cx)).await,
        }
    }
}

impl End for ClientEnd<'_> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(socket) => poll_read(socket, cx, buffer),
            ClientEnd::Stream(stream) => stream.poll_read(cx, buffer),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        match self {
            ClientEnd::Socket(socket) => poll_write(socket, cx, bytes, more),
            ClientEnd::Stream(stream) => stream.poll_write(cx, bytes),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            ClientEnd::Socket(socket) => Some(socket),
            ClientEnd::Stream(_) => None,
        }
    }
}

impl End for ServerEnd {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            ServerEnd::Socket(server) => poll_read(server.stream(), cx, buffer),
            ServerEnd::Stream(stream) => stream.poll_read(cx, buffer),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        match self {
            ServerEnd::Socket(server) => poll_write(server.stream(), cx, bytes, more),
            ServerEnd::Stream(stream) => stream.poll_write(cx, bytes),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            ServerEnd::Socket(server) => Some(server.stream()),
            ServerEnd::Stream(_) => None,
        }
    }
}

#[cfg(test)]
impl End for &TcpStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        poll_read(self, cx, buffer)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        poll_write(self, cx, bytes, more)
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self)
    }
}
