//! How many open flows of each client hold something that may run short. Each worker writes counters of its own; of what all
//! workers share, it reads the others', too.
//!
//! A hash says which counters are a client's, so memory is bounded and nothing is allocated. Clients that meet at a counter
//! are counted together. So each client has two, and the smaller one counts.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::flow::Flow;
use super::queues::Resource;
use convey_model::{Addr, client_of};

/// Counters in one of a worker's two rows: half as many as it has places for flows, of which each counts at four of a row.
/// So there are 8 flows at one on average when the table is full. That is fewer than the 16 that every client may have, in one
/// worker; slots are summed over the workers, and there the counts are rougher. 8 MiB at most.
const COUNTERS: std::ops::RangeInclusive<u32> = 1 << 14..=1 << 20;

/// What one worker knows of all of them. Without counters, it counts nothing and everybody has none.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCounts {
    workers: Arc<[OnceLock<Counters>]>,
    own: usize,
}

/// Those of one worker, which alone writes them.
#[derive(Debug)]
struct Counters {
    rows: [Box<[AtomicU32]>; 2],
    seed: u64,
}

impl ClientCounts {
    /// For so many workers, each with its own.
    pub(super) fn together(workers: usize) -> Vec<ClientCounts> {
        let all: Arc<[_]> = (0..workers).map(|_| OnceLock::new()).collect();
        (0..workers).map(|own| ClientCounts { workers: all.clone(), own }).collect()
    }

    /// Reserves the counters of this worker, whose table has so many places.
    pub(super) fn reserve(&self, capacity: u32, seed: u64) {
        let len = (capacity / 2).clamp(*COUNTERS.start(), *COUNTERS.end());
        let row = || (0..len).map(|_| AtomicU32::new(0)).collect();
        if let Some(own) = self.workers.get(self.own) {
            own.get_or_init(|| Counters { rows: [row(), row()], seed });
        }
    }

    /// A flow of this worker is open from now on, or no longer.
    pub(super) fn note(&self, flow: &Flow, is_open: bool) {
        let Some(counters) = self.workers.get(self.own).and_then(OnceLock::get) else { return };
        let key = flow.client();
        let client = network_of(key.src);
        for held in Resource::all_of(flow) {
            for counter in counters.find(client, held, key.protocol) {
                let before = counter.load(Relaxed);
                debug_assert!(is_open || before > 0, "it was counted when it opened");
                counter.store(if is_open { before + 1 } else { before.wrapping_sub(1) }, Relaxed);
            }
        }
    }

    /// How many open flows of a client hold this. Each worker has its own places and ports, and all share slots.
    pub(super) fn count(&self, client: Addr, held: Resource, protocol: u8) -> u32 {
        let client = network_of(client);
        let smaller = |counters: &Counters| {
            counters.find(client, held, protocol).map(|counter| counter.load(Relaxed)).into_iter().min()
        };
        let at = |worker: &OnceLock<Counters>| worker.get().and_then(smaller).unwrap_or(0);
        match held {
            Resource::TableEntry | Resource::Port(..) => self.workers.get(self.own).map_or(0, at),
            Resource::FrontendSlot(_) | Resource::ServerSlot(_) => self.workers.iter().map(at).sum(),
        }
    }

    /// How many flows this worker counts. Adds up all its counters.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn flows(&self) -> u64 {
        let own = self.workers.get(self.own).and_then(OnceLock::get);
        let all = own.iter().flat_map(|counters| counters.rows.iter().flatten());
        let sum: u64 = all.map(|counter| u64::from(counter.load(Relaxed))).sum();
        sum / (2 * Resource::COUNT as u64)
    }
}

impl Counters {
    /// A client's counters for what its flows hold, one in each row.
    fn find(&self, client: Addr, held: Resource, protocol: u8) -> [&AtomicU32; 2] {
        let (kind, id, [a, b]) = match held {
            Resource::TableEntry => (0, 0, [0; 2]),
            Resource::Port(addr, port) => (1, port.into(), addr.words()),
            Resource::FrontendSlot(id) => (2, id, [0; 2]),
            Resource::ServerSlot(id) => (3, id, [0; 2]),
        };
        // All protocols share the slots.
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

/// The first address of what counts as one client.
fn network_of(client: Addr) -> Addr {
    client_of(client.ip()).first().into()
}
