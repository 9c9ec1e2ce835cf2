//! Capture of frames from one interface.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pnet_datalink::DataLinkReceiver;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use socket2::Socket;

use super::buffer::ORDINARY;
use super::buffer::VNET_HEADER_LEN;
use super::{Buffer, BufferPool, CaptureFilter, socket};

/// Maximum number of frames that [`Capture::read_batch`] returns.
pub(super) const BATCH: usize = 256;

/// Memory in bytes after which a batch ends, even if more frames are available: `BATCH` ordinary
/// frames, or eight super-frames.
const BATCH_BYTES: usize = BATCH * ORDINARY;

/// Receive buffer of the socket in bytes, before the kernel doubles it. The kernel's default holds
/// only two super-frames.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Length of the read buffer in bytes: virtio header, Ethernet header and the longest IP packet.
/// pnet would truncate longer frames.
const READ_LEN: usize = VNET_HEADER_LEN + 14 + 65_535 + 1;

/// Captures the frames that arrive on one interface and pass the filter. A `Capture` belongs to one
/// thread; other threads use its [`CaptureHandle`].
pub struct Capture {
    socket: Arc<Socket>,
    stop: Arc<OwnedFd>,
    frames: Box<dyn DataLinkReceiver>,
}

/// Controls a [`Capture`] from another thread.
#[derive(Debug, Clone)]
pub struct CaptureHandle {
    socket: Arc<Socket>,
    stop: Arc<OwnedFd>,
}

/// Reason why [`Capture::read_batch`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The batch contains frames, or there were errors, or both.
    Frames {
        /// Number of failed reads, plus the number of notices that the interface went down. Neither
        /// is fatal.
        errors: u32,
    },
    /// [`CaptureHandle::stop`] was called.
    Stopped,
}

impl Capture {
    /// Opens a capture on the interface with this index, in the calling thread's network namespace.
    /// Needs CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn open(interface: u32, filter: &CaptureFilter) -> io::Result<(Capture, CaptureHandle)> {
        let socket = socket::open(filter)?;
        socket::set_receive_buffer(&socket, RECEIVE_BUFFER)?;
        let ours = Arc::new(socket.try_clone()?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (_, frames) = socket::bind(socket, interface, READ_LEN)?;
        let handle = CaptureHandle { socket: ours.clone(), stop: stop.clone() };
        Ok((Capture { socket: ours, stop, frames }, handle))
    }

    /// Waits for frames, and appends the available ones to `into`: at most [`BATCH`], fewer if they
    /// are long. Takes buffers from `pool`, and allocates more if the pool is empty.
    pub fn read_batch(&mut self, pool: &mut BufferPool, into: &mut Vec<Buffer>) -> Wake {
        if self.wait() {
            return Wake::Stopped;
        }
        // Clear a pending error of the socket: if no frame follows, pnet would never read the
        // error, and the socket would stay ready.
        let mut errors = u32::from(matches!(self.socket.take_error(), Ok(Some(_))));
        let (mut frames, mut bytes) = (0, 0);
        while frames < BATCH && bytes < BATCH_BYTES {
            frames += 1;
            match self.frames.next() {
                Ok(frame) => {
                    let mut buffer = pool.take(frame.len());
                    bytes += buffer.capacity().max(frame.len());
                    if buffer.fill(frame) {
                        into.push(buffer);
                    }
                }
                Err(error) if is_empty(&error) => break,
                Err(_) => errors += 1,
            }
        }
        Wake::Frames { errors }
    }

    /// Waits until the socket is ready or `stop` is called. Returns true if the capture must stop.
    fn wait(&self) -> bool {
        let mut ready = [
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
        ];
        // A signal may interrupt the wait; the batch is then empty.
        let _ = poll(&mut ready, None);
        !ready[0].revents().is_empty()
    }
}

/// Whether this error of pnet means that no frame is available.
fn is_empty(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock | Interrupted)
}

impl CaptureHandle {
    /// Makes this and every later `read_batch` return [`Wake::Stopped`].
    pub fn stop(&self) {
        // The write fails only if the counter is at its maximum, and then `stop` was called before.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }

    /// Replaces the filter, starting with the next frame.
    pub fn set_filter(&self, filter: &CaptureFilter) -> io::Result<()> {
        socket::attach(&self.socket, filter)
    }

    /// Replaces the filter by a BPF program for socket filters, starting with the next frame.
    pub(crate) fn set_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        socket::attach_program(&self.socket, program)
    }

    /// Number of frames that the kernel dropped since the last call because the receive buffer was
    /// full.
    pub fn take_drops(&self) -> io::Result<u32> {
        socket::take_drops(&self.socket)
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("socket", &self.socket).finish_non_exhaustive()
    }
}
