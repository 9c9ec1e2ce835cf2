//! How much the kernel takes in for a direction, ahead of us: no more than its other end has taken so far. What is in the
//! receive queue of a direction that nobody reads at its other end is lost memory, and many of these starve all others.

use std::cell::Cell;

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

/// Directions in one thread that flow and have what the kernel thinks right (`net.ipv4.tcp_rmem`, mostly up to 6 MB). Should
/// they stop, they hold that much. All others stay at [`WIDEST`], which is 128 MB/s at a millisecond's distance.
const UNLIMITED: usize = 8;

/// How often is asked what the other end has taken, in bytes moved.
const ASK: u64 = 128 * 1024;

thread_local! {
    static FREE: Cell<usize> = const { Cell::new(UNLIMITED) };
}

/// The receive window of a direction. Most are short: the kernel's own does for their first bytes.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Bytes moved at which to look again, once it has been looked at.
    next: u64,
    state: State,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// It is not known whether it flows.
    #[default]
    New,
    /// It flows.
    Flowing,
    /// It flows, and is one of [`UNLIMITED`].
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
        if self.state == State::New && moved >= self.next.max(FIRST) {
            self.look(moved, from, to);
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
        } else if let Some(free) = FREE.get().checked_sub(1)
            && socket_options::lock_receive_buffer(from, false).is_ok()
        {
            FREE.set(free);
            self.state = State::Unlimited;
        } else {
            widen(from, WIDEST as usize);
            self.state = State::Flowing;
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
