//! Room for further connections, as one worker estimates it. An exact number needs the counters of
//! all workers, which these workers change with each connection: reading them costs more than all
//! other checks of a new connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::clients::Left;
use super::context::WorkerContext;
use convey_model::fits;
use convey_snapshot::Frontend;
use convey_snapshot::stats::Traffic;

/// Maximum age of an estimate. Open UDP sessions and streams of HTTP/2 take from the same room, and
/// do not use up the estimate.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Part of the free connections that all workers together may take before they read the counters
/// again.
const PART: u64 = 4;

/// Last estimate of a worker. Only the worker's thread writes it.
#[derive(Debug, Default)]
pub(super) struct RoomEstimate {
    /// Number of connections that the worker may still accept by this estimate.
    uses: AtomicU64,
    /// Upper bound of the connections that a client may have.
    taken: AtomicU64,
    /// Lower bound of the number of further connections.
    left: AtomicU64,
    /// Time of the estimate, by the coarse clock of the registry.
    at: AtomicU64,
}

impl RoomEstimate {
    /// Number of connections that the worker may still accept by this estimate.
    fn uses_at(&self, now: u64) -> u64 {
        let age = now.saturating_sub(self.at.load(Ordering::Relaxed));
        if u128::from(age) < MAX_AGE.as_nanos() { self.uses.load(Ordering::Relaxed) } else { 0 }
    }
}

/// Bounds that hold until the estimate is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    taken: u64,
    left: u64,
    uses: u64,
}

impl Room {
    /// Estimates the room of one of `workers` workers, if all of them have `taken` connections and
    /// may have `left` more. Returns `None` if so little is left that one client may have used up
    /// its share.
    fn estimate(taken: u64, left: u64, workers: usize) -> Option<Room> {
        let part = left / PART;
        let room = Room { taken: taken + part, left: left - part, uses: part / workers.max(1) as u64 };
        (room.uses > 0 && fits_any(room.taken, room.left)).then_some(room)
    }
}

/// Whether each client may have another connection, if all clients together have `taken`
/// connections and `left` are free.
fn fits_any(taken: u64, left: u64) -> bool {
    u32::try_from(taken).is_ok_and(|taken| fits(taken, left))
}

impl WorkerContext {
    /// Whether the process may have another TCP connection; `totals` are the counters of all
    /// traffic.
    pub(super) fn has_room(&self, totals: &Traffic) -> bool {
        self.room.uses_at(self.registry.now()) > 0 || self.shared.connections_left(totals) > 0
    }

    /// Returns what is left for further connections of the process. Local ports do not matter.
    pub(super) fn left(&self, totals: &Traffic) -> Left {
        match self.estimated(totals) {
            Some(room) => Left { connections: room.left, local_ports: u64::MAX, is_ample: true },
            None => Left {
                connections: self.shared.connections_left(totals),
                local_ports: u64::MAX,
                is_ample: false,
            },
        }
    }

    /// Returns what is left for a connection to this frontend, which counts as open already.
    pub(super) fn left_at(&self, frontend: &Frontend, totals: &Traffic) -> Left {
        // The number of connections that may wait for a limited frontend depends on the exact room.
        let config = &frontend.config;
        let is_limited = (config.max_connections_per_client, config.max_connections) != (None, None);
        if !is_limited
            && let Some(room) = self.estimated(totals)
            && self.has_ample_ports(frontend, room)
        {
            return Left { connections: room.left, local_ports: u64::MAX, is_ample: true };
        }
        Left {
            connections: self.shared.connections_left(totals) + 1,
            local_ports: self.shared.ports_left(frontend).saturating_add(1),
            is_ample: false,
        }
    }

    /// Whether the local ports towards the frontend's servers suffice for another connection of any
    /// client.
    fn has_ample_ports(&self, frontend: &Frontend, room: Room) -> bool {
        let all = u64::from(self.shared.local_ports.count());
        let ports = all.saturating_mul(frontend.pool.servers.len() as u64);
        // With routes by server name, the ClientHello selects the servers.
        frontend.sni.is_none() && (ports == 0 || fits_any(room.taken, ports.saturating_sub(room.taken)))
    }

    /// Takes a connection from the estimate, or makes a new one. Returns `None` if so little is
    /// left that the connections of each client have to be counted.
    fn estimated(&self, totals: &Traffic) -> Option<Room> {
        let estimate = &self.room;
        let now = self.registry.now();
        let uses = estimate.uses_at(now);
        if uses > 0 {
            estimate.uses.store(uses - 1, Ordering::Relaxed);
            let [taken, left] = [&estimate.taken, &estimate.left].map(|n| n.load(Ordering::Relaxed));
            return Some(Room { taken, left, uses });
        }
        let taken = self.shared.taken(totals);
        let left = self.shared.descriptors.connections().saturating_sub(taken);
        let charges = self.shared.clients.charges();
        let room = Room::estimate(taken + charges, left, self.shared.columns.len());
        let Room { taken, left, uses } = room.unwrap_or(Room { taken: 0, left: 0, uses: 1 });
        estimate.uses.store(uses - 1, Ordering::Relaxed);
        estimate.taken.store(taken, Ordering::Relaxed);
        estimate.left.store(left, Ordering::Relaxed);
        estimate.at.store(now, Ordering::Relaxed);
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_exists_only_while_any_client_has_room() {
        assert_eq!(Room::estimate(0, 1_000, 2), Some(Room { taken: 250, left: 750, uses: 125 }));
        assert_eq!(Room::estimate(5_000, 1_000, 2).map(|room| room.uses), Some(125));
        assert_eq!(Room::estimate(7_000, 1_000, 2), None, "one client may have all of them");
        assert_eq!(Room::estimate(0, 7, 2), None, "too little for two workers");
        assert_eq!(Room::estimate(u64::from(u32::MAX), u64::MAX, 1), None);
    }

    #[test]
    fn workers_that_use_up_their_estimates_leave_room() {
        for (left, workers) in [(8, 2), (1_000, 3), (100_000, 64)] {
            let room = Room::estimate(10, left, workers).unwrap();
            assert!(room.uses * workers as u64 <= left - room.left);
        }
    }
}
