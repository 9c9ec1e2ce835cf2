//! Places of connections in the process, which workers take from a shared number in batches. The
//! number is an upper bound of the connections that are open. While it is small, a new connection
//! reads no counters of other workers.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::clients::{Left, is_limited};
use super::context::WorkerContext;
use convey_model::fits;
use convey_snapshot::Frontend;

/// Number of places that a worker takes or returns at once. A worker keeps less than twice as many
/// unused places.
const BATCH: u64 = 64;

/// Number of places that all workers together have taken.
// The alignment keeps the number apart from memory that workers write with each connection.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct TakenPlaces(AtomicU64);

/// Places that one worker has taken and does not use.
#[derive(Debug, Default)]
pub(super) struct SparePlaces(AtomicI64);

impl TakenPlaces {
    /// Upper bound of the number of places in use.
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn remove(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }
}

impl SparePlaces {
    /// Uses a place. Takes a batch if the worker has none.
    pub(super) fn take(&self, taken: &TakenPlaces) {
        if self.0.fetch_sub(1, Ordering::Relaxed) <= 0 {
            taken.add(BATCH);
            self.0.fetch_add(BATCH as i64, Ordering::Relaxed);
        }
    }

    /// Keeps a place that is no longer used. Returns a batch if the worker has many.
    pub(super) fn put(&self, taken: &TakenPlaces) {
        if self.0.fetch_add(1, Ordering::Relaxed) + 1 >= 2 * BATCH as i64 {
            self.0.fetch_sub(BATCH as i64, Ordering::Relaxed);
            taken.remove(BATCH);
        }
    }
}

/// Whether so few of `most` connections are taken that each client may have another one, even if
/// one client has all of them.
fn is_ample(taken: u64, most: u64) -> bool {
    taken < most / 2
}

/// Whether each client may have another connection if `left` are free, even if one client has all
/// `taken` connections.
fn fits_any(taken: u64, left: u64) -> bool {
    u32::try_from(taken).is_ok_and(|taken| fits(taken, left))
}

impl Left {
    /// What is left at least while less than half of `most` connections are taken.
    fn ample(most: u64) -> Left {
        Left { connections: most / 2, local_ports: u64::MAX, is_ample: true }
    }
}

impl WorkerContext {
    /// Whether the process may have another connection.
    pub(super) fn has_room(&self) -> bool {
        is_ample(self.clients.taken_places(), self.shared.descriptors.connections())
            || self.shared.connections_left(self.totals()) > 0
    }

    /// Returns what is left for further connections of the process. Local ports do not matter.
    pub(super) fn left(&self) -> Left {
        let most = self.shared.descriptors.connections();
        if is_ample(self.clients.taken_places(), most) {
            return Left::ample(most);
        }
        let connections = self.shared.connections_left(self.totals());
        Left { connections, local_ports: u64::MAX, is_ample: false }
    }

    /// Returns what is left for a TCP connection to this frontend, which counts as open already.
    pub(super) fn left_at(&self, frontend: &Frontend) -> Left {
        let (taken, most) = (self.clients.taken_places(), self.shared.descriptors.connections());
        // The number of connections that may wait for a limited frontend depends on the exact room.
        if !is_limited(frontend) && is_ample(taken, most) && self.has_ample_ports(frontend, taken) {
            return Left::ample(most);
        }
        Left {
            connections: self.shared.connections_left(self.totals()) + 1,
            local_ports: self.shared.ports_left(frontend).saturating_add(1),
            is_ample: false,
        }
    }

    /// Returns what is left for another UDP session. `connections` is the number of further sessions
    /// that the process may have.
    pub(super) fn left_for_session(&self, connections: u64) -> Left {
        let taken = self.clients.taken_places();
        // The questions of a client are subtracted from what is left for it.
        let is_ample = fits_any(taken, connections.saturating_sub(taken));
        Left { connections, local_ports: u64::MAX, is_ample }
    }

    /// Whether the local ports towards the frontend's servers suffice for another connection of
    /// each client, even if all connections of the process were connections of this client to these
    /// servers.
    fn has_ample_ports(&self, frontend: &Frontend, taken: u64) -> bool {
        let servers = frontend.pool.servers.len() as u64;
        let ports = u64::from(self.shared.local_ports.count()).saturating_mul(servers);
        // With routes by server name, the ClientHello selects the servers.
        frontend.sni.is_none() && (ports == 0 || fits_any(taken, ports.saturating_sub(taken)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::context;
    use convey_snapshot::fixture;

    #[test]
    fn taken_places_are_at_least_the_used_ones() {
        let (taken, workers) = (TakenPlaces::default(), [SparePlaces::default(), SparePlaces::default()]);
        let mut used = 0;
        for (step, worker) in (0..1_000).map(|step| (step, &workers[step % 3 / 2])) {
            if step % 7 < 4 || used == 0 {
                worker.take(&taken);
                used += 1;
            } else {
                worker.put(&taken);
                used -= 1;
            }
            assert!((used..used + 4 * BATCH).contains(&taken.count()), "{used} {}", taken.count());
        }
    }

    #[test]
    fn room_is_ample_until_half_of_the_connections_are_taken() {
        let pool = fixture::pool("web", Vec::new());
        let frontend = fixture::frontend("web", &["10.0.0.1:80"], &pool);
        let context = context(fixture::snapshot(vec![frontend.clone()], vec![pool]));
        let take = |n: u64| (0..n).for_each(|_| context.clients.take_place());
        let half = context.shared.descriptors.connections() / 2;
        take(half - BATCH);
        assert!(context.left_at(&frontend).is_ample && context.left().is_ample);
        take(BATCH);
        assert!(!context.left_at(&frontend).is_ample && !context.left().is_ample);
        assert_eq!(context.left().connections, context.shared.connections_left(context.totals()));
    }

    #[test]
    fn unused_places_of_a_worker_are_fewer_than_two_batches() {
        let (taken, worker) = (TakenPlaces::default(), SparePlaces::default());
        (0..1_000).for_each(|_| worker.take(&taken));
        (0..1_000).for_each(|_| worker.put(&taken));
        assert!(taken.count() < 2 * BATCH, "{}", taken.count());
    }
}
