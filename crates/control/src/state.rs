//! The running configuration and its state. Pure: events in, snapshots and changes out.
//!
//! [`ControlState`] consists of parts with separate fields: [`Membership`] (servers of each
//! backend), [`ServerTable`], [`PoolTable`], [`FrontendTable`], [`OperatorChanges`] and
//! [`RefusedServers`].

mod acceptors;
mod dns_grace;
mod frontends;
mod handshakes;
mod known;
mod live_factory;
mod membership;
mod operators;
mod outlier;
mod path_mtu;
mod pools;
mod refused;
mod server;
mod server_view;
mod servers;
mod sources;
mod steer;
mod updates;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use self::frontends::FrontendTable;
pub use self::known::{Known, KnownServer};
use self::live_factory::LiveFactory;
use self::membership::Membership;
use self::operators::OperatorChanges;
use self::pools::PoolTable;
use self::refused::RefusedServers;
use self::server::{ProbeEffect, ServerEntry};
use self::server_view::ServerView;
use self::servers::ServerTable;
use self::sources::share_access;
pub use self::steer::Unsteerable;
use super::discoveries::DiscoveryChange;
use super::draining::DrainDeadlines;
use super::names::NameChange;
use crate::UnreachableServers;
use crate::health::{Confirmation, Finding, HealthTransition, ProbeOutcome};
use convey_config::{Config, LeftOut};
use convey_model::{
    BackendConfig, DiscoverySource, DiscoveryState, Endpoint, FrontendConfig, HealthCheck, Lookup, Mode,
    NextHops, ServerConfig, ServerEndpoints, ServerKey, Timestamp,
};
use convey_snapshot::Snapshot;
use convey_snapshot::stats::Traffic;
use convey_tls::AcmeChallenges;

/// The state behind the snapshots.
pub struct ControlState {
    config: Option<Config>,
    membership: Membership,
    servers: ServerTable,
    pools: PoolTable,
    frontends: FrontendTable,
    operators: OperatorChanges,
    refused: RefusedServers,
    draining: DrainDeadlines,
    server_endpoints: Arc<ServerEndpoints>,
    lives: LiveFactory,
    totals: Arc<Traffic>,
    is_stopping: bool,
    /// Frontends whose flows outlive this process; empty before the end.
    outlasting: BTreeSet<Endpoint>,
    generation: u64,
    /// Whether anything that snapshots show, besides pools, has changed since the last one.
    is_stale: bool,
    /// Changes of health since the last snapshot.
    changes: Vec<HealthChange>,
    /// Servers to probe at once.
    doubts: Vec<Confirmation>,
}

/// Change of a server: it went up or down, was ejected or returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthChange {
    /// The server.
    pub server: ServerKey,
    /// New state of the server.
    pub change: HealthTransition,
    /// Reason, an operator-facing message.
    pub reason: String,
    /// Number of servers of its backend that can be chosen after all changes of the same snapshot.
    pub eligible: usize,
    /// Number of servers of its backend.
    pub of: usize,
}

impl ControlState {
    /// Returns the state before the first configuration; counters are for `cores` writers.
    pub fn new(cores: usize) -> Self {
        let lives = LiveFactory::new(cores);
        ControlState {
            config: None,
            membership: Membership::default(),
            servers: ServerTable::default(),
            pools: PoolTable::new(lives.empty_pool()),
            frontends: FrontendTable::default(),
            operators: OperatorChanges::default(),
            refused: RefusedServers::default(),
            draining: DrainDeadlines::default(),
            server_endpoints: Arc::default(),
            totals: lives.totals(),
            lives,
            is_stopping: false,
            outlasting: BTreeSet::new(),
            generation: 0,
            is_stale: false,
            changes: Vec::new(),
            doubts: Vec::new(),
        }
    }

    /// The running configuration; servers with host names are as in the file.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// The next hops, as last set.
    pub fn network(&self) -> &Arc<NextHops> {
        self.refused.network()
    }

    /// Applies a configuration. Frontends, backends and servers with the same name (servers: and
    /// address) keep their counters, connections and health. Removed ones that return while their
    /// connections are open keep their counters and connections.
    pub fn configure(&mut self, mut config: Config, now: Timestamp) -> Arc<Snapshot> {
        self.membership.follow(&config, now);
        self.set_backends(&config, now);
        self.frontends.configure(&config);
        share_access(self.config.as_ref(), &mut config);
        if let Some(before) = &self.config {
            self.draining.apply(before, &config, now);
        }
        self.config = Some(config);
        self.snapshot()
    }

    /// Names of this configuration that were not looked up yet.
    pub(crate) fn unknown_names(&self, config: &Config) -> BTreeSet<String> {
        self.membership.unknown_names(config)
    }

    /// Sources of this configuration that have reported nothing yet.
    pub(crate) fn unknown_sources(&self, config: &Config) -> BTreeSet<DiscoverySource> {
        self.membership.unknown_sources(config)
    }

    /// Sets the servers of a source of the next configuration.
    pub fn know_source(&mut self, source: &DiscoverySource, state: DiscoveryState, now: Timestamp) {
        self.learn_of_source(source, state, now);
    }

    /// Applies the first report of a source of the next configuration.
    pub(crate) fn learn_of_source(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        self.membership.learn_source(source, state, now)
    }

    /// Applies a report of a source. New servers are added, and missing ones removed, like after a
    /// lookup of a host name; draining servers get no new connections. The change is published by
    /// [`ControlState::take_update`].
    pub(crate) fn on_discovery(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        let (change, is_shown) = self.membership.on_discovery(source, state, now);
        self.is_stale |= is_shown;
        let change = change?;
        if change.is_of_servers {
            self.resolve_again(now);
        }
        Some(change)
    }

    /// Sets the addresses of a host name of the next configuration.
    pub fn know_name(&mut self, lookup: Lookup, now: Timestamp) {
        self.learn(lookup, now);
    }

    /// Sets the addresses of this host.
    pub fn know_own_addresses(&mut self, addresses: BTreeSet<IpAddr>, now: Timestamp) {
        self.set_own_addresses(addresses, now);
    }

    /// Applies the lookup of an unknown host name of the next configuration.
    pub(crate) fn learn(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        self.membership.learn_name(lookup, now)
    }

    /// Applies a lookup. Servers at new addresses are added, and servers at missing addresses
    /// removed, like after a new configuration. The state of removed servers is kept for a while,
    /// because some name servers omit changing parts of their records. Answers of name servers that
    /// are no longer configured are ignored. The change is published by
    /// [`ControlState::take_update`].
    pub(crate) fn on_lookup(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        if self.config.as_ref().is_some_and(|config| config.dns.name_servers != lookup.name_servers) {
            return None;
        }
        let change = self.membership.on_lookup(lookup, now)?;
        self.is_stale = true;
        if !change.added.is_empty() || !change.removed.is_empty() {
            self.resolve_again(now);
        }
        Some(change)
    }

    /// Sets the addresses of this host: servers of host names that would lead back to convey are
    /// left out. Returns whether the addresses have changed. The change is published by
    /// [`ControlState::take_update`].
    pub(crate) fn set_own_addresses(&mut self, addresses: BTreeSet<IpAddr>, now: Timestamp) -> bool {
        let differ = self.membership.set_own_addresses(addresses);
        if differ {
            self.is_stale = true;
            self.resolve_again(now);
        }
        differ
    }

    /// Addresses of host names that are left out, because a server there would be one of the
    /// frontends.
    pub fn left_out(&self) -> &BTreeSet<LeftOut> {
        self.membership.left_out()
    }

    /// When [`ControlState::on_time`] has something to do, if ever.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.draining.due().into_iter().chain(self.servers.due()).min()
    }

    /// Removes frontends and servers whose drain timeout has expired, ends ejections, and advances
    /// slow starts. The change is published by [`ControlState::take_update`].
    pub(crate) fn on_time(&mut self, now: Timestamp) {
        self.is_stale |= self.draining.expire(now);
        self.pass_time(now);
    }

    /// Begins no new flows from now on (packet modes): open flows may finish.
    pub fn stop(&mut self) -> Arc<Snapshot> {
        self.is_stopping = true;
        self.snapshot()
    }

    /// Whether no new flows begin any more.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Challenges that frontends present to ACME authorities.
    pub fn challenges(&self) -> Arc<AcmeChallenges> {
        self.frontends.challenges().clone()
    }

    /// Stops serving and cuts open connections. Connections for which any balancer chooses the same
    /// server are kept: the next process or another balancer continues them.
    pub fn end(&mut self) -> Arc<Snapshot> {
        self.outlasting = self.config.iter().flat_map(repeatable).collect();
        self.config = None;
        self.snapshot()
    }

    /// Applies the outcome of a probe, unless a reload has replaced its check: the old check may
    /// have probed something else, and a server without a check would stay down forever.
    pub(crate) fn on_outcome(&mut self, outcome: ProbeOutcome, now: Timestamp) {
        let ProbeOutcome { server, check, finding, reason, confirms } = outcome;
        let is_current = self.servers.get(&server).is_some_and(|entry| *entry.check() == check);
        if confirms {
            let finding = if is_current { finding } else { Finding::Nothing };
            return self.on_confirmation(&server, finding, now);
        }
        if is_current {
            if finding == Finding::Answer {
                self.note_answer(&server, now);
            }
            self.on_probe(&server, finding != Finding::Failure, reason, now);
        }
    }

    /// Applies the outcome of a probe. The change is published by [`ControlState::take_update`].
    pub(crate) fn on_probe(&mut self, server: &ServerKey, success: bool, reason: String, now: Timestamp) {
        let Some(entry) = self.servers.get_mut(server) else { return };
        match entry.on_probe(success, &reason, now) {
            ProbeEffect::Nothing => {}
            ProbeEffect::Proven => self.pools.mark_stale(&server.backend),
            ProbeEffect::StillDown => self.note_change(server, HealthTransition::StillDown, reason),
            ProbeEffect::Changed(change) => self.changed(server, change, reason, now),
        }
    }

    /// Probes that should run now.
    pub fn probes(&self) -> HashMap<ServerKey, HealthCheck> {
        let view = self.view();
        let checked = self.servers.iter().filter(|(key, _)| !view.is_in_maintenance(key));
        checked.map(|(key, entry)| (key.clone(), entry.check().clone())).collect()
    }

    /// Sets the next hops. They must be built from the previous ones, so that they keep their
    /// indices. The change is published by `take_update`.
    pub fn set_network(&mut self, network: impl Into<Arc<NextHops>>) {
        self.refused.set_network(network.into());
        self.is_stale = true;
    }

    /// Sets the next hops like [`ControlState::set_network`]. Servers that packet modes must not
    /// send to count as down from now on.
    pub fn on_network(&mut self, network: impl Into<Arc<NextHops>>, now: Timestamp) {
        self.set_network(network);
        self.review_refused(now);
    }

    /// Marks servers of passthrough as down that the data path cannot send to. Returns whether they
    /// changed.
    pub(crate) fn set_unreachable(&mut self, unreachable: UnreachableServers, now: Timestamp) -> bool {
        let differ = self.refused.set_unreachable(unreachable);
        if differ {
            self.is_stale = true;
            self.review_refused(now);
        }
        differ
    }

    /// Parts that decide how snapshots show servers.
    fn view(&self) -> ServerView<'_> {
        ServerView {
            servers: &self.servers,
            membership: &self.membership,
            operators: &self.operators,
            refused: &self.refused,
        }
    }
}

/// Frontends whose connections any balancer sends to the same server, and whose servers answer
/// clients directly.
fn repeatable(config: &Config) -> impl Iterator<Item = Endpoint> {
    let hashes = |frontend: &&FrontendConfig| {
        let backend = frontend.backend.as_deref().and_then(|name| config.backend(name));
        backend.is_some_and(|backend| backend.algorithm.hashes())
    };
    config.frontends_where(Mode::is_dsr).filter(hashes).flat_map(FrontendConfig::endpoints)
}

fn key(backend: &BackendConfig, server: &ServerConfig) -> ServerKey {
    ServerKey { backend: backend.name.clone(), server: server.name.clone(), addr: server.addr }
}

#[cfg(test)]
mod tests;
