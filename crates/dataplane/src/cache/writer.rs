//! The forwarder's end of the cache.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counter_ids::CounterIds;
use super::flow_map::Undone;
use super::{FlowEntry, FlowMap, Sizes};
use convey_forward::{CachedActivity, CachedRoute, FlowCache, FlowOwners, Progress};
use convey_model::{FlowKey, TCP, Timestamp};

/// Most keys of a worker that wait to be removed at last: 4 MiB.
const MAX_STALE: usize = 65_536;

/// Most changes that wait for a flush: 416 KiB.
const MAX_WAITING: usize = 4_096;

/// What the kernel has refused. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures(Arc<Refused>);

#[derive(Debug, Default)]
struct Refused {
    changes: AtomicU64,
    entries_lost: AtomicU64,
}

impl Failures {
    /// How often it has refused to change its map.
    pub(super) fn count(&self) -> u64 {
        self.0.changes.load(Ordering::Relaxed)
    }

    /// Entries that it has refused to remove, and that nobody tries to remove again: too many others wait for that.
    pub(super) fn entries_lost(&self) -> u64 {
        self.0.entries_lost.load(Ordering::Relaxed)
    }
}

/// The kernel's flows, as a [`FlowMap`] has them.
pub(super) trait Flows {
    fn put(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> Result<usize, Undone>;
    fn remove(&self, keys: &[FlowKey]) -> Result<(), Undone>;
    fn get(&self, key: &FlowKey) -> io::Result<Option<FlowEntry>>;
}

impl Flows for FlowMap {
    fn put(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> Result<usize, Undone> {
        self.put(keys, entries)
    }

    fn remove(&self, keys: &[FlowKey]) -> Result<(), Undone> {
        self.remove(keys)
    }

    fn get(&self, key: &FlowKey) -> io::Result<Option<FlowEntry>> {
        self.get(key)
    }
}

/// Writes the flows of one worker, many at a time.
#[derive(Debug)]
pub(super) struct CacheWriter<M = FlowMap> {
    flows: M,
    sizes: Sizes,
    /// Nanoseconds of `CLOCK_MONOTONIC` at `Timestamp(0)`.
    epoch: u64,
    counter_ids: CounterIds,
    /// Owners of the flows of this worker that are in the cache.
    held: HashMap<FlowOwners, OwnerEntries>,
    /// Those of `held` whose last key is among what is to be removed, unless more came since.
    idle: HashSet<FlowOwners>,
    changes: Changes,
    /// Keys whose entries may be there still, and are to go: the kernel has refused to change them. [`MAX_STALE`] at most; while
    /// there are as many, nothing new is put in.
    stale: HashSet<FlowKey>,
    failures: Failures,
}

/// What this worker has in the cache of some owners.
#[derive(Debug, Default)]
struct OwnerEntries {
    /// As long as there was none left, its keys are not in the cache.
    counter_id: Option<u16>,
    /// Keys that were put in and not removed.
    keys: u32,
}

/// What is to be done, of one kind: the order of removing a key and putting it in again matters.
#[derive(Debug, Default)]
struct Changes {
    keys: Vec<FlowKey>,
    /// One for each key that is to be put in; none if they are to be removed.
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
        let (held, idle, changes, stale) =
            (HashMap::new(), HashSet::new(), Changes::default(), HashSet::new());
        CacheWriter { flows, sizes, epoch, counter_ids, held, idle, changes, stale, failures }
    }

    /// Counts a key of theirs; the counter id that it goes by, if there is one left.
    fn hold(&mut self, owners: FlowOwners, is_new: bool) -> Option<u16> {
        let held = self.held.entry(owners).or_default();
        held.keys += u32::from(is_new);
        if held.counter_id.is_none() {
            held.counter_id = self.counter_ids.hold(owners, self.sizes.counter_ids);
        }
        held.counter_id
    }

    /// Lets go of ids that no entry is left under. An entry that the kernel has refused to remove may be under any.
    fn release_idle(&mut self) {
        if !self.stale.is_empty() || self.failures.entries_lost() > 0 {
            return;
        }
        for owners in self.idle.drain() {
            if self.held.get(&owners).is_some_and(|held| held.keys == 0)
                && let Some(OwnerEntries { counter_id: Some(id), .. }) = self.held.remove(&owners)
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

    /// Tries again to remove what the kernel has refused to.
    fn remove_stale(&mut self) {
        let keys: Vec<FlowKey> = self.stale.drain().collect();
        if let Err(undone) = self.flows.remove(&keys) {
            self.failed(&keys, &undone);
        }
    }

    /// Notes which keys a call has not come to. A key that cannot be put in is removed, as where there is no room
    /// for it.
    fn failed(&mut self, keys: &[FlowKey], undone: &Undone) {
        self.failures.0.changes.fetch_add(1, Ordering::Relaxed);
        for key in &keys[undone.done..] {
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
        let counter_id = self.hold(route.owners, route.is_new);
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
        let held = self.held.get_mut(&owners).filter(|held| held.keys > 0);
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
        // A flow that there is no room for stays with the worker.
        let done = if entries.is_empty() {
            self.flows.remove(&keys)
        } else {
            self.flows.put(&keys, &entries).map(drop)
        };
        let written = done.as_ref().map_or_else(|undone| undone.done, |()| keys.len());
        if !self.stale.is_empty() {
            keys[..written].iter().for_each(|key| _ = self.stale.remove(key));
        }
        if let Err(undone) = &done {
            self.failed(&keys, undone);
        }
        self.changes = Changes { keys, entries };
        self.changes.keys.clear();
        self.changes.entries.clear();
        self.release_idle();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use convey_forward::{Direction, FlowOwners, View};
    use convey_model::{Addr, Rewrite, Timestamp};

    /// A map that refuses changes for a while.
    #[derive(Debug, Default)]
    struct Moody(Mutex<(HashMap<FlowKey, FlowEntry>, bool)>);

    impl Moody {
        fn change(&self, keys: &[FlowKey], entries: Option<&[FlowEntry]>) -> Result<usize, Undone> {
            let (map, refuses) = &mut *self.0.lock().unwrap();
            // The first of them is done all the same.
            let n = if *refuses { keys.len().min(1) } else { keys.len() };
            for (at, key) in keys[..n].iter().enumerate() {
                match entries {
                    Some(entries) => _ = map.insert(*key, entries[at]),
                    None => _ = map.remove(key),
                }
            }
            let error = || io::Error::from_raw_os_error(libc::EBUSY);
            if n < keys.len() || *refuses { Err(Undone { done: n, error: error() }) } else { Ok(n) }
        }
    }

    impl Flows for &Moody {
        fn put(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> Result<usize, Undone> {
            self.change(keys, Some(entries))
        }

        fn remove(&self, keys: &[FlowKey]) -> Result<(), Undone> {
            self.change(keys, None).map(drop)
        }

        fn get(&self, key: &FlowKey) -> io::Result<Option<FlowEntry>> {
            Ok(self.0.lock().unwrap().0.get(key).copied())
        }
    }

    const SIZES: Sizes = Sizes { entries: 16, next_hops: 4, counter_ids: 4 };

    const OWNERS: FlowOwners = FlowOwners { server: 0, frontend: 0 };

    fn key(n: u16) -> FlowKey {
        FlowKey::tcp(format!("198.51.100.9:{n}").parse().unwrap(), "203.0.113.1:80".parse().unwrap())
    }

    fn route() -> CachedRoute {
        let FlowKey { src, dst, src_port, dst_port, .. } = key(7);
        CachedRoute {
            rewrite: Rewrite { src, dst, src_port, dst_port, next_hop: 1 },
            envelope: None,
            direction: Direction::ToServer,
            view: View::BothSides,
            from: None,
            owners: OWNERS,
            is_new: true,
            last: Some(Timestamp(1)),
            progress: Progress::default(),
            opening: None,
            is_restored: false,
        }
    }

    #[test]
    fn what_the_kernel_refuses_to_remove_or_replace_is_counted_and_removed_later() {
        let (map, failures) = (Moody::default(), Failures::default());
        let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), failures.clone());
        let keys = |map: &Moody| {
            let mut ports: Vec<u16> = map.0.lock().unwrap().0.keys().map(|key| key.src_port).collect();
            ports.sort_unstable();
            ports
        };
        (1..=6).for_each(|n| writer.put(&key(n), &route()));
        writer.flush();
        assert_eq!((keys(&map), failures.count()), (vec![1, 2, 3, 4, 5, 6], 0));

        map.0.lock().unwrap().1 = true;
        (1..=3).for_each(|n| writer.remove(&key(n), OWNERS));
        writer.flush();
        assert_eq!((keys(&map), failures.count()), (vec![2, 3, 4, 5, 6], 1));
        (4..=5).for_each(|n| writer.put(&key(n), &route()));
        writer.flush();
        assert!(failures.count() > 1);

        map.0.lock().unwrap().1 = false;
        writer.put(&key(2), &route());
        writer.flush();
        assert_eq!(keys(&map), [2, 4, 6], "the second came again, the fifth goes by a worker");
        let counted = failures.count();
        writer.flush();
        assert_eq!((keys(&map), failures.count()), (vec![2, 4, 6], counted));
    }

    #[test]
    fn removed_key_that_is_put_again_shows_nothing_of_before() {
        let map = Moody::default();
        let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), Failures::default());
        let new = CachedRoute { last: None, ..route() };
        let elsewhere = |next_hop| CachedRoute { rewrite: Rewrite { next_hop, ..new.rewrite }, ..new };
        let others = |n| CachedRoute { owners: FlowOwners { server: n, frontend: 0 }, ..new };
        (1..4).for_each(|n| writer.put(&key(9), &others(n)));
        for next in [new, elsewhere(SIZES.next_hops), others(5)] {
            writer.put(&key(1), &route());
            writer.flush();
            assert!(writer.seen(&key(1)).is_some());
            writer.remove(&key(1), OWNERS);
            writer.put(&key(1), &next);
            assert_eq!(writer.seen(&key(1)), None, "{next:?}");
            writer.flush();
        }
    }

    #[test]
    fn entry_without_a_way_keeps_its_numbers_and_has_no_next_hop() {
        let map = Moody::default();
        let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), Failures::default());
        writer.put(&key(1), &CachedRoute { is_restored: true, ..route() });
        writer.flush();
        let rewrite = Rewrite { next_hop: u32::MAX, ..route().rewrite };
        let progress = Progress { sent: 5, acked: 6 };
        writer.put(&key(1), &CachedRoute { rewrite, progress, is_new: false, ..route() });
        writer.flush();
        let activity = writer.seen(&key(1)).unwrap();
        assert_eq!((activity.at, activity.progress), (Timestamp(1), Some(progress)));
        assert!(!map.0.lock().unwrap().0[&key(1)].has_next_hop());
    }

    #[test]
    fn key_put_again_while_too_many_are_stale_shows_nothing_of_before() {
        let map = Moody::default();
        let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), Failures::default());
        writer.put(&key(1), &route());
        writer.flush();
        writer.remove(&key(1), OWNERS);
        let stale = |n: u32| FlowKey { dst: Addr::v4((0x0a00_0000 + n).to_be_bytes()), ..key(2) };
        writer.stale.extend((0..MAX_STALE as u32).map(stale));
        writer.put(&key(1), &route());
        assert_eq!(writer.seen(&key(1)), None);
    }

    #[test]
    fn numbers_of_a_worker_leave_the_rest_of_an_entry() {
        let map = Moody::default();
        let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), Failures::default());
        let from =
            CachedRoute { from: Some(1 << 16), direction: Direction::ToClient, is_restored: true, ..route() };
        let opening = CachedRoute { opening: Some(View::BothSides), ..from };
        writer.put(&key(1), &from);
        writer.put(&key(2), &opening);
        writer.flush();
        let entry = |n| map.0.lock().unwrap().0.get(&key(n)).copied();
        let mut expected = entry(1).unwrap();
        (expected.sent, expected.ack) = (5, 6);
        (1..=3).for_each(|n| writer.advance(&key(n), Progress { sent: 5, acked: 6 }));
        writer.flush();
        assert_eq!(entry(1), Some(expected));
        assert_eq!(writer.seen(&key(1)).map(|seen| seen.from), Some(Some(0)));
        assert_eq!(entry(3), None, "nothing is put in");
        assert_eq!([1, 2, 3].map(|n| writer.is_restored(&key(n))), [true, false, false]);
    }

    #[test]
    fn changes_of_100_000_keys_take_memory_for_few() {
        let (map, failures) = (Moody::default(), Failures::default());
        let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), failures);
        let key = |n: u32| FlowKey { dst: Addr::v4((0x0a00_0000 + n).to_be_bytes()), ..key(1) };
        let is_small = |writer: &CacheWriter<&Moody>| {
            writer.changes.keys.capacity() <= MAX_WAITING && writer.changes.entries.capacity() <= MAX_WAITING
        };
        (0..100_000).for_each(|n| writer.put(&key(n), &route()));
        assert!(is_small(&writer), "{} entries", writer.changes.entries.capacity());
        writer.flush();
        assert_eq!(map.0.lock().unwrap().0.len(), 100_000);
        (0..100_000).for_each(|n| writer.remove(&key(n), OWNERS));
        assert!(is_small(&writer), "{} keys", writer.changes.keys.capacity());
        writer.flush();
        assert!(map.0.lock().unwrap().0.is_empty());
    }

    #[test]
    fn where_too_many_wait_to_be_removed_the_others_are_counted_and_nothing_new_is_put_in() {
        let (map, failures) = (Moody::default(), Failures::default());
        let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), failures.clone());
        let key = |n: u32| FlowKey { dst: Addr::v4((0x0a00_0000 + n).to_be_bytes()), ..key(1) };
        // The first of each call is done all the same, so there are more than `MAX_STALE`.
        let (most, new) = (MAX_STALE as u32 + 100, MAX_STALE as u32 + 1_000);
        (0..most).for_each(|n| writer.put(&key(n), &route()));
        writer.flush();
        map.0.lock().unwrap().1 = true;
        (0..most).for_each(|n| writer.remove(&key(n), OWNERS));
        writer.flush();
        let lost = failures.entries_lost() as usize;
        assert_eq!(writer.stale.len(), MAX_STALE);
        assert!((1..100).contains(&lost), "{lost}");
        let there = |map: &Moody| map.0.lock().unwrap().0.len();
        writer.put(&key(new), &route());
        writer.flush();
        assert!(!map.0.lock().unwrap().0.contains_key(&key(new)), "a worker forwards it");
        assert_eq!(failures.entries_lost() as usize, lost, "counted once");

        map.0.lock().unwrap().1 = false;
        writer.flush();
        assert_eq!((writer.stale.len(), there(&map)), (0, lost));
        writer.put(&key(new), &route());
        writer.flush();
        assert_eq!(there(&map), lost + 1);
    }

    /// A worker's end of a cache with few counter ids, and those.
    fn with_ids(map: &Moody, counter_ids: u16) -> (CacheWriter<&Moody>, CounterIds, Failures) {
        let (ids, failures) = (CounterIds::default(), Failures::default());
        let sizes = Sizes { counter_ids, ..SIZES };
        (CacheWriter::new(map, sizes, 0, ids.clone(), failures.clone()), ids, failures)
    }

    fn of_server(server: u32) -> CachedRoute {
        CachedRoute { owners: FlowOwners { server, frontend: 0 }, ..route() }
    }

    fn is_in(map: &Moody, key: &FlowKey) -> bool {
        map.0.lock().unwrap().0.contains_key(key)
    }

    #[test]
    fn after_20000_servers_have_come_and_gone_new_ones_are_still_in_the_cache() {
        let map = Moody::default();
        let (mut writer, ids, _) = with_ids(&map, 1 << 14);
        let mut others = CacheWriter::new(&map, writer.sizes, 0, ids.clone(), Failures::default());
        for server in 0..20_000 {
            // Another worker has flows of every other one, too.
            let workers = if server % 2 == 0 { vec![&mut writer] } else { vec![&mut writer, &mut others] };
            for (worker, port) in workers.into_iter().zip([1, 2]) {
                worker.put(&key(port), &of_server(server));
                worker.put(&key(port), &CachedRoute { is_new: false, ..of_server(server) });
                worker.flush();
                assert!(is_in(&map, &key(port)), "server {server}");
                worker.remove(&key(port), of_server(server).owners);
                worker.flush();
            }
            if server % 100 == 0 {
                ids.recycle();
            }
        }
    }

    #[test]
    fn an_id_is_held_as_long_as_a_key_is_in_or_the_kernel_refuses_to_remove_one() {
        let map = Moody::default();
        let (mut writer, ids, failures) = with_ids(&map, 1);
        let [first, next] = [1, 2].map(of_server);
        // Another worker asks for it.
        let is_free = || {
            (0..3).for_each(|_| ids.recycle());
            let id = ids.hold(next.owners, 1);
            id.inspect(|id| ids.release(*id));
            id.is_some()
        };
        (1..=3).for_each(|n| writer.put(&key(n), &first));
        writer.put(&key(1), &CachedRoute { is_new: false, ..first });
        (1..=2).for_each(|n| writer.remove(&key(n), first.owners));
        writer.flush();
        assert!(!is_free(), "one key is in");
        writer.remove(&key(3), first.owners);
        assert!(!is_free(), "it is not removed yet");
        writer.put(&key(4), &first);
        writer.flush();
        assert!(!is_free(), "another came");
        map.0.lock().unwrap().1 = true;
        (4..=5).for_each(|n| writer.put(&key(n), &CachedRoute { is_new: n == 5, ..first }));
        (4..=5).for_each(|n| writer.remove(&key(n), first.owners));
        writer.flush();
        assert!(!is_free(), "the kernel refuses to remove one");
        map.0.lock().unwrap().1 = false;
        writer.flush();
        assert!(is_free());
        failures.0.entries_lost.store(1, Ordering::Relaxed);
        (0..3).for_each(|_| ids.recycle());
        writer.put(&key(1), &first);
        writer.remove(&key(1), first.owners);
        writer.flush();
        assert!(!is_free(), "nobody tries to remove a lost one");
    }
}
