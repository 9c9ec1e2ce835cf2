//! Server of a connection in the registry. A request on a kept connection sets it without a lock,
//! and clones no names.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::sys::socket::{SockaddrStorage, getsockname};

use super::atomic_addr::AtomicAddr;
use super::connection::ConnectionFacts;
use convey_snapshot::{Frontend, Pool, Server};

/// Server of a client connection, for the registry.
pub(crate) struct ConnectionServer<'a> {
    /// Frontend of the connection, in the version that the registry has.
    pub(crate) frontend: &'a Frontend,
    /// Backend of the server.
    pub(crate) pool: &'a Arc<Pool>,
    /// Index of the server in the backend.
    pub(crate) index: usize,
    /// Local address of the connection to the server, which the server sees as its client.
    pub(crate) seen_from: SeenFrom,
    /// Whether the client's connection ends when the server goes down. In mode http only the
    /// request ends.
    pub(crate) is_only: bool,
}

/// Local address of a connection to a server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SeenFrom {
    Addr(Option<SocketAddr>),
    /// Address of this socket, which a list of connections looks up. Most connections are never
    /// listed, so this saves a system call. The caller has to call
    /// [`RegisteredConnection::close_socket`](super::RegisteredConnection::close_socket) before it
    /// closes the socket.
    Socket(RawFd),
}

/// Server of a connection, or of its last request. Only the connection's task writes it.
#[derive(Debug, Default)]
pub(super) struct LastServer {
    /// [`ServerMark`] in a number; 0 without a server.
    mark: AtomicU64,
    seen_from: AtomicAddr,
    /// Socket of [`SeenFrom::Socket`], and 1; 0 without one.
    socket: AtomicI32,
}

/// Place of a server in the backends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServerMark {
    id: u32,
    index: usize,
    is_only: bool,
    /// Whether the backend is [`ConnectionFacts::other_pool`].
    is_in_other_pool: bool,
}

impl LastServer {
    /// Sets the server. Calls `keep_pool` with its backend if the backend does not belong to this
    /// version of the frontend.
    pub(super) fn set(&self, server: &ConnectionServer<'_>, keep_pool: impl FnOnce(Arc<Pool>)) {
        let ConnectionServer { frontend, pool, index, seen_from, is_only } = *server;
        // After a failed attempt, the backend may be newer than the frontend.
        let is_in_other_pool = !frontend.pools().iter().any(|other| Arc::ptr_eq(other, pool));
        if is_in_other_pool {
            keep_pool(pool.clone());
        }
        let mark = ServerMark { id: pool.servers[index].live.id, index, is_only, is_in_other_pool };
        self.mark.store(mark.to_bits(), Ordering::Relaxed);
        match seen_from {
            SeenFrom::Addr(addr) => self.seen_from.store(addr),
            SeenFrom::Socket(socket) => self.socket.store(socket + 1, Ordering::Relaxed),
        }
    }

    /// Notes that the socket of [`SeenFrom::Socket`] is about to be closed.
    pub(super) fn close_socket(&self) {
        self.socket.store(0, Ordering::Relaxed);
    }

    /// Id of the server.
    pub(super) fn id(&self) -> Option<u32> {
        self.mark().map(|mark| mark.id)
    }

    /// Id of the server, if the connection depends on this server only.
    pub(super) fn only(&self) -> Option<u32> {
        self.mark().filter(|mark| mark.is_only).map(|mark| mark.id)
    }

    /// Local address of the connection to the server.
    pub(super) fn seen_from(&self) -> Option<SocketAddr> {
        self.mark()?;
        match self.socket.load(Ordering::Relaxed) {
            0 => self.seen_from.load(),
            socket => local_address(socket - 1),
        }
    }

    /// Returns the server and its backend; `None` if the connection has no server, or if a reload
    /// has removed it since the last request.
    pub(super) fn find<'a>(&self, facts: &'a ConnectionFacts) -> Option<(&'a Pool, &'a Server)> {
        let ServerMark { id, index, is_in_other_pool, .. } = self.mark()?;
        let pools = match is_in_other_pool {
            true => facts.other_pool().map_or(&[][..], slice::from_ref),
            false => facts.frontend.pools(),
        };
        let at_index = |pool: &'a Arc<Pool>| pool.servers.get(index).filter(|server| server.live.id == id);
        let anywhere = |pool: &'a Arc<Pool>| pool.servers.iter().find(|server| server.live.id == id);
        let found = pools.iter().find_map(|pool| Some((&**pool, &**at_index(pool)?)));
        // A reload may have moved the server since the last request.
        found.or_else(|| pools.iter().find_map(|pool| Some((&**pool, &**anywhere(pool)?))))
    }

    fn mark(&self) -> Option<ServerMark> {
        ServerMark::from_bits(self.mark.load(Ordering::Relaxed))
    }
}

/// Local address of a socket.
fn local_address(socket: RawFd) -> Option<SocketAddr> {
    let addr: SockaddrStorage = getsockname(socket).ok()?;
    let v4 = addr.as_sockaddr_in().map(|addr| SocketAddr::V4((*addr).into()));
    v4.or_else(|| addr.as_sockaddr_in6().map(|addr| SocketAddr::V6((*addr).into())))
}

impl ServerMark {
    const IS_SET: u64 = 1 << 63;
    const IS_ONLY: u64 = 1 << 62;
    const IS_IN_OTHER_POOL: u64 = 1 << 61;
    const INDEX: u64 = (1 << 29) - 1;

    fn to_bits(self) -> u64 {
        let flags = [(self.is_only, Self::IS_ONLY), (self.is_in_other_pool, Self::IS_IN_OTHER_POOL)];
        let flags =
            flags.iter().filter(|(is_set, _)| *is_set).fold(Self::IS_SET, |all, (_, flag)| all | flag);
        // A backend has fewer servers than fit into the index.
        flags | (self.index as u64 & Self::INDEX) << 32 | u64::from(self.id)
    }

    fn from_bits(bits: u64) -> Option<ServerMark> {
        (bits & Self::IS_SET != 0).then_some(ServerMark {
            id: bits as u32,
            index: (bits >> 32 & Self::INDEX) as usize,
            is_only: bits & Self::IS_ONLY != 0,
            is_in_other_pool: bits & Self::IS_IN_OTHER_POOL != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_mark_survives_its_conversion_to_bits() {
        for (is_only, is_in_other_pool) in [(false, false), (false, true), (true, false), (true, true)] {
            for (id, index) in [(0, 0), (u32::MAX, 7), (5, 100_000)] {
                let mark = ServerMark { id, index, is_only, is_in_other_pool };
                assert_eq!(ServerMark::from_bits(mark.to_bits()), Some(mark));
            }
        }
        assert_eq!(ServerMark::from_bits(0), None);
    }
}
