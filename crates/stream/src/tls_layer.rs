//! TLS layer of a connection: converts between records on the socket and plaintext for the caller.
//!
//! Records pass through buffers that all connections of the thread share. The buffers hold nothing
//! between two calls, so each call can use the buffers of the thread on which it runs. A connection
//! keeps only bytes that the kernel or the reader has not accepted yet, so an idle connection holds
//! no buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::task::{Context, Poll, ready};

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

use super::socket_io::{More, poll_read, poll_write, try_write};
use convey_tls::{OutgoingRecords, SessionFacts, TlsError, TlsSession};

/// Upper bound of the bytes that one call reads from the socket.
const READ: usize = 64 * 1024;

/// Upper bound of the bytes that one call reads from the socket of a peer that sends small records.
/// It is lower than `READ`, because a small record costs as much time as a large one.
const READ_OF_SMALL: usize = 4 * 1024;

/// Upper bound of reads in a row that return no plaintext. After them, other connections of the
/// thread get a turn.
const TURNS: usize = 8;

/// Upper bound of the plaintext that one write accepts, in bytes: four records.
const WRITE: usize = 64 * 1024;

/// Upper bound of the encrypted bytes that a connection holds for a peer that does not read. It is
/// large enough for a handshake flight and a write.
const MAX_OUTGOING: usize = 256 * 1024;

thread_local! {
    /// Buffer for received bytes: the unfinished bytes of earlier reads, then the bytes of this
    /// read.
    static INCOMING: RefCell<Box<[u8]>> = RefCell::new(vec![0; TlsSession::MAX_UNFINISHED + READ].into());
    /// Buffer that joins several parts for one write.
    static JOINED: RefCell<Vec<u8>> = RefCell::default();
    static OUTGOING: RefCell<OutgoingRecords> = RefCell::default();
}

/// TLS layer of one connection. The caller passes the socket to each call.
pub(super) struct TlsLayer {
    session: TlsSession,
    /// Bytes of the peer that were read before the session began.
    early: Vec<u8>,
    /// Decrypted bytes. The reader has not taken the bytes from index `taken` on yet.
    plaintext: Vec<u8>,
    taken: usize,
    /// Encrypted records. The kernel has not accepted the bytes from index `sent` on yet.
    outgoing: Vec<u8>,
    sent: usize,
    /// Length of the plaintext of a pending write, whose records are in `outgoing`. The repeated
    /// write returns this length; 0 if no write is pending.
    claimed: usize,
    state: State,
}

/// State of the session.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// The handshake is complete.
    is_open: bool,
    /// The peer has sent bytes.
    has_begun: bool,
    /// The last bytes of the peer contained more record overhead than plaintext.
    is_small: bool,
    /// The peer has closed its direction.
    is_closed: bool,
    /// `close_notify` was sent to the peer.
    has_sent_close_notify: bool,
    /// An end of TCP without `close_notify` is an error, because the data may be truncated (RFC
    /// 8446, section 6.1).
    is_strict: bool,
}

impl TlsLayer {
    /// Creates the layer of a connection. `early` holds the bytes of the peer that have been read
    /// already.
    pub(super) fn new(session: TlsSession, early: Vec<u8>) -> TlsLayer {
        let (plaintext, outgoing, state) = (Vec::new(), Vec::new(), State::default());
        TlsLayer { session, early, plaintext, taken: 0, outgoing, sent: 0, claimed: 0, state }
    }

    /// Makes an end of TCP without `close_notify` an error.
    pub(super) fn strict(mut self) -> TlsLayer {
        self.state.is_strict = true;
        self
    }

    /// Protocol within TLS that both sides have agreed on (ALPN).
    pub(super) fn protocol(&self) -> Option<&[u8]> {
        self.session.protocol()
    }

    /// Facts of the handshake.
    pub(super) fn facts(&self) -> SessionFacts {
        self.session.facts()
    }

    /// Whether the peer has sent any bytes.
    pub(super) fn has_begun(&self) -> bool {
        self.state.has_begun
    }

    /// Whether a write is pending, so that the caller must repeat it.
    pub(super) fn is_writing(&self) -> bool {
        self.claimed > 0
    }

    /// Performs the handshake. Afterwards both sides may send.
    pub(super) async fn handshake(&mut self, tcp: &TcpStream) -> io::Result<()> {
        let mut early = mem::take(&mut self.early);
        self.decrypt(tcp, &mut early, &mut [])?;
        poll_fn(|cx| self.poll_handshake(tcp, cx)).await
    }

    fn poll_handshake(&mut self, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(tcp, cx, More::No))?;
            if self.state.is_open {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_fill(tcp, cx, &mut []))?.is_none() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Reads the plaintext that has arrived. Returns its length, 0 at the end.
    pub(super) fn poll_read(
        &mut self,
        tcp: &TcpStream,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let n = self.take_plaintext(buffer);
        if n > 0 || buffer.is_empty() {
            return Poll::Ready(Ok(n));
        }
        for _ in 0..TURNS {
            if self.state.is_closed {
                return Poll::Ready(Ok(0));
            }
            match ready!(self.poll_fill(tcp, cx, buffer))? {
                None if self.state.is_strict => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                None => self.state.is_closed = true,
                Some(0) => {}
                Some(n) => return Poll::Ready(Ok(n)),
            }
        }
        if self.state.is_closed {
            return Poll::Ready(Ok(0));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes plaintext, up to 64 KiB. Returns the number of accepted bytes. After `Pending`, the
    /// caller must repeat the write with the same bytes before any other write, because they may be
    /// encrypted already.
    pub(super) fn poll_write(
        &mut self,
        tcp: &TcpStream,
        cx: &mut Context<'_>,
        bytes: &[u8],
        more: More,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(tcp, cx, more))?;
        if self.claimed > 0 {
            return Poll::Ready(Ok(mem::take(&mut self.claimed).min(bytes.len())));
        }
        let bytes = &bytes[..bytes.len().min(WRITE)];
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        OUTGOING.with_borrow_mut(|out| {
            out.clear();
            self.session.send(bytes, out).map_err(broken)?;
            let mut sent = 0;
            while sent < out.bytes().len() {
                match poll_write(tcp, cx, &out.bytes()[sent..], more) {
                    Poll::Ready(n) => sent += n?,
                    Poll::Pending => {
                        self.outgoing.extend_from_slice(&out.bytes()[sent..]);
                        self.claimed = bytes.len();
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(Ok(bytes.len()))
        })
    }

    /// Waits until all encrypted bytes have been sent and the socket is writable. A pending write
    /// is complete then.
    pub(super) fn poll_writable(&mut self, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(tcp, cx, More::No))?;
        self.claimed = 0;
        tcp.poll_write_ready(cx)
    }

    /// Writes several parts in their order. Joins them, so that there are fewer records.
    pub(super) fn poll_write_vectored(
        &mut self,
        tcp: &TcpStream,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        JOINED.with_borrow_mut(|joined| {
            joined.clear();
            for part in parts {
                let room = WRITE - joined.len();
                joined.extend_from_slice(&part[..part.len().min(room)]);
            }
            self.poll_write(tcp, cx, joined, More::No)
        })
    }

    /// Closes TLS (`close_notify`) and TCP for writing.
    pub(super) fn poll_shutdown(&mut self, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue_end();
        ready!(self.poll_flush(tcp, cx, More::End))?;
        Poll::Ready(Ok(shutdown(tcp, Shutdown::Write)?))
    }

    /// Sends `close_notify`, if the kernel accepts it immediately.
    pub(super) fn send_close_notify(&mut self, tcp: &TcpStream) {
        if self.state.is_open && self.outgoing.is_empty() {
            self.queue_end();
            let _ = try_write(tcp, &self.outgoing, More::No);
        }
    }

    /// Whether neither plaintext nor the end of the stream has arrived.
    pub(super) fn is_quiet(&mut self, tcp: &TcpStream) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        // Reads instead of looking at the socket: session tickets, which are not plaintext, may
        // arrive at any time.
        matches!(self.poll_read(tcp, &mut cx, &mut [0]), Poll::Pending)
    }

    fn queue_end(&mut self) {
        if self.state.is_open && !mem::replace(&mut self.state.has_sent_close_notify, true) {
            OUTGOING.with_borrow_mut(|out| {
                out.clear();
                // An error is ignored: without keys the session cannot send an alert.
                let _ = self.session.close(out);
                self.outgoing.extend_from_slice(out.bytes());
            });
        }
    }

    /// Writes the records in `outgoing`.
    fn poll_flush(&mut self, tcp: &TcpStream, cx: &mut Context<'_>, more: More) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            self.sent += ready!(poll_write(tcp, cx, &self.outgoing[self.sent..], more))?;
        }
        if self.sent > 0 {
            (self.outgoing, self.sent) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the socket once, and decrypts the bytes into `buffer`. Returns the length of the
    /// plaintext in `buffer`; `None` at the end of TCP.
    fn poll_fill(
        &mut self,
        tcp: &TcpStream,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<Option<usize>>> {
        INCOMING.with_borrow_mut(|incoming| {
            let held = self.session.unfinished();
            let most = if self.state.is_small { READ_OF_SMALL } else { READ };
            let n = ready!(poll_read(tcp, cx, &mut incoming[held..held + most]))?;
            if n == 0 {
                return Poll::Ready(Ok(None));
            }
            self.decrypt(tcp, &mut incoming[..held + n], buffer).map(Some).into()
        })
    }

    /// Decrypts received bytes into `buffer`, and keeps plaintext that does not fit. Returns the
    /// length of the plaintext in `buffer`.
    fn decrypt(&mut self, tcp: &TcpStream, incoming: &mut [u8], buffer: &mut [u8]) -> io::Result<usize> {
        self.state.has_begun |= !incoming.is_empty();
        let (mut n, plaintext) = (0, &mut self.plaintext);
        let decrypted = OUTGOING.with_borrow_mut(|out| {
            out.clear();
            let received = self.session.receive(incoming, out, |bytes| {
                let fits = bytes.len().min(buffer.len() - n);
                buffer[n..n + fits].copy_from_slice(&bytes[..fits]);
                plaintext.extend_from_slice(&bytes[fits..]);
                n += fits;
            });
            self.outgoing.extend_from_slice(out.bytes());
            received
        });
        let received = match decrypted {
            Ok(received) => received,
            Err(error) => {
                // Sends the alert, if the kernel accepts it.
                let _ = try_write(tcp, &self.outgoing[self.sent..], More::No);
                return Err(broken(error));
            }
        };
        self.state.is_small =
            incoming.len() >= READ_OF_SMALL && (n + self.plaintext.len()) * 2 < incoming.len();
        self.state.is_open |= received.is_open;
        self.state.is_closed |= received.is_closed;
        if self.outgoing.len() > MAX_OUTGOING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if !self.outgoing.is_empty() && self.state.is_open && self.claimed == 0 {
            self.flush_now(tcp);
        }
        Ok(n)
    }

    /// Writes the library's replies to the peer, as many bytes as the kernel accepts immediately.
    /// The next write sends the rest.
    fn flush_now(&mut self, tcp: &TcpStream) {
        if let Some(Ok(n)) = try_write(tcp, &self.outgoing[self.sent..], More::No) {
            self.sent += n;
        }
        if self.sent == self.outgoing.len() {
            (self.outgoing, self.sent) = (Vec::new(), 0);
        }
    }

    /// Copies kept plaintext into `buffer`. Returns its length.
    fn take_plaintext(&mut self, buffer: &mut [u8]) -> usize {
        let left = &self.plaintext[self.taken..];
        let n = left.len().min(buffer.len());
        buffer[..n].copy_from_slice(&left[..n]);
        self.taken += n;
        if self.taken == self.plaintext.len() && self.taken > 0 {
            (self.plaintext, self.taken) = (Vec::new(), 0);
        }
        n
    }
}

fn broken(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
