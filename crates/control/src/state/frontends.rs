//! Frontends with the backends of their clients, and of their routes, as these are now. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ControlState, PoolEntry, number};
use convey_model::{BackendConfig, FrontendConfig};
use convey_snapshot::{Frontend, FrontendLive, HttpFrontend, Places, Pool, PoolLive, SniRoutes};

/// What snapshots of one configuration share.
pub(super) struct Built {
    pub(super) frontends: Vec<Arc<Frontend>>,
    pub(super) places: Arc<Places>,
}

impl ControlState {
    /// The frontends of the configuration. Those `before` whose backends are the same are kept.
    pub(super) fn build_frontends(&mut self, before: Option<&Built>) -> Vec<Arc<Frontend>> {
        let Some(config) = &self.config else { return Vec::new() };
        let (pools, cores, ids) =
            (Pools { all: &self.pools, none: &self.no_pool }, self.cores, &mut self.next_id);
        let (limits, acceptors) = (&self.request_limits, &mut self.acceptors);
        let (orders, challenges) = (config.acme.is_some(), &self.challenges);
        if before.is_none() {
            acceptors.retain(config);
        }
        let mut build = |frontend: &FrontendConfig| {
            let live = self
                .frontends
                .get(&frontend.name, || FrontendLive::new(number(ids), cores).named(&frontend.name));
            let http = frontend.http.as_ref();
            Arc::new(Frontend {
                config: frontend.clone(),
                pool: frontend.backend.as_ref().map_or(pools.none.clone(), |backend| pools.of(backend)),
                http: http.map(|http| {
                    let limit = |route: Option<&str>| {
                        limits.get(&(frontend.name.clone(), route.map(str::to_owned))).cloned()
                    };
                    let pool = |backend: &str| pools.of(backend);
                    HttpFrontend::new(frontend, http, &live.routes, pool, limit)
                }),
                tls: acceptors.get(frontend, challenges),
                sni: (!frontend.sni_routes.is_empty()).then(|| {
                    let backend = frontend.backend.as_deref();
                    SniRoutes::new(&frontend.sni_routes, backend, &live.routes, |backend| pools.of(backend))
                }),
                challenges: orders.then(|| challenges.clone()),
                sources: self.sources.get(&frontend.name).cloned(),
                live,
            })
        };
        let is_same = |frontend: &&Arc<Frontend>| {
            let is_newest = |pool: &Arc<Pool>| Arc::ptr_eq(pool, pools.newest(pool));
            is_newest(&frontend.pool) && frontend.pools().iter().all(is_newest)
        };
        let mut build_or_keep = |(place, frontend): (usize, &FrontendConfig)| {
            let kept = before.and_then(|before| before.frontends.get(place)).filter(is_same);
            kept.cloned().unwrap_or_else(|| build(frontend))
        };
        config.frontends.iter().enumerate().map(&mut build_or_keep).collect()
    }
}

/// The backends as they are now.
#[derive(Clone, Copy)]
struct Pools<'a> {
    all: &'a HashMap<String, PoolEntry>,
    none: &'a Arc<Pool>,
}

impl Pools<'_> {
    fn of(self, backend: &str) -> Arc<Pool> {
        self.all.get(backend).map_or(self.none, |entry| &entry.pool).clone()
    }

    /// The same backend's pool.
    fn newest(&self, pool: &Pool) -> &Arc<Pool> {
        self.all.get(&pool.config.name).map_or(self.none, |entry| &entry.pool)
    }
}

/// The pool of a frontend without a backend: it has no server, and no name.
pub(super) fn no_pool(cores: usize) -> Arc<Pool> {
    let config = Arc::new(BackendConfig::new("", false));
    Arc::new(Pool::new(config, Vec::new(), Arc::new(PoolLive::new(cores)), None))
}
