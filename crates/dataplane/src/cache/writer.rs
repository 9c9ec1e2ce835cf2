//! Writer of one worker's flows to the flow cache.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counter_ids::CounterIds;
use super::flow_map::BatchError;
use super::{FlowEntry, FlowMap, Sizes};
use convey_forward::{CachedActivity, CachedRoute, FlowCache, FlowOwners, Progress};
use convey_model::{FlowKey, TCP, Timestamp};

/// Maximum number of keys for which a worker retries a refused removal (4 MiB).
const MAX_STALE: usize = 65_536;

/// Maximum number of changes that wait for a flush (416 KiB).
const MAX_WAITING: usize = 4_096;

/// Counters of map changes that the kernel has refused. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures(Arc<Refused>);

#[derive(Debug, Default)]
struct Refused {
    changes: AtomicU64,
    entries_lost: AtomicU64,
}

impl Failures {
    /// Number of map changes that the kernel has refused.
    pub(super) fn count(&self) -> u64 {
        self.0.changes.load(Ordering::Relaxed)
    }

    /// Number of entries whose removal was refused and will not be retried, because the list of
    /// retries was full.
    pub(super) fn entries_lost(&self) -> u64 {
        self.0.entries_lost.load(Ordering::Relaxed)
    }
}

/// Access to the kernel's map of flows (see [`FlowMap`]); tests replace it.
pub(super) trait Flows {
    fn put(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> Result<usize, BatchError>;
    fn remove(&self, keys: &[FlowKey]) -> Result<(), BatchError>;
    fn get(&self, key: &FlowKey) -> io::Result<Option<FlowEntry>>;
}

impl Flows for FlowMap {
    fn put(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> Result<usize, BatchError> {
        self.put(keys, entries)
    }

    fn remove(&self, keys: &[FlowKey]) -> Result<(), BatchError> {
        self.remove(keys)
    }

    fn get(&self, key: &FlowKey) -> io::Result<Option<FlowEntry>> {
        self.get(key)
    }
}

/// Writes the flows of one worker in batches.
#[derive(Debug)]
pub(super) struct CacheWriter<M = FlowMap> {
    flows: M,
    sizes: Sizes,
    /// Nanoseconds of `CLOCK_MONOTONIC` at `Timestamp(0)`.
    epoch: u64,
    counter_ids: CounterIds,
    /// Owners of flows that this worker has cached, with the number of their entries.
    owner_entries: HashMap<FlowOwners, OwnerEntries>,
    /// Owners in `owner_entries` whose last key is being removed. If another key of the owners is
    /// added meanwhile, the owners keep their counter id.
    idle: HashSet<FlowOwners>,
    changes: Changes,
    /// Keys whose outdated entries may still be in the map, because the kernel has refused a
    /// change. At most [`MAX_STALE`]; while the set is full, no new entries are inserted.
    stale: HashSet<FlowKey>,
    failures: Failures,
}

/// This worker's entries for one frontend and server.
#[derive(Debug, Default)]
struct OwnerEntries {
    /// Counter id of the owners. `None` if no id was free; the keys are then not in the cache.
    counter_id: Option<u16>,
    /// Number of keys that were inserted and not removed again.
    keys: u32,
}

/// Pending changes: either insertions or removals, because their order matters for a key that is
/// removed and inserted again.
#[derive(Debug, Default)]
struct Changes {
    keys: Vec<FlowKey>,
    /// One entry for each key to insert; empty if the keys are to be removed.
    entries: Vec<FlowEntry>,
}

impl<M: Flows + Debug + Send> CacheWriter<M> {
    pub(super) fn new(
        flows: M,
        sizes: Sizes,
        epoch: u64,
        counter_ids: CounterIds,
        failures: Failures,
    ) -> CacheWriter<M> {
        let (owner_entries, idle, changes, stale) =
            (HashMap::new(), HashSet::new(), Changes::default(), HashSet::new());
        CacheWriter { flows, sizes, epoch, counter_ids, owner_entries, idle, changes, stale, failures }
    }

    /// Counts a key of these owners if the key is new. Returns the owners' counter id; `None` if no
    /// id is free.
    fn register(&mut self, owners: FlowOwners, is_new: bool) -> Option<u16> {
        let held = self.owner_entries.entry(owners).or_default();
        held.keys += u32::from(is_new);
        if held.counter_id.is_none() {
            held.counter_id = self.counter_ids.register(owners, self.sizes.counter_ids);
        }
        held.counter_id
    }

    /// Releases the counter ids of owners without keys. Releases nothing while the map may contain
    /// entries whose removal was refused, because these entries may use any id.
    fn release_idle(&mut self) {
        if !self.stale.is_empty() || self.failures.entries_lost() > 0 {
            return;
        }
        for owners in self.idle.drain() {
            if self.owner_entries.get(&owners).is_some_and(|held| held.keys == 0)
                && let Some(OwnerEntries { counter_id: Some(id), .. }) = self.owner_entries.remove(&owners)
            {
                self.counter_ids.release(id);
            }
        }
    }

    fn remove_key(&mut self, key: &FlowKey) {
        if !self.changes.entries.is_empty() || self.changes.keys.len() >= MAX_WAITING {
            self.flush();
        }
        self.changes.keys.push(*key);
    }

    /// Retries refused removals.
    fn remove_stale(&mut self) {
        let keys: Vec<FlowKey> = self.stale.drain().collect();
        if let Err(failed) = self.flows.remove(&keys) {
            self.failed(&keys, &failed);
        }
    }

    /// Schedules the removal of the keys that a failed call did not process, even of keys that the
    /// call should have inserted.
    fn failed(&mut self, keys: &[FlowKey], failed: &BatchError) {
        self.failures.0.changes.fetch_add(1, Ordering::Relaxed);
        for key in &keys[failed.done..] {
            if self.stale.len() < MAX_STALE {
                self.stale.insert(*key);
            } else if !self.stale.contains(key) {
                self.failures.0.entries_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl<M: Flows + Debug + Send> FlowCache for CacheWriter<M> {
    fn put(&mut self, key: &FlowKey, route: &CachedRoute) {
        let counter_id = self.register(route.owners, route.is_new);
        let takes_new = self.stale.len() < MAX_STALE;
        if self.changes.entries.is_empty() || self.changes.keys.len() >= MAX_WAITING {
            self.flush();
        }
        if !takes_new {
            return self.remove_key(key);
        }
        let Some(counter_id) = counter_id else { return };
        let mut entry =
            FlowEntry::new(key, &route.rewrite, route.direction, counter_id).seen_from(route.view);
        if let Some(envelope) = &route.envelope {
            entry = entry.within(envelope);
        }
        if let Some(interface) = route.from {
            entry = entry.coming_from(interface);
        }
        if let Some(view) = route.opening {
            entry = entry.opening(view);
        }
        if route.is_restored {
            entry = entry.restored();
        }
        entry.last_seen = route.last.map_or(0, |last| last.0 + self.epoch);
        (entry.sent, entry.ack) = (route.progress.sent, route.progress.acked);
        self.changes.keys.push(*key);
        self.changes.entries.push(entry);
    }

    fn remove(&mut self, key: &FlowKey, owners: FlowOwners) {
        self.remove_key(key);
        let held = self.owner_entries.get_mut(&owners).filter(|held| held.keys > 0);
        debug_assert!(held.is_some(), "{key:?} of {owners:?} was not put in");
        let Some(held) = held else { return };
        held.keys -= 1;
        if held.keys == 0 {
            self.idle.insert(owners);
        }
    }

    fn seen(&mut self, key: &FlowKey) -> Option<CachedActivity> {
        let entry = self.flows.get(key).ok().flatten().filter(|entry| entry.last_seen > 0)?;
        let at = Timestamp(entry.last_seen.saturating_sub(self.epoch));
        let progress = Progress { sent: entry.sent, acked: entry.ack };
        Some(CachedActivity {
            at,
            from: entry.source_interface(),
            progress: (key.protocol == TCP && !entry.is_restored()).then_some(progress),
            is_opening: entry.is_opening(),
            is_finished: entry.is_finished(),
        })
    }

    fn advance(&mut self, key: &FlowKey, progress: Progress) {
        let Some(mut entry) = self.flows.get(key).ok().flatten() else { return };
        (entry.sent, entry.ack) = (progress.sent, progress.acked);
        if self.changes.entries.is_empty() || self.changes.keys.len() >= MAX_WAITING {
            self.flush();
        }
        self.changes.keys.push(*key);
        self.changes.entries.push(entry);
    }

    fn is_restored(&mut self, key: &FlowKey) -> bool {
        let entry = self.flows.get(key).ok().flatten();
        entry.is_some_and(|entry| entry.is_restored() && !entry.is_opening())
    }

    fn flush(&mut self) {
        if !self.stale.is_empty() {
            self.remove_stale();
        }
        let Changes { keys, entries } = std::mem::take(&mut self.changes);
        // A flow whose entry does not fit is forwarded by the worker.
        let done = if entries.is_empty() {
            self.flows.remove(&keys)
        } else {
            self.flows.put(&keys, &entries).map(drop)
        };
        let written = done.as_ref().map_or_else(|failed| failed.done, |()| keys.len());
        if !self.stale.is_empty() {
            keys[..written].iter().for_each(|key| _ = self.stale.remove(key));
        }
        if let Err(failed) = &done {
            self.failed(&keys, failed);
        }
        self.changes = Changes { keys, entries };
        self.changes.keys.clear();
        self.changes.entries.clear();
        self.release_idle();
    }
}

#[cfg(test)]
mod tests;
