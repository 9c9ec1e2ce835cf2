//! Decides which servers stay, come and go when the configuration or the addresses of names change. Pure.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{ControlState, PoolEntry, ServerEntry, key, number};
use convey_config::{Config, FoundServers, Resolved};
use convey_model::{
    BackendConfig, DiscoverySource, HealthCheck, ProbeKind, ServerEndpoints, ServerKey, Slots, Timestamp,
};
use convey_snapshot::{PoolLive, ServerLive};
use xxhash_rust::xxh3::xxh3_64;

/// Slots of servers that go, by backend and address: a server that comes there is the same one under another name, and what is
/// open there counts towards its `max_connections`.
struct RenamedServers(HashMap<(String, SocketAddr), Arc<Slots>>);

impl RenamedServers {
    fn of(old: &HashMap<ServerKey, ServerEntry>, backends: &[BackendConfig]) -> RenamedServers {
        let all = backends
            .iter()
            .flat_map(|backend| backend.servers.iter().map(move |server| key(backend, server)));
        let wanted: HashSet<ServerKey> = all.collect();
        // Mostly there is none.
        if wanted.iter().all(|key| old.contains_key(key)) {
            return RenamedServers(HashMap::new());
        }
        let gone = old.iter().filter(|(key, _)| !wanted.contains(*key));
        let slots = gone.map(|(key, entry)| ((key.backend.clone(), key.addr), entry.live.slots.clone()));
        RenamedServers(slots.collect())
    }

    fn slots(&self, key: &ServerKey) -> Option<Arc<Slots>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(key.backend.clone(), key.addr)).cloned()
    }
}

impl ServerEntry {
    /// This server under a configuration that may have another check. What clients have found of it stays.
    fn configured(mut self, backend: &BackendConfig, check: HealthCheck, now: Timestamp) -> ServerEntry {
        let (slow_start, outlier) = (backend.time_to_warm_up(), &backend.outlier_detection);
        let warmup = self.warmup.and_then(|warmup| warmup.on_time(slow_start, now));
        let ejection = outlier.as_ref().map(|_| self.ejection).unwrap_or_default();
        let is_probed = |check: &HealthCheck| check.kind != ProbeKind::None;
        if is_probed(&self.check) != is_probed(&check) {
            // A state that no probe has found, or confirms any more, is no reason.
            let ServerEntry { live, ejected_for, handshakes, path_mtu, .. } = self;
            let new = ServerEntry::new(live, check, now);
            return ServerEntry { warmup, ejection, ejected_for, handshakes, path_mtu, ..new };
        }
        if without_rhythm(&self.check) != without_rhythm(&check) {
            self.state.begin_other_check();
        }
        ServerEntry { check, warmup, ejection, ..self }
    }
}

/// What a check asks: two that differ in their rhythm and thresholds alone are equal here.
fn without_rhythm(check: &HealthCheck) -> HealthCheck {
    HealthCheck { interval: Duration::ZERO, timeout: Duration::ZERO, rise: 0, fall: 0, ..check.clone() }
}

/// A digest of what a check asks, for the process after an upgrade. A version that writes checks in another way has another
/// digest: then the next probe decides alone, as after a reload that changes the check.
pub(super) fn digest_of(check: &HealthCheck) -> u64 {
    xxh3_64(format!("{:?}", without_rhythm(check)).as_bytes())
}

impl ControlState {
    /// Has the backends of the configuration, with the servers that their names stand for. Servers that stay keep
    /// their state. Returns the state of the servers that are gone.
    pub(super) fn keep_backends(
        &mut self,
        config: &Config,
        now: Timestamp,
    ) -> HashMap<ServerKey, ServerEntry> {
        let found = FoundServers {
            addresses: |host: &str| self.names.addresses(host),
            discovered: |source: &DiscoverySource| self.discoveries.found(source),
        };
        let Resolved { mut backends, left_out, draining } = config.resolved(&found, &self.own_addresses);
        (self.left_out, self.discovered_draining) = (left_out, draining);
        self.built = None;
        self.apply_weights(&mut backends);
        self.dns_grace.expire(now);
        let gone = self.keep_servers(&backends, now);
        self.refuse_servers(config, backends.iter(), now);
        self.keep_pools(&backends);
        let served = config.frontends.iter().flat_map(|frontend| {
            let entries = frontend.backends().filter_map(|backend| self.pools.get(backend));
            entries.map(move |entry| (frontend, &*entry.pool.config))
        });
        self.server_endpoints = ServerEndpoints::of(served).into();
        gone
    }

    fn keep_servers(
        &mut self,
        backends: &[BackendConfig],
        now: Timestamp,
    ) -> HashMap<ServerKey, ServerEntry> {
        let mut old = std::mem::take(&mut self.servers);
        let renamed = RenamedServers::of(&old, backends);
        for backend in backends {
            for server in &backend.servers {
                let key = key(backend, server);
                let check = backend.check_of(server);
                let (cores, ids) = (self.cores, &mut self.next_id);
                let live = self.kept_servers.get(&key, || {
                    let new = ServerLive::new(number(ids), cores).named(&server.name);
                    match renamed.slots(&key) {
                        Some(slots) => new.with_slots(slots),
                        None => new,
                    }
                });
                let before = old.remove(&key).or_else(|| self.dns_grace.take(&key));
                let known = || self.known.take_server(&key, live.clone(), &check, now);
                let entry = match before.or_else(known) {
                    Some(entry) => entry.configured(backend, check, now),
                    None => ServerEntry::new(live, check, now),
                };
                self.servers.insert(key, entry);
            }
        }
        let timed = self.servers.iter().filter(|(_, entry)| entry.due().is_some());
        self.timed = timed.map(|(key, _)| key.clone()).collect();
        old
    }

    fn keep_pools(&mut self, backends: &[BackendConfig]) {
        let mut old = std::mem::take(&mut self.pools);
        for backend in backends {
            let cores = self.cores;
            let turn = self.known.take_turn(&backend.name);
            let live =
                self.backends.get(&backend.name, || PoolLive::new(cores).named(&backend.name).at_turn(turn));
            let before = old.remove(&backend.name).map(|entry| entry.pool);
            let pool = self.build_pool(&Arc::new(backend.clone()), &live, before.as_deref());
            self.pools.insert(backend.name.clone(), PoolEntry { pool, stale: false });
        }
    }
}
