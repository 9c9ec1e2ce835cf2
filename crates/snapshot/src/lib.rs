//! The one immutable state the data path reads. Configuration and health make a whole new [`Snapshot`],
//! published with one swap: a reader sees the old one or the new one, never a mixture, and never waits.
//!
//! State that must outlive a swap (counters, slots, round-robin position) hangs off it behind `Arc`s that the
//! next snapshot carries on. Pure.
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
pub use http::{HttpAction, HttpFrontend, HttpRoute};
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

/// Everything a new connection needs to know.
#[derive(Debug)]
pub struct Snapshot {
    /// Which snapshot this is: each one is one more than that before; 0 is [`Snapshot::empty`].
    pub generation: u64,
    /// Where frontends listen, and which server has which number.
    pub places: Arc<Places>,
    /// All frontends, by name.
    pub frontends: Vec<Arc<Frontend>>,
    /// All backends, by name, those without a frontend too.
    pub pools: Vec<Arc<Pool>>,
    /// Where the servers of frontends listen.
    pub server_endpoints: Arc<ServerEndpoints>,
    /// The names that servers go by, sorted.
    pub names: Vec<Name>,
    /// The sources that backends have servers from, sorted.
    pub discoveries: Vec<Discovery>,
    /// What operators have said while the program runs.
    pub overlays: Vec<Overlay>,
    /// What they have said of the log.
    pub log_level: Option<SaidLogLevel>,
    /// The addresses that this host has.
    pub own_addresses: Arc<BTreeSet<IpAddr>>,
    /// Frontends and servers that a reload took away and whose flows may still finish; empty in proxy mode.
    pub draining: Arc<DrainingEndpoints>,
    /// Whether the program is about to end and begins no new flows (packet modes).
    pub stopping: bool,
    /// Frontends whose flows we leave as they are at our end, for they go on without us (packet modes).
    pub outlasting: BTreeSet<Endpoint>,
    /// The next hops of packets; empty in proxy mode.
    pub network: Arc<NextHops>,
    /// The certificates that convey orders itself.
    pub acme: Option<Arc<AcmeConfig>>,
    /// How the addresses of frontends are announced; `None`: they are not.
    pub announce: Option<Arc<AnnounceConfig>>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// How long silent flows are remembered (packet modes).
    pub flow_timeouts: FlowTimeouts,
    /// Shortest path MTU to a client that servers are told of in passthrough, in bytes; `None`: they are told of none.
    pub min_path_mtu: Option<u32>,
    /// Counters over all frontends, those that are gone too.
    pub totals: Arc<Traffic>,
}

/// A frontend with its backend at hand.
#[derive(Debug)]
pub struct Frontend {
    /// As configured.
    pub config: model::FrontendConfig,
    /// The servers of its connections; with routes, those of requests and connections without one. A pool without servers, which is
    /// not among the snapshot's, if the frontend has no backend of its own.
    pub pool: Arc<Pool>,
    /// What becomes of requests. `Some` exactly in mode `http`.
    pub http: Option<HttpFrontend>,
    /// How clients shake hands; `None`: they speak no TLS with convey. One that its settings cannot make is missing, too: nobody comes in.
    pub tls: Option<Arc<TlsAcceptor>>,
    /// Where TLS connections go by what their clients ask for; `None` without such routes.
    pub sni: Option<SniRoutes>,
    /// What authorities look for by HTTP while convey orders a certificate; `None`: it orders none.
    pub challenges: Option<Arc<AcmeChallenges>>,
    /// The counts of each source; `None` without limits for sources.
    pub sources: Option<Arc<Sources>>,
    /// The state that outlives this snapshot.
    pub live: Arc<FrontendLive>,
}

/// The part of a frontend that outlives snapshots.
#[derive(Debug)]
pub struct FrontendLive {
    /// Its name.
    pub name: Arc<str>,
    /// Its number: no other frontend has had it or will, for as long as the program runs.
    pub id: u32,
    /// Its counters.
    pub traffic: Traffic,
    /// Its open connections.
    pub slots: Arc<Slots>,
    /// Of these, the UDP sessions that give way to any new one.
    pub questions: Slots,
    /// Notified when one of them ends.
    pub freed: Notify,
    /// Notified when limits change, where connections wait for their client's share of them.
    pub share_changed: Notify,
    /// Connections that wait for a slot or for their client's share, without connections in the kernel's queue.
    pub waiters: Waiters,
    /// What is counted of its routes.
    pub routes: RouteLives,
}

impl Frontend {
    /// The backends whose servers serve its clients, each once: those of its routes, too. Backends with files have none.
    pub fn pools(&self) -> &[Arc<Pool>] {
        match (&self.http, &self.sni) {
            (Some(http), _) => &http.pools,
            (None, Some(sni)) => &sni.pools,
            (None, None) => slice::from_ref(&self.pool),
        }
    }

    /// Whether its connections go on without us: any balancer sends a client's packets to the same server, and servers
    /// answer clients themselves.
    pub(crate) fn outlasts_us(&self) -> bool {
        self.config.mode.is_dsr() && self.pool.config.algorithm.hashes()
    }
}

impl FrontendLive {
    /// The frontend number `id`, which nobody has connected to, counted by `cores` cores.
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

    /// The same with its name, for the access log.
    pub fn named(self, name: &str) -> Self {
        FrontendLive { name: name.into(), ..self }
    }
}

/// A server's health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether it answers; only then it gets new connections.
    pub up: bool,
    /// Whether a probe or a client has found that out. A server counts as up before its first probe, too.
    pub proven: bool,
    /// Why: what the last decisive probe or connect said, in words for an operator.
    pub reason: String,
    /// When it last changed.
    pub since: Timestamp,
    /// Whether it gets none all the same for a time, because clients fared badly.
    pub ejected: Option<Ejected>,
    /// The part of its weight that it gets, in percent: less than 100 while it comes back slowly.
    pub percent: u8,
}

impl Health {
    /// Whether it gets new connections as long as there is a choice.
    pub(crate) fn is_in_service(&self) -> bool {
        self.up && self.ejected.is_none()
    }
}

/// A server that was taken out because clients fared badly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ejected {
    /// When it comes back.
    pub until: Timestamp,
    /// How many times it has been ejected in short succession.
    pub times: u32,
    /// Why, in words for an operator.
    pub reason: String,
}

impl Snapshot {
    /// Has every connection that waits for a free slot look again: limits or servers have changed.
    pub fn wake_waiting(&self) {
        for FrontendLive { freed, share_changed, .. } in self.frontends.iter().map(|frontend| &*frontend.live)
        {
            freed.notify_waiters();
            share_changed.notify_waiters();
        }
        self.pools.iter().for_each(|pool| pool.live.freed.notify_waiters());
    }

    /// The time limits of a frontend: its own go before those of its backend, and these before those of all.
    pub fn timeouts_of(&self, frontend: &Frontend) -> Timeouts {
        self.timeouts_with(frontend, &frontend.pool)
    }

    /// The time limits of a frontend where this backend of it serves.
    pub fn timeouts_with(&self, frontend: &Frontend, pool: &Pool) -> Timeouts {
        self.timeouts.with(&pool.config.timeouts).with(&frontend.config.timeouts)
    }

    /// Whether what comes from `ip` may come from this host.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.own_addresses.contains(&ip)
    }

    /// The pool of the backend that this one is of, as it is here; the same if there is none.
    pub fn newest_pool(&self, pool: &Arc<Pool>) -> Arc<Pool> {
        let same = self.pools.iter().find(|other| Arc::ptr_eq(&other.live, &pool.live));
        same.unwrap_or(pool).clone()
    }

    /// The servers of L2 DSR that only routers lead to.
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

    /// Connections that go on without us.
    pub fn outlasting_connections(&self) -> u64 {
        let frontends = self.frontends.iter().filter(|frontend| frontend.outlasts_us());
        frontends.map(|frontend| u64::from(frontend.live.slots.open())).sum()
    }

    /// A state with no frontend: what runs before the first configuration is applied.
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
