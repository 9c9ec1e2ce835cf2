//! A connection as bytes: plain, or within TLS.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

use super::stream::{self, More, poll_read, poll_write, poll_write_vectored};
use super::tcp_info::tcp_info;
use super::tls_layer::TlsLayer;
use convey_tls::{SessionFacts, TlsSession};

/// Most bytes that are read of a connection that is over.
const MAX_DISCARDED: usize = 4 * 1024 * 1024;

/// A connection.
pub struct ByteStream {
    tcp: TcpStream,
    tls: Option<Box<TlsLayer>>,
}

impl ByteStream {
    /// Shakes hands: bytes are within this session from now on. So much has come of it already.
    ///
    /// # Errors
    /// The other side has closed or reset the connection, breaks the protocol, or is not who it should be.
    pub(super) async fn begin_tls(&mut self, session: TlsSession, early: Vec<u8>) -> io::Result<()> {
        let tls = self.tls.insert(Box::new(TlsLayer::new(session, early)));
        tls.handshake(&self.tcp).await
    }

    /// The same of the side that begins. An end that the server does not announce counts as an error from then on.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn begin_tls_with_server(&mut self, session: TlsSession) -> io::Result<()> {
        let tls = self.tls.insert(Box::new(TlsLayer::new(session, Vec::new()).strict()));
        tls.handshake(&self.tcp).await
    }

    /// The protocol within that both sides have agreed on (ALPN).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.protocol()
    }

    /// What the handshake has agreed on; `None`: there was none.
    pub fn facts(&self) -> Option<SessionFacts> {
        self.tls.as_ref().map(|tls| tls.facts())
    }

    /// Whether the other side has sent anything for the handshake.
    pub(super) fn has_begun_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_begun())
    }

    /// The socket: what goes over it may be encrypted.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The socket, if the kernel may move bytes between it and others.
    pub fn plain(&self) -> Option<&TcpStream> {
        self.tls.is_none().then_some(&self.tcp)
    }

    /// Reads what is there; 0 is the end.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_read(&self.tcp, cx, buffer),
            Some(tls) => tls.poll_read(&self.tcp, cx, buffer),
        }
    }

    /// Writes what the kernel takes. A write that is pending has to be repeated with the same bytes first.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8], more: More) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => poll_write(&self.tcp, cx, bytes, more),
            Some(tls) => tls.poll_write(&self.tcp, cx, bytes, more),
        }
    }

    /// Waits until the kernel takes something. A write that is pending is over then, and was taken whole: it is not repeated.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            None => self.tcp.poll_write_ready(cx),
            Some(tls) => tls.poll_writable(&self.tcp, cx),
        }
    }

    /// Writes several parts, one after the other.
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

    /// Says that nothing more is written.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.tls {
            None => Poll::Ready(shutdown(&self.tcp, Shutdown::Write).map_err(Into::into)),
            Some(tls) => tls.poll_shutdown(&self.tcp, cx),
        }
    }

    /// Whether a write has begun that is to be repeated.
    pub fn is_writing(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_writing())
    }

    /// Whether the kernel keeps bytes of what was written that the other side has not acknowledged.
    pub fn has_untaken(&self) -> bool {
        tcp_info(&self.tcp).is_some_and(|info| info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0)
    }

    /// Whether nothing has come: no byte, and no end. No system call while nothing has.
    pub fn is_quiet(&mut self) -> bool {
        match &mut self.tls {
            None => stream::try_read(&self.tcp, &mut [0]).is_none(),
            Some(tls) => tls.is_quiet(&self.tcp),
        }
    }

    /// Says that nothing more is written, and reads on until the other side has ended, so that what was written arrives.
    pub(super) async fn discard_rest(&mut self) {
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

    /// Tells the other side that the connection ends in order, where that takes more than closing it.
    pub(super) fn say_end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.say_end(&self.tcp);
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
