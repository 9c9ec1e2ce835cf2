//! Large bodies, which the kernel moves from socket to socket (`splice`).

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use convey_stream::{Pipe, PipePool};
use tokio::net::TcpStream;

use crate::buffer;

/// Kernel transfer (`splice`) of one direction, while its body is large.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    /// Pipe between the sockets; `None` if the transfer does not use one at the moment. Boxed,
    /// because most bodies are short.
    pipe: Option<Box<Pipe>>,
    /// Whether the last read filled the buffer, and at least as many bytes of the body follow.
    is_on: bool,
}

impl Bulk {
    /// Notes that a read returned `len` bytes, and that the next `opaque` bytes of the body need no
    /// parsing.
    pub(crate) fn has_read(&mut self, len: usize, opaque: u64) {
        self.is_on = len == buffer::SIZE && opaque >= buffer::SIZE as u64;
    }

    /// Writes bytes from the pipe to a socket. Returns their number; 0: the pipe is empty.
    pub(crate) fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        to: Option<&TcpStream>,
    ) -> Poll<io::Result<u64>> {
        let pipe = self.pipe.as_mut().filter(|pipe| !pipe.is_empty());
        let (Some(pipe), Some(to)) = (pipe, to) else { return Poll::Ready(Ok(0)) };
        loop {
            ready!(to.poll_write_ready(cx))?;
            match pipe.drain(to) {
                Ok(sent) => return Poll::Ready(Ok(sent as u64)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Number of bytes in the pipe.
    pub(crate) fn left(&self) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| pipe.held())
    }

    /// Whether the pipe is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.pipe.as_ref().is_none_or(|pipe| pipe.is_empty())
    }

    /// Moves some of the next `opaque` bytes of the body from the first socket into the pipe.
    /// The pipe is one of `pipes`. Returns their number. 0: the caller has to read, because the body
    /// is not large, there is no pipe, or the socket has no bytes at the moment.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) fn fill(
        &mut self,
        sockets: Option<(&TcpStream, &TcpStream)>,
        opaque: u64,
        pipes: &Arc<PipePool>,
    ) -> io::Result<u64> {
        let is_large = self.is_on && opaque >= buffer::SIZE as u64;
        let Some((from, _)) = sockets.filter(|_| is_large) else { return Ok(self.stop()) };
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            // Without a pipe, convey copies the bytes.
            None => match pipes.get() {
                Ok(pipe) => self.pipe.insert(Box::new(pipe)),
                Err(_) => return Ok(self.stop()),
            },
        };
        let most = usize::try_from(opaque).unwrap_or(usize::MAX).min(Pipe::MAX_MOVED);
        match pipe.fill(from, most) {
            Ok(n) if n > 0 => Ok(n as u64),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(self.stop()),
        }
    }

    fn stop(&mut self) -> u64 {
        self.is_on = false;
        if self.is_empty()
            && let Some(pipe) = self.pipe.take()
        {
            pipe.put();
        }
        0
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.stop();
    }
}
