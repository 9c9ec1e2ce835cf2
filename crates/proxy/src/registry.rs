//! Registry of one worker thread: its open connections, and the HTTP requests that servers are
//! processing.
//!
//! Operators list and kill connections through the registry. The worker uses it to end the
//! connections and requests of a server that is down, and to end the connections of clients that a
//! reload denies. Each thread has its own registry, so the registry needs no locks.

mod connection;
mod list;
mod request;
#[cfg(test)]
mod tests;

pub(super) use connection::{ConnectionClient, ConnectionServer, RegisteredConnection};
pub(super) use list::{kill, list};
pub use request::RegisteredRequest;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;
use tokio::time::Instant;

use super::reaper::AdmittedPeers;
use super::relay::RelayEnd;
use super::source;
use connection::OpenConnection;
use convey_model::CountedSource;
use convey_snapshot::Frontend;
use request::RunningRequest;

thread_local! {
    static REGISTRY: Registry = const { Registry::new() };
}

struct Registry {
    connections: RefCell<Slab<OpenConnection>>,
    requests: RefCell<Slab<RunningRequest>>,
    /// Coarse clock, at most one second late. It gives the time of the last bytes without a system
    /// call for each read.
    clock: Cell<Option<Instant>>,
    /// Serial number of the next connection. The first number is random, so that an id of another
    /// process does not match a connection of this process.
    next_serial: Cell<Option<u32>>,
}

impl Registry {
    const fn new() -> Registry {
        Registry {
            connections: RefCell::new(Slab::new()),
            requests: RefCell::new(Slab::new()),
            clock: Cell::new(None),
            next_serial: Cell::new(None),
        }
    }

    /// Advances the coarse clock.
    fn advance_clock(&self, now: Instant) {
        self.clock.set(Some(self.clock.get().map_or(now, |before| before.max(now))));
    }

    /// Requests the end of the connections that `is_concerned` selects. Returns the wakers of their
    /// tasks.
    fn end_connections(&self, end: RelayEnd, is_concerned: impl Fn(&OpenConnection) -> bool) -> Vec<Waker> {
        let mut connections = self.connections.borrow_mut();
        let concerned = connections.iter_mut().filter(|(_, entry)| is_concerned(entry));
        concerned.filter_map(|(_, entry)| entry.end_by(end)).collect()
    }
}

/// Ends this thread's connections and requests to the servers with these ids.
pub(super) fn end_servers(servers: &BTreeSet<u32>) {
    let wakers = REGISTRY.with(|registry| {
        let mut wakers = registry.end_connections(RelayEnd::ServerGone, |entry| entry.depends_on(servers));
        let mut requests = registry.requests.borrow_mut();
        wakers.extend(requests.iter_mut().filter_map(|(_, request)| request.end_by(servers)));
        wakers
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// Ends this thread's connections of clients that `access` denies; its keys are the ids of the
/// frontends.
pub(super) fn end_denied(access: &HashMap<u32, AdmittedPeers>) {
    let is_denied = |entry: &OpenConnection| {
        let access = access.get(&entry.frontend.0).filter(|_| entry.is_client_known);
        access.is_some_and(|access| !access.admit(entry.client.ip()))
    };
    let wakers = REGISTRY.with(|registry| registry.end_connections(RelayEnd::Denied, is_denied));
    wakers.into_iter().for_each(Waker::wake);
}

/// Counts this thread's connections to these frontends in the frontends' tables of sources, unless
/// they are counted there already.
pub(super) fn count_sources(frontends: &[Arc<Frontend>]) {
    REGISTRY.with(|registry| {
        let mut connections = registry.connections.borrow_mut();
        for (_, entry) in connections.iter_mut().filter(|(_, entry)| entry.is_client_known) {
            let frontend = frontends.iter().find(|frontend| frontend.live.id == entry.frontend.0);
            let Some(frontend) = frontend else { continue };
            let is_counted = |source: &CountedSource| {
                frontend.sources.as_ref().is_some_and(|sources| source.is_in(sources))
            };
            if !entry.source.as_ref().is_some_and(is_counted) {
                entry.source = source::count_open(frontend, entry.client.ip());
            }
        }
    });
}

/// Wakes all tasks of this thread that wait for the end of their connection.
pub(super) fn wake_all() {
    let wakers: Vec<Waker> = REGISTRY.with(|registry| {
        let mut connections = registry.connections.borrow_mut();
        connections.iter_mut().filter_map(|(_, entry)| entry.waker.take()).collect()
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// Advances the coarse clock of this thread. The worker calls this function once a second.
pub(super) fn advance_clock(now: Instant) {
    REGISTRY.with(|registry| registry.advance_clock(now));
}
