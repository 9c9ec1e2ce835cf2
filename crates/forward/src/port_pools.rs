//! Pools of SNAT ports towards each address and port of a server. If a server accepts any port,
//! clients choose the port, so there may be many pools. Their memory is bounded, and no call visits
//! all of them.

use std::collections::{HashMap, VecDeque};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::addr_port::AddrPort;

/// Key of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    pub(super) server: AddrPort,
    pub(super) protocol: u8,
    /// Index of the SNAT address.
    pub(super) address: u16,
}

/// Number of pools above which pools without a port in use are forgotten.
const MAX_POOLS: usize = 1 << 16;

/// Minimum number of used ports that each pool remembers. It ensures that ports of a server that is
/// not flooded are reused late, even when other pools have used up the shared memory.
const SURE: u32 = 64;

/// Maximum number of used ports that all pools together remember beyond [`SURE`] for each pool. A
/// remembered port takes 4 bytes, and each additional range of unused ports another 4. Both may
/// take twice as much, because lists grow by doubling. With the guaranteed ports of [`MAX_POOLS`]
/// pools, the total is at most 96 MiB.
const MAX_FRESH: usize = 1 << 21;

/// Upper bound for the pools that are examined when a new pool exceeds the maximum number of pools,
/// to find pools without a port in use.
const MAX_LOOKED_AT_POOLS: usize = 16;

/// Pools of one worker.
#[derive(Debug)]
pub(super) struct PortPools {
    pools: Vec<PortPool>,
    places: HashMap<PoolKey, u32>,
    /// Number of remembered ports beyond the guaranteed ones, over all pools.
    fresh: usize,
    most_fresh: usize,
    most_pools: usize,
    /// Next place to check for a pool without a port in use.
    hand: usize,
    draws: Draws,
    /// Version of the set of ports that are excluded from SNAT.
    excluded_version: u32,
    /// Pools before this place are still to be checked.
    unchecked: usize,
}

/// Random numbers from a secret seed, which nobody can predict from earlier numbers.
#[derive(Debug)]
struct Draws {
    seed: u64,
    drawn: u64,
}

impl Draws {
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        xxh3_64_with_seed(&self.drawn.to_ne_bytes(), self.seed)
    }
}

/// Ports of one SNAT address towards one endpoint.
#[derive(Debug)]
pub(super) struct PortPool {
    of: PoolKey,
    /// Ranges of port numbers that were neither handed out nor skipped, in ascending order: the
    /// first and the last number of each range.
    unused: Vec<(u16, u16)>,
    /// Number of ports that were handed out.
    handed: u32,
    /// Ranges of ports that were skipped because they are excluded from SNAT. They return to
    /// `unused` when the set of excluded ports changes.
    passed: Vec<(u16, u16)>,
    /// Ports that were released, the oldest first.
    freed: VecDeque<u32>,
    /// Whether the first of the released ports was never seen by a server.
    has_unseen: bool,
    /// Released ports that are not handed out again, because they are excluded from SNAT.
    excluded: Vec<u32>,
    excluded_version: u32,
    /// Whether the pool is removed when its last port is released: its server is gone, or no
    /// frontend uses its port.
    is_unwanted: bool,
}

impl PortPools {
    /// Creates an empty set of pools. `seed` is a secret that decides the order of allocation.
    pub(super) fn new(seed: u64) -> PortPools {
        PortPools {
            pools: Vec::new(),
            places: HashMap::new(),
            fresh: 0,
            most_fresh: MAX_FRESH,
            most_pools: MAX_POOLS,
            hand: 0,
            draws: Draws { seed, drawn: 0 },
            excluded_version: 0,
            unchecked: 0,
        }
    }

    /// Takes a number below `total` that fits. A released number that no server has seen comes
    /// first. Next come the numbers that were never handed out, in an unpredictable order (RFC
    /// 6056), unless the pools already remember many released numbers. Last come the numbers that
    /// have been free for longest. Returns `None` if no free number fits. `misfits` returns how
    /// many numbers, beginning with its argument, do not fit; 0 if the argument fits.
    pub(super) fn take(&mut self, of: PoolKey, total: u32, misfits: impl Fn(u32) -> u32) -> Option<u32> {
        if total == 0 {
            return None;
        }
        let place = self.place(of, total);
        let pool = &mut self.pools[place];
        pool.is_unwanted = false;
        if pool.excluded_version != self.excluded_version {
            pool.excluded_version = self.excluded_version;
            pool.freed.extend(pool.excluded.drain(..));
            pool.unused.append(&mut pool.passed);
            pool.unused.sort_unstable();
        }
        if std::mem::take(&mut pool.has_unseen)
            && let Some(&number) = pool.freed.front()
            && misfits(number) == 0
        {
            pool.freed.pop_front();
            return Some(number);
        }
        loop {
            let may_remember = pool.handed < SURE || self.fresh < self.most_fresh;
            let draw = self.draws.next();
            let unused = pool.unused_near(draw, total).filter(|_| may_remember || pool.freed.is_empty());
            if let Some(unused) = unused {
                let (first, last) = pool.unused[unused];
                let number = u32::from(first) + (draw >> 32) as u32 % (u32::from(last - first) + 1);
                let passed = misfits(number).min(u32::from(last) + 1 - number);
                let taken = (number as u16, (number + passed.max(1) - 1) as u16);
                pool.part(unused, taken);
                if passed == 0 {
                    pool.handed += 1;
                    self.fresh += usize::from(pool.handed > SURE);
                    return Some(number);
                }
                pool.passed.push(taken);
            } else {
                let number = pool.freed.pop_front()?;
                if misfits(number) == 0 {
                    return Some(number);
                }
                pool.excluded.push(number);
            }
        }
    }

    /// Takes this number of `total`, if it is free.
    pub(super) fn take_this(&mut self, of: PoolKey, number: u32, total: u32) -> bool {
        if number >= total {
            return false;
        }
        let at = self.place(of, total);
        let pool = &mut self.pools[at];
        pool.is_unwanted = false;
        if let Some(freed) = pool.freed.iter().position(|freed| *freed == number) {
            pool.freed.remove(freed);
            return true;
        }
        let Some(unused) = pool.unused_with(number) else { return false };
        pool.part(unused, (number as u16, number as u16));
        pool.handed += 1;
        self.fresh += usize::from(pool.handed > SURE);
        true
    }

    /// Releases a number. A number that no server has seen is handed out next. Returns whether the
    /// pool exists.
    pub(super) fn release(&mut self, of: PoolKey, number: u32, was_seen: bool) -> bool {
        let Some(&place) = self.places.get(&of) else { return false };
        let pool = &mut self.pools[place as usize];
        if was_seen {
            pool.freed.push_back(number);
        } else {
            pool.freed.push_front(number);
            pool.has_unseen = true;
        }
        if !pool.is_in_use() && (pool.is_unwanted || self.pools.len() > self.most_pools) {
            self.remove(place as usize);
        }
        true
    }

    /// Number of ports in use in this pool.
    pub(super) fn in_use(&self, of: PoolKey) -> u32 {
        let pool = self.places.get(&of).map(|place| &self.pools[*place as usize]);
        pool.map_or(0, PortPool::in_use)
    }

    /// Notes that the set of ports that are excluded from SNAT has changed.
    pub(super) fn note_exclusions_changed(&mut self) {
        self.excluded_version = self.excluded_version.wrapping_add(1);
    }

    /// Starts a check of all pools: see [`PortPools::check`].
    pub(super) fn begin_to_check(&mut self) {
        self.unchecked = self.pools.len();
    }

    /// Checks some of the pools. Forgets each pool for which `keep` is false, once its last port is
    /// released. Returns whether there are more to check.
    pub(super) fn check(&mut self, budget: usize, keep: impl Fn(PoolKey) -> bool) -> bool {
        for _ in 0..budget {
            // Backwards: the pool that takes the place of a forgotten one was checked already, or
            // is new.
            self.unchecked = self.unchecked.min(self.pools.len());
            let Some(place) = self.unchecked.checked_sub(1) else { break };
            self.unchecked = place;
            let pool = &mut self.pools[place];
            pool.is_unwanted = !keep(pool.of);
            if pool.is_unwanted && !pool.is_in_use() {
                self.remove(place);
            }
        }
        self.unchecked > 0
    }

    /// Number of pools.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pools.len()
    }

    /// Index of the pool, which is created if it does not exist.
    fn place(&mut self, of: PoolKey, total: u32) -> usize {
        if let Some(&place) = self.places.get(&of) {
            return place as usize;
        }
        if self.pools.len() >= self.most_pools {
            self.remove_some_idle();
        }
        let place = self.pools.len();
        self.places.insert(of, place as u32);
        self.pools.push(PortPool {
            of,
            unused: vec![(0, (total - 1) as u16)],
            handed: 0,
            passed: Vec::new(),
            freed: VecDeque::new(),
            has_unseen: false,
            excluded: Vec::new(),
            excluded_version: self.excluded_version,
            is_unwanted: false,
        });
        place
    }

    fn remove_some_idle(&mut self) {
        for _ in 0..MAX_LOOKED_AT_POOLS {
            self.hand = if self.hand < self.pools.len() { self.hand } else { 0 };
            match self.pools.get(self.hand) {
                Some(pool) if pool.is_in_use() => self.hand += 1,
                Some(_) => self.remove(self.hand),
                None => return,
            }
        }
    }

    fn remove(&mut self, place: usize) {
        let gone = self.pools.swap_remove(place);
        self.fresh -= gone.beyond_sure();
        self.places.remove(&gone.of);
        if let Some(moved) = self.pools.get(place) {
            self.places.insert(moved.of, place as u32);
        }
    }
}

impl PortPool {
    /// Index of the unused range that contains this number.
    fn unused_with(&self, number: u32) -> Option<usize> {
        let at = self.unused_after(number).checked_sub(1)?;
        (number <= u32::from(self.unused[at].1)).then_some(at)
    }

    /// Index of a random unused range among the numbers below `total`.
    fn unused_near(&self, draw: u64, total: u32) -> Option<usize> {
        let near = draw as u32 % total;
        let after = || (!self.unused.is_empty()).then(|| self.unused_after(near) % self.unused.len());
        self.unused_with(near).or_else(after)
    }

    /// Index of the first unused range that begins after this number.
    fn unused_after(&self, number: u32) -> usize {
        self.unused.partition_point(|(first, _)| u32::from(*first) <= number)
    }

    /// Removes a part from an unused range.
    fn part(&mut self, at: usize, taken: (u16, u16)) {
        let (first, last) = self.unused[at];
        match (first < taken.0, taken.1 < last) {
            (true, true) => {
                self.unused[at].1 = taken.0 - 1;
                self.unused.insert(at + 1, (taken.1 + 1, last));
            }
            (true, false) => self.unused[at].1 = taken.0 - 1,
            (false, true) => self.unused[at].0 = taken.1 + 1,
            (false, false) => drop(self.unused.remove(at)),
        }
    }

    fn in_use(&self) -> u32 {
        self.handed - (self.freed.len() + self.excluded.len()) as u32
    }

    fn is_in_use(&self) -> bool {
        self.in_use() > 0
    }

    fn beyond_sure(&self) -> usize {
        self.handed.saturating_sub(SURE) as usize
    }
}

#[cfg(test)]
mod tests;
