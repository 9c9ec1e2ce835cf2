//! Pool of idle HTTP/1.1 connections to servers. Each worker has its own pool, because a request
//! never leaves its core.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::HashMap;
use tokio::time::Instant;

use convey_proxy::ServerStream;
use convey_stream::PollClock;

/// Maximum number of idle connections to one server that a worker keeps. At the limit, the oldest
/// is evicted.
const MAX_OF_SERVER: usize = 256;

/// Maximum number of idle connections that a worker keeps for all servers.
const MAX: usize = 4_096;

/// Maximum idle time of a connection. Servers close idle connections after 5 seconds (node) to 75
/// seconds (nginx).
const LIFETIME: Duration = Duration::from_secs(30);

/// Key of a server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerPlace {
    /// Id of the server.
    pub(crate) id: u32,
    pub(crate) addr: SocketAddr,
    /// Address of this host that connections come from; `None`: the kernel's choice.
    pub(crate) source: Option<IpAddr>,
    /// Number of the TLS settings.
    pub(crate) tls: u64,
}

impl Hash for ServerPlace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A server seldom has more than one place.
        self.id.hash(state);
    }
}

/// Idle connections of a worker.
#[derive(Default)]
pub(crate) struct IdlePool {
    // No connection is closed while the lock is held.
    connections: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// Idle connections by server, the newest connection last.
    servers: HashMap<ServerPlace, VecDeque<IdleConnection>>,
    count: usize,
}

struct IdleConnection {
    stream: Box<ServerStream>,
    since: Instant,
}

impl IdlePool {
    /// Takes the newest idle connection to this server. `None`: there is none, or it has been idle
    /// for `most` or longer.
    pub(crate) fn take(&self, server: ServerPlace, most: Duration) -> Option<Box<ServerStream>> {
        loop {
            let mut newest = self.lock().pop(server, most)?;
            if newest.is_alive() {
                return Some(newest.stream);
            }
            newest.close();
        }
    }

    /// Puts a connection into the pool. All responses on the connection must be complete. If the
    /// server has its maximum of idle connections, closes the oldest of them. If the worker has its
    /// maximum, closes this connection.
    pub(crate) fn put(&self, server: ServerPlace, stream: Box<ServerStream>) {
        let connection = IdleConnection { stream, since: PollClock::now() };
        let evicted = self.lock().push(server, connection);
        evicted.into_iter().for_each(IdleConnection::close);
    }

    /// Closes the idle connections to this server, after one of them was found dead.
    pub(crate) fn forget(&self, server: ServerPlace) {
        let gone = self.lock().remove(server);
        gone.into_iter().for_each(IdleConnection::close);
    }

    /// Closes connections that their servers have closed, or that have been idle too long. Call it
    /// from time to time.
    pub(crate) fn sweep(&self) {
        let gone = self.lock().remove_stale(Instant::now());
        gone.into_iter().for_each(IdleConnection::close);
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdleConnections {
    /// Removes the newest connection to this server, unless it has been idle for `most` or longer.
    fn pop(&mut self, server: ServerPlace, most: Duration) -> Option<IdleConnection> {
        let of_server = self.servers.get_mut(&server)?;
        // All others have been idle for longer than the newest.
        of_server.back().filter(|newest| PollClock::now() - newest.since < most.min(LIFETIME))?;
        self.count -= 1;
        of_server.pop_back()
    }

    /// Adds a connection. Returns the connection that has to be closed because of a limit, if any.
    fn push(&mut self, server: ServerPlace, connection: IdleConnection) -> Option<IdleConnection> {
        if self.count >= MAX {
            return Some(connection);
        }
        let of_server = self.servers.entry(server).or_default();
        let oldest = if of_server.len() >= MAX_OF_SERVER { of_server.pop_front() } else { None };
        of_server.push_back(connection);
        self.count += usize::from(oldest.is_none());
        oldest
    }

    fn remove(&mut self, server: ServerPlace) -> VecDeque<IdleConnection> {
        let gone = self.servers.remove(&server).unwrap_or_default();
        self.count -= gone.len();
        gone
    }

    fn remove_stale(&mut self, now: Instant) -> Vec<IdleConnection> {
        let mut gone = Vec::new();
        self.servers.retain(|_, of_server| {
            for mut one in std::mem::take(of_server) {
                if now - one.since >= LIFETIME || !one.is_alive() {
                    gone.push(one);
                } else {
                    of_server.push_back(one);
                }
            }
            !of_server.is_empty()
        });
        self.count -= gone.len();
        gone
    }
}

impl IdleConnection {
    /// Whether the server has neither closed the connection nor sent unsolicited bytes. Needs no
    /// system call while nothing has arrived.
    fn is_alive(&mut self) -> bool {
        self.stream.stream().is_quiet()
    }

    fn close(mut self) {
        self.stream.close_in_order();
    }
}
