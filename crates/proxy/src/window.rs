//! Receive windows of relayed connections. The receive buffer of a direction grows only with the
//! bytes that its destination has acknowledged. Otherwise the kernel would buffer many bytes that
//! the destination does not read, and many such buffers would starve all other connections.

use std::io;
use std::sync::Arc;

use socket2::SockRef;
use tokio::net::TcpStream;

use super::window_budget::{BlockedBytes, WindowBudget, WindowSlot};
use convey_model::client_of;
use convey_stream::tcp_info;

/// Number of moved bytes after which a direction calls [`Window::begin`], unless the relay has
/// called it earlier. The kernel begins with a buffer of 128 KiB.
const MIN_MOVED: u64 = 16 * 1024;

/// Maximum size of one splice in the state [`WindowState::New`], in bytes.
const FIRST_SPLICES: usize = 64 * 1024;

/// Maximum receive buffer, in bytes, of a direction without a slot. The receive window is between
/// half of the buffer and the whole buffer.
pub(super) const WIDEST: u64 = 256 * 1024;

/// A direction counts as flowing once its destination has acknowledged this number of bytes. The
/// buffers of a destination that reads nothing hold fewer bytes, so the destination must have read
/// some of them.
const FLOWING: u64 = 512 * 1024;

/// Number of moved bytes between two checks of the destination's acknowledgements.
const ASK: u64 = 128 * 1024;

/// Receive window of one direction of a relayed connection. The first bytes use the kernel's
/// default window, which suffices for most connections.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Number of moved bytes at which the next check is due; 0 before [`Window::begin`].
    next: u64,
    /// Number of moved bytes at the last pulse.
    at_pulse: u64,
    state: WindowState,
}

#[derive(Debug, Default)]
enum WindowState {
    /// No check has shown yet that the destination reads.
    #[default]
    New,
    /// The direction flows, and has no slot.
    Flowing,
    /// The direction flows, and has one of the worker's slots: the kernel chooses its window.
    Unlimited { _slot: Box<WindowSlot> },
    /// The direction was unlimited until its destination stopped reading. The direction holds the
    /// bytes that it has buffered, and buffers no more until the destination has accepted them.
    Blocked { _held: BlockedBytes },
}

impl Window {
    /// Stops the kernel from growing the receive buffer. The buffer keeps its size, because a
    /// smaller one would drop bytes that the advertised window allows.
    pub(super) fn begin(&mut self, from: &TcpStream) {
        let _ = socket_options::lock_receive_buffer(from, true);
        self.next = ASK;
    }

    /// Maximum size of the next splice in bytes; `most` unless the direction is new.
    pub(super) fn most(&self, most: usize) -> usize {
        if matches!(self.state, WindowState::New) { FIRST_SPLICES } else { most }
    }

    /// Widens the window if the direction flows. `moved` is the number of bytes that the direction
    /// has moved so far.
    #[inline]
    pub(super) fn on_moved(
        &mut self,
        moved: u64,
        from: &TcpStream,
        to: &TcpStream,
        budget: &Arc<WindowBudget>,
    ) {
        if moved < self.next.max(MIN_MOVED) {
            return;
        }
        match self.state {
            WindowState::New => self.adjust(moved, from, to, budget),
            WindowState::Flowing | WindowState::Blocked { .. } => self.take_slot(moved, from, to, budget),
            WindowState::Unlimited { .. } => {}
        }
    }

    /// Releases the slot of a direction that has moved no byte since the last pulse. A blocked
    /// direction may still hold a full buffer. Its slot is released only if the budget for blocked
    /// directions has room for the bytes of this buffer.
    pub(super) fn on_pulse(
        &mut self,
        moved: u64,
        is_blocked: bool,
        from: &TcpStream,
        budget: &Arc<WindowBudget>,
    ) {
        let stands_still = moved == self.at_pulse;
        self.at_pulse = moved;
        if !stands_still || !matches!(self.state, WindowState::Unlimited { .. }) {
            return;
        }
        let Ok(buffer) = SockRef::from(from).recv_buffer_size() else { return };
        let held = if is_blocked { budget.charge(buffer as u64) } else { None };
        if held.is_some() != is_blocked || limit(from).is_err() {
            return;
        }
        let most = if is_blocked { buffer as u64 } else { 0 };
        self.next = moved + FLOWING.max(most);
        self.state = held.map_or(WindowState::Flowing, |held| WindowState::Blocked { _held: held });
    }

    fn adjust(&mut self, moved: u64, from: &TcpStream, to: &TcpStream, budget: &Arc<WindowBudget>) {
        if self.next == 0 {
            return self.begin(from);
        }
        self.next = moved + ASK;
        // A unix socket has no `TCP_INFO`, and acknowledges what it takes.
        let taken = tcp_info(to).map_or(moved, |info| info.tcpi_bytes_acked);
        if taken < FLOWING {
            widen(from, taken.min(WIDEST) as usize);
        } else {
            widen(from, WIDEST as usize);
            self.take_slot(moved, from, to, budget);
        }
    }

    /// Takes a slot if one is free for the destination of the direction.
    fn take_slot(&mut self, moved: u64, from: &TcpStream, to: &TcpStream, budget: &Arc<WindowBudget>) {
        self.next = moved + FLOWING;
        self.state = WindowState::Flowing;
        if budget.has_slot()
            && let Ok(end) = to.peer_addr()
            && let Some(slot) = budget.take_slot(client_of(end.ip()))
            && unlimit(from).is_ok()
        {
            self.state = WindowState::Unlimited { _slot: Box::new(slot) };
        }
    }
}

/// Lets the kernel choose the size of the receive buffer again.
fn unlimit(from: &TcpStream) -> io::Result<()> {
    socket_options::lock_receive_buffer(from, false)?;
    // Also removes the limit of the window that `limit` or `widen` may have set.
    socket_options::clamp_window(from, SockRef::from(from).recv_buffer_size()?)
}

/// Limits the window to [`WIDEST`]. The window shrinks as the sender uses up the window that it
/// already has. The buffer keeps its size, because the kernel would not grow it a second time.
fn limit(from: &TcpStream) -> io::Result<()> {
    socket_options::lock_receive_buffer(from, true)?;
    socket_options::clamp_window(from, WIDEST as usize)
}

/// Grows the receive buffer to this size in bytes, if it is smaller.
fn widen(from: &TcpStream, bytes: usize) {
    let socket = SockRef::from(from);
    if socket.recv_buffer_size().is_ok_and(|has| has < bytes) {
        // The kernel doubles the size that it is given. The window also has its own limit, which
        // still comes from the old size of the buffer.
        let _ = socket.set_recv_buffer_size(bytes / 2);
        let _ = socket_options::clamp_window(from, bytes);
    }
}

mod socket_options {
    use std::ffi::c_int;
    use std::io;
    use std::mem::size_of_val;
    use std::os::fd::AsRawFd;

    /// From include/uapi/asm-generic/socket.h, since Linux 5.15.
    const SO_BUF_LOCK: c_int = 72;
    /// From include/uapi/linux/socket.h: locks the size of the receive buffer.
    const SOCK_RCVBUF_LOCK: c_int = 2;

    /// Locks the size of the receive buffer, or lets the kernel adapt it again.
    pub(super) fn lock_receive_buffer(socket: &impl AsRawFd, locked: bool) -> io::Result<()> {
        set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, if locked { SOCK_RCVBUF_LOCK } else { 0 })
    }

    /// Limits the advertised receive window, in bytes.
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
        Window { state: WindowState::Flowing, ..Window::default() }
    }

    /// Returns a window that has a slot.
    fn unlimited(from: &TcpStream, to: &TcpStream, budget: &Arc<WindowBudget>) -> Window {
        let mut window = flowing();
        window.on_moved(FLOWING, from, to, budget);
        assert!(is_unlimited(&window));
        window.on_pulse(FLOWING, false, from, budget);
        assert!(is_unlimited(&window), "it has moved since the pulse before");
        window
    }

    fn is_unlimited(window: &Window) -> bool {
        matches!(window.state, WindowState::Unlimited { .. })
    }

    #[tokio::test]
    async fn the_slot_of_one_that_stands_still_goes_to_one_that_moves() {
        let (from, to) = stream().await;
        let budget = WindowBudget::new(1, 0);
        let (mut idle, mut moving) = (unlimited(&from, &to, &budget), flowing());
        moving.on_moved(FLOWING, &from, &to, &budget);
        assert!(!is_unlimited(&moving));

        idle.on_pulse(FLOWING, false, &from, &budget);
        assert!(!is_unlimited(&idle));
        moving.on_moved(2 * FLOWING, &from, &to, &budget);
        assert!(is_unlimited(&moving));

        drop(moving);
        idle.on_moved(2 * FLOWING, &from, &to, &budget);
        assert!(is_unlimited(&idle), "it moves again");
        drop(idle);
        assert_eq!(budget.left(), (1, 0));
    }

    #[tokio::test]
    async fn blocked_relay_yields_its_slot_and_is_charged_for_buffered_bytes() {
        let (from, to) = stream().await;
        let buffer = SockRef::from(&from).recv_buffer_size().unwrap() as u64;
        let budget = WindowBudget::new(1, 2 * buffer);
        let (mut blocked, mut moving) = (unlimited(&from, &to, &budget), flowing());
        (0..9).for_each(|_| blocked.on_pulse(FLOWING, true, &from, &budget));
        assert_eq!(budget.left(), (1, buffer));
        moving.on_moved(FLOWING, &from, &to, &budget);
        assert!(is_unlimited(&moving));

        let all_taken = FLOWING + FLOWING.max(buffer);
        blocked.on_moved(all_taken - 1, &from, &to, &budget);
        assert_eq!(budget.left().1, buffer, "some of it is still there");
        blocked.on_moved(all_taken, &from, &to, &budget);
        assert_eq!(budget.left(), (0, 2 * buffer));
        drop(moving);
        blocked.on_moved(all_taken + FLOWING, &from, &to, &budget);
        assert!(is_unlimited(&blocked));
    }

    #[tokio::test]
    async fn blocked_relay_keeps_its_slot_if_the_budget_is_used_up() {
        let (from, to) = stream().await;
        let buffer = SockRef::from(&from).recv_buffer_size().unwrap() as u64;
        let budget = WindowBudget::new(3, buffer);
        // Both directions have the same destination.
        let (_, other) = stream().await;
        let mut blocked = [unlimited(&from, &to, &budget), unlimited(&from, &other, &budget)];
        for _ in 0..9 {
            blocked.iter_mut().for_each(|blocked| blocked.on_pulse(FLOWING, true, &from, &budget));
        }
        assert_eq!((is_unlimited(&blocked[0]), is_unlimited(&blocked[1])), (false, true));
        assert_eq!(budget.left(), (2, 0));
        drop(blocked);
        assert_eq!(budget.left(), (3, buffer), "an end gives all back");
    }
}
