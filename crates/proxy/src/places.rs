//! Places of connections in the process, which workers take from a shared number in batches. The
//! number is an upper bound of the connections that are open. While it is small, a new connection
//! reads no counters of other workers.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::clients::Left;
use super::context::WorkerContext;
use convey_model::fits;
use convey_snapshot::Frontend;

/// Maximum number of places that a worker takes or returns at once.
const MAX_BATCH: u64 = 64;

/// A process has at least so many batches of places, so the unused places of its workers are a small
/// part of its connections.
const MIN_BATCHES: u64 = 512;

/// Number of places that all workers together have taken.
// The alignment keeps the number apart from memory that workers write with each connection.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct TakenPlaces(AtomicU64);

/// Places that one worker has taken and does not use: less than two batches.
#[derive(Debug)]
pub(super) struct SparePlaces {
    count: AtomicI64,
    /// Number of places that the worker takes or returns at once.
    batch: u64,
}

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
    /// No places, for a worker of a process with at most this many connections.
    pub(super) fn of_process(most: u64) -> SparePlaces {
        SparePlaces { count: AtomicI64::new(0), batch: (most / MIN_BATCHES).clamp(1, MAX_BATCH) }
    }

    /// Uses a place. Takes a batch if the worker has none.
    pub(super) fn take(&self, taken: &TakenPlaces) {
        if self.count.fetch_sub(1, Ordering::Relaxed) <= 0 {
            taken.add(self.batch);
            self.count.fetch_add(self.batch as i64, Ordering::Relaxed);
        }
    }

    /// Keeps a place that is no longer used. Returns a batch if the worker has many.
    pub(super) fn put(&self, taken: &TakenPlaces) {
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 >= 2 * self.batch as i64 {
            self.count.fetch_sub(self.batch as i64, Ordering::Relaxed);
            taken.remove(self.batch);
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
        if is_ample(taken, most) && self.has_ample_ports(frontend, taken) {
            return Left::ample(most);
        }
        Left {
            connections: self.exact_room(),
            local_ports: self.shared.ports_left(frontend).saturating_add(1),
            is_ample: false,
        }
    }

    /// Number of connections that the process may have further, for a connection that counts as open
    /// already. This reads the counters of all workers.
    pub(super) fn exact_room(&self) -> u64 {
        self.shared.connections_left(self.totals()) + 1
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
        // With routes by server name, the client has a share of the ports towards all servers.
        let servers: u64 = match &frontend.sni {
            None => frontend.pool.servers.len() as u64,
            Some(_) => frontend.pools().iter().map(|pool| pool.servers.len() as u64).sum(),
        };
        let ports = u64::from(self.shared.local_ports.count()).saturating_mul(servers);
        ports == 0 || fits_any(taken, ports.saturating_sub(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::context;
    use convey_model as model;
    use convey_snapshot::fixture;

    /// So many connections that a worker takes the largest batches.
    const SPARE: u64 = MAX_BATCH * MIN_BATCHES;

    #[test]
    fn taken_places_are_at_least_the_used_ones() {
        let (taken, workers) = (TakenPlaces::default(), [SPARE, SPARE].map(SparePlaces::of_process));
        let mut used = 0;
        for (step, worker) in (0..1_000).map(|step| (step, &workers[step % 3 / 2])) {
            if step % 7 < 4 || used == 0 {
                worker.take(&taken);
                used += 1;
            } else {
                worker.put(&taken);
                used -= 1;
            }
            assert!((used..used + 4 * MAX_BATCH).contains(&taken.count()), "{used} {}", taken.count());
        }
    }

    #[test]
    fn room_is_ample_until_half_of_the_connections_are_taken() {
        let pool = fixture::pool("web", Vec::new());
        let frontend = fixture::frontend("web", &["10.0.0.1:80"], &pool);
        let context = context(fixture::snapshot(vec![frontend.clone()], vec![pool]));
        let take = |n: u64| (0..n).for_each(|_| context.clients.take_place());
        let half = context.shared.descriptors.connections() / 2;
        take(half - 1);
        assert!(context.left_at(&frontend).is_ample && context.left().is_ample);
        take(1);
        assert!(!context.left_at(&frontend).is_ample && !context.left().is_ample);
        assert_eq!(context.left().connections, context.shared.connections_left(context.totals()));
    }

    #[test]
    fn room_is_ample_for_frontends_with_limits_or_names() {
        let servers = || vec![(fixture::server("s", "10.0.1.1:80"), fixture::up())];
        let pools = ["web", "api"].map(|name| fixture::pool(name, servers()));
        let mut limited = model::fixture::frontend("limited", &["10.0.0.1:80"], "web");
        (limited.max_connections, limited.max_connections_per_client) = (Some(9), Some(3));
        let mut named = model::fixture::frontend("named", &["10.0.0.1:443"], "web");
        named.sni_routes = vec![model::fixture::sni_route("api.example", "api")];
        let limited = fixture::frontend_of(limited, &pools[0]);
        let named = fixture::http_frontend(named, &pools[0], &pools[1..]);
        let context = context(fixture::snapshot(vec![limited.clone(), named.clone()], pools.to_vec()));
        assert!(context.left_at(&limited).is_ample && context.left_at(&named).is_ample);
        (0..context.shared.descriptors.connections()).for_each(|_| context.clients.take_place());
        assert!(!context.left_at(&limited).is_ample && !context.left_at(&named).is_ample);
    }

    #[test]
    fn unused_places_of_a_worker_are_fewer_than_two_batches() {
        let (taken, worker) = (TakenPlaces::default(), SparePlaces::of_process(SPARE));
        (0..1_000).for_each(|_| worker.take(&taken));
        (0..1_000).for_each(|_| worker.put(&taken));
        assert!(taken.count() < 2 * MAX_BATCH, "{}", taken.count());
    }

    #[test]
    fn unused_places_of_many_workers_leave_ample_room() {
        for most in [200, 1_000, 30_000, 500_000] {
            let (taken, workers) = (TakenPlaces::default(), [most; 64].map(SparePlaces::of_process));
            for worker in &workers {
                (0..200).for_each(|_| worker.take(&taken));
                (0..200).for_each(|_| worker.put(&taken));
            }
            let most_unused = most.max(MIN_BATCHES) / 4;
            assert!(taken.count() < most_unused, "{} of {most}", taken.count());
        }
    }
}
