//! Pool of idle HTTP/1.1 connections to servers. Each thread has its own pool, because a request
//! never leaves its core.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use foldhash::HashMap;
use tokio::time::Instant;

use convey_proxy::ServerStream;

/// Maximum number of idle connections to one server that a thread keeps. At the limit, the oldest
/// is evicted.
const MAX_OF_SERVER: usize = 256;

/// Maximum number of idle connections that a thread keeps for all servers.
const MAX: usize = 4_096;

/// Maximum idle time of a connection. Servers close idle connections after 5 seconds (node) to 75
/// seconds (nginx).
const LIFETIME: Duration = Duration::from_secs(30);

/// Key of a server's connections: server id, address, and number of the TLS settings.
pub(crate) type ServerPlace = (u32, SocketAddr, u64);

thread_local! {
    static IDLE: RefCell<IdlePool> = RefCell::default();
}

/// Idle connections of a thread.
#[derive(Default)]
struct IdlePool {
    /// The newest connection is last.
    servers: HashMap<ServerPlace, VecDeque<IdleConnection>>,
    count: usize,
}

struct IdleConnection {
    stream: ServerStream,
    since: Instant,
}

/// Takes the newest idle connection to this server. `None`: there is none, or it has been idle for
/// `most` or longer.
pub(crate) fn take(server: ServerPlace, most: Duration) -> Option<ServerStream> {
    IDLE.with_borrow_mut(|pool| pool.take(server, most))
}

/// Puts a connection without outstanding responses into the pool.
pub(crate) fn put(server: ServerPlace, stream: ServerStream) {
    IDLE.with_borrow_mut(|pool| pool.put(server, stream));
}

/// Closes the idle connections to this server, after one of them was found dead.
pub(crate) fn forget(server: ServerPlace) {
    IDLE.with_borrow_mut(|pool| {
        let gone = pool.servers.remove(&server).unwrap_or_default();
        pool.count -= gone.len();
        gone.into_iter().for_each(IdleConnection::close);
    });
}

/// Closes connections that their servers have closed, or that have been idle too long. Call it from
/// time to time.
pub(crate) fn sweep() {
    IDLE.with_borrow_mut(|pool| pool.sweep(Instant::now()));
}

impl IdlePool {
    fn take(&mut self, server: ServerPlace, most: Duration) -> Option<ServerStream> {
        let of_server = self.servers.get_mut(&server)?;
        while let Some(mut last) = of_server.pop_back() {
            self.count -= 1;
            if !last.is_alive() {
                last.close();
                continue;
            }
            if last.since.elapsed() < most.min(LIFETIME) {
                return Some(last.stream);
            }
            // All others have been idle for longer.
            of_server.push_back(last);
            self.count += 1;
            break;
        }
        None
    }

    fn put(&mut self, server: ServerPlace, stream: ServerStream) {
        let now = Instant::now();
        if self.count >= MAX {
            return IdleConnection { stream, since: now }.close();
        }
        let of_server = self.servers.entry(server).or_default();
        if of_server.len() >= MAX_OF_SERVER
            && let Some(oldest) = of_server.pop_front()
        {
            self.count -= 1;
            oldest.close();
        }
        of_server.push_back(IdleConnection { stream, since: now });
        self.count += 1;
    }

    fn sweep(&mut self, now: Instant) {
        self.servers.retain(|_, of_server| {
            for mut one in std::mem::take(of_server) {
                if now - one.since >= LIFETIME || !one.is_alive() {
                    one.close();
                } else {
                    of_server.push_back(one);
                }
            }
            !of_server.is_empty()
        });
        self.count = self.servers.values().map(VecDeque::len).sum();
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
