//! Data path of proxy mode: worker threads and listening sockets.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use convey_config::Config;
use convey_http::HttpServer;
use convey_model::{Endpoint, FrontendConfig, Listen, Mode};
use convey_proxy::{
    BindError, ConnectionReaper, Descriptors, HandedSession, HandedSockets, LocalPorts, PreparedSockets,
    ProxyFlows, Reserved, Sessions, Workers, WorkersShared,
};
use convey_snapshot::Snapshot;
use convey_snapshot::stats::Traffic;
use log::warn;

use super::paths::Parts;
use super::{clock, limits, port_owner, resources};

/// The proxy's worker threads.
pub(super) struct ProxyPath {
    workers: Workers,
    shared: WorkersShared,
    /// All endpoints on which the workers listen or have listened.
    listened: BTreeSet<Endpoint>,
    reaper: ConnectionReaper,
    /// Limit on open files of this process.
    open_files: u64,
    /// Descriptors of packet modes: one per owned frontend. `first_owned` counts the frontends of
    /// the start; `new_owned` reserves descriptors for frontends that were added since.
    first_owned: u64,
    new_owned: Reserved,
}

impl ProxyPath {
    /// Starts one thread per column; no socket listens yet. Packet modes have already taken their
    /// ports, and the descriptors for `owned` frontends.
    pub(super) fn start(parts: &Parts<'_>, columns: Range<usize>, owned: u64) -> anyhow::Result<ProxyPath> {
        let listeners = Workers::descriptors(&endpoints(parts.config), columns.len());
        let open_files = parts.open_files;
        let left = open_files.saturating_sub(limits::open_files());
        let descriptors = Descriptors::share(left, listeners, columns.len());
        let local_ports = limits::local_ports();
        let shared = WorkersShared {
            columns,
            snapshot: parts.snapshot.clone(),
            failures: parts.failures.clone(),
            udp_sessions: Arc::new(Sessions::share(local_ports.count())),
            descriptors,
            clients: Arc::default(),
            own_sockets: Arc::default(),
            local_ports: Arc::new(LocalPorts::new(local_ports.ranges())),
            handshakes: Arc::default(),
            lines: Arc::default(),
            access_log: parts.access_log.clone(),
            trace: parts.trace.clone(),
            http: Some(HttpServer::usual()),
            stops_soon: parts.draining.clone(),
            started: clock::start().into(),
        };
        let workers = Workers::start(&shared).context("cannot start the worker threads")?;
        Ok(ProxyPath {
            workers,
            shared,
            listened: BTreeSet::new(),
            reaper: ConnectionReaper::default(),
            open_files,
            first_owned: owned,
            new_owned: Reserved::default(),
        })
    }

    /// State that the workers share.
    pub(super) fn shared(&self) -> WorkersShared {
        self.shared.clone()
    }

    /// Endpoints that may have open connections of this process.
    pub(super) fn listened(&self) -> &BTreeSet<Endpoint> {
        &self.listened
    }

    /// Handle for queries of connections and sessions.
    pub(super) fn flows(&self) -> ProxyFlows {
        self.workers.flows()
    }

    /// Returns a function that counts the open connections.
    pub(super) fn open_connections(&self) -> impl Fn(&Traffic) -> u64 + use<> {
        let columns = self.shared.columns.clone();
        move |totals| totals.current_in(columns.clone())
    }

    /// Binds the endpoints that the configuration adds. `owned` is the number of frontends that
    /// packet modes have just added; each takes a file descriptor, too.
    pub(super) fn prepare(&mut self, config: &Config, owned: u64) -> Result<PreparedSockets, String> {
        if let Some(refusal) = too_many_ports(config, self.shared.columns.len(), self.open_files) {
            return Err(refusal);
        }
        if resources::serves_files(config) {
            let started = convey_http::start_disk_threads();
            started.map_err(|error| format!("cannot start a thread to read files: {error}"))?;
        }
        missing_addresses(config).iter().for_each(|line| warn!("{line}"));
        let wanted = endpoints(config);
        let (new, open) = (self.workers.missing(&wanted) + owned, self.open_now());
        let left = self.shared.descriptors.left_with(open);
        // Refuse the reload if the new ports need descriptors that open connections use: no
        // connection is cut for a port.
        if open > 0 && new > left {
            return Err(format!(
                "the new ports need {new} descriptors, but {open} open connections leave only {left} of {}; \
                 {ADVICE}, or reload when fewer connections are open",
                self.open_files
            ));
        }
        self.workers.prepare(&wanted, &http3_endpoints(config)).map_err(|error| bind_problem(config, &error))
    }

    /// Reserves one descriptor for each frontend that packet modes own now. Connections cannot use
    /// these descriptors.
    pub(super) fn count_owned(&mut self, owned: u64) {
        self.new_owned = self.shared.descriptors.reserve(owned.saturating_sub(self.first_owned));
    }

    fn open_now(&self) -> u64 {
        self.shared.snapshot.load().totals.current_in(self.shared.columns.clone())
    }

    /// Stops listening on removed endpoints. Their UDP sessions have `patience` to end.
    pub(super) async fn close(&mut self, ready: &PreparedSockets, patience: Duration) {
        self.workers.close(ready, patience).await;
    }

    /// Accepts on the new endpoints, and continues the UDP sessions of another process on them.
    pub(super) fn open(&mut self, ready: PreparedSockets, sessions: Vec<HandedSession>) {
        self.listened.extend(ready.endpoints());
        self.workers.open(ready, sessions);
    }

    /// Resets connections of servers that have gone down, if configured, and of clients that are
    /// denied now. Called after each publication of a snapshot.
    pub(super) fn on_snapshot(&mut self, snapshot: &Snapshot) {
        self.reaper.on_snapshot(&self.workers, snapshot);
    }

    /// Duplicates the listening sockets for another process.
    pub(super) fn offer(&self) -> impl Future<Output = HandedSockets> + use<> {
        self.workers.offer()
    }

    /// Stops reading datagrams until [`ProxyPath::release`]. Returns the UDP sessions.
    pub(super) fn pause(&self) -> impl Future<Output = Vec<HandedSession>> + use<> {
        self.workers.pause()
    }

    /// Continues to read datagrams.
    pub(super) fn release(&self) {
        self.workers.release();
    }

    /// Uses sockets of another process in place of new ones.
    pub(super) fn expect(&mut self, sockets: HandedSockets) {
        self.workers.expect(sockets);
    }

    /// Endpoints at which this process uses sockets of another process. Closes the handed-over
    /// sockets that this process does not use.
    pub(super) fn taken(&mut self) -> BTreeSet<Endpoint> {
        self.workers.taken()
    }

    /// Stops accepting connections. The future waits until the open ones have ended. `left`
    /// contains the endpoints whose sockets another process holds.
    pub(super) fn drain(&self, left: BTreeSet<Endpoint>) -> impl Future<Output = ()> + use<> {
        self.workers.drain(left)
    }

    /// Returns a function that notifies the draining workers that the process stops.
    pub(super) fn stop_notifier(&self) -> impl Fn() + use<> {
        self.workers.stop_notifier()
    }

    /// Cuts the remaining connections.
    pub(super) fn stop(self) {
        self.workers.stop();
    }
}

/// Frontends that cannot listen now, one line each. The check leaves no socket bound.
pub(super) fn bind_problems(config: &Config) -> Vec<String> {
    let first = |frontend: &FrontendConfig| {
        let places: BTreeSet<Endpoint> = frontend.endpoints().collect();
        let http3: HashSet<Endpoint> = frontend.http3_endpoints().collect();
        let problems = convey_proxy::try_to_bind(&places);
        // A taken port is no problem for HTTP/3, which starts once the port is free.
        let counts = |error: &&BindError| !(error.is_taken() && http3.contains(&error.at()));
        Some(bind_problem(config, problems.iter().find(counts)?))
    };
    config.frontends_where(Mode::is_proxied).filter_map(first).collect()
}

/// Error message for an endpoint that cannot be bound. Names its frontend and the owner of the
/// port.
fn bind_problem(config: &Config, error: &BindError) -> String {
    let is_it = |frontend: &&FrontendConfig| frontend.endpoints().any(|at| at == error.at());
    let name = config.frontends_where(Mode::is_proxied).find(is_it).map(|frontend| &*frontend.name);
    let owner = if error.is_taken() { port_owner::describe(error.at()) } else { String::new() };
    format!("frontend {}: {error}{owner}", name.unwrap_or_default())
}

/// Hint for a lack of descriptors.
const ADVICE: &str = "allow more open files (LimitNOFILE, ulimit -n), or listen on fewer ports";

/// Error message if the listening sockets of all `workers` would use more than half of the
/// descriptors in `open_files`.
pub(super) fn too_many_ports(config: &Config, workers: usize, open_files: u64) -> Option<String> {
    let wanted = endpoints(config);
    let (ports, taken) = (wanted.len(), Workers::descriptors(&wanted, workers));
    (taken > open_files / 2).then(|| {
        format!(
            "the {ports} ports of frontends in proxy mode need {taken} descriptors, more than half of the limit of \
             {open_files}; {ADVICE}"
        )
    })
}

/// Warnings for listen addresses and source addresses that no interface of this host has, one line
/// each. They are no errors, because the address of a standby may be added later. The result omits
/// addresses that convey itself adds.
pub(super) fn missing_addresses(config: &Config) -> Vec<String> {
    let mut told = Vec::new();
    let added = config.announced();
    for frontend in config.frontends_where(Mode::is_proxied) {
        let ips: BTreeSet<IpAddr> = frontend.listen.iter().map(Listen::ip).collect();
        let missing = ips.difference(&added).copied().filter_map(convey_proxy::missing_address);
        told.extend(missing.map(|why| format!("frontend {}: {why}", frontend.name)));
    }
    for backend in &config.backends {
        let sources = backend.source.iter().copied().filter(|ip| !added.contains(ip));
        let missing = sources.filter_map(convey_proxy::missing_source);
        told.extend(missing.map(|why| format!("backend {}: source: {why}", backend.name)));
    }
    told
}

fn http3_endpoints(config: &Config) -> HashSet<Endpoint> {
    config.frontends_where(Mode::is_proxied).flat_map(FrontendConfig::http3_endpoints).collect()
}

fn endpoints(config: &Config) -> BTreeSet<Endpoint> {
    config.frontends_where(Mode::is_proxied).flat_map(FrontendConfig::endpoints).collect()
}
