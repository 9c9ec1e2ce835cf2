//! Connections in the registry.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

use super::Registry;
use super::server::{ConnectionServer, LastServer};
use crate::relay::RelayEnd;
use convey_model::CountedSource;
use convey_snapshot::{Pool, WorkerFrontend};

/// Facts of a new client connection, for the registry.
pub(crate) struct ConnectionClient {
    /// Frontend of the connection.
    pub(crate) frontend: Arc<WorkerFrontend>,
    pub(crate) peer: SocketAddr,
    /// Address that the peer connected to.
    pub(crate) vip: SocketAddr,
    /// Time at which the connection was accepted.
    pub(crate) began: Instant,
}

/// Entry of a connection in its worker's registry. The drop removes the entry.
///
/// The steps of a request on a kept connection (`over`, `count`, `set_server`) take no lock, and
/// write only memory of this connection.
pub(crate) struct RegisteredConnection {
    registry: Arc<Registry>,
    entry: Arc<OpenConnection>,
}

/// Open connection of a worker. Its task and the registry share it.
///
/// What each request uses comes first, in the order of the source, so that it takes few cache lines.
#[repr(C)]
pub(super) struct OpenConnection {
    end: OnceLock<RelayEnd>,
    /// Waker of the task that waits first for the end of the connection. It stays, so that later
    /// polls of the task only compare it.
    waker: OnceLock<Waker>,
    /// Number of bytes from the client, and to the client. Only the connection's task writes these
    /// numbers, so plain loads and stores suffice.
    bytes: [AtomicU64; 2],
    /// Time of the last bytes, by the coarse clock of the registry.
    moved: AtomicU64,
    /// Server of the connection, or of its last request.
    server: LastServer,
    /// Index in the registry.
    pub(super) place: u32,
    pub(super) serial: u32,
    /// Address of the peer, which is a proxy if a PROXY header has named the client.
    peer: SocketAddr,
    pub(super) vip: SocketAddr,
    pub(super) began: Instant,
    facts: Mutex<ConnectionFacts>,
}

/// Part of an open connection that changes rarely.
pub(super) struct ConnectionFacts {
    pub(super) frontend: Arc<WorkerFrontend>,
    /// Whether [`OpenConnection::client`] is the address of the client. `false` until the PROXY header
    /// has arrived, because the peer is a proxy then.
    pub(super) is_client_known: bool,
    /// What few connections have; `None` if this one has none of it.
    rare: Option<Box<RareFacts>>,
}

/// Facts that few connections have. They have an allocation of their own, so that the other
/// connections need no memory for them.
#[derive(Default)]
struct RareFacts {
    /// Client that the PROXY header names.
    named: Option<SocketAddr>,
    /// Guard that counts the connection at its source; `None` if the source has no limits.
    source: Option<CountedSource>,
    /// Backend of the last server, if it does not belong to the frontend.
    other_pool: Option<Arc<Pool>>,
    /// Last other task that waits for the end of the connection.
    other_waker: Option<Waker>,
}

impl RegisteredConnection {
    /// Registers a connection of this client.
    pub(crate) fn new(registry: &Arc<Registry>, of: ConnectionClient) -> RegisteredConnection {
        let ConnectionClient { frontend, peer, vip, began } = of;
        registry.advance_clock(began);
        let is_client_known = !frontend.config.accept_proxy;
        let facts = ConnectionFacts { frontend, is_client_known, rare: None };
        let moved = AtomicU64::new(registry.clock.nanos());
        let entry = registry.connections().insert(|place, serial| OpenConnection {
            place,
            serial,
            peer,
            vip,
            began,
            bytes: Default::default(),
            moved,
            server: LastServer::default(),
            end: OnceLock::new(),
            waker: OnceLock::new(),
            facts: Mutex::new(facts),
        });
        RegisteredConnection { registry: registry.clone(), entry }
    }

    /// Moves the connection to this frontend, or to this version of its frontend.
    pub(crate) fn set_frontend(&self, frontend: &Arc<WorkerFrontend>) {
        let mut facts = self.entry.facts();
        facts.frontend = frontend.clone();
        if let Some(rare) = &mut facts.rare {
            rare.other_pool = None;
        }
    }

    /// Notes that the PROXY header has arrived, and the client that it names. Without a name, the
    /// peer is the client.
    pub(crate) fn set_client(&self, named: Option<SocketAddr>) {
        let mut facts = self.entry.facts();
        facts.is_client_known = true;
        if named.is_some() {
            facts.rare().named = named;
        }
    }

    /// Stores the guard that counts the connection at its source.
    pub(crate) fn set_source(&self, source: Option<CountedSource>) {
        let before = self.entry.facts().set_source(source);
        drop(before);
    }

    /// Sets the server of the connection.
    pub(crate) fn set_server(&self, server: &ConnectionServer<'_>) {
        self.entry.server.set(server, |pool| self.entry.facts().rare().other_pool = Some(pool));
    }

    /// Address of the peer.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.entry.peer
    }

    /// Address that the peer connected to.
    pub(crate) fn vip(&self) -> SocketAddr {
        self.entry.vip
    }

    /// Time at which the connection was accepted.
    pub(crate) fn began(&self) -> Instant {
        self.entry.began
    }

    /// Notes that the socket of [`SeenFrom::Socket`](super::SeenFrom::Socket) is about to be closed.
    pub(crate) fn close_socket(&self) {
        self.entry.server.close_socket();
    }

    /// Id of the server of the connection.
    pub(crate) fn server(&self) -> Option<u32> {
        self.entry.server.id()
    }

    /// Counts bytes from the client (`rx`) and to the client (`tx`).
    #[inline]
    pub(crate) fn count(&self, rx: u64, tx: u64) {
        for (bytes, n) in self.entry.bytes.iter().zip([rx, tx]) {
            bytes.store(bytes.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
        self.entry.moved.store(self.registry.clock.nanos(), Ordering::Relaxed);
    }

    /// Returns the reason for which the connection must end; `None` while it may continue.
    pub(crate) fn end(&self) -> Option<RelayEnd> {
        self.entry.end.get().copied()
    }

    /// Waits until the connection must end.
    pub(crate) fn over(&self) -> impl Future<Output = RelayEnd> + use<> {
        let entry = self.entry.clone();
        poll_fn(move |cx| entry.poll_over(cx))
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        let entry = self.registry.connections().entries.try_remove(self.entry.place as usize);
        drop(entry);
        // A future that waits for the end may keep the entry for a while.
        let source = self.entry.facts().set_source(None);
        drop(source);
    }
}

impl OpenConnection {
    /// Requests the end of the connection, unless it must end already. The caller has to wake the
    /// connection's tasks.
    pub(super) fn end_by(&self, end: RelayEnd) {
        let _ = self.end.set(end);
    }

    /// Wakes the tasks that wait for the end of the connection.
    pub(super) fn wake(&self) {
        // A task that registers its waker under the lock after this call sees the end.
        let other = self.facts().rare.as_mut().and_then(|rare| rare.other_waker.take());
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
        other.into_iter().for_each(Waker::wake);
    }

    /// Whether the connection must end when these servers go down.
    pub(super) fn depends_on(&self, servers: &BTreeSet<u32>) -> bool {
        self.server.only().is_some_and(|id| servers.contains(&id))
    }

    /// Address of the client.
    pub(super) fn client(&self, facts: &ConnectionFacts) -> SocketAddr {
        facts.rare.as_ref().and_then(|rare| rare.named).unwrap_or(self.peer)
    }

    /// Number of bytes from the client, and to the client.
    pub(super) fn bytes(&self) -> [u64; 2] {
        self.bytes.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Time of the last bytes, by the coarse clock of the registry.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Server of the connection, or of its last request.
    pub(super) fn server(&self) -> &LastServer {
        &self.server
    }

    pub(super) fn facts(&self) -> MutexGuard<'_, ConnectionFacts> {
        #[cfg(test)]
        super::LOCKS.set(super::LOCKS.get() + 1);
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        if let Some(end) = self.end.get() {
            return Poll::Ready(*end);
        }
        match self.waker.get() {
            Some(waker) if waker.will_wake(cx.waker()) => Poll::Pending,
            _ => self.poll_registering(cx),
        }
    }

    #[cold]
    fn poll_registering(&self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        let mut facts = self.facts();
        let waker = self.waker.get_or_init(|| cx.waker().clone());
        if !waker.will_wake(cx.waker()) {
            facts.rare().other_waker = Some(cx.waker().clone());
        }
        self.end.get().map_or(Poll::Pending, |end| Poll::Ready(*end))
    }
}

impl ConnectionFacts {
    /// Guard that counts the connection at its source; `None` if the source has no limits.
    pub(super) fn source(&self) -> Option<&CountedSource> {
        self.rare.as_ref()?.source.as_ref()
    }

    /// Replaces the guard that counts the connection at its source. Returns the guard before.
    pub(super) fn set_source(&mut self, source: Option<CountedSource>) -> Option<CountedSource> {
        match source {
            Some(source) => self.rare().source.replace(source),
            None => self.rare.as_mut()?.source.take(),
        }
    }

    /// Backend of the last server, if it does not belong to the frontend.
    pub(super) fn other_pool(&self) -> Option<&Arc<Pool>> {
        self.rare.as_ref()?.other_pool.as_ref()
    }

    fn rare(&mut self) -> &mut RareFacts {
        self.rare.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_of_a_connection_takes_216_bytes() {
        assert!(size_of::<OpenConnection>() <= 216, "{}", size_of::<OpenConnection>());
    }
}
