//! Hash index from keys to record numbers, with open addressing.
//!
//! An entry has 8 bytes: 32 bits of the key's hash, and the record's number with the direction of
//! the key. The 32 bits determine the home slot of the entry and distinguish it from its
//! neighbours. A probe therefore reads one cache line of the index and one record. Only one probe
//! in billions reads a wrong record. Entries are ordered by their distance from home (Robin Hood
//! hashing; Celis, 1986), so a miss ends early. Removal shifts entries back: there are no
//! tombstones that would require a rebuild of the index.

use super::flows::FlowId;
use super::state::Direction;

/// Index for a fixed number of keys.
#[derive(Debug)]
pub(super) struct Index {
    /// Entries; 0 is a free slot.
    slots: Box<[u64]>,
}

impl Index {
    /// Creates an index for up to `keys` keys, with three slots for every two keys.
    pub(super) fn new(keys: usize) -> Self {
        Index { slots: vec![0; keys + keys / 2 + 1].into_boxed_slice() }
    }

    /// Memory of the index in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Finds the entry with this hash for which `is_it` is true.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u32,
        mut is_it: impl FnMut(FlowId, Direction) -> bool,
    ) -> Option<(FlowId, Direction)> {
        let mut at = self.home(hash);
        let mut distance = 0;
        loop {
            let entry = self.slots[at];
            if hash_of(entry) == hash && entry != 0 {
                let (id, direction) = unpack(entry);
                if is_it(id, direction) {
                    return Some((id, direction));
                }
            } else if entry == 0 || self.distance(entry, at) < distance {
                return None;
            }
            at = self.after(at);
            distance += 1;
        }
    }

    /// Reads the entry at which [`Index::find`] begins.
    #[inline]
    pub(super) fn first(&self, hash: u32) -> u64 {
        self.slots[self.home(hash)]
    }

    /// Adds an entry. The index must have fewer entries than its capacity.
    pub(super) fn insert(&mut self, hash: u32, id: FlowId, direction: Direction) {
        let mut entry = pack(hash, id, direction);
        let mut at = self.home(hash);
        let mut distance = 0;
        while self.slots[at] != 0 {
            let theirs = self.distance(self.slots[at], at);
            if theirs < distance {
                std::mem::swap(&mut self.slots[at], &mut entry);
                distance = theirs;
            }
            at = self.after(at);
            distance += 1;
        }
        self.slots[at] = entry;
    }

    /// Removes an entry, which must exist.
    pub(super) fn remove(&mut self, hash: u32, id: FlowId, direction: Direction) {
        let entry = pack(hash, id, direction);
        let mut at = self.home(hash);
        while self.slots[at] != entry {
            debug_assert_ne!(self.slots[at], 0, "an entry that is there");
            at = self.after(at);
        }
        loop {
            let next = self.after(at);
            let moved = self.slots[next];
            if moved == 0 || self.distance(moved, next) == 0 {
                break;
            }
            self.slots[at] = moved;
            at = next;
        }
        self.slots[at] = 0;
    }

    /// Home slot of an entry: the hash scaled to the number of slots.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    /// Distance of the entry in slot `at` from its home.
    #[inline]
    fn distance(&self, entry: u64, at: usize) -> usize {
        let home = self.home(hash_of(entry));
        if at >= home { at - home } else { at + self.slots.len() - home }
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }
}

/// Packs an entry: the hash in the upper half; below it the number doubled, plus the direction,
/// plus one, so that an entry is never 0.
#[inline]
fn pack(hash: u32, id: FlowId, direction: Direction) -> u64 {
    u64::from(hash) << 32 | u64::from((id.0 << 1 | direction as u32) + 1)
}

#[inline]
fn unpack(entry: u64) -> (FlowId, Direction) {
    let packed = entry as u32 - 1;
    let direction = if packed & 1 == 0 { Direction::ToServer } else { Direction::ToClient };
    (FlowId(packed >> 1), direction)
}

#[inline]
fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::Direction::{ToClient, ToServer};
    use super::*;

    /// Hashes at both ends of the index, and often equal: all of them collide, and runs wrap
    /// around.
    fn any_hash() -> impl Strategy<Value = u32> {
        prop_oneof![0..4u32, u32::MAX - 3..=u32::MAX, any::<u32>()]
    }

    proptest! {
        #[test]
        fn index_finds_inserted_flows_and_no_removed_ones(
            steps in prop::collection::vec((any_hash(), 0..16u32, any::<bool>()), 0..200),
        ) {
            let mut index = Index::new(16);
            let mut present = HashSet::new();
            for (hash, id, reply) in steps {
                let direction = if reply { ToClient } else { ToServer };
                if present.remove(&(hash, id, reply)) {
                    index.remove(hash, FlowId(id), direction);
                } else if present.len() < 16 {
                    present.insert((hash, id, reply));
                    index.insert(hash, FlowId(id), direction);
                }
                for &(hash, id, reply) in &present {
                    let direction = if reply { ToClient } else { ToServer };
                    let entry = (FlowId(id), direction);
                    prop_assert_eq!(index.find(hash, |id, direction| (id, direction) == entry), Some(entry));
                }
                let used = index.slots.iter().filter(|entry| **entry != 0).count();
                prop_assert_eq!(used, present.len());
                prop_assert_eq!(index.find(hash ^ 0x8000, |_, _| true).is_some(),
                    present.iter().any(|entry| entry.0 == hash ^ 0x8000));
            }
        }
    }

    #[test]
    fn the_largest_record_number_and_hash_fit() {
        for (hash, id, direction) in [(u32::MAX, (1 << 31) - 2, ToClient), (0, 0, ToServer)] {
            let entry = pack(hash, FlowId(id), direction);
            assert!(entry != 0);
            assert_eq!((hash_of(entry), unpack(entry)), (hash, (FlowId(id), direction)));
        }
    }
}
