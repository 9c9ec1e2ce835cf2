//! Newest snapshot of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};

use super::Snapshot;

/// Newest snapshot. One task publishes snapshots, all others load the newest one.
#[derive(Debug)]
pub struct NewestSnapshot {
    snapshot: ArcSwap<Snapshot>,
    /// Generation of the newest snapshot.
    generation: AtomicU64,
}

impl NewestSnapshot {
    /// Publishes the first snapshot.
    pub fn new(first: Snapshot) -> NewestSnapshot {
        let generation = AtomicU64::new(first.generation);
        NewestSnapshot { snapshot: ArcSwap::from_pointee(first), generation }
    }

    /// Publishes a snapshot with a greater generation. Returns the previous snapshot.
    pub fn publish(&self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        let generation = snapshot.generation;
        let before = self.snapshot.swap(snapshot);
        self.generation.store(generation, Ordering::Release);
        before
    }

    /// Loads the newest snapshot, for a short time.
    pub fn load(&self) -> Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Loads the newest snapshot, to keep it.
    pub fn load_full(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Generation of the newest snapshot. This is a plain load of a number, so a connection can
    /// check cheaply whether what it knows is still current.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_is_that_of_the_published_snapshot() {
        let newest = NewestSnapshot::new(Snapshot::empty(1));
        assert_eq!((newest.generation(), newest.load().generation), (0, 0));
        let before = newest.publish(Arc::new(Snapshot { generation: 7, ..Snapshot::empty(1) }));
        assert_eq!((before.generation, newest.generation(), newest.load_full().generation), (0, 7, 7));
    }
}
