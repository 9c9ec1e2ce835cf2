//! What runs and what is known of it. Pure: events in, snapshots and changes out.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::draining::Draining;
use super::kept::Kept;
use super::names::{NameChange, Names};
use crate::config::Config;
use crate::health::{self, Change};
use crate::model::{Backend, ConnectFailures, HealthCheck, Lookup, ProbeKind, Server, ServerKey, Timestamp};
use crate::snapshot::{self, Frontend, FrontendLive, Health, NextHops, Pool, PoolLive, ServerLive, Snapshot};
use crate::stats::Traffic;

/// The state behind the snapshots.
pub struct State {
    cores: usize,
    generation: u64,
    config: Option<Config>,
    draining: Draining,
    stopping: bool,
    names: Names,
    left_out: BTreeSet<String>,
    network: Arc<NextHops>,
    /// Whether the network or what drains is not what was last published.
    is_stale: bool,
    next_id: u32,
    totals: Arc<Traffic>,
    frontends: Kept<String, FrontendLive>,
    backends: Kept<String, PoolLive>,
    pools: HashMap<String, PoolEntry>,
    kept_servers: Kept<ServerKey, ServerLive>,
    servers: HashMap<ServerKey, ServerEntry>,
    changes: Vec<HealthChange>,
}

/// A server went up or down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthChange {
    /// Which.
    pub server: ServerKey,
    /// What it became.
    pub change: Change,
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
    state: health::State,
    reason: String,
    since: Timestamp,
}

impl State {
    /// Nothing runs; counters are for `cores` writers.
    pub fn new(cores: usize) -> Self {
        State {
            cores,
            generation: 0,
            config: None,
            draining: Draining::default(),
            stopping: false,
            names: Names::default(),
            left_out: BTreeSet::new(),
            network: Arc::default(),
            is_stale: false,
            next_id: 0,
            totals: Arc::new(Traffic::new(cores)),
            frontends: Kept::default(),
            backends: Kept::default(),
            pools: HashMap::new(),
            kept_servers: Kept::default(),
            servers: HashMap::new(),
            changes: Vec::new(),
        }
    }

    /// The configuration that runs, servers that are known by name as the file has them.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Where packets go next, as last set.
    pub fn network(&self) -> &Arc<NextHops> {
        &self.network
    }

    /// Takes over a configuration. What has the same name (and, for servers, address) keeps its counters,
    /// connections and health; so does what was taken away and comes back while connections are open.
    pub fn configure(&mut self, config: Config, now: Timestamp) -> Arc<Snapshot> {
        self.names.want(&config.hosts(), now);
        self.keep_backends(&config, now);
        if let Some(before) = &self.config {
            self.draining.follow(before, &config, now);
        }
        self.config = Some(config);
        self.snapshot()
    }

    /// Names of this configuration that nothing is known of yet.
    pub fn unknown_names(&self, config: &Config) -> Vec<String> {
        let unknown = config.hosts().into_iter().filter(|host| !self.names.knows(host));
        unknown.map(str::to_owned).collect()
    }

    /// Takes the lookup of an unknown name of the configuration that comes next.
    pub fn learn(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        self.names.learn(lookup, now)
    }

    /// The names to look up now: each will be asked for again only after [`State::on_lookup`].
    pub fn take_due_names(&mut self, now: Timestamp) -> Vec<String> {
        self.names.take_due(now)
    }

    /// Takes what a lookup found. Servers at addresses that are new come, those at addresses that are gone leave, as
    /// with a new configuration. Nothing is published before [`State::settle`].
    pub fn on_lookup(&mut self, lookup: Lookup, now: Timestamp) -> Option<NameChange> {
        let change = self.names.on_lookup(lookup, now)?;
        self.is_stale = true;
        if (!change.added.is_empty() || !change.removed.is_empty())
            && let Some(config) = self.config.take()
        {
            self.keep_backends(&config, now);
            self.config = Some(config);
        }
        Some(change)
    }

    /// Addresses of names at which there is no server, because it would be a frontend itself; in words for an operator.
    pub fn left_out(&self) -> &BTreeSet<String> {
        &self.left_out
    }

    /// When [`State::on_time`] or [`State::take_due_names`] has something to do; `None` if time changes nothing.
    pub fn due(&self) -> Option<Timestamp> {
        [self.draining.due(), self.names.due()].into_iter().flatten().min()
    }

    /// Lets go what a reload took away and whose connections have had their time. Nothing is published before
    /// [`State::settle`].
    pub fn on_time(&mut self, now: Timestamp) {
        self.is_stale |= self.draining.expire(now);
    }

    /// Begins nothing new from now on (packet modes): what is open may finish.
    pub fn stop(&mut self) -> Arc<Snapshot> {
        self.stopping = true;
        self.snapshot()
    }

    /// Serves nobody from now on: what is open is cut.
    pub fn end(&mut self) -> Arc<Snapshot> {
        self.config = None;
        self.snapshot()
    }

    /// Takes the outcome of a probe. Nothing is published before [`State::settle`].
    pub fn on_probe(&mut self, server: &ServerKey, success: bool, reason: String, now: Timestamp) {
        let Some(entry) = self.servers.get_mut(server) else { return };
        let first = !entry.state.is_proven();
        match entry.state.on_probe(success, &entry.check) {
            Some(change) => self.changed(server, change, reason, now),
            None if first => self.noted(server, reason),
            None => {}
        }
    }

    /// Takes the news that clients could not connect, several times in a row. Without probes nothing
    /// would bring the server back, so then it stays up.
    pub fn on_connect_failures(&mut self, failures: &ConnectFailures, now: Timestamp) {
        let ConnectFailures { server, in_a_row, error } = failures;
        let Some(entry) = self.servers.get_mut(server) else { return };
        if entry.check.kind == ProbeKind::None {
            return;
        }
        if let Some(change) = entry.state.on_connect_failures(*in_a_row, &entry.check) {
            self.changed(server, change, format!("{in_a_row} connects in a row failed: {error}"), now);
        }
    }

    /// Takes over where packets go next. It must be made from what was set before, so that next hops keep their
    /// indices. Nothing is published before [`State::settle`].
    pub fn set_network(&mut self, network: NextHops) {
        self.network = Arc::new(network);
        self.is_stale = true;
    }

    /// Publishes what the last outcomes, a new network and time changed: a snapshot if there is anything new in it, and
    /// the changes of health. Tables are built here, once for any number of outcomes.
    pub fn settle(&mut self) -> Option<(Arc<Snapshot>, Vec<HealthChange>)> {
        let stale: Vec<String> =
            self.pools.iter().filter(|(_, entry)| entry.stale).map(|(name, _)| name.clone()).collect();
        if stale.is_empty() && !self.is_stale {
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
        self.servers.iter().map(|(key, entry)| (key.clone(), entry.check.clone())).collect()
    }

    fn changed(&mut self, server: &ServerKey, change: Change, reason: String, now: Timestamp) {
        if let Some(entry) = self.servers.get_mut(server) {
            entry.since = now;
            entry.live.begin_row();
        }
        let news =
            HealthChange { server: server.clone(), change, reason: reason.clone(), eligible: 0, of: 0 };
        self.changes.push(news);
        self.noted(server, reason);
    }

    fn noted(&mut self, server: &ServerKey, reason: String) {
        if let Some(entry) = self.servers.get_mut(server) {
            entry.reason = reason;
        }
        if let Some(entry) = self.pools.get_mut(&server.backend) {
            entry.stale = true;
        }
    }

    fn keep_backends(&mut self, config: &Config, now: Timestamp) {
        let (backends, left_out) = config.resolved(|host| self.names.addresses(host));
        self.left_out = left_out;
        self.keep_servers(&backends, now);
        self.keep_pools(&backends);
    }

    fn keep_servers(&mut self, backends: &[Backend], now: Timestamp) {
        let mut old = std::mem::take(&mut self.servers);
        for backend in backends {
            for server in &backend.servers {
                let key = key(backend, server);
                let check = backend.health_check.clone();
                let (cores, ids) = (self.cores, &mut self.next_id);
                let live = self.kept_servers.get(&key, || ServerLive::new(number(ids), cores));
                let is_probed = |check: &HealthCheck| check.kind != ProbeKind::None;
                let entry = match old.remove(&key) {
                    // What no probe has said, or confirms any more, is no reason.
                    Some(entry) if is_probed(&entry.check) && is_probed(&check) => {
                        ServerEntry { check, ..entry }
                    }
                    _ => ServerEntry::new(live, check, now),
                };
                self.servers.insert(key, entry);
            }
        }
    }

    fn keep_pools(&mut self, backends: &[Backend]) {
        let mut old = std::mem::take(&mut self.pools);
        for backend in backends {
            let cores = self.cores;
            let live = self.backends.get(&backend.name, || PoolLive::new(cores));
            let before = old.remove(&backend.name).map(|entry| entry.pool);
            let pool = self.build_pool(&Arc::new(backend.clone()), &live, before.as_deref());
            self.pools.insert(backend.name.clone(), PoolEntry { pool, stale: false });
        }
    }

    fn build_pool(&self, config: &Arc<Backend>, live: &Arc<PoolLive>, before: Option<&Pool>) -> Arc<Pool> {
        let servers = config.servers.iter().map(|server| {
            let entry = &self.servers[&key(config, server)];
            let health = Health { up: entry.state.is_up(), reason: entry.reason.clone(), since: entry.since };
            Arc::new(snapshot::Server { config: server.clone(), health, live: entry.live.clone() })
        });
        Arc::new(Pool::new(config.clone(), servers.collect(), live.clone(), before))
    }

    fn snapshot(&mut self) -> Arc<Snapshot> {
        self.generation += 1;
        self.is_stale = false;
        let (generation, network, totals) = (self.generation, self.network.clone(), self.totals.clone());
        let Some(config) = &self.config else {
            return Arc::new(Snapshot { generation, network, totals, ..Snapshot::empty(self.cores) });
        };
        let frontends: Vec<Arc<Frontend>> = config
            .frontends
            .iter()
            .map(|frontend| {
                Arc::new(Frontend {
                    config: frontend.clone(),
                    pool: self.pools[&frontend.backend].pool.clone(),
                    live: self
                        .frontends
                        .get(&frontend.name, || FrontendLive::new(number(&mut self.next_id), self.cores)),
                })
            })
            .collect();
        let listeners = frontends
            .iter()
            .flat_map(|frontend| frontend.config.endpoints().map(|endpoint| (endpoint, frontend.clone())));
        let pools: Vec<Arc<Pool>> =
            config.backends.iter().map(|backend| self.pools[&backend.name].pool.clone()).collect();
        let servers = pools.iter().flat_map(|pool| &pool.servers);
        Arc::new(Snapshot {
            generation,
            listeners: listeners.collect(),
            servers: servers.map(|server| (server.live.id, server.clone())).collect(),
            pools,
            frontends,
            names: self.names.all(),
            draining: self.draining.places(),
            stopping: self.stopping,
            network,
            timeouts: config.timeouts,
            flow_timeouts: config.passthrough.timeouts,
            totals,
        })
    }
}

impl ServerEntry {
    fn new(live: Arc<ServerLive>, check: HealthCheck, now: Timestamp) -> Self {
        let reason = if check.kind == ProbeKind::None { "no health check" } else { "not probed yet" };
        ServerEntry { live, check, state: health::State::default(), reason: reason.to_owned(), since: now }
    }
}

/// The next number.
fn number(next: &mut u32) -> u32 {
    let id = *next;
    *next += 1;
    id
}

fn key(backend: &Backend, server: &Server) -> ServerKey {
    ServerKey { backend: backend.name.clone(), server: server.name.clone(), addr: server.addr }
}

#[cfg(test)]
mod tests;
