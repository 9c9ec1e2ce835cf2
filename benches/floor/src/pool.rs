//! Servers of one worker, and idle connections to them.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::{stream, worker};

/// Idle connections to each server that are kept, as many as nginx keeps in this comparison.
const KEPT: usize = 512;

pub(crate) struct Pool {
    servers: Vec<Server>,
    next: Cell<usize>,
}

struct Server {
    address: SocketAddr,
    idle: RefCell<Vec<TcpStream>>,
}

/// Sends the output buffer and a part of the input buffer to a server. Returns the connection to
/// the server, which may be new.
pub(crate) async fn send(server: usize, input: Range<usize>) -> io::Result<TcpStream> {
    if let Some(mut connection) = worker::with(|worker| worker.pool.take(server)) {
        stream::send(&mut connection, input).await?;
        return Ok(connection);
    }
    let (address, bytes) = worker::with(|worker| {
        worker.begin_wait();
        let buffers = worker.buffers.borrow();
        (worker.pool.servers[server].address, [&buffers.output[..], &buffers.input[input]].concat())
    });
    let mut connection = TcpStream::connect(address).await?;
    connection.set_nodelay(true)?;
    connection.write_all(&bytes).await?;
    Ok(connection)
}

impl Pool {
    pub(crate) fn new(servers: &[SocketAddr]) -> Pool {
        let server = |address: &SocketAddr| Server { address: *address, idle: RefCell::default() };
        Pool { servers: servers.iter().map(server).collect(), next: Cell::new(0) }
    }

    /// Number of the server whose turn it is.
    pub(crate) fn next(&self) -> usize {
        let number = self.next.get();
        self.next.set(if number + 1 == self.servers.len() { 0 } else { number + 1 });
        number
    }

    /// Takes the connection to a server that was used last.
    fn take(&self, server: usize) -> Option<TcpStream> {
        self.servers[server].idle.borrow_mut().pop()
    }

    pub(crate) fn keep(&self, server: usize, connection: TcpStream) {
        let mut idle = self.servers[server].idle.borrow_mut();
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }
}
