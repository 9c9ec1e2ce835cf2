use std::sync::Mutex;

use super::*;
use convey_forward::{Direction, FlowOwners, View};
use convey_model::{Addr, Rewrite, Timestamp};

/// Flow map that refuses changes while its flag is set.
#[derive(Debug, Default)]
struct Moody(Mutex<(HashMap<FlowKey, FlowEntry>, bool)>);

impl Moody {
    fn change(&self, keys: &[FlowKey], entries: Option<&[FlowEntry]>) -> Result<usize, BatchError> {
        let (map, refuses) = &mut *self.0.lock().unwrap();
        // A refused call still changes the first key.
        let n = if *refuses { keys.len().min(1) } else { keys.len() };
        for (at, key) in keys[..n].iter().enumerate() {
            match entries {
                Some(entries) => _ = map.insert(*key, entries[at]),
                None => _ = map.remove(key),
            }
        }
        let error = || io::Error::from_raw_os_error(libc::EBUSY);
        if n < keys.len() || *refuses { Err(BatchError { done: n, error: error() }) } else { Ok(n) }
    }
}

impl Flows for &Moody {
    fn put(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> Result<usize, BatchError> {
        self.change(keys, Some(entries))
    }

    fn remove(&self, keys: &[FlowKey]) -> Result<(), BatchError> {
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
fn entries_the_kernel_refuses_to_remove_are_counted_and_retried() {
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
fn stale_entries_are_bounded_and_block_new_entries() {
    let (map, failures) = (Moody::default(), Failures::default());
    let mut writer = CacheWriter::new(&map, SIZES, 0, CounterIds::default(), failures.clone());
    let key = |n: u32| FlowKey { dst: Addr::v4((0x0a00_0000 + n).to_be_bytes()), ..key(1) };
    // A refused call still changes its first key, so more than `MAX_STALE` keys are needed.
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

/// Writer of a worker with this number of counter ids, the ids, and the failure counters.
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
fn cache_accepts_new_servers_after_20000_have_come_and_gone() {
    let map = Moody::default();
    let (mut writer, ids, _) = with_ids(&map, 1 << 14);
    let mut others = CacheWriter::new(&map, writer.sizes, 0, ids.clone(), Failures::default());
    for server in 0..20_000 {
        // Another worker also has flows of every second server.
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
fn counter_id_is_held_until_its_last_key_is_removed() {
    let map = Moody::default();
    let (mut writer, ids, failures) = with_ids(&map, 1);
    let [first, next] = [1, 2].map(of_server);
    // Tries to get an id as another worker.
    let is_free = || {
        (0..3).for_each(|_| ids.recycle());
        let id = ids.register(next.owners, 1);
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
