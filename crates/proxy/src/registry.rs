//! Registry of one worker: its open connections, and the HTTP requests that servers are
//! processing.
//!
//! Operators list and kill connections through the registry. The worker uses it to end the
//! connections and requests of a server that is down, and to end the connections of clients that a
//! reload denies. Each worker has its own registry, so that nothing waits for its locks.

mod atomic_addr;
mod clock;
mod connection;
mod list;
mod request;
mod server;
#[cfg(test)]
mod tests;

pub(super) use connection::{ConnectionClient, RegisteredConnection};
pub use request::RegisteredRequest;
pub(super) use server::{ConnectionServer, SeenFrom};

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use slab::Slab;
use tokio::time::Instant;

use super::reaper::AdmittedPeers;
use super::relay::RelayEnd;
use super::source;
use clock::CoarseClock;
use connection::OpenConnection;
use convey_model::CountedSource;
use convey_snapshot::Frontend;
use request::RunningRequest;

/// Registry of one worker.
#[derive(Default)]
pub(super) struct Registry {
    // No task is woken while a lock is held.
    connections: Mutex<OpenConnections>,
    requests: Mutex<Slab<RunningRequest>>,
    clock: CoarseClock,
}

/// Open connections of one worker.
struct OpenConnections {
    entries: Slab<Arc<OpenConnection>>,
    /// Serial number of the next connection. The first number is random, so that an id of another
    /// process does not match a connection of this process.
    next_serial: u32,
}

#[cfg(test)]
thread_local! {
    /// Number of locks that this thread has taken.
    static LOCKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl Registry {
    /// Ends the connections and requests to the servers with these ids.
    pub(super) fn end_servers(&self, servers: &BTreeSet<u32>) {
        self.end_where(RelayEnd::ServerGone, |entry| entry.depends_on(servers));
        let mut requests = self.requests();
        let wakers: Vec<Waker> =
            requests.iter_mut().filter_map(|(_, request)| request.end_by(servers)).collect();
        drop(requests);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends the connections of clients that `access` denies; its keys are the ids of the frontends.
    pub(super) fn end_denied(&self, access: &HashMap<u32, AdmittedPeers>) {
        self.end_where(RelayEnd::Denied, |entry| {
            let facts = entry.facts();
            let access = access.get(&facts.frontend.live.id).filter(|_| facts.is_client_known);
            access.is_some_and(|access| !access.admit(entry.client(&facts).ip()))
        });
    }

    /// Counts the connections to these frontends in the frontends' tables of sources, unless they
    /// are counted there already.
    pub(super) fn count_sources(&self, frontends: &[Arc<Frontend>]) {
        for (_, entry) in &self.connections().entries {
            let mut facts = entry.facts();
            let is_ours = |frontend: &&Arc<Frontend>| frontend.live.id == facts.frontend.live.id;
            let Some(frontend) = frontends.iter().find(is_ours).filter(|_| facts.is_client_known) else {
                continue;
            };
            let is_counted = |source: &CountedSource| {
                frontend.sources.as_ref().is_some_and(|sources| source.is_in(sources))
            };
            if !facts.source().is_some_and(is_counted) {
                let source = source::count_open(frontend, entry.client(&facts).ip());
                facts.set_source(source);
            }
        }
    }

    /// Wakes all tasks that wait for the end of their connection.
    pub(super) fn wake_all(&self) {
        let all: Vec<_> = self.connections().entries.iter().map(|(_, entry)| entry.clone()).collect();
        all.into_iter().for_each(|entry| entry.wake());
    }

    /// Advances the coarse clock. The worker calls this function once a second.
    pub(super) fn advance_clock(&self, now: Instant) {
        self.clock.advance(now);
    }

    /// Ends the connections that `is_concerned` selects, and wakes their tasks.
    fn end_where(&self, end: RelayEnd, is_concerned: impl Fn(&OpenConnection) -> bool) {
        let connections = self.connections();
        let concerned = connections.entries.iter().filter(|(_, entry)| is_concerned(entry));
        let concerned: Vec<_> = concerned.map(|(_, entry)| entry.clone()).collect();
        drop(connections);
        for entry in concerned {
            entry.end_by(end);
            entry.wake();
        }
    }

    fn connections(&self) -> MutexGuard<'_, OpenConnections> {
        #[cfg(test)]
        LOCKS.set(LOCKS.get() + 1);
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, Slab<RunningRequest>> {
        #[cfg(test)]
        LOCKS.set(LOCKS.get() + 1);
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Adds the connection that `make` returns for a place and a serial number.
    fn insert(&mut self, make: impl FnOnce(u32, u32) -> OpenConnection) -> Arc<OpenConnection> {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let place = self.entries.vacant_entry();
        let entry = Arc::new(make(place.key() as u32, serial));
        place.insert(entry.clone());
        entry
    }
}

impl Default for OpenConnections {
    fn default() -> OpenConnections {
        OpenConnections { entries: Slab::new(), next_serial: fastrand::u32(..) }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}
