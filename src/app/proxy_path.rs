//! Proxy mode as the balancer sees it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::limits;
use super::paths::Parts;
use crate::config::Config;
use crate::model::{Endpoint, Frontend, Mode, OnDown, Protocol};
use crate::proxy::{self, Descriptors, Ready, Sessions, Workers};
use crate::snapshot::Snapshot;
use crate::stats::Traffic;

/// The proxy's worker threads.
pub(super) struct ProxyPath {
    workers: Workers,
    /// Which columns of the counters are theirs.
    columns: Range<usize>,
    /// Where they have ever listened.
    listened: BTreeSet<Endpoint>,
    /// Servers that are down and whose connections have been ended.
    cut_off: BTreeSet<u32>,
    /// How many descriptors this process may have.
    open_files: u64,
}

impl ProxyPath {
    /// Starts a thread for each column; nothing is listened on yet. Packet modes have what they need already: ports and
    /// descriptors that they have taken are not ours.
    pub(super) fn start(parts: &Parts<'_>, columns: Range<usize>) -> anyhow::Result<ProxyPath> {
        let listeners = listening_sockets(&endpoints(parts.config), columns.len());
        let open_files = parts.open_files;
        let taken = limits::open_files() + listeners;
        let descriptors = Descriptors::share(parts.open_files.saturating_sub(taken), columns.len());
        let shared = proxy::Shared {
            columns: columns.clone(),
            snapshot: parts.snapshot.clone(),
            failures: parts.failures.clone(),
            udp_sessions: Arc::new(Sessions::share(limits::local_ports(), descriptors.connections)),
            descriptors,
            clients: Arc::default(),
            own_sockets: Arc::default(),
            lines: Arc::default(),
        };
        let workers = Workers::start(&shared).context("cannot start the worker threads")?;
        Ok(ProxyPath { workers, columns, listened: BTreeSet::new(), cut_off: BTreeSet::new(), open_files })
    }

    /// Where connections may be open that are ours.
    pub(super) fn listened(&self) -> &BTreeSet<Endpoint> {
        &self.listened
    }

    /// Connections that are open now.
    pub(super) fn open_connections(&self) -> impl Fn(&Traffic) -> u64 + use<> {
        let columns = self.columns.clone();
        move |totals| totals.current_in(columns.clone())
    }

    /// Binds what the configuration adds.
    pub(super) fn prepare(&mut self, config: &Config) -> Result<Ready, String> {
        let wanted = endpoints(config);
        let taken = listening_sockets(&wanted, self.columns.len());
        if taken > self.open_files / 2 {
            return Err(format!(
                "the {} ports of frontends in proxy mode need {taken} descriptors of {}, more than half; allow more open \
                 files (LimitNOFILE, ulimit -n), or listen on fewer ports",
                wanted.len(),
                self.open_files
            ));
        }
        self.workers.prepare(&wanted).map_err(|error| error.to_string())
    }

    /// Stops listening where that is no longer wanted; sessions of UDP have `patience` to end.
    pub(super) async fn close(&mut self, ready: &Ready, patience: Duration) {
        self.workers.close(ready, patience).await;
    }

    /// Starts to accept on the new addresses.
    pub(super) fn open(&mut self, ready: Ready) {
        self.listened.extend(ready.endpoints());
        self.workers.open(ready);
    }

    /// Ends the connections of servers that have gone down, where the file says so. The snapshot has been published.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) {
        let resetting =
            snapshot.pools.iter().filter(|pool| pool.config.on_down_in(Mode::Proxy) == OnDown::Reset);
        let down = resetting.flat_map(|pool| &pool.servers).filter(|server| !server.health.up);
        let cut_off: BTreeSet<u32> = down.map(|server| server.live.id).collect();
        let new: BTreeSet<u32> = cut_off.difference(&self.cut_off).copied().collect();
        if !new.is_empty() {
            self.workers.end(&Arc::new(new));
        }
        self.cut_off = cut_off;
    }

    /// Takes no new connections. What this returns waits for the open ones to end.
    pub(super) fn drain(&self) -> impl Future<Output = ()> + use<> {
        self.workers.drain()
    }

    /// Cuts what is left.
    pub(super) fn stop(self) {
        self.workers.stop();
    }
}

/// Descriptors that so many workers listen with: one of UDP has two.
fn listening_sockets(endpoints: &BTreeSet<Endpoint>, workers: usize) -> u64 {
    let of_one = |endpoint: &Endpoint| if endpoint.protocol == Protocol::Udp { 2 } else { 1 };
    endpoints.iter().map(of_one).sum::<u64>() * workers as u64
}

fn endpoints(config: &Config) -> BTreeSet<Endpoint> {
    config.frontends_in(Mode::Proxy).flat_map(Frontend::endpoints).collect()
}
