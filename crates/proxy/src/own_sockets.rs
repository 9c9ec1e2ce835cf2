//! Registry of convey's sockets towards servers, to detect loops. If a new client has the address
//! of one of these sockets, convey has connected to itself. The checks of the configuration cannot
//! find all loops, for example those through another program's NAT.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::SockRef;

use convey_model::Endpoint;

/// Addresses of convey's own sockets. Tracking begins with the first client that has an address of
/// this host. Before the first such client no loop is possible, so convey avoids the cost of
/// tracking: a system call for each connection.
#[derive(Debug, Default)]
pub struct OwnSockets {
    is_watching: AtomicBool,
    /// Shards, so that workers rarely contend for a lock.
    shards: [Mutex<HashMap<Endpoint, Vec<Towards>>>; 16],
    hasher: RandomState,
}

/// Frontends that a connection has passed through: the last frontend, and the path before it. A
/// chain of different frontends is valid. A path that contains a frontend twice is an endless loop.
#[derive(Debug)]
pub(super) struct FrontendPath {
    frontend: u32,
    before: Option<Arc<FrontendPath>>,
}

/// Socket of convey towards a server. Several sockets towards different servers may have the same
/// local address and port.
#[derive(Debug, Clone)]
pub(super) struct Towards {
    pub(super) server: SocketAddr,
    pub(super) path: Arc<FrontendPath>,
}

/// Entry of a socket in `OwnSockets`. The drop removes the entry.
#[derive(Debug)]
pub(super) struct OwnSocket {
    all: Arc<OwnSockets>,
    place: Endpoint,
    server: SocketAddr,
}

impl OwnSockets {
    /// Adds a socket that connects this frontend to a `server`. Returns `None` if tracking has not
    /// begun. `before` lists the frontends that the client's connection has already passed through;
    /// `None` if the client is not one of convey's own sockets.
    pub(super) fn note(
        self: &Arc<Self>,
        socket: &impl AsFd,
        server: Endpoint,
        frontend: u32,
        before: Option<&Arc<FrontendPath>>,
    ) -> Option<OwnSocket> {
        if !self.is_watching.load(Ordering::Relaxed) {
            return None;
        }
        let addr = SockRef::from(socket).local_addr().ok()?.as_socket()?;
        let (place, server) = (Endpoint { addr: plain(addr), ..server }, plain(server.addr));
        let path = Arc::new(FrontendPath { frontend, before: before.cloned() });
        self.shard(&place).entry(place).or_default().push(Towards { server, path });
        Some(OwnSocket { all: self.clone(), place, server })
    }

    /// Returns convey's own sockets that have the address of this client. Starts tracking, because
    /// the client has an address of this host.
    pub(super) fn at(&self, client: Endpoint) -> Vec<Towards> {
        if !self.is_watching.load(Ordering::Relaxed) {
            self.is_watching.store(true, Ordering::Relaxed);
        }
        let place = Endpoint { addr: plain(client.addr), ..client };
        self.shard(&place).get(&place).cloned().unwrap_or_default()
    }

    fn shard(&self, place: &Endpoint) -> MutexGuard<'_, HashMap<Endpoint, Vec<Towards>>> {
        let shard = &self.shards[self.hasher.hash_one(place) as usize % self.shards.len()];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrontendPath {
    /// Whether the path contains the frontend with this id.
    pub(super) fn has(&self, frontend: u32) -> bool {
        let all = std::iter::successors(Some(self), |path| path.before.as_deref());
        all.into_iter().any(|path| path.frontend == frontend)
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let mut shard = self.all.shard(&self.place);
        if let Some(sockets) = shard.get_mut(&self.place) {
            sockets.retain(|socket| socket.server != self.server);
            if sockets.is_empty() {
                shard.remove(&self.place);
            }
        }
    }
}

/// Address without flow label and interface, which differ between the two ends of a connection.
pub(super) fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn socket_is_listed_from_its_first_local_client_until_it_closes() {
        let (all, socket) = (Arc::new(OwnSockets::default()), UdpSocket::bind("127.0.0.1:0").unwrap());
        let addr = socket.local_addr().unwrap();
        let server = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let note = |port| all.note(&socket, Endpoint::udp(server(port)), 1, None);
        let servers = |at: fn(_) -> _| all.at(at(addr)).iter().map(|t| t.server).collect::<Vec<_>>();
        assert!(note(1).is_none(), "no client was of this host");
        assert_eq!(servers(Endpoint::udp), []);
        let (first, second) = (note(1).unwrap(), note(2).unwrap());
        assert_eq!(servers(Endpoint::udp), [server(1), server(2)]);
        assert_eq!(servers(Endpoint::tcp), []);
        drop(first);
        assert_eq!(servers(Endpoint::udp), [server(2)]);
        drop(second);
        assert!(all.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn a_path_has_every_frontend_that_it_came_through() {
        let first = Arc::new(FrontendPath { frontend: 1, before: None });
        let second = FrontendPath { frontend: 2, before: Some(first) };
        assert!(second.has(1) && second.has(2) && !second.has(3));
    }
}
