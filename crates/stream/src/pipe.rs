//! Pooled pipes for splice(2), which moves bytes from socket to socket inside the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Requested size of a pipe in bytes. The kernel may refuse unprivileged users more than the
/// default size of a pipe (`fs.pipe-user-pages-soft`).
const SIZE: usize = 256 * 1024;

/// Minimum size of a pipe in bytes: the kernel's default. For unprivileged users with many pipes,
/// the kernel creates pipes of only two pages. convey does not use them, because they are too
/// small.
const MIN_SIZE: usize = 64 * 1024;

/// Maximum number of idle pipes that a pool keeps for reuse.
const POOLED: usize = 64;

/// Pool of pipes. Each worker has its own.
#[derive(Debug)]
pub struct PipePool {
    idle: Mutex<Vec<KernelPipe>>,
    /// Number of open pipes, idle ones included.
    open: Arc<AtomicUsize>,
    /// Maximum number of open pipes.
    limit: usize,
}

/// Kernel pipe between two sockets, of a [`PipePool`].
#[derive(Debug)]
pub struct Pipe {
    kernel: KernelPipe,
    /// Number of bytes in the pipe. convey fills only an empty pipe, so that `WouldBlock` always
    /// refers to the socket.
    held: usize,
    pool: Arc<PipePool>,
}

#[derive(Debug)]
struct KernelPipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Number of open pipes of the pool.
    open: Arc<AtomicUsize>,
}

impl PipePool {
    /// Creates a pool with at most this number of open pipes.
    pub fn new(limit: usize) -> Arc<PipePool> {
        Arc::new(PipePool { idle: Mutex::default(), open: Arc::default(), limit })
    }

    /// Returns an empty pipe: an idle one if there is one, otherwise a new one.
    ///
    /// # Errors
    /// The pool has reached its limit, or the kernel cannot create a pipe.
    pub fn get(self: &Arc<PipePool>) -> io::Result<Pipe> {
        let idle = self.idle().pop();
        let kernel = idle.map_or_else(|| KernelPipe::new(self.open.clone(), self.limit), Ok)?;
        Ok(Pipe { kernel, held: 0, pool: self.clone() })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<KernelPipe>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pipe {
    /// Upper bound of the bytes that one splice moves. It exceeds the size of the pipe, because the
    /// kernel counts slots of one page, and a slot may hold a longer fragment.
    pub const MAX_MOVED: usize = 1024 * 1024;

    /// Returns the pipe to its pool. Closes the pipe instead if it still holds bytes of a
    /// connection, or if the pool has enough idle pipes.
    pub fn put(self) {
        let Pipe { kernel, held, pool } = self;
        let mut idle = pool.idle();
        if held == 0 && idle.len() < POOLED {
            idle.push(kernel);
        }
    }

    /// Number of bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether the pipe holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Fills the empty pipe from a socket with at most `most` bytes. Returns their number, 0 at the
    /// end of the stream.
    ///
    /// # Errors
    /// Errors of splice(2). After `WouldBlock`, the caller must read from the socket: either no
    /// bytes have arrived, or splice cannot move them.
    pub fn fill(&mut self, from: &TcpStream, most: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty());
        self.held = splice(from, None, &self.kernel.write, None, most, FLAGS)?;
        // After a splice, TCP does not know that all bytes have been read. Without TCP_QUICKACK,
        // the sender would wait for a delayed ACK (40 ms) at the end of each burst.
        let _ = set_tcp_quickack(from, true);
        Ok(self.held)
    }

    /// Writes bytes of the pipe to a socket, as many as the socket accepts. Returns their number.
    /// If the socket accepts none, clears its readiness.
    ///
    /// # Errors
    /// Errors of splice(2), `WouldBlock` if the socket accepts no bytes.
    pub fn drain(&mut self, to: &TcpStream) -> io::Result<usize> {
        let held = self.held;
        let sent =
            to.try_io(Interest::WRITABLE, || Ok(splice(&self.kernel.read, None, to, None, held, FLAGS)?))?;
        self.held -= sent;
        Ok(sent)
    }
}

impl KernelPipe {
    /// Creates a pipe, unless `limit` pipes are open.
    fn new(open: Arc<AtomicUsize>, limit: usize) -> io::Result<KernelPipe> {
        let add = |open: usize| Some(open + 1).filter(|open| *open <= limit);
        if open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return Err(Errno::MFILE.into());
        }
        let (read, write) = match pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            Ok(ends) => ends,
            Err(error) => {
                open.fetch_sub(1, Ordering::Relaxed);
                return Err(error.into());
            }
        };
        let pipe = KernelPipe { read, write, open };
        if fcntl_setpipe_size(&pipe.write, SIZE).is_err() && fcntl_getpipe_size(&pipe.write)? < MIN_SIZE {
            return Err(Errno::NOBUFS.into());
        }
        Ok(pipe)
    }
}

impl Drop for KernelPipe {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_of_a_pool_are_limited_and_few_are_kept() {
        const SOME: usize = POOLED + 6;
        let pool = PipePool::new(SOME);
        let mut pipes: Vec<Pipe> = (0..SOME).map(|_| pool.get().unwrap()).collect();
        assert!(pool.get().is_err());
        pipes.pop().unwrap().put();
        pipes.push(pool.get().expect("one that was given back"));
        pipes.into_iter().for_each(Pipe::put);
        assert_eq!((pool.idle().len(), pool.open.load(Ordering::Relaxed)), (POOLED, POOLED));
    }
}
