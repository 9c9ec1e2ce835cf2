//! TCP connection as a byte stream, plain or within TLS.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use rustix::net::sockopt::set_tcp_quickack;
use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

use super::socket_io::{self, More, poll_read, poll_write, poll_write_vectored};
use super::tcp_info::tcp_info;
use super::tls_layer::TlsLayer;
use convey_tls::{SessionFacts, TlsSession};

/// Upper bound of the bytes that `ByteStream::discard_rest` reads.
const MAX_DISCARDED: usize = 4 * 1024 * 1024;

/// TCP connection as a byte stream, plain or within TLS.
pub struct ByteStream {
    tcp: TcpStream,
    tls: Option<Box<TlsLayer>>,
}

impl ByteStream {
    /// Performs the TLS handshake with a client. From then on, reads and writes use this session.
    /// `early` holds the bytes of the handshake that have been read already.
    ///
    /// # Errors
    /// The client has closed or reset the connection, breaks the protocol, or fails authentication.
    pub async fn begin_tls(&mut self, session: TlsSession, early: Vec<u8>) -> io::Result<()> {
        let tls = self.tls.insert(Box::new(TlsLayer::new(session, early)));
        tls.handshake(&self.tcp).await
    }

    /// Performs the TLS handshake with a server. From then on, reads and writes use this session,
    /// and an end of TCP without `close_notify` is an error.
    ///
    /// # Errors
    /// The server has closed or reset the connection, breaks the protocol, or fails authentication.
    pub async fn begin_tls_with_server(&mut self, session: TlsSession) -> io::Result<()> {
        let tls = self.tls.insert(Box::new(TlsLayer::new(session, Vec::new()).strict()));
        tls.handshake(&self.tcp).await
    }

    /// Protocol within TLS that both sides have agreed on (ALPN).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.protocol()
    }

    /// Facts of the TLS handshake; `None` without TLS.
    pub fn facts(&self) -> Option<SessionFacts> {
        self.tls.as_ref().map(|tls| tls.facts())
    }

    /// Whether the peer has sent any bytes of the handshake.
    pub fn has_begun_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_begun())
    }

    /// Socket of the connection. Its bytes are encrypted within TLS.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Socket of the connection, if the kernel may splice its bytes; `None` within TLS.
    pub fn plain(&self) -> Option<&TcpStream> {
        self.tls.is_none().then_some(&self.tcp)
    }

    /// Reads the bytes that have arrived. Returns their number, 0 at the end of the stream.
    #[inline]
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_read(&self.tcp, cx, buffer),
            Some(tls) => tls.poll_read(&self.tcp, cx, buffer),
        }
    }

    /// Writes as many bytes as the kernel accepts. Returns their number. After `Pending`, the
    /// caller must repeat the write with the same bytes before any other write.
    #[inline]
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_write(&self.tcp, cx, bytes, more),
            Some(tls) => tls.poll_write(&self.tcp, cx, bytes, more),
        }
    }

    /// Waits until the kernel accepts more bytes. Within TLS, a pending write is complete then, and
    /// must not be repeated.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            None => self.tcp.poll_write_ready(cx),
            Some(tls) => tls.poll_writable(&self.tcp, cx),
        }
    }

    /// Writes several parts in their order, as many bytes as the kernel accepts. Returns their
    /// number.
    pub fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_write_vectored(&self.tcp, cx, parts),
            Some(tls) => tls.poll_write_vectored(&self.tcp, cx, parts),
        }
    }

    /// Closes the connection for writing; within TLS, after `close_notify`.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            None => Poll::Ready(shutdown(&self.tcp, Shutdown::Write).map_err(Into::into)),
            Some(tls) => tls.poll_shutdown(&self.tcp, cx),
        }
    }

    /// Whether a write within TLS is pending, so that the caller must repeat it.
    pub fn is_writing(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_writing())
    }

    /// Acknowledges received segments immediately, until the kernel delays acknowledgements again to
    /// send them with data (`TCP_QUICKACK` in tcp(7)). A peer without `TCP_NODELAY` sends the rest of
    /// its bytes only then.
    pub fn acknowledge_immediately(&self) {
        let _ = set_tcp_quickack(&self.tcp, true);
    }

    /// Whether the peer has not yet acknowledged all written bytes.
    pub fn has_untaken(&self) -> bool {
        tcp_info(&self.tcp).is_some_and(|info| info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0)
    }

    /// Whether neither a byte nor the end of the stream has arrived. Makes no system call while the
    /// socket is not readable.
    pub fn is_quiet(&mut self) -> bool {
        match &mut self.tls {
            None => socket_io::try_read(&self.tcp, &mut [0]).is_none(),
            Some(tls) => tls.is_quiet(&self.tcp),
        }
    }

    /// Closes the connection for writing, and discards received bytes until the peer closes. So the
    /// peer receives all written bytes, because unread bytes would cause a reset. Discards at most
    /// 4 MiB.
    pub async fn discard_rest(&mut self) {
        let _ = shutdown(&self.tcp, Shutdown::Write);
        let mut left = MAX_DISCARDED;
        poll_fn(|cx| {
            let mut buffer = [0; 4096];
            while left > 0 {
                match ready!(poll_read(&self.tcp, cx, &mut buffer)) {
                    Ok(n) if n > 0 => left = left.saturating_sub(n),
                    _ => break,
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Sends `close_notify` within TLS, if the kernel accepts it immediately.
    pub(crate) fn send_close_notify(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify(&self.tcp);
        }
    }
}

impl From<TcpStream> for ByteStream {
    fn from(tcp: TcpStream) -> ByteStream {
        ByteStream { tcp, tls: None }
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ByteStream");
        shown.field("tcp", &self.tcp).field("tls", &self.facts()).finish()
    }
}
