//! Effects of a new snapshot on open connections: the connections end, or count anew at their
//! sources.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use convey_model::{Access, FrontendConfig, Mode, OnDown, Prefix, Sources};
use convey_snapshot::{Frontend, Snapshot};

use crate::Workers;

/// Sends commands about open connections to the workers when a snapshot changes their servers,
/// access lists or limits.
#[derive(Debug, Default)]
pub struct ConnectionReaper {
    /// Servers that are down, and whose connections have been ended.
    down: BTreeSet<u32>,
    /// Access lists that the workers have, by the ids of the frontends.
    access: HashMap<u32, AdmittedPeers>,
    /// Tables of sources that the workers use, by the ids of the frontends.
    sources: HashMap<u32, Arc<Sources>>,
}

/// Addresses whose open connections at one frontend stay open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdmittedPeers {
    access: Access,
    /// Trusted HTTP proxies: their requests are checked one by one.
    proxies: Vec<Prefix>,
}

impl AdmittedPeers {
    fn of(config: &FrontendConfig) -> AdmittedPeers {
        let proxies = if config.mode.is_http() { config.trusted_proxies.clone() } else { Vec::new() };
        AdmittedPeers { access: config.access.clone(), proxies }
    }

    pub(super) fn admit(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(peer)) || self.access.admits(peer)
    }
}

#[cfg(test)]
impl From<Access> for AdmittedPeers {
    fn from(access: Access) -> AdmittedPeers {
        AdmittedPeers { access, proxies: Vec::new() }
    }
}

impl ConnectionReaper {
    /// Ends the connections to servers that have gone down with `on_down = "reset"`, and of clients
    /// that are denied. Counts open connections again where a frontend has a new table of sources.
    /// The snapshot must have been published.
    pub fn on_snapshot(&mut self, workers: &Workers, snapshot: &Snapshot) {
        self.end_denied(workers, snapshot);
        self.count_sources(workers, snapshot);
        let resetting =
            snapshot.pools.iter().filter(|pool| pool.config.on_down_in(Mode::Proxy) == OnDown::Reset);
        let down = resetting.flat_map(|pool| &pool.servers).filter(|server| !server.health.up);
        let down: BTreeSet<u32> = down.map(|server| server.live.id).collect();
        let new: BTreeSet<u32> = down.difference(&self.down).copied().collect();
        if !new.is_empty() {
            workers.end_connections(&Arc::new(new));
        }
        self.down = down;
    }

    fn count_sources(&mut self, workers: &Workers, snapshot: &Snapshot) {
        let proxied = snapshot.frontends.iter().filter(|frontend| frontend.config.mode.is_proxied());
        let is_new = |frontend: &&Arc<Frontend>| {
            let before = self.sources.get(&frontend.live.id);
            before.map(Arc::as_ptr) != frontend.sources.as_ref().map(Arc::as_ptr)
        };
        let new: Vec<Arc<Frontend>> = proxied.clone().filter(is_new).cloned().collect();
        if !new.is_empty() {
            workers.count_sources(&new.into());
        }
        let counting = proxied.filter_map(|frontend| Some((frontend.live.id, frontend.sources.clone()?)));
        self.sources = counting.collect();
    }

    fn end_denied(&mut self, workers: &Workers, snapshot: &Snapshot) {
        let proxied = snapshot.frontends.iter().filter(|frontend| frontend.config.mode.is_proxied());
        let limited = proxied.filter(|frontend| !frontend.config.access.is_open());
        let access: HashMap<u32, AdmittedPeers> =
            limited.map(|frontend| (frontend.live.id, AdmittedPeers::of(&frontend.config))).collect();
        if access != self.access {
            workers.end_denied(&Arc::new(access.clone()));
            self.access = access;
        }
    }
}
