//! TLS layer of a connection: records on the socket, plaintext for the reader and the writer.
//!
//! Records pass through buffers that the whole thread shares. A connection keeps only the bytes
//! that the kernel or the reader has not taken, so an idle connection holds none.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::task::{Context, Poll, ready};

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

use super::socket_io::{More, poll_read, poll_write, try_write};
use convey_tls::{OutgoingRecords, SessionFacts, TlsError, TlsSession};

/// Upper bound of the bytes that one read takes from the socket.
const READ: usize = 64 * 1024;

/// Like `READ`, for peers that send small records: a small record costs as much as a large one.
const READ_OF_SMALL: usize = 4 * 1024;

/// Reads without plaintext before the thread's other connections get a turn.
const TURNS: usize = 8;

/// Upper bound of the plaintext that one write takes: four records.
const WRITE: usize = 64 * 1024;

/// Upper bound of the encrypted bytes that wait for a peer that does not read: a handshake flight
/// and a write.
const MAX_OUTGOING: usize = 256 * 1024;

thread_local! {
    /// Bytes that have arrived: the beginning of a record, and the bytes read after it.
    static INCOMING: RefCell<Box<[u8]>> = RefCell::new(vec![0; TlsSession::MAX_UNFINISHED + READ].into());
    /// Buffer that joins several parts for one write.
    static JOINED: RefCell<Vec<u8>> = RefCell::default();
    static OUTGOING: RefCell<OutgoingRecords> = RefCell::default();
}

/// TLS layer between a socket and the reader and writer of its plaintext. Each call gets the
/// socket.
pub(super) struct TlsLayer {
    session: TlsSession,
    /// Bytes that had arrived before the session began.
    early: Vec<u8>,
    /// Plaintext that the reader has not taken, from `taken` on.
    plaintext: Vec<u8>,
    taken: usize,
    /// Records that the kernel has not taken, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    /// Length of the last write's plaintext in `outgoing`, which the repeated write takes.
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
    /// The last bytes of the peer were mostly record overhead, and little plaintext.
    is_small: bool,
    /// The peer sends nothing more.
    is_closed: bool,
    /// `close_notify` was sent to the peer.
    has_said_end: bool,
    /// An end without `close_notify` is an error: the data may be truncated (RFC 8446, section
    /// 6.1).
    is_strict: bool,
}

impl TlsLayer {
    /// Creates the layer of a connection on which the `early` bytes have arrived already.
    pub(super) fn new(session: TlsSession, early: Vec<u8>) -> TlsLayer {
        let (plaintext, outgoing, state) = (Vec::new(), Vec::new(), State::default());
        TlsLayer { session, early, plaintext, taken: 0, outgoing, sent: 0, claimed: 0, state }
    }

    /// Makes an end without `close_notify` an error.
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

    /// Whether a pending write has to be repeated.
    pub(super) fn is_writing(&self) -> bool {
        self.claimed > 0
    }

    /// Performs the handshake: afterwards both sides may send.
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

    /// Reads the plaintext that has arrived; 0 is the end.
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

    /// Writes as many bytes as the kernel takes. The caller must repeat a pending write with the
    /// same bytes first, because they may be encrypted already.
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

    /// Waits until the encrypted bytes have been sent. A pending write has been taken whole then.
    pub(super) fn poll_writable(&mut self, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(tcp, cx, More::No))?;
        self.claimed = 0;
        tcp.poll_write_ready(cx)
    }

    /// Writes several parts in their order: together they make fewer records.
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

    /// Sends `close_notify`, as far as the kernel takes it at once.
    pub(super) fn say_end(&mut self, tcp: &TcpStream) {
        if self.state.is_open && self.outgoing.is_empty() {
            self.queue_end();
            let _ = try_write(tcp, &self.outgoing, More::No);
        }
    }

    /// Whether neither plaintext nor an end has arrived.
    pub(super) fn is_quiet(&mut self, tcp: &TcpStream) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        // Session tickets may arrive at any time.
        matches!(self.poll_read(tcp, &mut cx, &mut [0]), Poll::Pending)
    }

    fn queue_end(&mut self) {
        if self.state.is_open && !mem::replace(&mut self.state.has_said_end, true) {
            OUTGOING.with_borrow_mut(|out| {
                out.clear();
                // Without keys no alert can be sent.
                let _ = self.session.close(out);
                self.outgoing.extend_from_slice(out.bytes());
            });
        }
    }

    /// Writes the remaining records.
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
    /// plaintext; `None` at the end of TCP.
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

    /// Decrypts the bytes that have arrived. Plaintext that does not fit into `buffer` is kept.
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
                // Sends the alert, as far as the kernel takes it.
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

    /// Writes the library's replies to the peer, as far as the kernel takes them at once; the next
    /// write takes the rest.
    fn flush_now(&mut self, tcp: &TcpStream) {
        if let Some(Ok(n)) = try_write(tcp, &self.outgoing[self.sent..], More::No) {
            self.sent += n;
        }
        if self.sent == self.outgoing.len() {
            (self.outgoing, self.sent) = (Vec::new(), 0);
        }
    }

    /// Takes plaintext that was kept earlier.
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
