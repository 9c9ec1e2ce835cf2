//! The relay: bytes both ways between a client and a server until both have closed.
//!
//! One future moves both directions through a buffer that the whole thread shares, so an idle connection
//! holds no memory for bytes; only what the other side would not take is kept. A direction that fills the
//! buffer is bulk: it moves inside the kernel ([`Pipe`]) until it no longer is.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::socket;
use super::window::Window;
use convey_stream::{ByteStream, More, Pipe, tcp_info};

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelayEnd {
    /// Both sides closed.
    Closed,
    /// No byte moved for the idle timeout.
    Idle,
    /// The client reset it, or vanished.
    ClientReset,
    /// The server reset it, or vanished.
    ServerReset,
    /// The server's host no longer answers.
    ServerGone,
    /// A reload denied the client.
    Denied,
    /// An operator has ended it.
    Killed,
}

/// How long a connection is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Without a byte in either direction (up to a quarter longer).
    pub(super) idle: Duration,
    /// For the server's host to acknowledge something (up to a half, or [`LONGEST_PULSE`], longer).
    pub(super) unanswered: Duration,
}

/// Size of the buffer a thread's connections share.
const SCRATCH: usize = 64 * 1024;

/// Reads of one direction before the thread's other connections get a turn.
const TURNS: usize = 8;

/// A spliced read below this is small, and so many of them in a row end splicing.
const SMALL: usize = 16 * 1024;
const SMALL_READS: u8 = 4;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into());
}

/// Longest time between two looks at a connection that stands still.
const LONGEST_PULSE: Duration = Duration::from_secs(15);

/// Relays between `client` and `server`, beginning with `early`, which the client has sent already. `count` is
/// told the bytes received from and sent to the client as they move.
pub(super) async fn relay(
    client: &mut ByteStream,
    server: &mut ByteStream,
    early: Vec<u8>,
    patience: Patience,
    mut count: impl FnMut(u64, u64),
) -> RelayEnd {
    let mut up = OneWay { rest: early, ..OneWay::default() };
    let mut down = OneWay::default();
    // A server may send more at once than a client asks for in all.
    down.window.begin(server.tcp());
    let mut quiet = Quiet::new(patience);
    let mut silence = Silence::default();
    let mut watched = false;
    let mut pulse = pin!(sleep(quiet.pulse));
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
            // A side that does not read keeps us from reading the other, and so from seeing its reset.
            // (Unless writing to it has heard of that already.)
            if up.is_blocked() && (down.done == Some(Done::Reset) || was_reset(client.tcp())) {
                return Poll::Ready(RelayEnd::ClientReset);
            }
            if down.is_blocked() && (up.done == Some(Done::Reset) || was_reset(server.tcp())) {
                return Poll::Ready(RelayEnd::ServerReset);
            }
            pulse.as_mut().reset(Instant::now() + quiet.pulse);
        }
        Poll::Pending
    })
    .await
}

/// What the two directions' outcomes mean for the connection; `None`: it goes on.
///
/// A direction that can no longer be written does not end the connection at once: the side that refuses
/// our bytes may have sent a last answer before, and that is still delivered.
fn end(up: Poll<Done>, down: Poll<Done>) -> Option<RelayEnd> {
    use Done::{Closed, Finished, ReadFailed, Reset};
    match (up, down) {
        (Poll::Ready(ReadFailed), _) => Some(RelayEnd::ClientReset),
        (_, Poll::Ready(ReadFailed)) => Some(RelayEnd::ServerReset),
        (Poll::Ready(_), Poll::Ready(Reset | Closed)) => Some(RelayEnd::ClientReset),
        // A server that closed without reading all it was sent: its answer went out in order.
        (Poll::Ready(_), Poll::Ready(Finished)) => Some(RelayEnd::Closed),
        _ => None,
    }
}

/// A reset after the end of its stream does not count (`EPIPE`): what it sent before is still delivered.
fn was_reset(stream: &TcpStream) -> bool {
    matches!(stream.take_error(), Ok(Some(error)) if error.kind() != io::ErrorKind::BrokenPipe)
}

/// Counts the time without a byte in pulses, so that moving bytes reads no clock.
struct Quiet {
    pulse: Duration,
    idle: Duration,
    /// Whole pulses without a byte; `None` while the present one may have begun with some.
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

    /// Whether the idle timeout is over.
    fn pulse_passed(&mut self) -> bool {
        let time = self.time.map_or(Duration::ZERO, |time| time + self.pulse);
        self.time = Some(time);
        time >= self.idle
    }
}

/// Counts the time, in pulses, that a server's host has left something unacknowledged: the TCP user timeout (RFC 9293,
/// section 3.8.3). The kernel's own (`TCP_USER_TIMEOUT`) would also end connections whose server only does not read.
#[derive(Default)]
struct Silence {
    /// `None` while nothing waits to be acknowledged.
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

/// How a direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    /// The end of the stream was passed on.
    Finished,
    /// The source reset the connection, or vanished.
    ReadFailed,
    /// The destination reset the connection. Writing may be what hears of it first, and then reading
    /// no longer does.
    Reset,
    /// The destination had closed before.
    Closed,
}

impl Done {
    fn write_failed(error: &io::Error) -> Done {
        if error.kind() == io::ErrorKind::BrokenPipe { Done::Closed } else { Done::Reset }
    }
}

/// One direction of a connection.
#[derive(Default)]
struct OneWay {
    /// Bytes that have been written.
    moved: u64,
    /// What was read and not yet taken, from `sent` on.
    rest: Vec<u8>,
    sent: usize,
    /// Set while the direction is spliced; given back whenever it is empty and the source is quiet.
    pipe: Option<Pipe>,
    splicing: bool,
    window: Window,
    small_reads: u8,
    at_end: bool,
    done: Option<Done>,
}

impl OneWay {
    /// Whether the destination does not take what is held.
    fn is_blocked(&self) -> bool {
        self.done.is_none() && (!self.rest.is_empty() || self.pipe.as_ref().is_some_and(|p| !p.is_empty()))
    }

    fn on_pulse(&mut self, from: &TcpStream) {
        let is_blocked = self.is_blocked();
        self.window.on_pulse(self.moved, is_blocked, from);
    }

    /// Moves what there is to move. `other` is how the other direction has ended.
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
                self.give_pipe_back();
                return Poll::Ready(done);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what is held, or reads more.
    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
        other: Option<Done>,
    ) -> Poll<Result<(), Done>> {
        if let Err(error) = ready!(self.poll_write_held(cx, from, to)) {
            return Poll::Ready(Err(Done::write_failed(&error)));
        }
        if self.at_end {
            // If both have ended, closing says so, but not in TLS.
            if other != Some(Done::Finished) || to.plain().is_none() {
                // The only error is that the other side is gone; the other direction will say so.
                let _ = ready!(to.poll_shutdown(cx));
            }
            return Poll::Ready(Err(Done::Finished));
        }
        let read = match self.splicing {
            true => self.poll_fill(cx, from, to, other),
            false => self.poll_copy(cx, from, to, other),
        };
        match read {
            // Writing to it has taken the news of the reset; this is no end of a stream.
            Poll::Ready(Err(Done::Finished)) if other == Some(Done::Reset) => {
                Poll::Ready(Err(Done::ReadFailed))
            }
            Poll::Ready(Err(Done::Finished)) => {
                self.at_end = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => {
                self.give_pipe_back();
                Poll::Pending
            }
        }
    }

    fn poll_write_held(
        &mut self,
        cx: &mut Context<'_>,
        from: &ByteStream,
        to: &mut ByteStream,
    ) -> Poll<io::Result<()>> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            ready!(to.tcp().poll_write_ready(cx))?;
            match pipe.drain(to.tcp()) {
                Ok(sent) => self.moved += sent as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        while self.sent < self.rest.len() {
            let n = ready!(to.poll_write(cx, &self.rest[self.sent..], More::No))?;
            self.sent += n;
            self.moved += n as u64;
        }
        self.window.on_moved(self.moved, from.tcp(), to.tcp());
        if self.sent > 0 {
            self.rest = Vec::new(); // its memory is worth more to others than to a direction that flows
            self.sent = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads through the thread's buffer and writes as much as the other side takes at once.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
        other: Option<Done>,
    ) -> Poll<Result<(), Done>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut n = match ready!(from.poll_read(cx, buffer)) {
                Ok(0) => return Poll::Ready(Err(Done::Finished)),
                Ok(n) => n,
                Err(_) => return Poll::Ready(Err(Done::ReadFailed)),
            };
            self.splicing = n == SCRATCH && from.plain().is_some() && to.plain().is_some();
            // The end of the stream is often there as well. This makes no call unless the runtime knows of more.
            // (After a reset that writing has heard of, an end would be none.)
            let next = match n < SCRATCH && other != Some(Done::Reset) {
                true => from.poll_read(cx, &mut buffer[n..]),
                false => Poll::Pending,
            };
            if let Poll::Ready(Ok(more)) = next {
                n += more;
                self.at_end = more == 0;
            }
            // With the last bytes TCP waits for the end, and sends both in one segment.
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

    /// Fills the pipe; [`OneWay::poll_write_held`] empties it.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
        other: Option<Done>,
    ) -> Poll<Result<(), Done>> {
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            None => match Pipe::get() {
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
            // Nothing there, or the end of the stream, or urgent data (RFC 9293, section 3.8.5), which splicing
            // does not get past: only reading can tell.
            _ => {
                let read = self.poll_copy(cx, from, to, other);
                self.splicing = true;
                read
            }
        }
    }

    fn give_pipe_back(&mut self) {
        if self.pipe.as_ref().is_some_and(Pipe::is_empty)
            && let Some(pipe) = self.pipe.take()
        {
            pipe.put();
        }
    }
}

#[cfg(test)]
mod tests;
