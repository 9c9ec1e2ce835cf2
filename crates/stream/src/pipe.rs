//! Moves bytes from socket to socket inside the kernel: splice(2) through pooled pipes.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Size of a pipe. The kernel may refuse an unprivileged user more than its default
/// (`fs.pipe-user-pages-soft`).
const SIZE: usize = 256 * 1024;

/// Smallest useful size, which is the kernel's default; unprivileged users with many pipes get two
/// pages.
const MIN_SIZE: usize = 64 * 1024;

/// Idle pipes that a thread keeps for reuse.
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
    /// Bytes in the pipe. Only an empty pipe is filled, so that "would block" always refers to the
    /// socket.
    held: usize,
}

impl Pipe {
    /// Upper bound of the bytes moved at once. The size of a pipe counts pages, and a page's slot
    /// may hold a longer fragment.
    pub const MAX_MOVED: usize = 1024 * 1024;

    /// Limits the pipes that this thread opens.
    pub fn limit(pipes: usize) {
        LIMIT.set(pipes);
    }

    /// Returns an empty pipe, from the thread's pool if it has one.
    ///
    /// # Errors
    /// This thread has reached its limit of pipes, or the kernel cannot create one.
    pub fn get() -> io::Result<Pipe> {
        POOL.with_borrow_mut(Vec::pop).map_or_else(Pipe::new, Ok)
    }

    /// Returns the pipe to the pool, or closes it if it still holds bytes of a connection.
    pub fn put(self) {
        POOL.with_borrow_mut(|pool| {
            if self.held == 0 && pool.len() < POOLED {
                pool.push(self);
            }
        });
    }

    /// Bytes that were read and have not been written yet.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether all bytes that were read have been written.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Fills the empty pipe from a socket, with `most` bytes at most; 0 is the end of the stream.
    ///
    /// # Errors
    /// Errors of splice(2). "Would block" means that no bytes are there, or that a read is
    /// needed to find out.
    pub fn fill(&mut self, from: &TcpStream, most: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty());
        self.held = splice(from, None, &self.write, None, most, FLAGS)?;
        // Splicing does not notify TCP that its reader has caught up. Without this the sender waits
        // for a delayed ACK (40 ms) at the end of each burst.
        let _ = set_tcp_quickack(from, true);
        Ok(self.held)
    }

    /// Writes the pipe's bytes to a socket, as far as the socket takes them; returns their number.
    /// Clears the socket's readiness when it takes none.
    ///
    /// # Errors
    /// Errors of splice(2).
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
