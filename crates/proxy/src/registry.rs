//! Registry of one worker: its open connections, and the HTTP requests that servers are
//! processing.
//!
//! Operators list and kill connections through the registry. The worker uses it to end the
//! connections and requests of a server that is down, and to end the connections of clients that a
//! reload denies. Each worker has its own registry, so that nothing waits for its locks.

mod connection;
mod list;
mod request;
#[cfg(test)]
mod tests;

pub(super) use connection::{ConnectionClient, ConnectionServer, RegisteredConnection};
pub use request::RegisteredRequest;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Registry of one worker.
#[derive(Default)]
pub(super) struct Registry {
    // No task is woken while a lock is held.
    connections: Mutex<OpenConnections>,
    requests: Mutex<Slab<RunningRequest>>,
}

/// Open connections of one worker.
struct OpenConnections {
    entries: Slab<OpenConnection>,
    /// Coarse clock, at most one second late. It gives the time of the last bytes without a system
    /// call for each read.
    clock: Option<Instant>,
    /// Serial number of the next connection. The first number is random, so that an id of another
    /// process does not match a connection of this process.
    next_serial: u32,
}

impl Registry {
    /// Ends the connections and requests to the servers with these ids.
    pub(super) fn end_servers(&self, servers: &BTreeSet<u32>) {
        let mut wakers =
            self.connections().end_where(RelayEnd::ServerGone, |entry| entry.depends_on(servers));
        let mut requests = self.requests();
        wakers.extend(requests.iter_mut().filter_map(|(_, request)| request.end_by(servers)));
        drop(requests);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends the connections of clients that `access` denies; its keys are the ids of the frontends.
    pub(super) fn end_denied(&self, access: &HashMap<u32, AdmittedPeers>) {
        let is_denied = |entry: &OpenConnection| {
            let access = access.get(&entry.frontend.0).filter(|_| entry.is_client_known);
            access.is_some_and(|access| !access.admit(entry.client.ip()))
        };
        let wakers = self.connections().end_where(RelayEnd::Denied, is_denied);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Counts the connections to these frontends in the frontends' tables of sources, unless they
    /// are counted there already.
    pub(super) fn count_sources(&self, frontends: &[Arc<Frontend>]) {
        let mut connections = self.connections();
        for (_, entry) in connections.entries.iter_mut().filter(|(_, entry)| entry.is_client_known) {
            let frontend = frontends.iter().find(|frontend| frontend.live.id == entry.frontend.0);
            let Some(frontend) = frontend else { continue };
            let is_counted = |source: &CountedSource| {
                frontend.sources.as_ref().is_some_and(|sources| source.is_in(sources))
            };
            if !entry.source.as_ref().is_some_and(is_counted) {
                entry.source = source::count_open(frontend, entry.client.ip());
            }
        }
    }

    /// Wakes all tasks that wait for the end of their connection.
    pub(super) fn wake_all(&self) {
        let mut connections = self.connections();
        let wakers: Vec<Waker> =
            connections.entries.iter_mut().filter_map(|(_, entry)| entry.waker.take()).collect();
        drop(connections);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Advances the coarse clock. The worker calls this function once a second.
    pub(super) fn advance_clock(&self, now: Instant) {
        self.connections().advance_clock(now);
    }

    fn connections(&self) -> MutexGuard<'_, OpenConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, Slab<RunningRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn advance_clock(&mut self, now: Instant) {
        self.clock = Some(self.clock.map_or(now, |before| before.max(now)));
    }

    /// Requests the end of the connections that `is_concerned` selects. Returns the wakers of their
    /// tasks.
    fn end_where(&mut self, end: RelayEnd, is_concerned: impl Fn(&OpenConnection) -> bool) -> Vec<Waker> {
        let concerned = self.entries.iter_mut().filter(|(_, entry)| is_concerned(entry));
        concerned.filter_map(|(_, entry)| entry.end_by(end)).collect()
    }
}

impl Default for OpenConnections {
    fn default() -> OpenConnections {
        OpenConnections { entries: Slab::new(), clock: None, next_serial: fastrand::u32(..) }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}
