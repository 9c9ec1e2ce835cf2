//! Captures frames from one interface.

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

/// Most frames that [`Capture::read_batch`] reads at once.
pub(super) const BATCH: usize = 256;

/// Most bytes of memory that it fills at once, a last frame aside: that many ordinary ones, or eight super-frames.
const BATCH_BYTES: usize = BATCH * ORDINARY;

/// What the kernel holds for us until we read it, in bytes; it counts twice what it was told. Its default holds
/// two super-frames.
const RECEIVE_BUFFER: usize = 32 << 20;

/// The virtio header, the Ethernet header and the longest IP packet; pnet would cut short what is longer.
const READ_LEN: usize = VNET_HEADER_LEN + 14 + 65_535 + 1;

/// The frames that come in on one interface and pass the filter. For one thread; its [`CaptureHandle`] is for the
/// others.
pub struct Capture {
    socket: Arc<Socket>,
    stop: Arc<OwnedFd>,
    frames: Box<dyn DataLinkReceiver>,
}

/// Steers a [`Capture`] from another thread.
#[derive(Debug, Clone)]
pub struct CaptureHandle {
    socket: Arc<Socket>,
    stop: Arc<OwnedFd>,
}

/// Why [`Capture::read_batch`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// There were frames, or errors, or both.
    Frames {
        /// Frames that could not be read, and messages that the interface went down. None is fatal.
        errors: u32,
    },
    /// [`CaptureHandle::stop`] was called.
    Stopped,
}

impl Capture {
    /// Begins to capture what comes in on the interface with this index, in the thread's network namespace. Needs
    /// CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn open(interface: u32, filter: &CaptureFilter) -> io::Result<(Capture, CaptureHandle)> {
        let socket = socket::open(filter)?;
        socket::set_receive_buffer(&socket, RECEIVE_BUFFER)?;
        let ours = Arc::new(socket.try_clone()?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (_, frames) = socket::bind(socket, interface, READ_LEN)?;
        let handle = CaptureHandle { socket: ours.clone(), stop: stop.clone() };
        Ok((Capture { socket: ours, stop, frames }, handle))
    }

    /// Waits for frames and adds those that are there to `into`, at most [`BATCH`], and fewer if they are long. Buffers
    /// are taken from `pool` while it has any.
    pub fn read_batch(&mut self, pool: &mut BufferPool, into: &mut Vec<Buffer>) -> Wake {
        if self.wait() {
            return Wake::Stopped;
        }
        // An error that no frame follows: pnet would never read it off the socket, which stays ready for it.
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

    /// Whether to stop; returns when that or the socket is ready.
    fn wait(&self) -> bool {
        let mut ready = [
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
        ];
        // A signal interrupts it; that is an empty batch.
        let _ = poll(&mut ready, None);
        !ready[0].revents().is_empty()
    }
}

/// Whether pnet means that there is nothing to read.
fn is_empty(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock | Interrupted)
}

impl CaptureHandle {
    /// Has `read_batch` return [`Wake::Stopped`], now and from now on.
    pub fn stop(&self) {
        // Fails only when it has been written already.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }

    /// Captures by another filter from the next frame on.
    pub fn set_filter(&self, filter: &CaptureFilter) -> io::Result<()> {
        socket::attach(&self.socket, filter)
    }

    /// Captures what this program lets in, one of the kernel's for socket filters, from the next frame on.
    pub(crate) fn set_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        socket::attach_program(&self.socket, program)
    }

    /// Frames that were lost because the receive buffer was full, since the last call.
    pub fn take_drops(&self) -> io::Result<u32> {
        socket::take_drops(&self.socket)
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("socket", &self.socket).finish_non_exhaustive()
    }
}
