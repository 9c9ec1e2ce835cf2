//! How much the kernel takes in for a direction, ahead of us: no more than its other end has taken so far. What is in the
//! receive queue of a direction that nobody reads at its other end is lost memory, and many of these starve all others.

use std::cell::Cell;
use std::{fs, io};

use socket2::SockRef;
use tokio::net::TcpStream;

use super::tcp_info::tcp_info;

/// Bytes moved at which [`Window::begin`] is called if nobody has: the kernel begins with 128 KiB.
const FIRST: u64 = 16 * 1024;

/// Bytes that are spliced at once while a direction is not known to flow.
const FIRST_SPLICES: usize = 64 * 1024;

/// The widest receive buffer of a direction that is not known to flow. The window is between half of it and all.
const WIDEST: u64 = 256 * 1024;

/// Bytes that the other end has acknowledged when a direction flows: more than one that reads nothing has room for.
const FLOWING: u64 = 512 * 1024;

/// What the directions of one thread that have what the kernel thinks right (`net.ipv4.tcp_rmem`) may hold together, should
/// they all be blocked: with the usual 6 MB those are 42. All others stay at [`WIDEST`], which is 128 MB/s at a
/// millisecond's distance, but 3 MB/s at fifty.
const UNLIMITED: u64 = 256 * 1024 * 1024;

/// So many directions in one thread are unlimited, however much that is.
const FEWEST: u64 = 8;

/// How often is asked what the other end has taken, in bytes moved.
const ASK: u64 = 128 * 1024;

thread_local! {
    static FREE: Cell<u64> = Cell::new(slots(fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").as_deref().unwrap_or("")));
}

/// The receive window of a direction. Most are short: the kernel's own does for their first bytes.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Bytes moved at which to look again, once it has been looked at.
    next: u64,
    /// Bytes moved at the last pulse.
    at_pulse: u64,
    state: State,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// It is not known whether it flows.
    #[default]
    New,
    /// It flows.
    Flowing,
    /// It flows, and has one of the thread's slots.
    Unlimited,
}

impl Window {
    /// Keeps the kernel from having the receive buffer grow. Not made smaller either: what the sender has been promised
    /// would be thrown away.
    pub(super) fn begin(&mut self, from: &TcpStream) {
        let _ = socket_options::lock_receive_buffer(from, true);
        self.next = ASK;
    }

    /// Most bytes to splice at once, of `most`.
    pub(super) fn most(&self, most: usize) -> usize {
        if self.state == State::New { FIRST_SPLICES } else { most }
    }

    /// Makes room for more, if the direction, which has moved so many bytes, flows.
    #[inline]
    pub(super) fn on_moved(&mut self, moved: u64, from: &TcpStream, to: &TcpStream) {
        if moved < self.next.max(FIRST) {
            return;
        }
        match self.state {
            State::New => self.look(moved, from, to),
            State::Flowing => self.take_slot(moved, from),
            State::Unlimited => {}
        }
    }

    /// One that stands still has no use for its slot, unless it is blocked: then it holds what the slot stands for.
    pub(super) fn on_pulse(&mut self, moved: u64, is_blocked: bool, from: &TcpStream) {
        let stands_still = moved == self.at_pulse;
        self.at_pulse = moved;
        if self.state == State::Unlimited && stands_still && !is_blocked && limit(from).is_ok() {
            FREE.set(FREE.get() + 1);
            self.state = State::Flowing;
            self.next = moved + FLOWING;
        }
    }

    fn look(&mut self, moved: u64, from: &TcpStream, to: &TcpStream) {
        if self.next == 0 {
            return self.begin(from);
        }
        self.next = moved + ASK;
        let taken = tcp_info(to).map_or(0, |info| info.tcpi_bytes_acked);
        if taken < FLOWING {
            widen(from, taken.min(WIDEST) as usize);
        } else {
            widen(from, WIDEST as usize);
            self.state = State::Flowing;
            self.take_slot(moved, from);
        }
    }

    fn take_slot(&mut self, moved: u64, from: &TcpStream) {
        self.next = moved + FLOWING;
        if let Some(free) = FREE.get().checked_sub(1)
            && unlimit(from).is_ok()
        {
            FREE.set(free);
            self.state = State::Unlimited;
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.state == State::Unlimited {
            FREE.set(FREE.get() + 1);
        }
    }
}

/// How many directions of a thread are unlimited, with this `net.ipv4.tcp_rmem`.
fn slots(tcp_rmem: &str) -> u64 {
    let widest = tcp_rmem.split_whitespace().nth(2).and_then(|most| most.parse().ok());
    (UNLIMITED / widest.unwrap_or(u64::MAX).max(WIDEST)).max(FEWEST)
}

/// Has the kernel choose again how much it holds for us.
fn unlimit(from: &TcpStream) -> io::Result<()> {
    socket_options::lock_receive_buffer(from, false)?;
    // It may have been limited.
    socket_options::clamp_window(from, SockRef::from(from).recv_buffer_size()?)
}

/// Has the window shrink to [`WIDEST`] while its sender uses up what it has been promised. The buffer keeps its size, which
/// the kernel would not have grow a second time.
fn limit(from: &TcpStream) -> io::Result<()> {
    socket_options::lock_receive_buffer(from, true)?;
    socket_options::clamp_window(from, WIDEST as usize)
}

/// Has the kernel hold this many bytes for us, if it holds fewer.
fn widen(from: &TcpStream, bytes: usize) {
    let socket = SockRef::from(from);
    if socket.recv_buffer_size().is_ok_and(|has| has < bytes) {
        // The kernel doubles what it is told. The window has a limit of its own, which it had from the buffer.
        let _ = socket.set_recv_buffer_size(bytes / 2);
        let _ = socket_options::clamp_window(from, bytes);
    }
}

mod socket_options {
    use std::ffi::c_int;
    use std::io;
    use std::mem::size_of_val;
    use std::os::fd::AsRawFd;

    /// Of include/uapi/asm-generic/socket.h, from Linux 5.15 on.
    const SO_BUF_LOCK: c_int = 72;
    /// Of include/uapi/linux/socket.h: the kernel does not change the receive buffer's size.
    const SOCK_RCVBUF_LOCK: c_int = 2;

    /// Has the kernel leave the receive buffer as it is, or choose its size again.
    pub(super) fn lock_receive_buffer(socket: &impl AsRawFd, locked: bool) -> io::Result<()> {
        set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, if locked { SOCK_RCVBUF_LOCK } else { 0 })
    }

    /// The window that the sender is told is no wider.
    pub(super) fn clamp_window(socket: &impl AsRawFd, bytes: usize) -> io::Result<()> {
        set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, c_int::try_from(bytes).unwrap_or(c_int::MAX))
    }

    fn set(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
        let len = size_of_val(&value) as libc::socklen_t;
        #[expect(unsafe_code, reason = "no crate has TCP_WINDOW_CLAMP or SO_BUF_LOCK")]
        // SAFETY: the kernel reads `len` bytes, the size of `value`.
        let result =
            unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn stream() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (connected, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (connected.unwrap(), accepted.unwrap().0)
    }

    fn flowing() -> Window {
        Window { state: State::Flowing, ..Window::default() }
    }

    #[tokio::test]
    async fn the_slot_of_one_that_stands_still_goes_to_one_that_moves() {
        let (from, to) = stream().await;
        FREE.set(1);
        let (mut idle, mut moving) = (flowing(), flowing());
        idle.on_moved(FLOWING, &from, &to);
        moving.on_moved(FLOWING, &from, &to);
        assert_eq!((&idle.state, &moving.state), (&State::Unlimited, &State::Flowing));

        idle.on_pulse(FLOWING, false, &from);
        assert_eq!(idle.state, State::Unlimited, "it has moved since the pulse before");
        idle.on_pulse(FLOWING, false, &from);
        assert_eq!((&idle.state, FREE.get()), (&State::Flowing, 1));
        moving.on_moved(2 * FLOWING, &from, &to);
        assert_eq!((&moving.state, FREE.get()), (&State::Unlimited, 0));

        drop(moving);
        idle.on_moved(2 * FLOWING, &from, &to);
        assert_eq!((&idle.state, FREE.get()), (&State::Unlimited, 0), "it moves again");
    }

    #[tokio::test]
    async fn one_that_is_blocked_keeps_its_slot_for_it_holds_what_it_was_given() {
        let (from, to) = stream().await;
        FREE.set(1);
        let mut blocked = flowing();
        blocked.on_moved(FLOWING, &from, &to);
        (0..9).for_each(|_| blocked.on_pulse(FLOWING, true, &from));
        assert_eq!((&blocked.state, FREE.get()), (&State::Unlimited, 0));
    }

    #[test]
    fn the_wider_the_kernel_has_buffers_become_the_fewer_are_unlimited() {
        assert_eq!(slots("4096\t131072\t6291456\n"), 42);
        assert_eq!(slots("4096 131072 268435456"), FEWEST);
        assert_eq!(slots(""), FEWEST);
        assert_eq!(slots("1 1 1"), 1024, "no fewer bytes than all others have");
    }
}
