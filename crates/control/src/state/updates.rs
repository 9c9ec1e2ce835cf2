//! Builds snapshots. Pools and frontends are rebuilt once for any number of changes. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::frontends::FrontendSources;
use super::{ControlState, HealthChange, ServerEntry, ServerView, key};
use crate::health::HealthTransition;
use convey_config::Config;
use convey_model::{AdminState, ServerEndpoints, ServerKey, Timestamp};
use convey_snapshot::{Pool, Server, Snapshot};

impl ControlState {
    /// Returns a snapshot and the changes of health since the last snapshot; `None` if nothing has
    /// changed.
    pub(crate) fn take_update(&mut self) -> Option<(Arc<Snapshot>, Vec<HealthChange>)> {
        let (servers, membership) = (&self.servers, &self.membership);
        let view = ServerView { servers, membership, operators: &self.operators, refused: &self.refused };
        let was_stale = self.pools.rebuild_stale(|pool| view.pool(&pool.config, &pool.live, Some(pool)));
        if !was_stale && !self.is_stale && self.changes.is_empty() {
            return None;
        }
        let mut changes = std::mem::take(&mut self.changes);
        for change in &mut changes {
            if let Some(pool) = self.pools.get(&change.server.backend) {
                (change.eligible, change.of) = (pool.eligible(), pool.servers.len());
            }
        }
        Some((self.snapshot(), changes))
    }

    /// For a backend of which no server has ever answered: the servers, each with the reason why it
    /// is down. `None` if a server has answered, or if an operator has taken a server out of
    /// service.
    pub(crate) fn never_answered(&self, backend: &str) -> Option<Vec<String>> {
        let pool = self.pools.get(backend)?;
        let is_mute = |server: &Arc<Server>| {
            let entry = self.servers.get(&key(&pool.config, &server.config));
            server.admin == AdminState::Ready && entry.is_some_and(|entry| !entry.has_answered())
        };
        let why =
            |server: &Arc<Server>| format!("{}: {}", key(&pool.config, &server.config), server.health.reason);
        let are_mute = !pool.servers.is_empty() && pool.servers.iter().all(is_mute);
        are_mute.then(|| pool.servers.iter().map(why).collect())
    }

    /// Applies the backends of the configuration, with the servers of their host names and sources.
    /// Servers that stay keep their state. Returns the state of the removed servers.
    pub(super) fn set_backends(
        &mut self,
        config: &Config,
        now: Timestamp,
    ) -> HashMap<ServerKey, ServerEntry> {
        let mut backends = self.membership.resolve(config);
        self.frontends.discard_built();
        self.operators.apply(&mut backends);
        let gone = self.servers.configure(&backends, &mut self.live_stats, now);
        let changes = self.refused.review(config, backends.iter(), &self.servers, now);
        changes.into_iter().for_each(|(server, change, reason)| self.push_change(server, change, reason));
        let (servers, membership) = (&self.servers, &self.membership);
        let view = ServerView { servers, membership, operators: &self.operators, refused: &self.refused };
        self.pools
            .configure(&backends, &self.live_stats, |config, live, before| view.pool(config, live, before));
        let served = config.frontends.iter().flat_map(|frontend| {
            let pools = frontend.backends().filter_map(|backend| self.pools.get(backend));
            pools.map(move |pool| (frontend, &*pool.config))
        });
        self.server_endpoints = ServerEndpoints::of(served).into();
        gone
    }

    /// Applies the current servers of host names and sources.
    pub(super) fn resolve_again(&mut self, now: Timestamp) {
        if let Some(config) = self.config.take() {
            let gone = self.set_backends(&config, now);
            self.servers.keep_for_dns(gone, now);
            self.config = Some(config);
        }
    }

    /// Checks again for each server whether the host's network allows packets to it.
    pub(super) fn review_refused(&mut self, now: Timestamp) {
        let Some(config) = &self.config else { return };
        let backends = self.pools.configs();
        let backends = backends.iter().map(|backend| &**backend);
        let changes = self.refused.review(config, backends, &self.servers, now);
        changes.into_iter().for_each(|(server, change, reason)| self.push_change(server, change, reason));
    }

    /// Records that a server went up or down.
    pub(super) fn changed(
        &mut self,
        server: &ServerKey,
        change: HealthTransition,
        reason: String,
        now: Timestamp,
    ) {
        self.restart(server, now);
        self.note_change(server, change, reason);
    }

    /// Records a change of health for the next snapshot. A server that packet modes must not use
    /// stays down, regardless of its checks.
    pub(super) fn note_change(&mut self, server: &ServerKey, change: HealthTransition, reason: String) {
        match self.refused.contains(server) {
            true => self.pools.mark_stale(&server.backend),
            false => self.push_change(server.clone(), change, reason),
        }
    }

    fn push_change(&mut self, server: ServerKey, change: HealthTransition, reason: String) {
        self.pools.mark_stale(&server.backend);
        self.changes.push(HealthChange { server, change, reason, eligible: 0, of: 0 });
    }

    pub(super) fn snapshot(&mut self) -> Arc<Snapshot> {
        self.generation += 1;
        self.is_stale = false;
        let (generation, totals) = (self.generation, self.totals.clone());
        let (network, outlasting) = (self.refused.network().clone(), self.outlasting.clone());
        let Some(config) = &self.config else {
            self.frontends.discard_built();
            let empty = self.live_stats.empty_snapshot();
            return Arc::new(Snapshot { generation, network, totals, outlasting, ..empty });
        };
        let backends = config.backends.iter().filter_map(|backend| self.pools.get(&backend.name));
        let pools: Vec<Arc<Pool>> = backends.cloned().collect();
        let overlays = self.operators.http();
        let sources = FrontendSources { config, pools: &self.pools, all_pools: &pools, overlays };
        let built = self.frontends.build(sources, &mut self.live_stats);
        Arc::new(Snapshot {
            generation,
            places: built.places,
            server_endpoints: self.server_endpoints.clone(),
            pools,
            frontends: built.frontends,
            names: self.membership.names(),
            discoveries: self.membership.discoveries(),
            overlays: self.operators.overlays().all().cloned().collect(),
            http_overlays: self.operators.http().all().cloned().collect(),
            log_level: self.operators.log_level().cloned(),
            own_addresses: self.membership.own_addresses(),
            draining: self.draining.places(),
            stopping: self.is_stopping,
            outlasting,
            network,
            acme: config.acme.clone(),
            announce: config.announce.clone(),
            timeouts: config.timeouts,
            flow_timeouts: config.passthrough.timeouts,
            min_path_mtu: config.passthrough.min_path_mtu,
            totals,
        })
    }
}
