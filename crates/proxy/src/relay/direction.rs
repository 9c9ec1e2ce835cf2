//! One direction of a relayed connection: reads from the source, and writes to the destination, by
//! copies or by splices.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::net::TcpStream;

use super::{BUFFER, RelayResources, SCRATCH};
use crate::window::Window;
use convey_stream::{ByteStream, More, Pipe};

/// Maximum number of reads of one direction before other connections of the thread get a turn.
const TURNS: usize = 8;

/// A spliced read of fewer bytes is small. After `SMALL_READS` small reads in a row, the direction
/// stops splicing.
const SMALL: usize = 16 * 1024;
const SMALL_READS: u8 = 4;

/// Outcome of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// The end of the source's stream was passed on to the destination.
    Finished,
    /// The source reset the connection, or vanished.
    ReadFailed,
    /// The destination reset the connection, as a write has reported. The kernel reports a reset
    /// once, so later reads from this side report an end of the stream.
    Reset,
    /// The destination had already closed.
    Closed,
}

impl Done {
    fn write_failed(error: &io::Error) -> Done {
        if error.kind() == io::ErrorKind::BrokenPipe { Done::Closed } else { Done::Reset }
    }
}

/// One direction of a connection.
pub(super) struct OneWay<'a> {
    resources: &'a RelayResources,
    /// Number of bytes that have been written to the destination.
    pub(super) moved: u64,
    /// Bytes that were read. The destination has not yet accepted the bytes from index `sent` on.
    rest: Vec<u8>,
    sent: usize,
    /// Pipe for splicing. The direction returns it whenever the pipe is empty and the source has no
    /// bytes.
    pipe: Option<Pipe>,
    splicing: bool,
    window: Window,
    /// Maximum number of bytes of the next read. If a read returns as many, the window is limited
    /// before the next one.
    pub(super) first_read: usize,
    /// Whether the destination's kernel delays small writes after the first one (Nagle's
    /// algorithm). The direction disables this before its second write.
    pub(super) delays_small_writes: bool,
    small_reads: u8,
    at_end: bool,
    pub(super) done: Option<Done>,
}

impl<'a> OneWay<'a> {
    /// Creates a direction with these bytes for the destination.
    pub(super) fn new(resources: &'a RelayResources, rest: Vec<u8>) -> OneWay<'a> {
        OneWay {
            resources,
            moved: 0,
            rest,
            sent: 0,
            pipe: None,
            splicing: false,
            window: Window::default(),
            first_read: SCRATCH,
            delays_small_writes: false,
            small_reads: 0,
            at_end: false,
            done: None,
        }
    }

    /// Whether the direction holds bytes that the destination does not accept yet.
    pub(super) fn is_blocked(&self) -> bool {
        self.done.is_none() && (!self.rest.is_empty() || self.pipe.as_ref().is_some_and(|p| !p.is_empty()))
    }

    pub(super) fn on_pulse(&mut self, from: &TcpStream) {
        let is_blocked = self.is_blocked();
        self.window.on_pulse(self.moved, is_blocked, from, &self.resources.windows);
    }

    /// Moves the available bytes. `other` is the outcome of the other direction, if it is done.
    /// Returns `Ready` with the outcome of this direction when it is done.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
        other: Option<Done>,
    ) -> Poll<Done> {
        if let Some(done) = self.done {
            return Poll::Ready(done);
        }
        for _ in 0..TURNS {
            if let Err(done) = ready!(self.poll_step(cx, from, to, other)) {
                self.done = Some(done);
                self.return_pipe();
                return Poll::Ready(done);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes the held bytes, then reads more.
    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
        other: Option<Done>,
    ) -> Poll<Result<(), Done>> {
        if let Err(error) = ready!(self.poll_write_pipe(cx, from, to)) {
            return Poll::Ready(Err(Done::write_failed(&error)));
        }
        if self.at_end {
            // Passes on the end of the stream. If both directions have ended, the close of the
            // socket does that, except in TLS.
            if other != Some(Done::Finished) || to.plain().is_none() {
                // The only possible error is a vanished destination, which the other direction
                // reports.
                let _ = ready!(to.poll_shutdown(cx));
            }
            return Poll::Ready(Err(Done::Finished));
        }
        let read = match self.splicing {
            true => self.poll_fill(cx, from, to, other),
            false => self.poll_copy(cx, from, to, other),
        };
        match read {
            // A write has already reported the reset of the source, so the read reports an end of
            // the stream that is none.
            Poll::Ready(Err(Done::Finished)) if other == Some(Done::Reset) => {
                Poll::Ready(Err(Done::ReadFailed))
            }
            Poll::Ready(Err(Done::Finished)) => {
                self.at_end = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => {
                self.return_pipe();
                Poll::Pending
            }
        }
    }

    fn poll_write_pipe(
        &mut self,
        cx: &mut Context<'_>,
        from: &ByteStream,
        to: &mut ByteStream,
    ) -> Poll<io::Result<()>> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            ready!(to.tcp().poll_write_ready(cx))?;
            disable_delay(&mut self.delays_small_writes, self.moved, to);
            match pipe.drain(to.tcp()) {
                Ok(sent) => self.moved += sent as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        while self.sent < self.rest.len() {
            disable_delay(&mut self.delays_small_writes, self.moved, to);
            let n = ready!(to.poll_write(cx, &self.rest[self.sent..], More::No))?;
            self.sent += n;
            self.moved += n as u64;
        }
        self.window.on_moved(self.moved, from.tcp(), to.tcp(), &self.resources.windows);
        if self.sent > 0 {
            self.rest = Vec::new(); // its memory is worth more to others than to a direction that flows
            self.sent = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads into the thread's buffer, and writes as many bytes as the destination accepts
    /// immediately. Keeps the remaining bytes in `rest`.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
        other: Option<Done>,
    ) -> Poll<Result<(), Done>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut n = match ready!(from.poll_read(cx, &mut buffer[..self.first_read])) {
                Ok(0) => return Poll::Ready(Err(Done::Finished)),
                Ok(n) => n,
                Err(_) => return Poll::Ready(Err(Done::ReadFailed)),
            };
            if n == self.first_read && self.first_read < SCRATCH {
                self.window.begin(from.tcp());
                self.first_read = SCRATCH;
            }
            // Often the end of the stream has already arrived, so convey reads again. This read
            // makes no system call unless the runtime expects more bytes. If a write has reported a
            // reset of the source, convey does not read again, because the read would report a
            // false end of the stream.
            let next = match n < SCRATCH && other != Some(Done::Reset) {
                true => from.poll_read(cx, &mut buffer[n..]),
                false => Poll::Pending,
            };
            if let Poll::Ready(Ok(more)) = next {
                n += more;
                self.at_end = more == 0;
            }
            self.splicing = n == SCRATCH && from.plain().is_some() && to.plain().is_some();
            disable_delay(&mut self.delays_small_writes, self.moved, to);
            // With `More::End`, TCP can send the last bytes and the end of the stream in one
            // segment.
            let more = if self.at_end { More::End } else { More::No };
            let sent = match to.poll_write(cx, &buffer[..n], more) {
                Poll::Ready(Ok(sent)) => sent,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Done::write_failed(&error))),
                Poll::Pending => 0,
            };
            self.moved += sent as u64;
            self.rest.extend_from_slice(&buffer[sent..n]);
            match next {
                Poll::Ready(Err(_)) => Poll::Ready(Err(Done::ReadFailed)),
                _ => Poll::Ready(Ok(())),
            }
        })
    }

    /// Splices bytes from the source into the pipe. [`OneWay::poll_write_pipe`] empties the pipe.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
        other: Option<Done>,
    ) -> Poll<Result<(), Done>> {
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            None => match self.resources.pipes.get() {
                Ok(pipe) => self.pipe.insert(pipe),
                Err(_) => {
                    self.splicing = false; // no pipes left: copying needs none
                    return Poll::Ready(Ok(()));
                }
            },
        };
        if ready!(from.tcp().poll_read_ready(cx)).is_err() {
            return Poll::Ready(Err(Done::ReadFailed));
        }
        match pipe.fill(from.tcp(), self.window.most(Pipe::MAX_MOVED)) {
            Ok(n) if n > 0 => {
                self.small_reads = if n < SMALL { self.small_reads + 1 } else { 0 };
                if self.small_reads >= SMALL_READS {
                    self.small_reads = 0;
                    self.splicing = false;
                }
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Poll::Ready(Err(Done::ReadFailed)),
            // The splice moved nothing. The reason may be that no bytes have arrived, the end of
            // the stream, or urgent data (RFC 9293, section 3.8.5), which stops a splice. Only a
            // read shows which.
            _ => {
                let read = self.poll_copy(cx, from, to, other);
                self.splicing = true;
                read
            }
        }
    }

    fn return_pipe(&mut self) {
        if self.pipe.as_ref().is_some_and(Pipe::is_empty)
            && let Some(pipe) = self.pipe.take()
        {
            pipe.put();
        }
    }
}

/// Disables Nagle's algorithm before the second write to a server, if it is still enabled. The
/// kernel sends the first write immediately in any case, and many connections have no second one.
fn disable_delay(is_enabled: &mut bool, moved: u64, to: &ByteStream) {
    if *is_enabled && moved > 0 {
        *is_enabled = false;
        let _ = to.tcp().set_nodelay(true);
    }
}
