//! Effects of a new snapshot on open connections: some connections end, and others are counted
//! again at their sources.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use convey_model::{Access, FrontendConfig, Mode, NetworkSet, OnDown, Sources};
use convey_snapshot::{Frontend, Snapshot};

use crate::Workers;

/// Sends commands about open connections to the workers, when a new snapshot changes the state of
/// servers, access lists or limits.
#[derive(Debug, Default)]
pub struct ConnectionReaper {
    /// Ids of the servers that were down in the last snapshot. Their connections have been ended.
    down: BTreeSet<u32>,
    /// Last access lists that were sent to the workers, by the ids of the frontends.
    access: HashMap<u32, AdmittedPeers>,
    /// Tables of sources in which the workers count open connections, by the ids of the frontends.
    sources: HashMap<u32, Arc<Sources>>,
}

/// Addresses whose open connections to one frontend may continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdmittedPeers {
    access: Access,
    /// Trusted HTTP proxies. Their connections may continue, because each of their requests is
    /// checked.
    proxies: NetworkSet,
}

impl AdmittedPeers {
    fn of(config: &FrontendConfig) -> AdmittedPeers {
        AdmittedPeers { access: config.access.clone(), proxies: config.http_proxies() }
    }

    pub(super) fn admit(&self, peer: IpAddr) -> bool {
        self.proxies.contains(peer) || self.access.admits(peer)
    }
}

#[cfg(test)]
impl From<Access> for AdmittedPeers {
    fn from(access: Access) -> AdmittedPeers {
        AdmittedPeers { access, proxies: NetworkSet::default() }
    }
}

impl ConnectionReaper {
    /// Ends open connections after the publication of a new snapshot: connections to servers that
    /// have gone down with `on_down = "reset"`, and connections of clients that an access list
    /// denies. If a frontend has a new table of sources, counts its open connections in the new
    /// table.
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
