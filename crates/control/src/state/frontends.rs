//! Frontends with the backends of their clients, and of their routes, as these are now. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ControlState, PoolEntry, number};
use convey_model::{BackendConfig, FrontendConfig};
use convey_snapshot::{Frontend, FrontendLive, HttpFrontend, Pool, PoolLive, SniRoutes};

impl ControlState {
    /// The frontends of the configuration.
    pub(super) fn build_frontends(&mut self) -> Vec<Arc<Frontend>> {
        let Some(config) = &self.config else { return Vec::new() };
        let (pools, cores, ids) =
            (Pools { all: &self.pools, none: &self.no_pool }, self.cores, &mut self.next_id);
        let (limits, acceptors) = (&self.request_limits, &mut self.acceptors);
        let (orders, challenges) = (config.acme.is_some(), &self.challenges);
        acceptors.retain(config);
        let build = |frontend: &FrontendConfig| {
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
        config.frontends.iter().map(build).collect()
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
}

/// The pool of a frontend without a backend: it has no server, and no name.
pub(super) fn no_pool(cores: usize) -> Arc<Pool> {
    let config = Arc::new(BackendConfig::new("", false));
    Arc::new(Pool::new(config, Vec::new(), Arc::new(PoolLive::new(cores)), None))
}
