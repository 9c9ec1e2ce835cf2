//! Servers of the running configuration, and removed servers that may return. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::dns_grace::DnsGrace;
use super::key;
use super::known::KnownServer;
use super::live_factory::LiveFactory;
use super::server::ServerEntry;
use crate::weak_cache::WeakCache;
use convey_model::{BackendConfig, ServerKey, Slots, Timestamp};
use convey_snapshot::ServerLive;

/// All servers, by name and address.
#[derive(Default)]
pub(super) struct ServerTable {
    entries: HashMap<ServerKey, ServerEntry>,
    /// Counters that connections or snapshots still use, by server.
    live_stats: WeakCache<ServerKey, ServerLive>,
    /// Servers with an ejection or a slow start, which have a due time.
    timed: BTreeSet<ServerKey>,
    dns_grace: DnsGrace,
    /// Servers of the previous process that are not configured yet.
    handed_over: HashMap<ServerKey, KnownServer>,
}

impl ServerTable {
    pub(super) fn get(&self, server: &ServerKey) -> Option<&ServerEntry> {
        self.entries.get(server)
    }

    pub(super) fn get_mut(&mut self, server: &ServerKey) -> Option<&mut ServerEntry> {
        self.entries.get_mut(server)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ServerKey, &ServerEntry)> {
        self.entries.iter()
    }

    /// State of all servers, for the next process.
    pub(super) fn known(&self) -> Vec<KnownServer> {
        self.entries.iter().map(|(key, entry)| entry.known(key)).collect()
    }

    /// Takes over servers of the previous process. They start with their state once they are
    /// configured.
    pub(super) fn expect(&mut self, known: Vec<KnownServer>) {
        self.handed_over = known.into_iter().map(|known| (known.server.clone(), known)).collect();
    }

    /// Applies exactly the servers of these backends, and returns the removed servers. Servers that
    /// stay or return keep their state.
    pub(super) fn configure(
        &mut self,
        backends: &[BackendConfig],
        live_stats: &mut LiveFactory,
        now: Timestamp,
    ) -> HashMap<ServerKey, ServerEntry> {
        self.dns_grace.expire(now);
        let mut old = std::mem::take(&mut self.entries);
        let renamed = RenamedServers::of(&old, backends);
        for backend in backends {
            for server in &backend.servers {
                let key = key(backend, server);
                let check = backend.check_of(server);
                let live = self.live_stats.get(&key, || {
                    let new = live_stats.server(&server.name);
                    match renamed.slots(&key) {
                        Some(slots) => new.with_slots(slots),
                        None => new,
                    }
                });
                let before = old.remove(&key).or_else(|| self.dns_grace.take(&key)).or_else(|| {
                    let known = self.handed_over.remove(&key)?;
                    Some(ServerEntry::handed_over(known, live.clone(), &check, now))
                });
                let entry = match before {
                    Some(entry) => entry.configured(backend, check, now),
                    None => ServerEntry::new(live, check, now),
                };
                self.entries.insert(key, entry);
            }
        }
        let timed = self.entries.iter().filter(|(_, entry)| entry.due().is_some());
        self.timed = timed.map(|(key, _)| key.clone()).collect();
        old
    }

    /// Keeps the state of servers whose record was missing from a DNS answer, because they may
    /// return.
    pub(super) fn keep_for_dns(&mut self, gone: HashMap<ServerKey, ServerEntry>, now: Timestamp) {
        self.dns_grace.add_removed(gone, now);
    }

    /// Time at which the next ejection ends or the next slow start advances; `None`: neither is
    /// under way.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.timed.iter().filter_map(|server| self.entries.get(server)?.due()).min()
    }

    /// Takes the servers that have a due time. Pass each server to [`ServerTable::time`] again.
    pub(super) fn take_timed(&mut self) -> BTreeSet<ServerKey> {
        std::mem::take(&mut self.timed)
    }

    /// Adds a server to the timed servers if the server has a due time.
    pub(super) fn time(&mut self, server: &ServerKey) {
        if self.entries.get(server).is_some_and(|entry| entry.due().is_some()) {
            self.timed.insert(server.clone());
        }
    }

    /// Number of ejected servers of a backend.
    pub(super) fn ejected(&self, backend: &str) -> usize {
        let is_out = |key: &&ServerKey| {
            key.backend == backend && self.entries.get(key).is_some_and(ServerEntry::is_ejected)
        };
        self.timed.iter().filter(is_out).count()
    }
}

/// Slots of removed servers, by backend and address. A new server at the same address counts as the
/// same server under another name, so its open connections still count towards `max_connections`.
struct RenamedServers(HashMap<(String, SocketAddr), Arc<Slots>>);

impl RenamedServers {
    fn of(old: &HashMap<ServerKey, ServerEntry>, backends: &[BackendConfig]) -> RenamedServers {
        let all = backends
            .iter()
            .flat_map(|backend| backend.servers.iter().map(move |server| key(backend, server)));
        let wanted: HashSet<ServerKey> = all.collect();
        // Fast path: usually no server is new.
        if wanted.iter().all(|key| old.contains_key(key)) {
            return RenamedServers(HashMap::new());
        }
        let gone = old.iter().filter(|(key, _)| !wanted.contains(*key));
        let slots = gone.map(|(key, entry)| ((key.backend.clone(), key.addr), entry.live().slots.clone()));
        RenamedServers(slots.collect())
    }

    fn slots(&self, key: &ServerKey) -> Option<Arc<Slots>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(key.backend.clone(), key.addr)).cloned()
    }
}
