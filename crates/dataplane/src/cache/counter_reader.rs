//! Reader of the flow cache's counters, for the statistics.

use std::sync::{Arc, Mutex, PoisonError};

use super::counter_ids::CounterIds;
use super::writer::Failures;
use super::{FlowCounters, KernelCache, Outcome};
use convey_forward::FlowOwners;
use convey_model::DropReason;
use convey_snapshot::stats::{Counter, PacketStats};

/// Reads the flow cache's counters. Each cache must have only one reader.
#[derive(Debug)]
pub struct CounterReader {
    cache: Arc<Mutex<KernelCache>>,
    counter_ids: CounterIds,
    failures: Failures,
    in_use: Vec<(u16, FlowOwners)>,
    /// Counters by counter id, as last read. When an id gets new owners, their packets are counted
    /// from these values on.
    read: Vec<FlowCounters>,
}

impl CounterReader {
    pub(super) fn new(
        cache: Arc<Mutex<KernelCache>>,
        counter_ids: CounterIds,
        failures: Failures,
    ) -> CounterReader {
        CounterReader { cache, counter_ids, failures, in_use: Vec::new(), read: Vec::new() }
    }

    /// Reads all counters. Passes the numbers of packets and bytes since the last reading to
    /// `count`, and updates the cache's packet outcomes in `stats`.
    pub fn read(&mut self, stats: &PacketStats, mut count: impl FnMut(FlowOwners, Counter, u64)) {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        self.counter_ids.list(&mut self.in_use);
        for &(id, owners) in &self.in_use {
            // The lookup of an id that is in the map cannot fail.
            let Ok(now) = cache.flow_counters(id) else { continue };
            let place = usize::from(id);
            self.read.resize(self.read.len().max(place + 1), FlowCounters::default());
            let before = std::mem::replace(&mut self.read[place], now);
            for (counter, n) in [
                (Counter::PacketsRx, now.packets_to_server - before.packets_to_server),
                (Counter::BytesRx, now.bytes_to_server - before.bytes_to_server),
                (Counter::PacketsTx, now.packets_to_client - before.packets_to_client),
                (Counter::BytesTx, now.bytes_to_client - before.bytes_to_client),
            ] {
                if n > 0 {
                    count(owners, counter, n);
                }
            }
        }
        self.counter_ids.recycle();
        for outcome in Outcome::ALL {
            if let Ok(n) = cache.count(outcome) {
                stats.set_outcome(outcome, n);
            }
        }
        if let Ok(n) = cache.fin_queue_full() {
            stats.set_kernel_drops(DropReason::FinQueueFull, n);
        }
        if let Ok(n) = cache.bad_checksums() {
            stats.set_kernel_drops(DropReason::BadChecksum, n);
        }
        if let Ok(n) = cache.rewrites_failed() {
            stats.set_kernel_drops(DropReason::RewriteFailed, n);
        }
        stats.set_cache_failures(self.failures.count());
        stats.set_cache_entries_lost(self.failures.entries_lost());
        if let Ok(n) = cache.syns_refused() {
            stats.set_syns_refused(n);
        }
    }
}
