//! Things that are found again while somebody holds them. Pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// Values that outlive their configuration as long as somebody holds them: connections hold the counters that
/// count them, the snapshot holds the rest.
pub(super) struct Kept<K, V>(HashMap<K, Weak<V>>);

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Kept(HashMap::new())
    }
}

impl<K: Hash + Eq + Clone, V> Kept<K, V> {
    /// The value of a key: the one that is still held, or a new one.
    pub(super) fn get(&mut self, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        if let Some(kept) = self.0.get(key).and_then(Weak::upgrade) {
            return kept;
        }
        self.0.retain(|_, kept| kept.strong_count() > 0);
        let made = Arc::new(make());
        self.0.insert(key.clone(), Arc::downgrade(&made));
        made
    }
}
