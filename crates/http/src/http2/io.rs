//! The bytes of a connection that speaks HTTP/2.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use convey_proxy::{ClientStream, More, ServerStream, poll_read, poll_write};
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection, as the library has it.
pub(super) struct Connection<T> {
    stream: T,
    /// What had come before.
    early: BytesMut,
}

/// Who has a connection.
pub(super) trait HasStream: Unpin {
    /// It.
    fn stream(&self) -> &TcpStream;

    /// So many bytes came, and so many went.
    fn count(&self, _rx: usize, _tx: usize) {}
}

impl HasStream for &ClientStream {
    fn stream(&self) -> &TcpStream {
        ClientStream::stream(self)
    }

    fn count(&self, rx: usize, tx: usize) {
        self.count_bytes(rx as u64, tx as u64);
    }
}

impl HasStream for ServerStream {
    fn stream(&self) -> &TcpStream {
        ServerStream::stream(self)
    }
}

impl<T> Connection<T> {
    pub(super) fn new(stream: T, early: BytesMut) -> Connection<T> {
        Connection { stream, early }
    }
}

impl<T: HasStream> AsyncRead for Connection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let len = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early[..len]);
            self.early.advance(len);
            if self.early.is_empty() {
                self.early = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let n = ready!(poll_read(self.stream.stream(), cx, buffer.initialize_unfilled()))?;
        buffer.advance(n);
        self.stream.count(n, 0);
        Poll::Ready(Ok(()))
    }
}

impl<T: HasStream> AsyncWrite for Connection<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let n = ready!(poll_write(self.stream.stream(), cx, bytes, More::No))?;
        self.stream.count(0, n);
        Poll::Ready(Ok(n))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.stream.stream();
        loop {
            ready!(stream.poll_write_ready(cx))?;
            match stream.try_write_vectored(slices) {
                Ok(n) => {
                    self.stream.count(0, n);
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = shutdown(self.stream.stream(), Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}
