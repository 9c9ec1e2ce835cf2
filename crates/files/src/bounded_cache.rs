//! LRU cache with a limit for the number of entries and a limit for their bytes. Pure.

use std::borrow::Borrow;
use std::hash::Hash;

use lru::LruCache;

/// Limits of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheBounds {
    /// Maximum number of entries.
    pub entries: usize,
    /// Maximum number of bytes of all entries.
    pub bytes: usize,
}

/// Cache of entries that each have a size in bytes. The least recently used entries are evicted.
#[derive(Debug)]
pub struct BoundedCache<K: Hash + Eq, V> {
    entries: LruCache<K, (V, usize)>,
    bytes: usize,
    bounds: CacheBounds,
}

impl<K: Hash + Eq, V> BoundedCache<K, V> {
    /// Creates an empty cache.
    pub fn new(bounds: CacheBounds) -> BoundedCache<K, V> {
        BoundedCache { entries: LruCache::unbounded(), bytes: 0, bounds }
    }

    /// Returns an entry, and marks it as the most recently used one.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// Inserts an entry of `bytes` bytes, and replaces an entry with the same key. An entry that is
    /// larger than the whole cache is not inserted. Returns the number of evicted entries.
    pub fn put(&mut self, key: K, value: V, bytes: usize) -> usize {
        if bytes > self.bounds.bytes || self.bounds.entries == 0 {
            return 0;
        }
        self.bytes += bytes;
        if let Some((_, (_, before))) = self.entries.push(key, (value, bytes)) {
            self.bytes -= before;
        }
        let mut evicted = 0;
        while self.bytes > self.bounds.bytes || self.entries.len() > self.bounds.entries {
            let Some((_, (_, bytes))) = self.entries.pop_lru() else { break };
            self.bytes -= bytes;
            evicted += 1;
        }
        evicted
    }

    /// Removes the least recently used entries until `is_old` returns `false` for an entry.
    pub fn expire(&mut self, is_old: impl Fn(&V) -> bool) {
        while self.entries.peek_lru().is_some_and(|(_, (value, _))| is_old(value)) {
            if let Some((_, (_, bytes))) = self.entries.pop_lru() {
                self.bytes -= bytes;
            }
        }
    }

    /// Removes an entry, and returns it.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (value, bytes) = self.entries.pop(key)?;
        self.bytes -= bytes;
        Some(value)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sum of the bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cache(entries: usize, bytes: usize) -> BoundedCache<String, u32> {
        BoundedCache::new(CacheBounds { entries, bytes })
    }

    #[test]
    fn least_recently_used_entries_are_evicted_by_count_and_bytes() {
        let mut three = cache(3, 100);
        for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
            three.put(key.into(), value, 10);
        }
        assert_eq!(three.get("a").copied(), Some(1));
        assert_eq!(three.put("d".into(), 4, 10), 1);
        assert_eq!(
            (three.get("b").copied(), three.get("a").copied(), three.len(), three.bytes()),
            (None, Some(1), 3, 30)
        );
        assert_eq!(three.put("e".into(), 5, 95), 3);
        assert_eq!(
            (three.get("e").copied(), three.get("a").copied(), three.len(), three.bytes()),
            (Some(5), None, 1, 95)
        );
    }

    #[test]
    fn entry_replaces_its_predecessor_and_too_large_entries_are_not_kept() {
        let mut one = cache(3, 100);
        one.put("a".into(), 1, 60);
        one.put("a".into(), 2, 70);
        assert_eq!((one.get("a").copied(), one.bytes()), (Some(2), 70));
        one.put("b".into(), 3, 101);
        assert_eq!((one.get("b").copied(), one.len()), (None, 1));
        assert_eq!((one.remove("a"), one.remove("a"), one.bytes(), one.is_empty()), (Some(2), None, 0, true));
    }

    #[test]
    fn old_entries_expire_from_the_least_recently_used_on() {
        let mut three = cache(3, 100);
        for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
            three.put(key.into(), value, 10);
        }
        three.expire(|value| *value < 3);
        assert_eq!((three.len(), three.bytes(), three.get("c").copied()), (1, 10, Some(3)));
    }

    proptest! {
        #[test]
        fn the_bounds_hold_whatever_is_put_in_and_taken_out(steps in prop::collection::vec((0..20_u8, 0..60_usize, any::<bool>()), 0..200)) {
            let mut cache: BoundedCache<u8, usize> = BoundedCache::new(CacheBounds { entries: 8, bytes: 100 });
            for (key, bytes, puts) in steps {
                if puts { cache.put(key, bytes, bytes); } else { cache.remove(&key); }
                prop_assert!(cache.len() <= 8 && cache.bytes() <= 100);
                let sum: usize = cache.entries.iter().map(|(_, (_, bytes))| bytes).sum();
                prop_assert_eq!(sum, cache.bytes());
            }
        }
    }
}
