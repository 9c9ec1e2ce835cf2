//! Factory of the counters of frontends, backends and servers. Pure.

use std::sync::Arc;

use convey_model::BackendConfig;
use convey_snapshot::stats::Traffic;
use convey_snapshot::{FrontendLive, Pool, PoolLive, ServerLive, Snapshot};

/// Creates counters for a number of cores, with ids that are unique among frontends and servers.
pub(super) struct LiveFactory {
    cores: usize,
    next_id: u32,
}

impl LiveFactory {
    /// Creates a factory of counters for `cores` cores.
    pub(super) fn new(cores: usize) -> LiveFactory {
        LiveFactory { cores, next_id: 0 }
    }

    pub(super) fn frontend(&mut self, name: &str) -> FrontendLive {
        FrontendLive::new(self.next_id(), self.cores).named(name)
    }

    pub(super) fn server(&mut self, name: &str) -> ServerLive {
        ServerLive::new(self.next_id(), self.cores).named(name)
    }

    pub(super) fn pool(&self, name: &str) -> PoolLive {
        PoolLive::new(self.cores).named(name)
    }

    /// Returns the pool of frontends without a backend. The pool has neither servers nor a name.
    pub(super) fn empty_pool(&self) -> Arc<Pool> {
        let config = Arc::new(BackendConfig::new("", false));
        Arc::new(Pool::new(config, Vec::new(), Arc::new(PoolLive::new(self.cores)), None))
    }

    pub(super) fn totals(&self) -> Arc<Traffic> {
        Arc::new(Traffic::new(self.cores))
    }

    /// Returns a snapshot without frontends.
    pub(super) fn empty_snapshot(&self) -> Snapshot {
        Snapshot::empty(self.cores)
    }

    fn next_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }
}
