use proptest::prelude::*;

use super::*;
use convey_model::{Addr, TCP};

fn of(port: u16) -> PoolKey {
    PoolKey { server: AddrPort::new(Addr::v4([10, 0, 1, 1]), port), protocol: TCP, address: 0 }
}

fn small() -> PortPools {
    PortPools { most_fresh: 100, most_pools: 8, ..PortPools::new(7) }
}

impl PortPools {
    fn pool(&self, port: u16) -> Option<&PortPool> {
        self.places.get(&of(port)).map(|place| &self.pools[*place as usize])
    }

    /// Bytes on the heap, including the spare capacity of lists.
    fn memory(&self) -> usize {
        let lists = self.pools.iter().map(|pool| pool.freed.capacity() + pool.excluded.capacity());
        let ranges = self.pools.iter().map(|pool| pool.passed.capacity() + pool.unused.capacity());
        4 * (lists.sum::<usize>() + ranges.sum::<usize>())
    }
}

/// Takes `total` numbers of this port's pool, and releases them.
fn use_up(pools: &mut PortPools, port: u16, total: u32) {
    let taken: Vec<_> = (0..total).map_while(|_| pools.take(of(port), total, |_| 0)).collect();
    assert_eq!(taken.len(), total as usize);
    taken.into_iter().for_each(|number| assert!(pools.release(of(port), number, true)));
}

#[test]
fn number_that_no_server_has_seen_is_handed_out_next() {
    let mut pools = small();
    let number = pools.take(of(1), 1_000, |_| 0).unwrap();
    pools.release(of(1), number, false);
    let memory = pools.memory();
    for _ in 0..1_000 {
        assert_eq!(pools.take(of(1), 1_000, |_| 0), Some(number));
        pools.release(of(1), number, false);
    }
    assert_eq!(pools.memory(), memory);
    assert_ne!(pools.take(of(1), 1_000, |other| u32::from(other == number)), Some(number), "it is left out");
}

#[test]
fn unused_pools_are_evicted_and_used_ones_stay() {
    let mut pools = small();
    let held: Vec<_> = (0..4).map(|port| pools.take(of(port), 10, |_| 0)).collect();
    for port in 100..10_000 {
        use_up(&mut pools, port, 3);
        assert!(pools.pools.len() <= 8 + 1);
    }
    for (port, number) in (0..4).zip(held) {
        assert_eq!(pools.pool(port).unwrap().handed, 1);
        assert!(pools.release(of(port), number.unwrap(), true));
    }
}

#[test]
fn port_pool_memory_is_bounded_without_losing_ports() {
    let mut pools = PortPools { most_fresh: 1_000, ..PortPools::new(7) };
    for port in 0..50 {
        // One at a time: each number is released before the next is taken.
        for _ in 0..1_000 {
            let number = pools.take(of(port), 1_000, |_| 0).unwrap();
            pools.release(of(port), number, true);
        }
    }
    assert_eq!(pools.fresh, 1_000);
    let most = 24 * (1_000 + 50 * SURE as usize);
    assert!(pools.memory() <= most, "{} of {most} bytes", pools.memory());
    assert!((0..50).all(|port| pools.pool(port).unwrap().handed >= SURE), "each is sure of some");
    let all = (0..1_000).map_while(|_| pools.take(of(49), 1_000, |_| 0));
    assert_eq!(all.collect::<std::collections::HashSet<_>>().len(), 1_000);
}

#[test]
fn pools_are_checked_in_slices_and_removed_once_unused() {
    let mut pools = PortPools::new(7);
    (0..100).for_each(|port| use_up(&mut pools, port, 2));
    let held = pools.take(of(7), 2, |_| 0).unwrap();
    pools.begin_to_check();
    let even = |pool: PoolKey| pool.server.port.is_multiple_of(2);
    assert_eq!((1..).take_while(|_| pools.check(30, even)).count(), 3, "four slices");
    assert_eq!(pools.pools.len(), 51);
    assert!(pools.release(of(7), held, true) && !pools.release(of(7), held, true));
    assert_eq!(pools.pools.len(), 50);
    assert!(!pools.check(30, |_| false), "nothing is looked at that nobody asked for");
    assert_eq!(pools.pools.len(), 50);
}

#[test]
fn recreated_pool_begins_with_other_ports() {
    let mut pools = PortPools::new(7);
    let first = pools.take(of(1), 10_000, |_| 0).unwrap();
    pools.release(of(1), first, true);
    pools.begin_to_check();
    pools.check(9, |_| false);
    assert_ne!(pools.take(of(1), 10_000, |_| 0), Some(first));
}

#[test]
fn ports_are_handed_out_in_an_order_of_the_seed_alone() {
    let order = |seed| {
        let mut pools = PortPools::new(seed);
        (0..1_000).map_while(|_| pools.take(of(1), 1_000, |_| 0)).collect::<Vec<_>>()
    };
    let (one, other) = (order(1), order(2));
    assert_eq!(order(1), one);
    assert!((0..1_000).filter(|n| one[*n] == other[*n]).count() < 20);
    // A neighbour of the number before is as likely as any other number.
    let steps = |order: &[u32]| order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
    assert!(steps(&one) < 20, "{one:?}");
    let low = |order: &[u32]| order[..500].iter().filter(|number| **number < 500).count();
    assert!((150..350).contains(&low(&one)), "{} of 500", low(&one));
}

#[test]
fn excluded_port_range_is_skipped_at_once() {
    let mut pools = PortPools::new(7);
    let misfits = |number: u32| if (100..9_000).contains(&number) { 9_000 - number } else { 0 };
    let asked = std::cell::Cell::new(0);
    let take = |pools: &mut PortPools, port| {
        pools.take(of(port), 10_000, |number| {
            asked.set(asked.get() + 1);
            misfits(number)
        })
    };
    for port in 0..1_000 {
        let all: Vec<_> = (0..101).map(|_| take(&mut pools, port).unwrap()).collect();
        assert!(all.iter().all(|number| misfits(*number) == 0));
        all.into_iter().for_each(|number| assert!(pools.release(of(port), number, true)));
    }
    assert!(asked.get() <= 1_000 * 130, "{} numbers were looked at", asked.get());
    assert!(pools.memory() < 1_000 * (128 * 4 + 101 * 16 + 256), "{} bytes", pools.memory());
    // The number is no longer left out then.
    pools.note_exclusions_changed();
    let all = (0..10_000).map_while(|_| pools.take(of(7), 10_000, |_| 0));
    assert_eq!(all.collect::<std::collections::HashSet<_>>().len(), 10_000);
    assert_eq!(pools.in_use(of(7)), 10_000);
}

proptest! {
    #[test]
    fn port_number_is_never_handed_out_twice(
        steps in prop::collection::vec((0..6u8, 0..20u16, any::<prop::sample::Index>()), 0..300),
    ) {
        let mut pools = PortPools { most_fresh: 5, most_pools: 4, ..PortPools::new(7) };
        let mut held: Vec<(u16, u32)> = Vec::new();
        let mut excluded = 5..6;
        for (what, port, index) in steps {
            match what {
                0 => pools.begin_to_check(),
                1 => drop(pools.check(3, |pool| pool.server.port > port)),
                2 => {
                    excluded = u32::from(port % 8)..u32::from(port % 8 + port % 3).min(8);
                    pools.note_exclusions_changed();
                }
                3 if !held.is_empty() => {
                    let (port, number) = held.swap_remove(index.index(held.len()));
                    prop_assert!(pools.release(of(port), number, port % 2 == 0));
                }
                _ => {
                    let misfits = |number| if excluded.contains(&number) { excluded.end - number } else { 0 };
                    let free = (0..8).filter(|number| misfits(*number) == 0 && !held.contains(&(port, *number)));
                    let is_free = free.count() > 0;
                    match pools.take(of(port), 8, misfits) {
                        Some(number) => {
                            prop_assert!(!held.contains(&(port, number)) && number < 8);
                            prop_assert_eq!(misfits(number), 0);
                            held.push((port, number));
                        }
                        None => prop_assert!(!is_free),
                    }
                }
            }
            let in_use = held.iter().filter(|(of, _)| *of == port).count();
            prop_assert_eq!(pools.in_use(of(port)) as usize, in_use);
            let used: std::collections::HashSet<_> = held.iter().map(|(port, _)| port).collect();
            prop_assert!(pools.pools.len() <= 4 + used.len() + 1);
            let sum: usize = pools.pools.iter().map(PortPool::beyond_sure).sum();
            prop_assert_eq!((pools.fresh, pools.places.len()), (sum, pools.pools.len()));
        }
    }
}
