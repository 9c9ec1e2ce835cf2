//! Byte relay between a client and a server, in both directions, until both have closed.
//!
//! One future moves the bytes of both directions, through a buffer that all connections of the
//! thread share. So an idle connection holds no buffer: the relay keeps only the bytes that the
//! destination does not accept yet. A direction that fills the buffer with one read carries bulk
//! data. The kernel then splices its bytes through a [`Pipe`] until the reads become small.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::socket;
use super::window::Window;
use super::window_budget::WindowBudget;
use convey_stream::{ByteStream, More, Pipe, PipePool, PollClock, tcp_info};

/// Reason of the end of a relayed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelayEnd {
    /// Both sides closed.
    Closed,
    /// No byte moved within the idle timeout.
    Idle,
    /// The client reset the connection, or vanished.
    ClientReset,
    /// The server reset the connection, or vanished.
    ServerReset,
    /// The server's host no longer answers, or the server is down (`on_down = "reset"`).
    ServerGone,
    /// A reload denied the client.
    Denied,
    /// An operator has ended the connection.
    Killed,
}

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Idle timeout: maximum time without a byte in either direction. The timer may fire up to a
    /// quarter of this time late.
    pub(super) idle: Duration,
    /// Maximum time in which the server's host acknowledges nothing. The timer may fire late: by
    /// half of this time, or by [`LONGEST_PULSE`] if that is shorter.
    pub(super) unanswered: Duration,
}

/// Pipes and memory that the relayed connections of a worker share.
#[derive(Debug)]
pub(super) struct RelayResources {
    pub(super) pipes: Arc<PipePool>,
    pub(super) windows: Arc<WindowBudget>,
}

/// Size of the buffer that all connections of a thread share, in bytes.
const SCRATCH: usize = 64 * 1024;

/// Maximum number of bytes of the first read from a server. Many responses are shorter: their
/// connections need no limit of the window, which takes a system call.
const FIRST_READ: usize = 8 * 1024;

/// Maximum number of reads of one direction before other connections of the thread get a turn.
const TURNS: usize = 8;

/// A spliced read of fewer bytes is small. After `SMALL_READS` small reads in a row, the direction
/// stops splicing.
const SMALL: usize = 16 * 1024;
const SMALL_READS: u8 = 4;

thread_local! {
    /// Buffer of the thread. It holds no bytes between two calls, so a task may move to another
    /// thread.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

/// Calls `read` with the buffer of the thread.
pub(super) fn with_buffer<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| read(buffer))
}

/// Longest interval between two checks of a connection's timers.
const LONGEST_PULSE: Duration = Duration::from_secs(15);

/// Relays bytes between `client` and `server` until the connection ends. `early` holds the bytes
/// that have been read from the client already; the server gets them first. Whenever bytes move,
/// calls `count` with the numbers of bytes received from and sent to the client. Bulk data uses
/// `resources`. The timer may be registered already, for an earlier phase of the connection.
pub(super) async fn relay(
    (client, server): (&mut ByteStream, &mut ByteStream),
    early: Vec<u8>,
    resources: &RelayResources,
    (patience, mut pulse): (Patience, Pin<&mut Sleep>),
    mut count: impl FnMut(u64, u64),
) -> RelayEnd {
    let mut up = OneWay::new(resources, early);
    let mut down = OneWay::new(resources, Vec::new());
    // The first burst of a server may be larger than everything that a client sends, so convey
    // limits the server's window before it has read more than a little of it.
    down.first_read = FIRST_READ;
    up.delays_small_writes = true;
    let mut quiet = Quiet::new(patience);
    let mut silence = Silence::default();
    let mut watched = false;
    let mut due = PollClock::now() + quiet.pulse;
    if due < pulse.deadline() {
        pulse.as_mut().reset(due);
    }
    poll_fn(|cx| {
        let before = (up.moved, down.moved);
        let up_poll = up.poll(cx, client, server, down.done);
        let down_poll = down.poll(cx, server, client, up.done);
        let moved = (up.moved - before.0, down.moved - before.1);
        if moved != (0, 0) {
            count(moved.0, moved.1);
            quiet.over();
        }
        if let Some(end) = end(up_poll, down_poll) {
            return Poll::Ready(end);
        }
        while pulse.as_mut().poll(cx).is_ready() {
            if PollClock::now() < due {
                // The timer was set for the connect.
                pulse.as_mut().reset(due);
                continue;
            }
            if quiet.pulse_passed() {
                return Poll::Ready(RelayEnd::Idle);
            }
            up.on_pulse(client.tcp());
            down.on_pulse(server.tcp());
            if !watched {
                watched = true;
                let _ = socket::keep_alive(&SockRef::from(server.tcp()));
            }
            if silence.pulse_passed(server.tcp(), quiet.pulse) >= patience.unanswered {
                return Poll::Ready(RelayEnd::ServerGone);
            }
            // While the destination of a direction does not read, the relay does not read the
            // source. So it must ask the kernel whether the source has reset the connection, unless
            // a write to the source has already reported the reset.
            if up.is_blocked() && (down.done == Some(Done::Reset) || was_reset(client.tcp())) {
                return Poll::Ready(RelayEnd::ClientReset);
            }
            if down.is_blocked() && (up.done == Some(Done::Reset) || was_reset(server.tcp())) {
                return Poll::Ready(RelayEnd::ServerReset);
            }
            due = PollClock::now() + quiet.pulse;
            pulse.as_mut().reset(due);
        }
        Poll::Pending
    })
    .await
}

/// Returns the end of the connection, given the outcomes of its two directions; `None` while the
/// connection continues.
///
/// A closed destination ends its direction, but not the connection: the closed side may have sent a
/// last response before, and the relay still delivers it.
fn end(up: Poll<Done>, down: Poll<Done>) -> Option<RelayEnd> {
    use Done::{Closed, Finished, ReadFailed, Reset};
    match (up, down) {
        (Poll::Ready(ReadFailed), _) => Some(RelayEnd::ClientReset),
        (_, Poll::Ready(ReadFailed)) => Some(RelayEnd::ServerReset),
        (Poll::Ready(_), Poll::Ready(Reset | Closed)) => Some(RelayEnd::ClientReset),
        // A server may close before it has read all bytes. Its response has been delivered in full,
        // so this is an orderly end.
        (Poll::Ready(_), Poll::Ready(Finished)) => Some(RelayEnd::Closed),
        _ => None,
    }
}

/// Whether the peer has reset the connection. A reset after the end of the peer's stream (`EPIPE`)
/// does not count, because the relay still delivers the bytes of that stream.
fn was_reset(stream: &TcpStream) -> bool {
    matches!(stream.take_error(), Ok(Some(error)) if error.kind() != io::ErrorKind::BrokenPipe)
}

/// Idle timer of a connection. It counts periodic pulses, so that moving bytes does not need to
/// read the clock.
struct Quiet {
    pulse: Duration,
    idle: Duration,
    /// Time of the whole pulses without a byte; `None` if bytes have moved since the last pulse.
    time: Option<Duration>,
}

impl Quiet {
    fn new(Patience { idle, unanswered }: Patience) -> Quiet {
        let pulse = (idle / 4).min(unanswered / 2).min(LONGEST_PULSE);
        Quiet { pulse, idle, time: Some(Duration::ZERO) }
    }

    fn over(&mut self) {
        self.time = None;
    }

    /// Adds a pulse. Returns whether the idle timeout has expired.
    fn pulse_passed(&mut self) -> bool {
        let time = self.time.map_or(Duration::ZERO, |time| time + self.pulse);
        self.time = Some(time);
        time >= self.idle
    }
}

/// TCP user timeout (RFC 9293, section 3.8.3): measures, in pulses, how long the server's host has
/// acknowledged nothing. The kernel's own timer (`TCP_USER_TIMEOUT`) is unsuitable, because it
/// would also end connections whose server does not read.
#[derive(Default)]
struct Silence {
    /// Time without an acknowledgement so far; `None` while all sent bytes are acknowledged.
    time: Option<Duration>,
}

impl Silence {
    fn pulse_passed(&mut self, server: &TcpStream, pulse: Duration) -> Duration {
        let waiting = tcp_info(server).filter(|info| info.tcpi_unacked > 0 || info.tcpi_probes > 0);
        self.time = waiting.map(|info| {
            let has_answered = Duration::from_millis(info.tcpi_last_ack_recv.into()) < pulse;
            self.time.filter(|_| !has_answered).map_or(Duration::ZERO, |time| time + pulse)
        });
        self.time.unwrap_or_default()
    }
}

/// Outcome of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
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
struct OneWay<'a> {
    resources: &'a RelayResources,
    /// Number of bytes that have been written to the destination.
    moved: u64,
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
    first_read: usize,
    /// Whether the destination's kernel delays small writes after the first one (Nagle's
    /// algorithm). The direction disables this before its second write.
    delays_small_writes: bool,
    small_reads: u8,
    at_end: bool,
    done: Option<Done>,
}

impl<'a> OneWay<'a> {
    /// Creates a direction with these bytes for the destination.
    fn new(resources: &'a RelayResources, rest: Vec<u8>) -> OneWay<'a> {
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
    fn is_blocked(&self) -> bool {
        self.done.is_none() && (!self.rest.is_empty() || self.pipe.as_ref().is_some_and(|p| !p.is_empty()))
    }

    fn on_pulse(&mut self, from: &TcpStream) {
        let is_blocked = self.is_blocked();
        self.window.on_pulse(self.moved, is_blocked, from, &self.resources.windows);
    }

    /// Moves the available bytes. `other` is the outcome of the other direction, if it is done.
    /// Returns `Ready` with the outcome of this direction when it is done.
    fn poll(
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

#[cfg(test)]
mod tests;
