//! Connections in the registry.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Waker};

use tokio::time::Instant;

use super::Registry;
use crate::relay::RelayEnd;
use convey_model::{CountedSource, Mode};

/// Facts of a new client connection, for the registry.
pub(crate) struct ConnectionClient {
    /// Id and name of the frontend.
    pub(crate) frontend: (u32, Arc<str>),
    /// Mode of the frontend.
    pub(crate) mode: Mode,
    /// Address of the peer.
    pub(crate) client: SocketAddr,
    /// Address that the peer connected to.
    pub(crate) vip: SocketAddr,
    /// Whether `client` is the address of the client. `false` until the PROXY header has arrived,
    /// because the peer is a proxy then.
    pub(crate) is_client_known: bool,
    /// Time at which the connection was accepted.
    pub(crate) began: Instant,
}

/// Server of a client connection, for the registry.
pub(crate) struct ConnectionServer {
    /// Id of the server.
    pub(crate) id: u32,
    /// Names of the backend and of the server.
    pub(crate) names: (Arc<str>, Arc<str>),
    /// Address of the server.
    pub(crate) addr: SocketAddr,
    /// Local address of the connection to the server, which the server sees as its client.
    pub(crate) seen_from: Option<SocketAddr>,
    /// Whether the client's connection ends when the server goes down. In mode http only the
    /// request ends.
    pub(crate) is_only: bool,
}

/// Entry of a connection in its worker's registry. The drop removes the entry.
pub(crate) struct RegisteredConnection {
    registry: Arc<Registry>,
    place: usize,
}

impl RegisteredConnection {
    /// Registers a connection of this client.
    pub(crate) fn new(registry: &Arc<Registry>, of: ConnectionClient) -> RegisteredConnection {
        let ConnectionClient { frontend, mode, client, vip, is_client_known, began } = of;
        let mut connections = registry.connections();
        connections.advance_clock(began);
        let serial = connections.next_serial;
        connections.next_serial = serial.wrapping_add(1);
        let (source, server, end, waker, bytes, moved) = (None, None, None, None, [0; 2], began);
        let entry = OpenConnection {
            serial,
            frontend,
            mode,
            client,
            vip,
            is_client_known,
            source,
            server,
            began,
            moved,
            bytes,
            end,
            waker,
        };
        let place = connections.entries.insert(entry);
        RegisteredConnection { registry: registry.clone(), place }
    }

    /// Moves the connection to the frontend with this id, name and mode.
    pub(crate) fn set_frontend(&self, id: u32, name: &Arc<str>, mode: Mode) {
        self.with(|entry| (entry.frontend, entry.mode) = ((id, name.clone()), mode));
    }

    /// Sets the client that the PROXY header names.
    pub(crate) fn set_client(&self, client: SocketAddr) {
        self.with(|entry| (entry.client, entry.is_client_known) = (client, true));
    }

    /// Stores the guard that counts the connection at its source.
    pub(crate) fn set_source(&self, source: Option<CountedSource>) {
        self.with(|entry| entry.source = source);
    }

    /// Sets the server of the connection.
    pub(crate) fn set_server(&self, server: ConnectionServer) {
        self.with(|entry| entry.server = Some(server));
    }

    /// Id of the server of the connection.
    pub(crate) fn server(&self) -> Option<u32> {
        self.with(|entry| entry.server.as_ref().map(|server| server.id))
    }

    /// Counts bytes from the client (`rx`) and to the client (`tx`).
    #[inline]
    pub(crate) fn count(&self, rx: u64, tx: u64) {
        let mut connections = self.registry.connections();
        let clock = connections.clock;
        let entry = &mut connections.entries[self.place];
        entry.bytes[0] += rx;
        entry.bytes[1] += tx;
        entry.moved = clock.unwrap_or(entry.moved);
    }

    /// Returns the reason for which the connection must end; `None` while it may continue.
    pub(crate) fn end(&self) -> Option<RelayEnd> {
        self.with(|entry| entry.end)
    }

    /// Waits until the connection must end. The future must not be polled after the entry is
    /// dropped.
    pub(crate) fn over(&self) -> impl Future<Output = RelayEnd> + use<> {
        let (registry, place) = (self.registry.clone(), self.place);
        poll_fn(move |cx| {
            let entry = &mut registry.connections().entries[place];
            if let Some(end) = entry.end {
                return Poll::Ready(end);
            }
            if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                entry.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut OpenConnection) -> T) -> T {
        change(&mut self.registry.connections().entries[self.place])
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        let entry = self.registry.connections().entries.try_remove(self.place);
        drop(entry);
    }
}

/// Open connection of a worker, as it is stored in the registry.
pub(super) struct OpenConnection {
    pub(super) serial: u32,
    pub(super) frontend: (u32, Arc<str>),
    pub(super) mode: Mode,
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
    /// Whether `client` is the address of the client. `false` until the PROXY header has arrived,
    /// because the peer is a proxy then.
    pub(super) is_client_known: bool,
    /// Guard that counts the connection at its source; `None` if the source has no limits.
    pub(super) source: Option<CountedSource>,
    /// Server of the connection, or of its last request.
    pub(super) server: Option<ConnectionServer>,
    pub(super) began: Instant,
    /// Time of the last bytes, by the coarse clock.
    pub(super) moved: Instant,
    /// Number of bytes from the client, and to the client.
    pub(super) bytes: [u64; 2],
    pub(super) end: Option<RelayEnd>,
    pub(super) waker: Option<Waker>,
}

impl OpenConnection {
    /// Requests the end of the connection for this reason. Returns the waker of its task.
    pub(super) fn end_by(&mut self, end: RelayEnd) -> Option<Waker> {
        self.end = Some(end);
        self.waker.take()
    }

    /// Whether the connection must end when these servers go down.
    pub(super) fn depends_on(&self, servers: &BTreeSet<u32>) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_only && servers.contains(&server.id))
    }
}
