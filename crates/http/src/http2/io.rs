//! Byte stream of an HTTP/2 connection to a server, between the socket and the HTTP/2 library.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use convey_proxy::ServerStream;
use convey_stream::{ByteStream, More};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::frame_filter::FieldFilter;
use super::receive::ReceiveQueue;
use crate::buffer;

/// Maximum number of bytes of short frames that are written together: one TLS record.
const GATHERED: usize = 16 * 1024;

/// Number of bytes above which a write is not gathered: a copy would cost more than a system call.
const LONG: usize = 4 * 1024;

/// Connection for the HTTP/2 library. It gathers short frames into one write.
///
/// The library flushes after each DATA frame. Short frames of several streams are gathered here,
/// until the library flushes without new frames.
pub(super) struct Connection<T> {
    stream: T,
    /// Bytes for the library that the filter has changed.
    early: BytesMut,
    filter: FieldFilter,
    /// Bounds how much the library reads before convey takes its data.
    queue: Arc<ReceiveQueue>,
    began: Instant,
    /// Frames that are not sent yet, from index `sent` on.
    gathered: Vec<u8>,
    sent: usize,
    /// Whether the last write was a DATA frame: the library flushes once more if no other frame
    /// follows.
    flushes_again: bool,
}

/// Owner of a connection's byte stream.
pub(super) trait HasStream: Unpin {
    /// Returns the byte stream.
    fn stream(&mut self) -> &mut ByteStream;
}

impl HasStream for ServerStream {
    fn stream(&mut self) -> &mut ByteStream {
        ServerStream::stream(self)
    }
}

impl<T> Connection<T> {
    pub(super) fn new(stream: T, filter: FieldFilter, queue: Arc<ReceiveQueue>) -> Connection<T> {
        let (early, began, gathered) = (BytesMut::new(), Instant::now(), Vec::new());
        Connection { stream, early, filter, queue, began, gathered, sent: 0, flushes_again: false }
    }
}

impl<T: HasStream> Connection<T> {
    /// Writes the gathered frames.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let n = ready!(self.stream.stream().poll_write(cx, &self.gathered[self.sent..], More::No))?;
            self.sent += n;
        }
        if self.sent > 0 {
            // An idle connection keeps no buffer.
            (self.gathered, self.sent) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// Receives at most `most` bytes, and passes them through the filter. Returns whether the read
    /// is complete. If it is not, the filter has changed the bytes, and they are in `early`.
    ///
    /// The library's buffer is not initialized, and zeroing all of it would cost more than this
    /// copy of the received bytes.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        buffer::with(|buffer| {
            let room = &mut buffer[..most.min(buffer::SIZE)];
            let n = ready!(self.stream.stream().poll_read(cx, room))?;
            let passed = match n {
                0 => Some(self.filter.end()),
                n => self.filter.pass(&room[..n], self.began.elapsed()),
            };
            match passed {
                Some(passed) if n > 0 || !passed.is_empty() => {
                    self.early = passed;
                    Poll::Ready(Ok(false))
                }
                _ => {
                    to.put_slice(&room[..n]);
                    self.queue.has_read(n);
                    Poll::Ready(Ok(true))
                }
            }
        })
    }
}

impl<T: HasStream> AsyncRead for Connection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let most = this.queue.allowance().min(buffer.remaining());
            if most == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !this.early.is_empty() {
                let len = this.early.len().min(most);
                buffer.put_slice(&this.early[..len]);
                this.queue.has_read(len);
                this.early.advance(len);
                if this.early.is_empty() {
                    this.early = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            if ready!(this.poll_receive(cx, most, buffer))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: HasStream> AsyncWrite for Connection<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        let is_long = len > LONG;
        if is_long || this.gathered.len() + len > GATHERED {
            ready!(this.poll_send(cx))?;
        }
        // A write of several slices is a DATA frame: its head and its data.
        this.flushes_again = !is_long && slices.len() > 1;
        if is_long {
            let n = ready!(this.stream.stream().poll_write_vectored(cx, slices))?;
            return Poll::Ready(Ok(n));
        }
        slices.iter().for_each(|slice| this.gathered.extend_from_slice(slice));
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.gathered.len() >= GATHERED {
            ready!(this.poll_send(cx))?;
        }
        // The library flushes only after complete frames, so the updates can follow.
        this.filter.put_updates(&mut this.gathered);
        match mem::take(&mut this.flushes_again) {
            true => Poll::Ready(Ok(())),
            false => this.poll_send(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = ready!(self.poll_send(cx));
        let _ = ready!(self.stream.stream().poll_shutdown(cx));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    impl HasStream for ByteStream {
        fn stream(&mut self) -> &mut ByteStream {
            self
        }
    }

    async fn pair() -> (Connection<ByteStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let filter = FieldFilter::new(1_000);
        let stream = listener.accept().await.unwrap().0.into();
        (Connection::new(stream, filter, ReceiveQueue::new(1_000)), other)
    }

    #[tokio::test]
    async fn frames_of_data_wait_for_others_until_none_follows() {
        let (mut connection, mut other) = pair().await;
        for (part, gathered) in [(b"one", 8), (b"two", 16)] {
            let slices = [IoSlice::new(b"head-"), IoSlice::new(part)];
            let written = poll_fn(|cx| Pin::new(&mut connection).poll_write_vectored(cx, &slices)).await;
            assert_eq!(written.unwrap(), 8);
            poll_fn(|cx| Pin::new(&mut connection).poll_flush(cx)).await.unwrap();
            assert_eq!(connection.gathered.len(), gathered);
        }
        poll_fn(|cx| Pin::new(&mut connection).poll_flush(cx)).await.unwrap();
        let mut came = [0; 16];
        other.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"head-onehead-two");
        assert!(connection.gathered.capacity() == 0, "it holds no bytes");
    }

    #[tokio::test]
    async fn window_updates_follow_whole_frames() {
        let (mut connection, mut other) = pair().await;
        let padded = [&[0, 1, 0, 0, 8, 0, 0, 0, 1, 255][..], &[0; 255]].concat();
        let (begin, ping) = (b"\0\0\x01\x01\x04\0\0\0\x01\x88", b"\0\0\0\x06\0\0\0\0\0");
        let update = |stream: u8| [0, 0, 4, 8, 0, 0, 0, 0, stream, 0, 0, 0x40, 0];
        for n in 0..2 {
            let begin = if n == 0 { &begin[..] } else { b"" };
            other.write_all(&[begin, &padded.repeat(64), ping].concat()).await.unwrap();
            let mut passed = vec![0; begin.len() + ping.len()];
            connection.read_exact(&mut passed).await.unwrap();
            assert_eq!(passed, [begin, ping].concat());
            let slices = [IoSlice::new(b"head-"), IoSlice::new(b"one")];
            let written = poll_fn(|cx| Pin::new(&mut connection).poll_write_vectored(cx, &slices)).await;
            assert_eq!(written.unwrap(), 8);
            for _ in 0..2 {
                poll_fn(|cx| Pin::new(&mut connection).poll_flush(cx)).await.unwrap();
            }
            let mut came = [0; 8 + 26];
            other.read_exact(&mut came).await.unwrap();
            assert_eq!(came[..], [&b"head-one"[..], &update(0), &update(1)].concat());
        }
    }

    #[tokio::test]
    async fn bytes_that_the_filter_holds_come_whole_or_at_the_end() {
        let (mut connection, mut other) = pair().await;
        other.write_all(b"\0\0\x01\x01\x04\0\0\0\x01").await.unwrap();
        let mut came = [0; 64];
        other.write_all(b"\x88\0\0\0").await.unwrap();
        connection.read_exact(&mut came[..10]).await.unwrap();
        assert_eq!(&came[..10], b"\0\0\x01\x01\x04\0\0\0\x01\x88");
        drop(other);
        assert_eq!(connection.read(&mut came).await.unwrap(), 3);
        assert_eq!(connection.read(&mut came).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn short_writes_wait_for_a_flush_and_long_ones_do_not() {
        let (mut connection, mut other) = pair().await;
        let long = vec![b'x'; LONG + 1];
        for (parts, len) in [(vec![&b"settings"[..]], 8), (vec![b"head", &long], 4 + long.len())] {
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let written = poll_fn(|cx| Pin::new(&mut connection).poll_write_vectored(cx, &slices)).await;
            assert_eq!(written.unwrap(), len);
        }
        let mut came = vec![0; 8 + 4 + long.len()];
        other.read_exact(&mut came).await.unwrap();
        assert!(came == [b"settings", &b"head"[..], &long].concat());
        poll_fn(|cx| Pin::new(&mut connection).poll_write(cx, b"ping")).await.unwrap();
        poll_fn(|cx| Pin::new(&mut connection).poll_flush(cx)).await.unwrap();
        other.read_exact(&mut came[..4]).await.unwrap();
        assert_eq!(&came[..4], b"ping");
    }
}
