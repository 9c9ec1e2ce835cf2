//! Cache of weak references. The cache returns the same value for a key as long as that value is in
//! use. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// Values that outlive their configuration while they are in use. Connections use counters, and
/// snapshots use all values.
pub(super) struct WeakCache<K, V> {
    values: HashMap<K, Weak<V>>,
    /// Number of entries at which the cache searches for unused values and removes them: twice the
    /// number of entries after the last search. So the cost of a search is spread over the new
    /// values.
    next_search: usize,
}

impl<K, V> Default for WeakCache<K, V> {
    fn default() -> Self {
        WeakCache { values: HashMap::new(), next_search: FIRST_SEARCH }
    }
}

const FIRST_SEARCH: usize = 64;

impl<K: Hash + Eq + Clone, V> WeakCache<K, V> {
    /// Value of a key if the value is still in use; otherwise a new value from `make`.
    pub(super) fn get(&mut self, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        if let Some(kept) = self.values.get(key).and_then(Weak::upgrade) {
            return kept;
        }
        if self.values.len() >= self.next_search {
            self.values.retain(|_, kept| kept.strong_count() > 0);
            self.next_search = FIRST_SEARCH.max(2 * self.values.len());
        }
        let made = Arc::new(make());
        self.values.insert(key.clone(), Arc::downgrade(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_again_while_somebody_holds_it() {
        let mut kept = WeakCache::default();
        let held = kept.get(&1, || "first");
        assert_eq!(*kept.get(&1, || "second"), "first");
        drop(held);
        assert_eq!(*kept.get(&1, || "second"), "second");
    }

    #[test]
    fn unused_values_are_bounded_by_the_number_in_use() {
        let mut kept = WeakCache::default();
        let held: Vec<_> = (0..1000).map(|key| kept.get(&key, || ())).collect();
        for key in 1000..100_000 {
            kept.get(&key, || ());
            assert!(kept.values.len() <= 2 * held.len() + FIRST_SEARCH);
        }
    }
}
