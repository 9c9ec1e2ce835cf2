//! Running configuration and its state. Pure: the input is events, the output is snapshots and
//! changes.
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
mod steer_http;
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

/// State from which snapshots are built.
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
    live_stats: LiveFactory,
    totals: Arc<Traffic>,
    is_stopping: bool,
    /// Endpoints of frontends whose flows continue without this process. `ControlState::end` sets
    /// them; empty before.
    outlasting: BTreeSet<Endpoint>,
    generation: u64,
    /// Whether anything that snapshots show, except pools, has changed since the last snapshot.
    is_stale: bool,
    /// Changes of health since the last snapshot.
    changes: Vec<HealthChange>,
    /// Confirming probes to send immediately.
    doubts: Vec<Confirmation>,
}

/// Change of a server's health: the server went up or down, was ejected or returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthChange {
    /// Server whose health changed.
    pub server: ServerKey,
    /// New state of the server.
    pub change: HealthTransition,
    /// Operator-facing reason of the change.
    pub reason: String,
    /// Number of servers of the backend that can get new connections, after all changes of the same
    /// snapshot.
    pub eligible: usize,
    /// Number of servers of the backend.
    pub of: usize,
}

impl ControlState {
    /// State before the first configuration. Counters are for `cores` cores.
    pub fn new(cores: usize) -> Self {
        let live_stats = LiveFactory::new(cores);
        ControlState {
            config: None,
            membership: Membership::default(),
            servers: ServerTable::default(),
            pools: PoolTable::new(live_stats.empty_pool()),
            frontends: FrontendTable::default(),
            operators: OperatorChanges::default(),
            refused: RefusedServers::default(),
            draining: DrainDeadlines::default(),
            server_endpoints: Arc::default(),
            totals: live_stats.totals(),
            live_stats,
            is_stopping: false,
            outlasting: BTreeSet::new(),
            generation: 0,
            is_stale: false,
            changes: Vec::new(),
            doubts: Vec::new(),
        }
    }

    /// Running configuration. Servers with host names are as in the file. `None` before the first
    /// configuration.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Next hops of the host, as last set.
    pub fn network(&self) -> &Arc<NextHops> {
        self.refused.network()
    }

    /// Applies a configuration, and returns a snapshot of it. Frontends, backends and servers with
    /// the same name (servers: also the same address) keep their counters, connections and health.
    /// A removed frontend, backend or server that returns while its connections are open also keeps
    /// its counters and connections.
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

    /// Host names of this configuration that were not looked up yet.
    pub(crate) fn unknown_names(&self, config: &Config) -> BTreeSet<String> {
        self.membership.unknown_names(config)
    }

    /// Sources of this configuration that have not reported servers or a fault yet.
    pub(crate) fn unknown_sources(&self, config: &Config) -> BTreeSet<DiscoverySource> {
        self.membership.unknown_sources(config)
    }

    /// Sets the servers of a source by its first report. The next configuration uses the source.
    pub fn set_source(&mut self, source: &DiscoverySource, state: DiscoveryState, now: Timestamp) {
        self.apply_first_report(source, state, now);
    }

    /// Applies the first report of a source that the next configuration uses.
    pub(crate) fn apply_first_report(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        self.membership.apply_first_report(source, state, now)
    }

    /// Applies a report of a source. New servers are added and missing servers removed, as after a
    /// lookup of a host name. Draining servers get no new connections.
    /// [`ControlState::take_update`] returns a snapshot with the change.
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

    /// Sets the addresses of a host name that the next configuration uses.
    pub fn set_name(&mut self, lookup: Lookup, now: Timestamp) {
        self.apply_first(lookup, now);
    }

    /// Sets the addresses of this host.
    pub fn replace_own_addresses(&mut self, addresses: BTreeSet<IpAddr>, now: Timestamp) {
        self.set_own_addresses(addresses, now);
    }

    /// Applies the first lookup of a host name that the next configuration uses.
    pub(crate) fn apply_first(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        self.membership.apply_first_lookup(lookup, now)
    }

    /// Applies a lookup. Servers at new addresses are added and servers at missing addresses
    /// removed, as after a new configuration. The state of removed servers is kept for a while,
    /// because some name servers answer with a changing part of their records. Answers of name
    /// servers that are no longer configured are ignored. [`ControlState::take_update`] returns a
    /// snapshot with the change.
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

    /// Sets the addresses of this host. An address of a host name does not become a server if its
    /// connections would lead back to convey. Returns whether this host's addresses have changed.
    /// [`ControlState::take_update`] returns a snapshot with the change.
    pub(crate) fn set_own_addresses(&mut self, addresses: BTreeSet<IpAddr>, now: Timestamp) -> bool {
        let differ = self.membership.set_own_addresses(addresses);
        if differ {
            self.is_stale = true;
            self.resolve_again(now);
        }
        differ
    }

    /// Addresses of host names that do not become servers, because such a server would lead back to
    /// a frontend of convey.
    pub fn left_out(&self) -> &BTreeSet<LeftOut> {
        self.membership.left_out()
    }

    /// Time at which [`ControlState::on_time`] should be called next; `None`: nothing is pending.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.draining.due().into_iter().chain(self.servers.due()).min()
    }

    /// Removes frontends and servers whose drain timeout has expired, ends ejections, and advances
    /// slow starts. [`ControlState::take_update`] returns a snapshot with the change.
    pub(crate) fn on_time(&mut self, now: Timestamp) {
        self.is_stale |= self.draining.expire(now);
        self.pass_time(now);
    }

    /// Stops new flows (packet modes); open flows may finish. Returns a snapshot to publish.
    pub fn stop(&mut self) -> Arc<Snapshot> {
        self.is_stopping = true;
        self.snapshot()
    }

    /// Whether new flows are stopped.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Challenges that frontends present to ACME authorities.
    pub fn challenges(&self) -> Arc<AcmeChallenges> {
        self.frontends.challenges().clone()
    }

    /// Stops serving and ends open connections; returns a snapshot to publish. Connections for
    /// which any balancer chooses the same server are not ended, because the next process or
    /// another balancer continues them.
    pub fn end(&mut self) -> Arc<Snapshot> {
        self.outlasting = self.config.iter().flat_map(repeatable).collect();
        self.config = None;
        self.snapshot()
    }

    /// Applies the outcome of a probe, unless a reload has replaced or removed the check. A
    /// replaced check may have probed something else. After a removed check has taken a server
    /// down, no probe would bring the server back.
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

    /// Applies the outcome of a probe. [`ControlState::take_update`] returns a snapshot with the
    /// change.
    pub(crate) fn on_probe(&mut self, server: &ServerKey, success: bool, reason: String, now: Timestamp) {
        let Some(entry) = self.servers.get_mut(server) else { return };
        match entry.on_probe(success, &reason, now) {
            ProbeEffect::Nothing => {}
            ProbeEffect::Proven => self.pools.mark_stale(&server.backend),
            ProbeEffect::StillDown => self.note_change(server, HealthTransition::StillDown, reason),
            ProbeEffect::Changed(change) => self.changed(server, change, reason, now),
        }
    }

    /// Health checks that should run now, by server.
    pub fn probes(&self) -> HashMap<ServerKey, HealthCheck> {
        let view = self.view();
        let checked = self.servers.iter().filter(|(key, _)| !view.is_in_maintenance(key));
        checked.map(|(key, entry)| (key.clone(), entry.check().clone())).collect()
    }

    /// Sets the next hops. They must be built from the previous next hops, so that indices stay the
    /// same. `take_update` returns a snapshot with the change.
    pub fn set_network(&mut self, network: impl Into<Arc<NextHops>>) {
        self.refused.set_network(network.into());
        self.is_stale = true;
    }

    /// Sets the next hops like [`ControlState::set_network`]. In addition, servers to which packet
    /// modes must not send count as down from now on.
    pub fn on_network(&mut self, network: impl Into<Arc<NextHops>>, now: Timestamp) {
        self.set_network(network);
        self.review_refused(now);
    }

    /// Marks servers of passthrough to which the data path cannot send as down. Returns whether the
    /// set of these servers has changed.
    pub(crate) fn set_unreachable(&mut self, unreachable: UnreachableServers, now: Timestamp) -> bool {
        let differ = self.refused.set_unreachable(unreachable);
        if differ {
            self.is_stale = true;
            self.review_refused(now);
        }
        differ
    }

    /// Parts of the state that decide how snapshots show servers.
    fn view(&self) -> ServerView<'_> {
        ServerView {
            servers: &self.servers,
            membership: &self.membership,
            operators: &self.operators,
            refused: &self.refused,
        }
    }
}

/// Endpoints of frontends whose flows continue without this process: any balancer chooses the same
/// server for a connection, and servers answer clients directly.
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
