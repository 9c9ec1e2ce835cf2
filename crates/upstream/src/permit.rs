//! Permit to use a server: holds one of its connection slots.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use crate::PickContext;
use convey_model::{Algorithm, HttpVersion, Mode, OnDown, Protocol, ProxyVersion, TakenSlot};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pool, Server, Snapshot, WorkerArc};
use convey_stream::PollClock;
use convey_tls::{SpokenWithin, TlsSession, server_name};

/// Permit to use one server for one client: it holds a connection slot of the server. The drop
/// releases the slot.
#[derive(Debug)]
pub struct Permit {
    pub(super) pool: WorkerArc<Pool>,
    pub(super) index: usize,
    /// Slot of the server, and where it is counted.
    slot: TakenSlot,
    pub(super) core: usize,
    pub(super) protocol: Protocol,
    /// Time at which the client arrived; `None` if another permit measures the duration of the
    /// session now.
    began: Option<Instant>,
    /// Failure epoch of the server at the time of the pick. If the server's epoch has changed
    /// since, a failure of this permit is stale.
    pub(super) failure_epoch: u32,
    is_open: bool,
    /// Whether the first outcome has been recorded. Later outcomes are ignored.
    pub(super) is_recorded: AtomicBool,
    /// Whether the `ewma` algorithm counts this client as waiting for an answer of the server.
    is_awaited: AtomicBool,
}

impl Permit {
    /// Takes a slot of the server with this index. Returns `None` if the server has no free slot.
    pub fn take(pool: &WorkerArc<Pool>, index: usize, pick: &PickContext) -> Option<Permit> {
        let server = &pool.servers[index];
        let (algorithm, limit) = (pool.config.algorithm, server.config.settings.max_connections);
        let slots = &server.live.slots;
        let slot = match algorithm.reads_open_connections() {
            // Each pick reads the number, which would be slow for a column of each core.
            true => slots.try_take(limit).then(TakenSlot::shared),
            false => slots.try_take_on(pick.core, limit),
        }?;
        let is_awaited = algorithm == Algorithm::Ewma;
        if is_awaited {
            server.live.answers.begins();
        }
        Some(Permit {
            failure_epoch: server.live.row(),
            pool: pool.clone(),
            index,
            slot,
            core: pick.core,
            protocol: pick.protocol,
            began: Some(pick.began),
            is_open: false,
            is_recorded: AtomicBool::new(false),
            is_awaited: AtomicBool::new(is_awaited),
        })
    }

    /// Takes a slot of the server at this address, for a session that another process has handed
    /// over. Returns `None` if the pool has no server at this address, or if the server has no free
    /// slot.
    pub fn at(pool: &WorkerArc<Pool>, server: SocketAddr, pick: &PickContext) -> Option<Permit> {
        let port = pick.vip.port();
        let index = pool.servers.iter().position(|other| other.config.addr_for(port) == server)?;
        Permit::take(pool, index, pick)
    }

    /// Records that the client no longer waits for an answer of the server.
    pub(super) fn end_wait(&self) {
        if self.is_awaited.load(Ordering::Relaxed) {
            self.is_awaited.store(false, Ordering::Relaxed);
            self.server().live.answers.ends();
        }
    }

    /// Server of the permit.
    pub fn server(&self) -> &Server {
        &self.pool.servers[self.index]
    }

    /// Backend of the server.
    pub fn pool(&self) -> &Arc<Pool> {
        self.pool.shared()
    }

    /// Backend of the server, as the worker that has the permit shares it.
    pub fn worker_pool(&self) -> &WorkerArc<Pool> {
        &self.pool
    }

    /// Index of the server in the backend.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Names of the backend and of the server.
    pub fn names(&self) -> (Arc<str>, Arc<str>) {
        (self.pool.live.name.clone(), self.server().live.name.clone())
    }

    /// Name of the backend.
    pub fn backend(&self) -> &Arc<str> {
        &self.pool.live.name
    }

    /// Name of the server in log lines: `backend/server`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.pool.config.name, self.server().config.name)
    }

    /// Whether the server belongs to this backend.
    pub fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.pool.live, &pool.live)
    }

    /// Whether clients wait for a slot of this backend, because all its servers are at their limit.
    pub fn is_wanted(&self) -> bool {
        self.pool.live.waiters.count() > 0
    }

    /// Adds `n` to a counter of the server, and to the same counter of its backend.
    pub fn count(&self, counter: Counter, n: u64) {
        self.server().live.traffic.add(self.core, counter, n);
        self.pool.live.traffic.add(self.core, counter, n);
    }

    /// Counts a connection as open at the server, until the permit is dropped.
    pub fn opened(&mut self) {
        self.is_open = true;
        self.count(Counter::Opened, 1);
    }

    /// Version of HTTP that convey speaks with the server (mode http).
    pub fn http_version(&self) -> HttpVersion {
        self.pool.config.protocol
    }

    /// Whether connections to the server use TLS.
    pub fn has_tls(&self) -> bool {
        self.pool.config.tls.is_some()
    }

    /// Id of the current TLS settings for connections to the server; 0 without TLS. Connections
    /// that were opened with other settings must not be reused.
    pub fn tls_id(&self) -> u64 {
        self.pool.tls.as_ref().map_or(0, |connector| connector.id())
    }

    /// Creates the TLS session of a new connection to the server; `None` without TLS.
    ///
    /// # Errors
    /// The TLS settings are invalid. The check of the configuration should have found this.
    pub(crate) fn tls(&self, within: SpokenWithin) -> io::Result<Option<TlsSession>> {
        if !self.has_tls() {
            return Ok(None);
        }
        let connector = self.pool.tls.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        let server = &self.server().config;
        let name = self.pool.config.tls_name(server);
        let name = server_name(name.as_deref(), server.addr.ip()).map_err(io::Error::other)?;
        TlsSession::connect(connector.config(within), name).map(Some).map_err(io::Error::other)
    }

    /// Version of the PROXY header that the server expects; `None` if it expects no header.
    pub fn send_proxy(&self) -> Option<ProxyVersion> {
        self.pool.config.send_proxy
    }

    /// Address of this host that connections to this address of a server come from; `None`: the
    /// kernel chooses.
    pub fn source_to(&self, server: SocketAddr) -> Option<IpAddr> {
        self.pool.config.source_to(server.ip())
    }

    /// Whether connections end when the server goes down (`on_down = "reset"`).
    pub fn ends_when_down(&self) -> bool {
        self.pool.config.on_down_in(Mode::Proxy) == OnDown::Reset
    }

    /// Whether the server is down in this snapshot.
    pub fn is_down_in(&self, snapshot: &Snapshot) -> bool {
        snapshot.server(self.server().live.id).is_some_and(|server| !server.health.up)
    }

    /// Moves the permit to a newer version of the pool, if its server is up there. Returns whether
    /// the server is up.
    pub fn keep_in(&mut self, pool: &WorkerArc<Pool>) -> bool {
        let live = &self.server().live;
        let failure_epoch = live.row();
        let is_ours = |server: &Arc<Server>| Arc::ptr_eq(&server.live, live) && server.health.up;
        let Some(index) = pool.servers.iter().position(is_ours) else { return false };
        (self.pool, self.index, self.failure_epoch) = (pool.clone(), index, failure_epoch);
        true
    }

    /// Stops measuring the duration of the session, because the session continues with another
    /// permit.
    pub fn stop_timing(&mut self) {
        self.began = None;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_open {
            self.count(Counter::Closed, 1);
            if let Some(began) = self.began {
                self.pool.live.session_times.record(self.core, PollClock::now() - began);
            }
        }
        self.end_wait();
        self.server().live.slots.release_on(self.slot);
        if self.pool.live.waiters.wait_for_slot() {
            self.pool.live.freed.notify_one();
        }
    }
}
