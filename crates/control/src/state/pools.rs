//! Pools of backends for the data path. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::live_factory::LiveFactory;
use crate::weak_cache::WeakCache;
use convey_model::BackendConfig;
use convey_snapshot::{Pool, PoolLive};

/// Pool of each backend. A change of a server marks the pool as stale. The pool is then rebuilt
/// once for any number of changes.
pub(super) struct PoolTable {
    pools: HashMap<String, PoolEntry>,
    /// Counters that connections or snapshots still use, by backend.
    live_stats: WeakCache<String, PoolLive>,
    /// Round-robin positions from the previous process, for backends that are not configured yet.
    handed_over: HashMap<String, usize>,
    /// Pool of frontends without a backend.
    empty: Arc<Pool>,
}

struct PoolEntry {
    pool: Arc<Pool>,
    is_stale: bool,
}

impl PoolTable {
    pub(super) fn new(empty: Arc<Pool>) -> PoolTable {
        PoolTable {
            pools: HashMap::new(),
            live_stats: WeakCache::default(),
            handed_over: HashMap::new(),
            empty,
        }
    }

    pub(super) fn get(&self, backend: &str) -> Option<&Arc<Pool>> {
        self.pools.get(backend).map(|entry| &entry.pool)
    }

    /// Configuration of a backend, with the servers of its host names; `None`: there is no such
    /// backend.
    pub(super) fn config(&self, backend: &str) -> Option<Arc<BackendConfig>> {
        self.get(backend).map(|pool| pool.config.clone())
    }

    pub(super) fn configs(&self) -> Vec<Arc<BackendConfig>> {
        self.pools.values().map(|entry| entry.pool.config.clone()).collect()
    }

    /// Pool of a frontend; an empty pool for a frontend without a backend.
    pub(super) fn of_frontend(&self, backend: Option<&str>) -> Arc<Pool> {
        backend.and_then(|backend| self.get(backend)).unwrap_or(&self.empty).clone()
    }

    /// Whether a pool is the newest pool of its backend.
    pub(super) fn is_newest(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(pool, self.get(&pool.config.name).unwrap_or(&self.empty))
    }

    /// Round-robin positions by backend, for the next process.
    pub(super) fn turns(&self) -> Vec<(String, usize)> {
        self.pools.iter().map(|(name, entry)| (name.clone(), entry.pool.live.turn())).collect()
    }

    /// Takes over round-robin positions. Backends start with them once they are configured.
    pub(super) fn expect(&mut self, turns: Vec<(String, usize)>) {
        self.handed_over = turns.into_iter().collect();
    }

    /// Marks the pool of a backend to be rebuilt before the next snapshot.
    pub(super) fn mark_stale(&mut self, backend: &str) {
        if let Some(entry) = self.pools.get_mut(backend) {
            entry.is_stale = true;
        }
    }

    /// Rebuilds the stale pools. Returns whether any pool was stale.
    pub(super) fn rebuild_stale(&mut self, build: impl Fn(&Arc<Pool>) -> Arc<Pool>) -> bool {
        let mut was_stale = false;
        for entry in self.pools.values_mut().filter(|entry| entry.is_stale) {
            *entry = PoolEntry { pool: build(&entry.pool), is_stale: false };
            was_stale = true;
        }
        was_stale
    }

    /// Applies the configuration of these backends, and removes the pools of all others.
    pub(super) fn configure(
        &mut self,
        backends: &[BackendConfig],
        live_stats: &LiveFactory,
        build: impl Fn(&Arc<BackendConfig>, &Arc<PoolLive>, Option<&Pool>) -> Arc<Pool>,
    ) {
        let mut old = std::mem::take(&mut self.pools);
        for backend in backends {
            let name = &backend.name;
            let turn = self.handed_over.remove(name).unwrap_or_default();
            let live = self.live_stats.get(name, || live_stats.pool(name).at_turn(turn));
            let before = old.remove(name).map(|entry| entry.pool);
            let pool = build(&Arc::new(backend.clone()), &live, before.as_deref());
            self.pools.insert(name.clone(), PoolEntry { pool, is_stale: false });
        }
    }
}
