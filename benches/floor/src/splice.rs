//! Long bodies: from socket to socket through a pipe, without a copy into the program.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::worker;

/// Size of a pipe in bytes, and of the longest splice.
const PIPE: usize = 1 << 20;

/// Empty pipes of one worker.
#[derive(Default)]
pub(crate) struct Pipes(RefCell<Vec<Pipe>>);

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// Relays `length` bytes.
pub(crate) async fn relay(from: &TcpStream, to: &TcpStream, length: u64) -> io::Result<()> {
    let pipe = match worker::with(|worker| worker.pipes.0.borrow_mut().pop()) {
        Some(pipe) => pipe,
        None => Pipe::new()?,
    };
    let mut left = length;
    while left > 0 {
        worker::with(|worker| worker.begin_wait());
        let most = left.min(PIPE as u64) as usize;
        let received = from.async_io(Interest::READABLE, || moved(from, &pipe.write, most)).await?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= received as u64;
        let mut in_pipe = received;
        while in_pipe > 0 {
            in_pipe -= to.async_io(Interest::WRITABLE, || moved(&pipe.read, to, in_pipe)).await?;
        }
    }
    // After an error the pipe may have bytes, and is closed.
    worker::with(|worker| worker.pipes.0.borrow_mut().push(pipe));
    Ok(())
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        // A smaller pipe works, too.
        let _ = fcntl_setpipe_size(&write, PIPE);
        Ok(Pipe { read, write })
    }
}

fn moved(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    Ok(splice(from, None, to, None, most, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?)
}
