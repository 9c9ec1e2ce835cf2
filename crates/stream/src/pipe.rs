//! Moving bytes from socket to socket inside the kernel: splice(2) through pooled pipes.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Size of a pipe. For an unprivileged user the kernel may refuse to go above its default (`fs.pipe-user-pages-soft`).
const SIZE: usize = 256 * 1024;

/// The least that is of use, and the kernel's default; for an unprivileged user with many pipes that is two pages.
const MIN_SIZE: usize = 64 * 1024;

/// Idle pipes a thread keeps for the next one who needs one.
const POOLED: usize = 64;

thread_local! {
    static POOL: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
    static OPEN: Cell<usize> = const { Cell::new(0) };
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A pipe on the way from one socket to another.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes in it. Only an empty pipe is filled: then "would block" can only mean the socket.
    held: usize,
}

impl Pipe {
    /// Most bytes moved at once. A pipe's size counts pages, and what is in a page's place may be longer.
    pub const MAX_MOVED: usize = 1024 * 1024;

    /// Limits the pipes that this thread opens.
    pub fn limit(pipes: usize) {
        LIMIT.set(pipes);
    }

    /// Returns an empty pipe, from the thread's pool if it has one.
    ///
    /// # Errors
    /// This thread has as many as it may, or the kernel gives none.
    pub fn get() -> io::Result<Pipe> {
        POOL.with_borrow_mut(Vec::pop).map_or_else(Pipe::new, Ok)
    }

    /// Gives the pipe to the pool. One that holds bytes is closed instead: they belong to nobody else.
    pub fn put(self) {
        POOL.with_borrow_mut(|pool| {
            if self.held == 0 && pool.len() < POOLED {
                pool.push(self);
            }
        });
    }

    /// Bytes that were read and not written yet.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether all that was read has been written.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Fills the empty pipe from a socket, with `most` bytes at most; 0 is the end of the stream.
    ///
    /// # Errors
    /// Those of splice(2). "Would block": nothing is there, or only reading can tell what is.
    pub fn fill(&mut self, from: &TcpStream, most: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty());
        self.held = splice(from, None, &self.write, None, most, FLAGS)?;
        // Splicing does not tell TCP that its reader has caught up; without this the sender waits for a
        // delayed ACK (40 ms) at the end of each burst.
        let _ = set_tcp_quickack(from, true);
        Ok(self.held)
    }

    /// Empties the pipe into a socket as far as that takes it; returns how much that was. Clears the
    /// socket's readiness when it takes nothing.
    ///
    /// # Errors
    /// Those of splice(2).
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
    fn no_more_pipes_are_opened_than_the_thread_may_and_few_of_them_are_kept() {
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
