//! Immutable state that the data path reads. Configuration and health build a whole new
//! [`Snapshot`] and publish it with one swap: a reader gets the old one or the new one, never a
//! mixture, and never waits.
//!
//! State that must outlive a swap (counters, slots, round-robin position) is behind `Arc`s that the
//! next snapshot takes over. Pure.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod discoveries;
#[cfg(any(test, feature = "test-util"))]
pub mod fixture;
mod http;
mod live;
mod names;
mod places;
mod pool;
mod request_limit;
mod route_live;
mod shortage;
mod sni;
pub mod stats;
mod waiters;

pub use convey_balance::FlowHash;
pub use discoveries::Discovery;
pub use http::{ClientScheme, HttpAction, HttpFrontend, HttpRoute};
pub use live::{PoolLive, ServerLive};
pub use names::{Name, NameLive};
pub use places::Places;
pub use pool::{PassedOver, Pick, Pool, Server};
pub use request_limit::RequestLimit;
pub use route_live::{RouteLive, RouteLives};
pub use shortage::is_shortage;
pub use sni::{SniRoute, SniRoutes};
pub use waiters::{Waiters, Waits};

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::stats::Traffic;
use convey_model::{
    self as model, AcmeConfig, AnnounceConfig, DrainingEndpoints, Endpoint, FlowTimeouts, NextHops, Overlay,
    PacketSettings, SaidLogLevel, ServerEndpoints, ServerKey, Slots, Sources, Timeouts, Timestamp,
    Unreachable,
};
use convey_tls::{AcmeChallenges, TlsAcceptor};

/// State that new connections need.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of the snapshot: one more than the number before; 0 is [`Snapshot::empty`].
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
    /// Log level that an operator set.
    pub log_level: Option<SaidLogLevel>,
    /// Addresses of this host.
    pub own_addresses: Arc<BTreeSet<IpAddr>>,
    /// Frontends and servers that a reload removed and whose flows may still finish; empty in proxy
    /// mode.
    pub draining: Arc<DrainingEndpoints>,
    /// Whether convey is about to stop and begins no new flows (packet modes).
    pub stopping: bool,
    /// Frontends whose flows convey leaves in place when it stops, because they continue without it
    /// (packet modes).
    pub outlasting: BTreeSet<Endpoint>,
    /// The next hops of packets; empty in proxy mode.
    pub network: Arc<NextHops>,
    /// Certificates that convey orders.
    pub acme: Option<Arc<AcmeConfig>>,
    /// Announcement of frontends' addresses; `None`: convey announces none.
    pub announce: Option<Arc<AnnounceConfig>>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// How long flows without packets are kept (packet modes).
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
    /// Servers of the frontend's connections; with routes, servers of requests and connections that
    /// match no route. If the frontend has no backend, the pool is empty and not in
    /// [`Snapshot::pools`].
    pub pool: Arc<Pool>,
    /// Routes of requests; `Some` exactly in mode `http`.
    pub http: Option<HttpFrontend>,
    /// Acceptor of TLS handshakes; `None`: clients speak no TLS with convey, or the settings are
    /// unusable. In the second case convey refuses all clients.
    pub tls: Option<Arc<TlsAcceptor>>,
    /// Routes of TLS connections by server name and protocol; `None` without such routes.
    pub sni: Option<SniRoutes>,
    /// Challenges that ACME authorities request over HTTP while convey orders a certificate;
    /// `None`: convey orders none.
    pub challenges: Option<Arc<AcmeChallenges>>,
    /// Counts of each source; `None` without limits for sources.
    pub sources: Option<Arc<Sources>>,
    /// The state that outlives this snapshot.
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
    /// Slots of open UDP sessions that any new session may evict.
    pub questions: Slots,
    /// Notified when a connection ends.
    pub freed: Notify,
    /// Notified when limits change; wakes connections that wait for their client's share.
    pub share_changed: Notify,
    /// Connections that wait for a slot or for their client's share, without connections in the
    /// kernel's queue.
    pub waiters: Waiters,
    /// Counters of the frontend's routes.
    pub routes: RouteLives,
}

impl Frontend {
    /// Backends whose servers serve the frontend's clients, including those of routes, each once.
    /// Backends with files are left out.
    pub fn pools(&self) -> &[Arc<Pool>] {
        match (&self.http, &self.sni) {
            (Some(http), _) => &http.pools,
            (None, Some(sni)) => &sni.pools,
            (None, None) => slice::from_ref(&self.pool),
        }
    }

    /// Whether the frontend's connections continue without convey: any balancer sends a client's
    /// packets to the same server, and servers answer clients directly.
    pub(crate) fn outlasts_us(&self) -> bool {
        self.config.mode.is_dsr() && self.pool.config.algorithm.hashes()
    }
}

impl FrontendLive {
    /// Frontend number `id` without connections, counted by `cores` cores.
    pub fn new(id: u32, cores: usize) -> Self {
        let (slots, questions) = (Arc::default(), Slots::default());
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
    /// Whether a probe or a client has proved `up`. A server counts as up before its first probe,
    /// too.
    pub proven: bool,
    /// Outcome of the last decisive probe or connect; operator-facing message.
    pub reason: String,
    /// When `up` last changed.
    pub since: Timestamp,
    /// Temporary ejection because of clients' failures; an ejected server gets no new connections.
    pub ejected: Option<Ejected>,
    /// Share of its weight that the server has now, in percent: below 100 during slow start.
    pub percent: u8,
}

impl Health {
    /// Whether the server gets new connections as long as the pool has a choice.
    pub(crate) fn is_in_service(&self) -> bool {
        self.up && self.ejected.is_none()
    }
}

/// Ejection of a server because of clients' failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ejected {
    /// When the server returns.
    pub until: Timestamp,
    /// How many times the server has been ejected in short succession.
    pub times: u32,
    /// Operator-facing reason.
    pub reason: String,
}

impl Snapshot {
    /// Wakes every connection that waits for a free slot: limits or servers have changed.
    pub fn wake_waiting(&self) {
        for FrontendLive { freed, share_changed, .. } in self.frontends.iter().map(|frontend| &*frontend.live)
        {
            freed.notify_waiters();
            share_changed.notify_waiters();
        }
        self.pools.iter().for_each(|pool| pool.live.freed.notify_waiters());
    }

    /// Time limits of a frontend: its own override those of its backend, which override the global
    /// ones.
    pub fn timeouts_of(&self, frontend: &Frontend) -> Timeouts {
        self.timeouts_with(frontend, &frontend.pool)
    }

    /// Time limits of a frontend for connections to this backend of it.
    pub fn timeouts_with(&self, frontend: &Frontend, pool: &Pool) -> Timeouts {
        self.timeouts.with(&pool.config.timeouts).with(&frontend.config.timeouts)
    }

    /// Whether packets from `ip` may come from this host.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.own_addresses.contains(&ip)
    }

    /// Pool of this snapshot for the same backend as `pool`; `pool` itself if the backend is gone.
    pub fn newest_pool(&self, pool: &Arc<Pool>) -> Arc<Pool> {
        let same = self.pools.iter().find(|other| Arc::ptr_eq(&other.live, &pool.live));
        same.unwrap_or(pool).clone()
    }

    /// Servers of L2 DSR that convey reaches only through a router.
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

    /// Number of connections that continue without convey.
    pub fn outlasting_connections(&self) -> u64 {
        let frontends = self.frontends.iter().filter(|frontend| frontend.outlasts_us());
        frontends.map(|frontend| u64::from(frontend.live.slots.open())).sum()
    }

    /// State without a frontend, which runs before the first configuration is applied.
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
