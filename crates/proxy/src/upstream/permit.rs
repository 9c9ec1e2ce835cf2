//! A permit: one of a server's connection slots, for as long as it lives.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::Downstream;
use convey_model::{Algorithm, HttpVersion, Mode, OnDown, Protocol, ProxyVersion};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pool, Server, Snapshot};
use convey_tls::{SpokenWithin, TlsSession, server_name};

/// The right to use one server for one client.
#[derive(Debug)]
pub struct Permit {
    pub(super) pool: Arc<Pool>,
    pub(super) index: usize,
    pub(super) core: usize,
    pub(super) protocol: Protocol,
    /// When the client came; `None` once its session goes on with another permit.
    began: Option<Instant>,
    /// Of the server's connects: tells whether a failure is stale.
    pub(super) row: u32,
    is_open: bool,
    /// Whether health has been told how the client fared.
    pub(super) is_judged: AtomicBool,
    /// Whether an answer is awaited that `ewma` goes by.
    is_awaited: AtomicBool,
}

impl Permit {
    /// Takes a slot of the server with this index; `None` if it has none left.
    pub(crate) fn take(pool: &Arc<Pool>, index: usize, downstream: &Downstream) -> Option<Permit> {
        let server = &pool.servers[index];
        let is_taken = server.live.slots.try_take(server.config.settings.max_connections);
        let row = server.live.row();
        let is_awaited = is_taken && pool.config.algorithm == Algorithm::Ewma;
        if is_awaited {
            server.live.answers.begins();
        }
        is_taken.then(|| Permit {
            pool: pool.clone(),
            index,
            core: downstream.core,
            protocol: downstream.protocol,
            began: Some(downstream.began),
            row,
            is_open: false,
            is_judged: AtomicBool::new(false),
            is_awaited: AtomicBool::new(is_awaited),
        })
    }

    /// A slot of the server at this address, for a client that another process has connected there. `None` if there is no such
    /// server, or it has none left.
    pub(crate) fn at(pool: &Arc<Pool>, server: SocketAddr, downstream: &Downstream) -> Option<Permit> {
        let port = downstream.vip.port();
        let index = pool.servers.iter().position(|other| other.config.addr_for(port) == server)?;
        Permit::take(pool, index, downstream)
    }

    /// The answer is awaited no longer.
    pub(super) fn end_wait(&self) {
        if self.is_awaited.load(Ordering::Relaxed) {
            self.is_awaited.store(false, Ordering::Relaxed);
            self.server().live.answers.ends();
        }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.pool.servers[self.index]
    }

    /// The names of the backend and of the server.
    pub fn names(&self) -> (Arc<str>, Arc<str>) {
        (self.pool.live.name.clone(), self.server().live.name.clone())
    }

    /// The name of the backend.
    pub fn backend(&self) -> &Arc<str> {
        &self.pool.live.name
    }

    /// What lines of the log call the server: `backend/server`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.pool.config.name, self.server().config.name)
    }

    /// Whether it is for a server of this backend.
    pub(crate) fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.pool.live, &pool.live)
    }

    /// Whether requests wait for a slot of a server of this backend, since all are at their limit.
    pub fn is_wanted(&self) -> bool {
        self.pool.live.waiters.count() > 0
    }

    /// Counts at the server and its backend.
    pub fn count(&self, counter: Counter, n: u64) {
        self.server().live.traffic.add(self.core, counter, n);
        self.pool.live.traffic.add(self.core, counter, n);
    }

    /// The client uses the server from now on.
    pub fn opened(&mut self) {
        self.is_open = true;
        self.count(Counter::Opened, 1);
    }

    /// How the server is spoken to in mode http.
    pub fn http_version(&self) -> HttpVersion {
        self.pool.config.protocol
    }

    /// Whether TLS is spoken with the server.
    pub fn has_tls(&self) -> bool {
        self.pool.config.tls.is_some()
    }

    /// The number of the TLS settings that connections to the server are made by; 0: they have none. Connections of other settings are not to
    /// be used again.
    pub fn tls_id(&self) -> u64 {
        self.pool.tls.as_ref().map_or(0, |connector| connector.id())
    }

    /// How the server is shaken hands with, and the name that it is asked for; `None`: not at all.
    ///
    /// # Errors
    /// The settings make no handshake. The configuration is checked before.
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

    /// The PROXY header that the server expects.
    pub fn send_proxy(&self) -> Option<ProxyVersion> {
        self.pool.config.send_proxy
    }

    /// Whether clients are cut off when the server goes down.
    pub(crate) fn ends_when_down(&self) -> bool {
        self.pool.config.on_down_in(Mode::Proxy) == OnDown::Reset
    }

    /// Whether the server is down in this snapshot.
    pub(crate) fn is_down_in(&self, snapshot: &Snapshot) -> bool {
        snapshot.server(self.server().live.id).is_some_and(|server| !server.health.up)
    }

    /// Keeps the slot in a newer `pool`, if its server is up there.
    pub(crate) fn keep_in(&mut self, pool: &Arc<Pool>) -> bool {
        let live = &self.server().live;
        let row = live.row();
        let is_ours = |server: &Arc<Server>| Arc::ptr_eq(&server.live, live) && server.health.up;
        let Some(index) = pool.servers.iter().position(is_ours) else { return false };
        (self.pool, self.index, self.row) = (pool.clone(), index, row);
        true
    }

    /// The session goes on with another permit, which times it as a whole.
    pub(crate) fn is_replaced(&mut self) {
        self.began = None;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_open {
            self.count(Counter::Closed, 1);
            if let Some(began) = self.began {
                self.pool.live.session_times.record(self.core, began.elapsed());
            }
        }
        self.end_wait();
        self.server().live.slots.release();
        self.pool.live.freed.notify_one();
    }
}
