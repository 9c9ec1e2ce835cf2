//! Counts of open flows per client, by the limited resource that the flows hold. Each worker writes
//! only its own counters; for resources that all workers share, a worker also reads the counters of
//! the other workers.
//!
//! A hash maps clients to counters, so memory is bounded and nothing is allocated. Clients whose
//! hashes collide share a counter. Each client therefore has two counters, and the smaller one is
//! its count.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::addr_port::AddrPort;
use super::flow::Flow;
use super::queues::Resource;
use convey_model::{Addr, client_of};

/// Bounds for the number of counters in each of a worker's two rows. A row has half as many
/// counters as the table has places, so both rows take at most 8 MiB.
///
/// Each flow increments four counters of a row, so a counter has 8 flows on average when the table
/// is full. That is fewer than the 16 flows that every client of a worker may have. Counts of slots
/// are sums over all workers, and less exact.
const COUNTERS: std::ops::RangeInclusive<u32> = 1 << 14..=1 << 20;

/// Counters of all clients, for one worker. A worker without counters counts no flows, and every
/// client has 0.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCounts {
    workers: Arc<[OnceLock<Counters>]>,
    own: usize,
}

/// Counters that one worker writes and all workers read.
#[derive(Debug)]
struct Counters {
    rows: [Box<[AtomicU32]>; 2],
    seed: u64,
}

impl ClientCounts {
    /// Creates the counts of several workers, one element for each worker. Every element can read
    /// the counters of all workers.
    pub(super) fn together(workers: usize) -> Vec<ClientCounts> {
        let all: Arc<[_]> = (0..workers).map(|_| OnceLock::new()).collect();
        (0..workers).map(|own| ClientCounts { workers: all.clone(), own }).collect()
    }

    /// Reserves the counters of this worker, whose table has `capacity` places.
    pub(super) fn reserve(&self, capacity: u32, seed: u64) {
        let len = (capacity / 2).clamp(*COUNTERS.start(), *COUNTERS.end());
        let row = || (0..len).map(|_| AtomicU32::new(0)).collect();
        if let Some(own) = self.workers.get(self.own) {
            own.get_or_init(|| Counters { rows: [row(), row()], seed });
        }
    }

    /// Counts a flow of this worker that has opened, or subtracts a flow that is no longer open.
    pub(super) fn note(&self, flow: &Flow, is_open: bool) {
        let Some(counters) = self.workers.get(self.own).and_then(OnceLock::get) else { return };
        let key = flow.client();
        let client = network_of(key.src);
        for resource in Resource::all_of(flow) {
            for counter in counters.find(client, resource, key.protocol) {
                let before = counter.load(Relaxed);
                debug_assert!(is_open || before > 0, "it was counted when it opened");
                counter.store(if is_open { before + 1 } else { before.wrapping_sub(1) }, Relaxed);
            }
        }
    }

    /// Number of open flows of a client that hold this resource. Table entries and ports belong to
    /// one worker; slots are shared by all.
    pub(super) fn count(&self, client: Addr, resource: Resource, protocol: u8) -> u32 {
        let client = network_of(client);
        let smaller = |counters: &Counters| {
            counters.find(client, resource, protocol).map(|counter| counter.load(Relaxed)).into_iter().min()
        };
        let at = |worker: &OnceLock<Counters>| worker.get().and_then(smaller).unwrap_or(0);
        match resource {
            Resource::TableEntry | Resource::Port(..) => self.workers.get(self.own).map_or(0, at),
            Resource::FrontendSlot(_) | Resource::ServerSlot(_) => self.workers.iter().map(at).sum(),
        }
    }

    /// Number of flows that this worker counts. Adds up all its counters.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn flows(&self) -> u64 {
        let own = self.workers.get(self.own).and_then(OnceLock::get);
        let all = own.iter().flat_map(|counters| counters.rows.iter().flatten());
        let sum: u64 = all.map(|counter| u64::from(counter.load(Relaxed))).sum();
        sum / (2 * Resource::COUNT as u64)
    }
}

impl Counters {
    /// Counters of a client for a resource, one in each row.
    fn find(&self, client: Addr, resource: Resource, protocol: u8) -> [&AtomicU32; 2] {
        let (kind, id, [a, b]) = match resource {
            Resource::TableEntry => (0, 0, [0; 2]),
            Resource::Port(AddrPort { addr, port }) => (1, port.into(), addr.words()),
            Resource::FrontendSlot(id) => (2, id, [0; 2]),
            Resource::ServerSlot(id) => (3, id, [0; 2]),
        };
        // Slots are shared by all protocols.
        let protocol = if kind < 2 { protocol } else { 0 };
        let what = u64::from(id) | u64::from(protocol) << 32 | kind << 40;
        let mut bytes = [0; 40];
        let [client_a, client_b] = client.words();
        for (to, word) in bytes.chunks_exact_mut(8).zip([client_a, client_b, a, b, what]) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let hash = xxh3_64_with_seed(&bytes, self.seed);
        let place = |hash: u32, len: usize| ((u64::from(hash) * len as u64) >> 32) as usize;
        let [first, second] = &self.rows;
        [&first[place(hash as u32, first.len())], &second[place((hash >> 32) as u32, second.len())]]
    }
}

/// First address of the client's network: all addresses of this network count as one client.
fn network_of(client: Addr) -> Addr {
    client_of(client.ip()).first().into()
}
