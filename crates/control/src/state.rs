//! The running configuration and its state. Pure: events in, snapshots and changes out.

mod acceptors;
mod dns_grace;
mod frontends;
mod handshakes;
mod known;
mod outlier;
mod path_mtu;
mod reconcile;
mod refused;
mod sources;
mod steer;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use self::acceptors::Acceptors;
use self::dns_grace::DnsGrace;
use self::frontends::Built;
pub use self::known::{Known, KnownServer};
use self::path_mtu::PathMtuRow;
use self::refused::RefusedServers;
pub use self::steer::Unsteerable;
use super::discoveries::{Discoveries, DiscoveryChange};
use super::draining::DrainDeadlines;
use super::kept::Kept;
use super::names::{NameChange, Names};
use super::overlays::Overlays;
use crate::UnreachableServers;
use crate::health::{
    self, Confirmation, Doubt, Ejection, Finding, HandshakeRow, HealthTransition, ProbeOutcome, Warmup,
};
use convey_config::{Config, LeftOut};
use convey_model::{
    self as model, AdminState, BackendConfig, DiscoverySource, DiscoveryState, Endpoint, HealthCheck, Lookup,
    Mode, NextHops, Overlay, ProbeKind, SaidLogLevel, ServerConfig, ServerEndpoints, ServerKey, Sources,
    Timestamp, WHOLE,
};
use convey_snapshot::stats::Traffic;
use convey_snapshot::{
    self as snapshot, Ejected, FrontendLive, Health, Places, Pool, PoolLive, RequestLimit, ServerLive,
    Snapshot,
};
use convey_tls::AcmeChallenges;

/// The state behind the snapshots.
pub struct ControlState {
    cores: usize,
    generation: u64,
    config: Option<Config>,
    draining: DrainDeadlines,
    stopping: bool,
    /// Frontends whose flows go on without us; none before the end.
    outlasting: BTreeSet<Endpoint>,
    names: Names,
    discoveries: Discoveries,
    /// Servers that get no new connections, as their source says.
    discovered_draining: HashSet<ServerKey>,
    left_out: BTreeSet<LeftOut>,
    own_addresses: Arc<BTreeSet<IpAddr>>,
    network: Arc<NextHops>,
    /// Whether the network or what drains is not what was last published.
    is_stale: bool,
    next_id: u32,
    totals: Arc<Traffic>,
    frontends: Kept<String, FrontendLive>,
    acceptors: Acceptors,
    /// What authorities look for while a certificate is ordered.
    challenges: Arc<AcmeChallenges>,
    /// What each source has of a frontend that limits sources, by its name.
    sources: HashMap<String, Arc<Sources>>,
    /// The same of requests, by the names of the frontend and of the route, if it is one's.
    request_limits: HashMap<(String, Option<String>), RequestLimit>,
    backends: Kept<String, PoolLive>,
    pools: HashMap<String, PoolEntry>,
    /// What the last snapshot had; `None` once a configuration or servers come, for then all of it is made anew.
    built: Option<Built>,
    /// The pool of frontends without a backend of their own.
    no_pool: Arc<Pool>,
    kept_servers: Kept<ServerKey, ServerLive>,
    servers: HashMap<ServerKey, ServerEntry>,
    /// Servers that packet modes must not send to.
    refused: RefusedServers,
    /// Servers that the data path cannot send to.
    unreachable: UnreachableServers,
    server_endpoints: Arc<ServerEndpoints>,
    dns_grace: DnsGrace,
    overlays: Overlays,
    log_level: Option<SaidLogLevel>,
    /// What the process before this one knew, as far as it is not in use yet.
    known: known::Unused,
    /// Servers that time changes something about.
    timed: BTreeSet<ServerKey>,
    changes: Vec<HealthChange>,
    /// Servers that are to be probed at once.
    doubts: Vec<Confirmation>,
}

/// A server went up or down, was ejected or is no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthChange {
    /// Which.
    pub server: ServerKey,
    /// What it became.
    pub change: HealthTransition,
    /// Why, in words for an operator.
    pub reason: String,
    /// Servers of its backend that can be chosen after this (and all other changes of the moment).
    pub eligible: usize,
    /// Servers its backend has.
    pub of: usize,
}

struct PoolEntry {
    pool: Arc<Pool>,
    stale: bool,
}

struct ServerEntry {
    live: Arc<ServerLive>,
    check: HealthCheck,
    state: health::HealthState,
    /// Whether a check of it has ever succeeded.
    has_answered: bool,
    doubt: Doubt,
    reason: String,
    since: Timestamp,
    ejection: Ejection,
    /// Why it is ejected, in words for an operator.
    ejected_for: String,
    warmup: Option<Warmup>,
    handshakes: HandshakeRow,
    path_mtu: PathMtuRow,
}

impl ControlState {
    /// Nothing runs; counters are for `cores` writers.
    pub fn new(cores: usize) -> Self {
        ControlState {
            cores,
            generation: 0,
            config: None,
            draining: DrainDeadlines::default(),
            stopping: false,
            outlasting: BTreeSet::new(),
            names: Names::default(),
            discoveries: Discoveries::default(),
            discovered_draining: HashSet::new(),
            left_out: BTreeSet::new(),
            own_addresses: Arc::default(),
            network: Arc::default(),
            is_stale: false,
            next_id: 0,
            totals: Arc::new(Traffic::new(cores)),
            frontends: Kept::default(),
            acceptors: Acceptors::default(),
            challenges: Arc::default(),
            sources: HashMap::new(),
            request_limits: HashMap::new(),
            backends: Kept::default(),
            pools: HashMap::new(),
            built: None,
            no_pool: frontends::no_pool(cores),
            kept_servers: Kept::default(),
            servers: HashMap::new(),
            refused: HashMap::new(),
            unreachable: UnreachableServers::default(),
            server_endpoints: Arc::default(),
            dns_grace: DnsGrace::default(),
            overlays: Overlays::default(),
            log_level: None,
            known: known::Unused::default(),
            timed: BTreeSet::new(),
            changes: Vec::new(),
            doubts: Vec::new(),
        }
    }

    /// The configuration that runs, servers that are known by name as the file has them.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// The next hops, as last set.
    pub fn network(&self) -> &Arc<NextHops> {
        &self.network
    }

    /// Takes over a configuration. Frontends, backends and servers with the same name (servers: and address)
    /// keep their counters, connections and health. One that was taken away and comes back while connections
    /// are open has those.
    pub fn configure(&mut self, mut config: Config, now: Timestamp) -> Arc<Snapshot> {
        self.names.want(&config.hosts(), now);
        self.discoveries.want(&config.sources(), now);
        if !config.allow_local {
            self.names.refuse_local();
            self.discoveries.refuse_local();
        }
        self.keep_backends(&config, now);
        self.keep_sources(&config);
        self.keep_request_limits(&config);
        self.share_access(&mut config);
        if let Some(before) = &self.config {
            self.draining.apply(before, &config, now);
        }
        self.config = Some(config);
        self.snapshot()
    }

    /// Names of this configuration that nothing is known of yet.
    pub(crate) fn unknown_names(&self, config: &Config) -> BTreeSet<String> {
        let unknown = config.hosts().into_iter().filter(|host| !self.names.knows(host));
        unknown.map(str::to_owned).collect()
    }

    /// Sources of this configuration that have said nothing yet.
    pub(crate) fn unknown_sources(&self, config: &Config) -> BTreeSet<DiscoverySource> {
        let unknown = config.sources().into_iter().filter(|source| !self.discoveries.knows(source));
        unknown.cloned().collect()
    }

    /// Has the configuration that comes next know which servers a source has.
    pub fn know_source(&mut self, source: &DiscoverySource, state: DiscoveryState, now: Timestamp) {
        self.learn_of_source(source, state, now);
    }

    /// Takes the first word of a source of the configuration that comes next.
    pub(crate) fn learn_of_source(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        self.discoveries.learn(source, state, now)
    }

    /// Takes what a source says. Servers that are new come, those that are gone leave, as with a lookup of a name; those that
    /// drain get no new connections. Nothing is published before [`ControlState::take_update`].
    pub(crate) fn on_discovery(
        &mut self,
        source: &DiscoverySource,
        state: DiscoveryState,
        now: Timestamp,
    ) -> Option<DiscoveryChange> {
        let failures = self.discoveries.failures(source);
        let change = self.discoveries.on_state(source, state, now);
        self.is_stale |= change.is_some() || failures != self.discoveries.failures(source);
        let change = change?;
        if change.is_of_servers {
            self.resolve_again(now);
        }
        Some(change)
    }

    /// Has the configuration that comes next know what a name stands for.
    pub fn know_name(&mut self, lookup: Lookup, now: Timestamp) {
        self.learn(lookup, now);
    }

    /// Has it know which addresses this host has.
    pub fn know_own_addresses(&mut self, addresses: BTreeSet<IpAddr>, now: Timestamp) {
        self.set_own_addresses(addresses, now);
    }

    /// Takes the lookup of an unknown name of the configuration that comes next.
    pub(crate) fn learn(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        self.names.learn(lookup, now)
    }

    /// Takes what a lookup found. Servers at addresses that are new come, those at addresses that are gone leave, as
    /// with a new configuration. But the state of those is kept for a while: some name servers leave out now this
    /// record, now that. Answers of name servers that the configuration no longer has are ignored. Nothing is
    /// published before [`ControlState::take_update`].
    pub(crate) fn on_lookup(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        if self.config.as_ref().is_some_and(|config| config.name_servers != lookup.name_servers) {
            return None;
        }
        let change = self.names.on_lookup(lookup, now)?;
        self.is_stale = true;
        if !change.added.is_empty() || !change.removed.is_empty() {
            self.resolve_again(now);
        }
        Some(change)
    }

    /// Takes over which addresses this host has: servers of names that would lead back to us are left out. Returns
    /// whether they are others than before. Nothing is published before [`ControlState::take_update`].
    pub(crate) fn set_own_addresses(&mut self, addresses: BTreeSet<IpAddr>, now: Timestamp) -> bool {
        let differ = *self.own_addresses != addresses;
        if differ {
            self.own_addresses = addresses.into();
            self.is_stale = true;
            self.resolve_again(now);
        }
        differ
    }

    fn resolve_again(&mut self, now: Timestamp) {
        if let Some(config) = self.config.take() {
            let gone = self.keep_backends(&config, now);
            self.dns_grace.keep(gone, now);
            self.config = Some(config);
        }
    }

    /// Addresses of names at which there is no server, because it would be a frontend itself.
    pub fn left_out(&self) -> &BTreeSet<LeftOut> {
        &self.left_out
    }

    /// When [`ControlState::on_time`] has something to do; `None` if time changes nothing.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let timed = self.timed.iter().filter_map(|server| self.servers.get(server)?.due());
        self.draining.due().into_iter().chain(timed).min()
    }

    /// Lets go what a reload took away and whose connections have had their time, ends ejections, lets the shares of
    /// servers grow that have come back. Nothing is published before
    /// [`ControlState::take_update`].
    pub(crate) fn on_time(&mut self, now: Timestamp) {
        self.is_stale |= self.draining.expire(now);
        self.pass_time(now);
    }

    /// Begins nothing new from now on (packet modes): open flows may finish.
    pub fn stop(&mut self) -> Arc<Snapshot> {
        self.stopping = true;
        self.snapshot()
    }

    /// Whether nothing new begins any more.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// What frontends show authorities: whoever orders certificates puts it there.
    pub fn challenges(&self) -> Arc<AcmeChallenges> {
        self.challenges.clone()
    }

    /// Serves nobody from now on, and cuts open connections. But where any balancer would send a client's packets to
    /// the same server, they go on by the next process, or another balancer.
    pub fn end(&mut self) -> Arc<Snapshot> {
        self.outlasting = self.config.iter().flat_map(repeatable).collect();
        self.config = None;
        self.snapshot()
    }

    /// Takes the outcome of a probe, unless a reload has replaced the check that asked for it: such a probe may have asked for something
    /// else, and a server without a check would stay down for good.
    pub(crate) fn on_outcome(&mut self, outcome: ProbeOutcome, now: Timestamp) {
        let ProbeOutcome { server, check, finding, reason, confirms } = outcome;
        let is_current = self.servers.get(&server).is_some_and(|entry| entry.check == check);
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

    /// Takes the outcome of a probe. Nothing is published before [`ControlState::take_update`].
    pub(crate) fn on_probe(&mut self, server: &ServerKey, success: bool, reason: String, now: Timestamp) {
        let Some(entry) = self.servers.get_mut(server) else { return };
        entry.has_answered |= success;
        let first = !entry.state.is_proven();
        match entry.state.on_probe(success, &entry.check) {
            Some(change) => self.changed(server, change, reason, now),
            None if first => self.noted(server, reason),
            None if !success && !entry.state.is_up() && entry.reason != reason => {
                self.noted(server, reason.clone());
                self.tell(server, HealthTransition::StillDown, reason);
            }
            None => {}
        }
    }

    /// The servers of a backend and why each is down, if none of them has ever answered, and no operator has taken one out.
    pub(crate) fn never_answered(&self, backend: &str) -> Option<Vec<String>> {
        let pool = &self.pools.get(backend)?.pool;
        let is_mute = |server: &Arc<snapshot::Server>| {
            let entry = self.servers.get(&key(&pool.config, &server.config));
            server.admin == AdminState::Ready && entry.is_some_and(|entry| !entry.has_answered)
        };
        let why = |server: &Arc<snapshot::Server>| {
            format!("{}: {}", key(&pool.config, &server.config), server.health.reason)
        };
        let are_mute = !pool.servers.is_empty() && pool.servers.iter().all(is_mute);
        are_mute.then(|| pool.servers.iter().map(why).collect())
    }

    /// Takes over the next hops. It must be made from what was set before, so that next hops keep their
    /// indices. Nothing is published before `take_update`.
    pub fn set_network(&mut self, network: impl Into<Arc<NextHops>>) {
        self.network = network.into();
        self.is_stale = true;
    }

    /// Publishes what the last outcomes, a new network and time changed: a snapshot if there is anything new in it, and
    /// the changes of health. Tables are built here, once for any number of outcomes.
    pub(crate) fn take_update(&mut self) -> Option<(Arc<Snapshot>, Vec<HealthChange>)> {
        let stale: Vec<String> =
            self.pools.iter().filter(|(_, entry)| entry.stale).map(|(name, _)| name.clone()).collect();
        if stale.is_empty() && !self.is_stale && self.changes.is_empty() {
            return None;
        }
        for name in stale {
            let entry = &self.pools[&name];
            let pool = self.build_pool(&entry.pool.config, &entry.pool.live, Some(&entry.pool));
            self.pools.insert(name, PoolEntry { pool, stale: false });
        }
        let mut changes = std::mem::take(&mut self.changes);
        for change in &mut changes {
            if let Some(entry) = self.pools.get(&change.server.backend) {
                change.eligible = entry.pool.eligible();
                change.of = entry.pool.servers.len();
            }
        }
        Some((self.snapshot(), changes))
    }

    /// The probes that should run now.
    pub fn probes(&self) -> HashMap<ServerKey, HealthCheck> {
        let checked = self.servers.iter().filter(|(key, _)| self.admin_state(key) != AdminState::Maint);
        checked.map(|(key, entry)| (key.clone(), entry.check.clone())).collect()
    }

    fn changed(&mut self, server: &ServerKey, change: HealthTransition, reason: String, now: Timestamp) {
        if let Some(entry) = self.servers.get_mut(server) {
            entry.since = now;
        }
        self.begin_anew(server, now);
        self.noted(server, reason.clone());
        self.tell(server, change, reason);
    }

    /// Publishes a change with the next snapshot. A refused server is down, whatever its checks find.
    fn tell(&mut self, server: &ServerKey, change: HealthTransition, reason: String) {
        if !self.refused.contains_key(server) {
            self.changes.push(HealthChange { server: server.clone(), change, reason, eligible: 0, of: 0 });
        }
        self.rebuild(server);
    }

    fn noted(&mut self, server: &ServerKey, reason: String) {
        if let Some(entry) = self.servers.get_mut(server) {
            entry.reason = reason;
        }
        self.rebuild(server);
    }

    fn rebuild(&mut self, server: &ServerKey) {
        if let Some(entry) = self.pools.get_mut(&server.backend) {
            entry.stale = true;
        }
    }

    fn build_pool(
        &self,
        config: &Arc<BackendConfig>,
        live: &Arc<PoolLive>,
        before: Option<&Pool>,
    ) -> Arc<Pool> {
        let servers = config.servers.iter().map(|server| {
            let entry = &self.servers[&key(config, server)];
            let said = self.overlays.state_of(&config.name, &server.name);
            let admin = self.admin_state(&key(config, server));
            let health = match (said, self.refused.get(&key(config, server))) {
                (Some((AdminState::Maint, said)), _) => in_maintenance(entry.health(), said),
                (_, Some(refused)) => refused.apply(entry.health()),
                (_, None) => entry.health(),
            };
            Arc::new(snapshot::Server { config: server.clone(), admin, health, live: entry.live.clone() })
        });
        Arc::new(Pool::new(config.clone(), servers.collect(), live.clone(), before))
    }

    fn snapshot(&mut self) -> Arc<Snapshot> {
        self.generation += 1;
        self.is_stale = false;
        let (generation, network, totals) = (self.generation, self.network.clone(), self.totals.clone());
        let before = self.built.take();
        let frontends = self.build_frontends(before.as_ref());
        let Some(config) = &self.config else {
            let outlasting = self.outlasting.clone();
            return Arc::new(Snapshot {
                generation,
                network,
                totals,
                outlasting,
                ..Snapshot::empty(self.cores)
            });
        };
        let pools: Vec<Arc<Pool>> =
            config.backends.iter().map(|backend| self.pools[&backend.name].pool.clone()).collect();
        let places = before.map_or_else(|| Places::new(&frontends, &pools).into(), |before| before.places);
        self.built = Some(Built { frontends: frontends.clone(), places: places.clone() });
        Arc::new(Snapshot {
            generation,
            places,
            server_endpoints: self.server_endpoints.clone(),
            pools,
            frontends,
            names: self.names.all(),
            discoveries: self.discoveries.all(),
            overlays: self.overlays.all().cloned().collect(),
            log_level: self.log_level.clone(),
            own_addresses: self.own_addresses.clone(),
            draining: self.draining.places(),
            stopping: self.stopping,
            outlasting: self.outlasting.clone(),
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

impl ServerEntry {
    fn new(live: Arc<ServerLive>, check: HealthCheck, now: Timestamp) -> Self {
        let reason = if check.kind == ProbeKind::None { "no health check" } else { "not probed yet" };
        ServerEntry {
            live,
            check,
            state: health::HealthState::default(),
            has_answered: false,
            doubt: Doubt::default(),
            reason: reason.to_owned(),
            since: now,
            ejection: Ejection::default(),
            ejected_for: String::new(),
            warmup: None,
            handshakes: HandshakeRow::default(),
            path_mtu: PathMtuRow::default(),
        }
    }

    fn health(&self) -> Health {
        let (times, reason) = (self.ejection.times(), &self.ejected_for);
        let ejected = self.ejection.until().map(|until| Ejected { until, times, reason: reason.clone() });
        let percent = self.warmup.map_or(WHOLE, |warmup| warmup.percent());
        // A server without probes is as proven as ever.
        let proven = self.state.is_proven() || self.check.kind == ProbeKind::None;
        Health {
            up: self.state.is_up(),
            proven,
            reason: self.reason.clone(),
            since: self.since,
            ejected,
            percent,
        }
    }
}

/// Whatever a check said: this server counts as down.
fn in_maintenance(health: Health, said: &Overlay) -> Health {
    let reason = format!("in maintenance, as {} has said", said.by);
    Health { up: false, proven: true, reason, since: said.since, ..health }
}

/// Where any balancer sends a client's packets to the same server, and servers answer clients themselves.
fn repeatable(config: &Config) -> impl Iterator<Item = Endpoint> {
    let hashes = |frontend: &&model::FrontendConfig| {
        let backend = frontend.backend.as_deref().and_then(|name| config.backend(name));
        backend.is_some_and(|backend| backend.algorithm.hashes())
    };
    config.frontends_where(Mode::is_dsr).filter(hashes).flat_map(model::FrontendConfig::endpoints)
}

/// The next number.
fn number(next: &mut u32) -> u32 {
    let id = *next;
    *next += 1;
    id
}

fn key(backend: &BackendConfig, server: &ServerConfig) -> ServerKey {
    ServerKey { backend: backend.name.clone(), server: server.name.clone(), addr: server.addr }
}

#[cfg(test)]
mod tests;
