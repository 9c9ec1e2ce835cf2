//! Immutable state that the data path reads. The control path builds a whole new [`Snapshot`] from
//! configuration and health, and publishes it with one swap. A reader gets the old snapshot or the
//! new one, never a mixture, and never waits.
//!
//! State that must outlive a swap (counters, slots, round-robin position) is behind `Arc`s that the
//! next snapshot takes over. Pure.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod affinity;
mod discoveries;
#[cfg(any(test, feature = "test-util"))]
pub mod fixture;
mod http;
mod live;
mod names;
mod newest;
mod places;
mod pool;
mod request_limit;
mod route_live;
mod shortage;
mod sni;
pub mod stats;
mod waiters;
mod worker;

pub use convey_balance::FlowHash;
pub use discoveries::Discovery;
pub use http::{HttpAction, HttpFrontend, HttpRoute, SplitBackend};
pub use live::{PoolLive, ServerLive};
pub use names::{Name, NameLive};
pub use newest::NewestSnapshot;
pub use places::Places;
pub use pool::{PassedOver, Pick, Pool, Server};
pub use request_limit::RequestLimit;
pub use route_live::{RouteLive, RouteLives};
pub use shortage::{SourceError, connect_error, is_shortage, source_error};
pub use sni::{SniRoute, SniRoutes};
pub use waiters::{SLOT_RECHECK, Waiters, Waits};
pub use worker::{WorkerArc, WorkerFrontend, WorkerFrontends, WorkerRoute};

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::stats::{ANSWER_TIMES, Histogram, RequestSamples, Traffic};
use convey_model::{
    self as model, AcmeConfig, AnnounceConfig, DrainingEndpoints, Endpoint, FlowTimeouts, HttpOverlay,
    NextHops, Overlay, PacketSettings, SaidLogLevel, ServerEndpoints, ServerKey, Slots, Sources, Timeouts,
    Timestamp, TotalRequests, Unreachable,
};
use convey_tls::{AcmeChallenges, TlsAcceptor};

/// Configuration and state of convey at one point in time, for new connections.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of the snapshot: 0 for [`Snapshot::empty`], and one more for each further snapshot.
    pub generation: u64,
    /// Index of listening endpoints and of server numbers.
    pub places: Arc<Places>,
    /// All frontends, by name.
    pub frontends: Vec<Arc<Frontend>>,
    /// All backends, by name, including backends without a frontend.
    pub pools: Vec<Arc<Pool>>,
    /// Endpoints of the servers of frontends.
    pub server_endpoints: Arc<ServerEndpoints>,
    /// Host names of servers, sorted.
    pub names: Vec<Name>,
    /// Discovery sources of backends, sorted.
    pub discoveries: Vec<Discovery>,
    /// Changes that operators made at run time.
    pub overlays: Vec<Overlay>,
    /// Runtime overrides of operators in mode `http`.
    pub http_overlays: Vec<HttpOverlay>,
    /// Log level that an operator set; `None`: the configured levels apply.
    pub log_level: Option<SaidLogLevel>,
    /// Addresses of this host.
    pub own_addresses: Arc<BTreeSet<IpAddr>>,
    /// Frontends and servers that a reload removed and whose flows may still continue; empty in
    /// proxy mode.
    pub draining: Arc<DrainingEndpoints>,
    /// Whether convey is about to stop and begins no new flows (packet modes).
    pub stopping: bool,
    /// Endpoints of frontends whose flows convey does not end when it stops, because the flows
    /// continue without convey (packet modes).
    pub outlasting: BTreeSet<Endpoint>,
    /// The next hops of packets; empty in proxy mode.
    pub network: Arc<NextHops>,
    /// Settings for certificates that convey orders; `None`: convey orders no certificate.
    pub acme: Option<Arc<AcmeConfig>>,
    /// Announcement of frontends' addresses; `None`: convey announces no address.
    pub announce: Option<Arc<AnnounceConfig>>,
    /// General time limits, which backends and frontends may override.
    pub timeouts: Timeouts,
    /// Timeouts of flows without packets (packet modes).
    pub flow_timeouts: FlowTimeouts,
    /// Shortest path MTU to a client that convey reports to servers in passthrough, in bytes;
    /// `None`: convey reports no path MTU.
    pub min_path_mtu: Option<u32>,
    /// Counters of all frontends, including removed ones.
    pub totals: Arc<Traffic>,
}

/// A frontend with its resolved backend.
#[derive(Debug)]
pub struct Frontend {
    /// Configuration of the frontend.
    pub config: model::FrontendConfig,
    /// Backend of the frontend's connections; with routes, backend of requests and connections that
    /// match no route. If the frontend has no such backend, the pool is empty and not in
    /// [`Snapshot::pools`].
    pub pool: Arc<Pool>,
    /// Routes of requests; `Some` if and only if the mode is `http`.
    pub http: Option<HttpFrontend>,
    /// Acceptor of TLS handshakes; `None`: clients use no TLS with convey, or the settings are
    /// unusable. With unusable settings, convey refuses all clients.
    pub tls: Option<Arc<TlsAcceptor>>,
    /// Routes of TLS connections by server name and protocol; `None`: the frontend has no such
    /// routes.
    pub sni: Option<SniRoutes>,
    /// Challenges that ACME authorities request over HTTP while convey orders a certificate;
    /// `None`: convey orders no certificate.
    pub challenges: Option<Arc<AcmeChallenges>>,
    /// Open connections and rate limit tokens of each source, for the frontend's limits per source;
    /// `None`: the frontend has no such limits.
    pub sources: Option<Arc<Sources>>,
    /// State of the frontend that outlives this snapshot.
    pub live: Arc<FrontendLive>,
}

/// Part of a frontend that outlives snapshots.
#[derive(Debug)]
pub struct FrontendLive {
    /// Name of the frontend.
    pub name: Arc<str>,
    /// Number of the frontend, unique for as long as the process runs.
    pub id: u32,
    /// Traffic counters.
    pub traffic: Traffic,
    /// Slots of open connections.
    pub slots: Arc<Slots>,
    /// Slots of open UDP sessions that any new session may evict; they are also in `slots`.
    pub questions: Slots,
    /// Notified when a connection ends.
    pub freed: Notify,
    /// Notified when limits change; wakes connections that wait for their client's share.
    pub share_changed: Notify,
    /// Number of accepted connections that wait for a slot or for their client's share. Connections
    /// in the kernel's accept queue do not count.
    pub waiters: Waiters,
    /// Counters of the frontend's routes.
    pub routes: RouteLives,
    /// Durations from the head of a request to the last byte of its response (mode http).
    pub request_times: Histogram,
    /// Recent samples of the requests and of their durations (mode http).
    pub request_samples: RequestSamples,
    /// Requests of all clients, against the frontend's limit (mode http).
    pub requests: Arc<TotalRequests>,
}

impl Frontend {
    /// Backends whose servers serve the frontend's clients, including backends of routes, without
    /// duplicates. The list has no backends that serve files.
    pub fn pools(&self) -> &[Arc<Pool>] {
        match (&self.http, &self.sni) {
            (Some(http), _) => &http.pools,
            (None, Some(sni)) => &sni.pools,
            (None, None) => slice::from_ref(&self.pool),
        }
    }

    /// Whether the frontend's connections continue without convey, because servers answer clients
    /// directly and every balancer sends a client's packets to the same server.
    pub(crate) fn outlasts_us(&self) -> bool {
        self.config.mode.is_dsr() && self.pool.config.algorithm.hashes()
    }
}

impl FrontendLive {
    /// Creates the state of frontend number `id` without connections, with counters for `cores`
    /// cores.
    pub fn new(id: u32, cores: usize) -> Self {
        let (slots, questions) = (Slots::new(cores).into(), Slots::default());
        let (freed, share_changed) = (Notify::new(), Notify::new());
        let (traffic, waiters) = (Traffic::new(cores), Waiters::default());
        let routes = RouteLives::new(cores);
        FrontendLive {
            name: Arc::default(),
            id,
            traffic,
            slots,
            questions,
            freed,
            share_changed,
            waiters,
            routes,
            request_times: Histogram::new(&ANSWER_TIMES, cores),
            request_samples: RequestSamples::default(),
            requests: Arc::new(TotalRequests::new(cores)),
        }
    }

    /// Sets the name, for the access log.
    pub fn named(self, name: &str) -> Self {
        FrontendLive { name: name.into(), ..self }
    }
}

/// Health of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether the server answers; a server that is down gets no new connections.
    pub up: bool,
    /// Whether a probe or a client has proved the value of `up`. False before the first probe,
    /// while the server counts as up without proof.
    pub proven: bool,
    /// Outcome of the last decisive probe or connect; operator-facing message.
    pub reason: String,
    /// Time at which `up` last changed.
    pub since: Timestamp,
    /// Temporary ejection because of failed client connections; an ejected server gets no new
    /// connections.
    pub ejected: Option<Ejected>,
    /// Share of its weight that the server has now, in percent. Below 100 during slow start.
    pub percent: u8,
}

impl Health {
    /// Whether the server is up and not ejected. An ejected server gets new connections only if the
    /// pool has no other choice.
    pub(crate) fn is_in_service(&self) -> bool {
        self.up && self.ejected.is_none()
    }
}

/// Ejection of a server because of failed client connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ejected {
    /// Time at which the ejection ends.
    pub until: Timestamp,
    /// Number of ejections of the server in short succession.
    pub times: u32,
    /// Operator-facing reason.
    pub reason: String,
}

impl Snapshot {
    /// Wakes every connection that waits for a free slot. Call it after a change of limits or
    /// servers.
    pub fn wake_waiting(&self) {
        for FrontendLive { freed, share_changed, .. } in self.frontends.iter().map(|frontend| &*frontend.live)
        {
            freed.notify_waiters();
            share_changed.notify_waiters();
        }
        self.pools.iter().for_each(|pool| pool.live.freed.notify_waiters());
    }

    /// Adds a sample to the recent requests of each frontend, route and server in mode http. Call it
    /// every [`REQUEST_SAMPLE_INTERVAL`](stats::REQUEST_SAMPLE_INTERVAL).
    pub fn sample_requests(&self, now: Timestamp) {
        for (frontend, http) in self.frontends.iter().filter_map(|one| Some((one, one.http.as_ref()?))) {
            let live = &frontend.live;
            live.request_samples.add(now, &live.traffic, &live.request_times);
            for route in http.routes() {
                route.live.samples.add(now, &route.live.traffic, &route.live.times);
            }
            for server in http.pools.iter().flat_map(|pool| &pool.servers) {
                let live = &server.live;
                live.request_samples.add(now, &live.traffic, &live.response_times);
            }
        }
    }

    /// Time limits of a frontend. The frontend's own time limits override its backend's time
    /// limits, and these override the global time limits.
    pub fn timeouts_of(&self, frontend: &Frontend) -> Timeouts {
        self.timeouts_with(frontend, &frontend.pool)
    }

    /// Time limits of a frontend for connections to one of its backends.
    pub fn timeouts_with(&self, frontend: &Frontend, pool: &Pool) -> Timeouts {
        self.timeouts.with(&pool.config.timeouts).with(&frontend.config.timeouts)
    }

    /// Whether `ip` is an address of this host.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.own_addresses.contains(&ip)
    }

    /// Pool of this snapshot for the backend of `pool`; `pool` itself if the backend is gone.
    pub fn newest_pool(&self, pool: &Arc<Pool>) -> Arc<Pool> {
        let same = self.pools.iter().find(|other| Arc::ptr_eq(&other.live, &pool.live));
        same.unwrap_or(pool).clone()
    }

    /// Servers of L2 DSR frontends that convey can reach only through a router.
    pub fn off_link(&self) -> BTreeSet<ServerKey> {
        let needs_link = |frontend: &&Arc<Frontend>| {
            frontend.config.mode.is_dsr() && frontend.pool.config.dsr.needs_link()
        };
        let servers = self.frontends.iter().filter(needs_link).flat_map(|frontend| {
            let backend = &frontend.pool.config.name;
            frontend.pool.servers.iter().map(move |server| (backend, &server.config))
        });
        let is_off = |ip| self.network.lookup_on_link(ip) == Err(Unreachable::NotOnLink);
        let off = servers.filter(|(_, server)| is_off(server.addr.ip()));
        off.map(|(backend, server)| ServerKey {
            backend: backend.clone(),
            server: server.name.clone(),
            addr: server.addr,
        })
        .collect()
    }

    /// Number of connections that continue when convey stops.
    pub fn outlasting_connections(&self) -> u64 {
        let frontends = self.frontends.iter().filter(|frontend| frontend.outlasts_us());
        frontends.map(|frontend| u64::from(frontend.live.slots.open())).sum()
    }

    /// Snapshot without a frontend, used until the first configuration is applied.
    pub fn empty(cores: usize) -> Self {
        let second = Duration::from_secs(1);
        Snapshot {
            generation: 0,
            places: Arc::default(),
            frontends: Vec::new(),
            pools: Vec::new(),
            server_endpoints: Arc::default(),
            names: Vec::new(),
            discoveries: Vec::new(),
            overlays: Vec::new(),
            http_overlays: Vec::new(),
            log_level: None,
            own_addresses: Arc::default(),
            draining: Arc::default(),
            stopping: false,
            outlasting: BTreeSet::new(),
            network: Arc::default(),
            acme: None,
            announce: None,
            timeouts: Timeouts {
                connect: second,
                idle: second,
                response: second,
                request: None,
                send: second,
                tcp_user_timeout: second,
                udp_idle: second,
                drain: second,
                drain_delay: second,
            },
            flow_timeouts: FlowTimeouts::default(),
            min_path_mtu: PacketSettings::default().min_path_mtu,
            totals: Arc::new(Traffic::new(cores)),
        }
    }
}
