//! Proxy mode: TCP is terminated here and relayed to a server.
//!
//! One worker thread for each core, each with a single-threaded runtime and listeners of its own: the
//! kernel spreads new connections over them (`SO_REUSEPORT`), and a connection lives and dies on one core.

mod lease;
mod listener;
mod pipe;
mod relay;
mod session;
mod socket;
mod stream;
mod worker;

pub use socket::BindError;
pub use worker::{Descriptors, Shared};

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use worker::Command;

/// The worker threads.
pub struct Workers {
    threads: Vec<(mpsc::UnboundedSender<Command>, JoinHandle<()>)>,
    listening: BTreeSet<SocketAddr>,
}

/// Sockets that are bound and queue connections, and the addresses that are to be closed; for
/// [`Workers::close`] and [`Workers::open`].
pub struct Ready {
    new: Vec<(SocketAddr, Vec<std::net::TcpListener>)>,
    gone: Vec<SocketAddr>,
}

impl Ready {
    /// The addresses that are not listened on yet.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.new.iter().map(|(addr, _)| *addr)
    }
}

impl Workers {
    /// Starts a thread for each column of the counters; they serve nothing yet.
    pub fn start(shared: &Shared) -> io::Result<Self> {
        let columns = shared.columns.clone();
        let threads = columns.map(|core| worker::start(core, shared.clone())).collect::<io::Result<_>>()?;
        Ok(Workers { threads, listening: BTreeSet::new() })
    }

    /// Binds what is wanted and not yet listened on: a socket for each worker. Errors leave nothing bound.
    pub fn prepare(&mut self, wanted: &BTreeSet<SocketAddr>) -> Result<Ready, BindError> {
        let mut new: Vec<(SocketAddr, _)> = Vec::new();
        for addr in wanted.difference(&self.listening) {
            let ours = self.listening.iter().chain(new.iter().map(|(addr, _)| addr));
            let sockets = socket::listen(*addr, self.threads.len(), ours)?;
            new.push((*addr, sockets));
        }
        Ok(Ready { new, gone: self.listening.difference(wanted).copied().collect() })
    }

    /// Stops listening on the addresses that are no longer wanted. What waited in their accept queues is
    /// served; established connections go on.
    pub async fn close(&mut self, ready: &Ready) {
        let mut closed = Vec::new();
        for (commands, _) in &self.threads {
            let (done, is_done) = oneshot::channel();
            let _ = commands.send(Command::Close { addrs: ready.gone.clone(), done });
            closed.push(is_done);
        }
        for is_done in closed {
            let _ = is_done.await;
        }
        self.listening.retain(|addr| !ready.gone.contains(addr));
    }

    /// Starts to accept on the new addresses.
    pub fn open(&mut self, ready: Ready) {
        for (addr, sockets) in ready.new {
            for ((commands, _), socket) in self.threads.iter().zip(sockets) {
                let _ = commands.send(Command::Listen { addr, socket });
            }
            self.listening.insert(addr);
        }
    }

    /// Stops accepting and waits for the open connections to end, `patience` at most. What is still open
    /// then is cut. Call once.
    pub async fn drain(self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut drained = Vec::new();
        for (commands, _) in &self.threads {
            let (done, is_done) = oneshot::channel();
            let _ = commands.send(Command::Drain { done });
            drained.push(is_done);
        }
        for is_done in drained {
            let _ = timeout_at(deadline, is_done).await;
        }
        for (commands, thread) in self.threads {
            drop(commands); // a worker ends when nobody can command it any more
            let _ = thread.join();
        }
    }
}
