//! Byte relay between a client and a server, in both directions, until both have closed.
//!
//! One future moves the bytes of both directions, through a buffer that all connections of the
//! thread share. So an idle connection holds no buffer: the relay keeps only the bytes that the
//! destination does not accept yet. A direction that fills the buffer with one read carries bulk
//! data. The kernel then splices its bytes through a [`Pipe`] until the reads become small.

mod direction;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::socket;
use super::window_budget::WindowBudget;
use convey_stream::{ByteStream, PipePool, PollClock, tcp_info};
use direction::{Done, OneWay};

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

#[cfg(test)]
mod tests;
