//! Frontends for snapshots, built with the current pools of their backends and routes. Pure.

use std::sync::Arc;

use super::acceptors::Acceptors;
use super::live_factory::LiveFactory;
use super::pools::PoolTable;
use super::sources::SourceLimits;
use crate::http_overlays::HttpOverlays;
use crate::weak_cache::WeakCache;
use convey_config::Config;
use convey_model::FrontendConfig;
use convey_snapshot::{Frontend, FrontendLive, HttpFrontend, Places, Pool, SniRoutes};
use convey_tls::AcmeChallenges;

/// Frontends of the running configuration, with their state that outlives the configuration.
#[derive(Default)]
pub(super) struct FrontendTable {
    /// Counters that connections or snapshots still use, by frontend.
    live_stats: WeakCache<String, FrontendLive>,
    acceptors: Acceptors,
    limits: SourceLimits,
    /// Frontends of the last snapshot; `None` after a change of the configuration or of servers.
    /// Then all frontends are rebuilt.
    built: Option<BuiltFrontends>,
}

/// State that frontends of a snapshot are built from.
#[derive(Clone, Copy)]
pub(super) struct FrontendSources<'a> {
    pub(super) config: &'a Config,
    /// Newest pools of all backends.
    pub(super) pools: &'a PoolTable,
    /// The pools in the order of the configuration.
    pub(super) all_pools: &'a [Arc<Pool>],
    pub(super) overlays: &'a HttpOverlays,
}

/// Frontends of one snapshot. Snapshots of the same configuration share unchanged frontends.
#[derive(Clone)]
pub(super) struct BuiltFrontends {
    pub(super) frontends: Vec<Arc<Frontend>>,
    pub(super) places: Arc<Places>,
}

impl FrontendTable {
    /// Challenges that frontends present to ACME authorities.
    pub(super) fn challenges(&self) -> &Arc<AcmeChallenges> {
        self.acceptors.challenges()
    }

    /// Applies the limits per source of a configuration. Unchanged limits keep their counts of
    /// connections and requests.
    pub(super) fn configure(&mut self, config: &Config) {
        self.limits.configure(config);
    }

    /// Makes the next snapshot rebuild all frontends.
    pub(super) fn discard_built(&mut self) {
        self.built = None;
    }

    /// Frontends of the configuration, for a snapshot with these pools. A frontend whose pools have
    /// not changed is reused.
    pub(super) fn build(
        &mut self,
        sources: FrontendSources<'_>,
        live_stats: &mut LiveFactory,
    ) -> BuiltFrontends {
        let FrontendSources { config, pools, all_pools, .. } = sources;
        let before = self.built.take();
        if before.is_none() {
            self.acceptors.retain(config);
        }
        let mut frontends = Vec::with_capacity(config.frontends.len());
        for (place, frontend) in config.frontends.iter().enumerate() {
            let kept = before.as_ref().and_then(|before| before.frontends.get(place));
            let kept = kept.filter(|kept| is_of_newest(kept, pools)).cloned();
            frontends.push(kept.unwrap_or_else(|| Arc::new(self.frontend(frontend, sources, live_stats))));
        }
        let places = match before {
            Some(before) => before.places,
            None => Places::new(&frontends, all_pools).into(),
        };
        self.built.insert(BuiltFrontends { frontends, places }).clone()
    }

    fn frontend(
        &mut self,
        frontend: &FrontendConfig,
        sources: FrontendSources<'_>,
        live_stats: &mut LiveFactory,
    ) -> Frontend {
        let FrontendSources { config, pools, overlays, .. } = sources;
        let mut steered = frontend.clone();
        overlays.apply(&mut steered);
        let live = self.live_stats.get(&frontend.name, || live_stats.frontend(&frontend.name));
        let pool = |backend: &str| pools.of_frontend(Some(backend));
        let limit = |route: Option<&str>| self.limits.of_requests(&frontend.name, route);
        let http = steered.http.as_ref();
        let http = http.map(|http| HttpFrontend::new(frontend, http, &live.routes, pool, limit));
        let sni = (!frontend.sni_routes.is_empty()).then(|| {
            let backend = frontend.backend.as_deref();
            SniRoutes::new(&frontend.sni_routes, backend, &live.routes, pool)
        });
        Frontend {
            pool: pools.of_frontend(frontend.backend.as_deref()),
            http,
            tls: self.acceptors.get(frontend),
            sni,
            challenges: config.acme.is_some().then(|| self.acceptors.challenges().clone()),
            sources: self.limits.of_connections(&frontend.name),
            config: steered,
            live,
        }
    }
}

/// Whether all pools of a frontend are the newest pools of their backends.
fn is_of_newest(frontend: &Frontend, pools: &PoolTable) -> bool {
    pools.is_newest(&frontend.pool) && frontend.pools().iter().all(|pool| pools.is_newest(pool))
}
