//! Pooled pipes for splice(2), which moves bytes from socket to socket inside the kernel.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Requested size of a pipe in bytes. For unprivileged users, the kernel may refuse more than its
/// default size (`fs.pipe-user-pages-soft`).
const SIZE: usize = 256 * 1024;

/// Minimum size of a pipe in bytes, which is the kernel's default. Unprivileged users with many
/// pipes get only two pages, which is too small to be useful.
const MIN_SIZE: usize = 64 * 1024;

/// Maximum number of idle pipes that a thread keeps for reuse.
const POOLED: usize = 64;

thread_local! {
    static POOL: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
    static OPEN: Cell<usize> = const { Cell::new(0) };
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Kernel pipe between two sockets.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Number of bytes in the pipe. convey fills only an empty pipe, so that `WouldBlock` always
    /// refers to the socket.
    held: usize,
}

impl Pipe {
    /// Upper bound of the bytes that one splice moves. It exceeds the size of the pipe, because the
    /// kernel counts slots of one page, and a slot may hold a longer fragment.
    pub const MAX_MOVED: usize = 1024 * 1024;

    /// Sets the maximum number of open pipes of this thread.
    pub fn limit(pipes: usize) {
        LIMIT.set(pipes);
    }

    /// Returns an empty pipe: from the pool of the thread if it has one, otherwise a new one.
    ///
    /// # Errors
    /// This thread has reached its limit of pipes, or the kernel cannot create one.
    pub fn get() -> io::Result<Pipe> {
        POOL.with_borrow_mut(Vec::pop).map_or_else(Pipe::new, Ok)
    }

    /// Returns the pipe to the pool. Closes the pipe instead if it still holds bytes of a
    /// connection, or if the pool is full.
    pub fn put(self) {
        POOL.with_borrow_mut(|pool| {
            if self.held == 0 && pool.len() < POOLED {
                pool.push(self);
            }
        });
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
        self.held = splice(from, None, &self.write, None, most, FLAGS)?;
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
        let sent = to.try_io(Interest::WRITABLE, || Ok(splice(&self.read, None, to, None, held, FLAGS)?))?;
        self.held -= sent;
        Ok(sent)
    }

    fn new() -> io::Result<Pipe> {
        if OPEN.get() >= LIMIT.get() {
            return Err(Errno::MFILE.into());
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if fcntl_setpipe_size(&write, SIZE).is_err() && fcntl_getpipe_size(&write)? < MIN_SIZE {
            return Err(Errno::NOBUFS.into());
        }
        OPEN.set(OPEN.get() + 1);
        Ok(Pipe { read, write, held: 0 })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        OPEN.set(OPEN.get() - 1);
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_of_a_thread_are_limited_and_few_are_pooled() {
        const SOME: usize = POOLED + 6;
        Pipe::limit(SOME);
        let mut pipes: Vec<Pipe> = (0..SOME).map(|_| Pipe::get().unwrap()).collect();
        assert!(Pipe::get().is_err());
        pipes.pop().unwrap().put();
        pipes.push(Pipe::get().expect("one that was given back"));
        pipes.into_iter().for_each(Pipe::put);
        assert_eq!((POOL.with_borrow(Vec::len), OPEN.get()), (POOLED, POOLED));
    }
}
