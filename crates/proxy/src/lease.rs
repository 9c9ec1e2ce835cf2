//! Finding a server for a session, and the place it takes there.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use log::debug;
use rustix::io::Errno;
use socket2::Socket;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::LocalPorts;
use super::own_sockets::OwnSocket;
use super::session::Session;
use super::socket::{self, Leg};
use convey_model::{ConnectFailures, Mode, OnDown, Protocol, ServerKey, Timeouts, is_shortage};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pick, Pool, Server, Snapshot};

/// Servers tried for one connection, the first one included.
const ATTEMPTS: usize = 4;

/// A connection's place at a server.
pub(super) struct Lease {
    pool: Arc<Pool>,
    index: usize,
    core: usize,
    /// When the client was; `None` once its session has gone on to another lease.
    accepted: Option<Instant>,
    /// Of the server's connects: tells whether a failure is old news.
    row: u32,
    open: bool,
    own: Option<OwnSocket>,
}

impl Session {
    /// A connected server, or why there is none. The client has not been sent a byte yet, so a server that
    /// does not answer is replaced by another.
    /// `data_waits`: the client has sent something already.
    pub(super) async fn connect_to_server(
        &self,
        timeouts: &Timeouts,
        data_waits: bool,
    ) -> Result<(Leg, Lease), Counter> {
        let mut pool = self.frontend().pool.clone();
        // Allocate only once a connect has failed.
        let (mut failed, mut tried, mut reason) = (Vec::new(), Vec::new(), Counter::ConnectFailed);
        for attempt in 0..ATTEMPTS {
            if attempt > 0 && !Arc::ptr_eq(&pool, &self.frontend().pool) {
                pool = self.frontend().pool.clone();
                let has_failed = |server: &Server| failed.contains(&server.live.id);
                tried = (0..pool.servers.len()).filter(|&index| has_failed(&pool.servers[index])).collect();
            }
            let mut lease = match self.try_lease(&pool, &tried) {
                Ok(lease) => lease,
                Err(Pick::Nobody) if attempt == 0 => return Err(Counter::NoServer),
                Err(Pick::Nobody) => break,
                Err(_) => self.queue(&pool, &tried, timeouts.connect).await?,
            };
            if attempt > 0 {
                lease.count(Counter::Retries, 1);
            }
            match lease
                .connect(
                    self.vip.port(),
                    timeouts.connect,
                    data_waits,
                    &self.context.shared.local_ports,
                    |socket, server| self.note(socket, server),
                )
                .await
            {
                Ok(server) => return Ok((server, lease)),
                Err(error) => {
                    let addr = lease.server().config.addr_for(self.vip.port());
                    debug!("{} -> {}: cannot connect to server {addr}: {error}", self.client, self.vip);
                    if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) {
                        reason = Counter::NoLocalPort;
                    }
                    tried.push(lease.index);
                    failed.push(lease.server().live.id);
                    lease.failed(&error, Protocol::Tcp, &self.context.shared.failures);
                }
            }
        }
        Err(reason)
    }

    /// A place at the server the pool picks. Where somebody queues already, nobody gets past.
    fn try_lease(&self, pool: &Arc<Pool>, tried: &[usize]) -> Result<Lease, Pick> {
        if pool.is_limited() && pool.live.queue.try_lock().is_err() {
            return Err(Pick::Busy);
        }
        self.take_lease(pool, tried)
    }

    /// Waits for a place at a server; first come, first served. `tried` are servers of `pool`.
    async fn queue(&self, pool: &Arc<Pool>, tried: &[usize], patience: Duration) -> Result<Lease, Counter> {
        let give_up = Instant::now() + patience;
        let too_late = |_| Counter::QueueTimeout;
        loop {
            let live = self.frontend().pool.live.clone();
            let _head = timeout_at(give_up, live.queue.lock()).await.map_err(too_late)?;
            loop {
                let mut freed = pin!(live.freed.notified());
                freed.as_mut().enable();
                // Looked up only now: of any later change `freed` tells.
                let now = self.frontend().pool.clone();
                if !Arc::ptr_eq(&live, &now.live) {
                    break; // the frontend has another backend now, with a queue of its own
                }
                let tried = if Arc::ptr_eq(pool, &now) { tried } else { &[] };
                match self.take_lease(&now, tried) {
                    Ok(lease) => return Ok(lease),
                    Err(Pick::Nobody) if tried.is_empty() => return Err(Counter::NoServer),
                    Err(Pick::Nobody) => return Err(Counter::ConnectFailed),
                    Err(_) => timeout_at(give_up, freed).await.map_err(too_late)?,
                }
            }
        }
    }

    fn take_lease(&self, pool: &Arc<Pool>, tried: &[usize]) -> Result<Lease, Pick> {
        loop {
            match pool.pick(self.client, self.vip, tried) {
                Pick::Server(index) => {
                    // `None`: another worker took the last slot since the pick.
                    if let Some(lease) = Lease::take(pool, index, self.context.core, self.accepted) {
                        return Ok(lease);
                    }
                }
                nothing => return Err(nothing),
            }
        }
    }
}

impl Lease {
    /// Counts at the server and its backend.
    pub(super) fn count(&self, counter: Counter, n: u64) {
        self.server().live.traffic.add(self.core, counter, n);
        self.pool.live.traffic.add(self.core, counter, n);
    }

    /// Whether a client has fared well only once its server has answered, or ended the connection in order.
    pub(super) fn is_judged_by_answers(&self) -> bool {
        self.pool.config.outlier_detection.is_some()
    }

    /// Whether connections to the server are to end, as of this snapshot.
    pub(super) fn is_cut_off(&self, snapshot: &Snapshot) -> bool {
        self.pool.config.on_down_in(Mode::Proxy) == OnDown::Reset
            && snapshot.servers.get(&self.server().live.id).is_some_and(|server| !server.health.up)
    }

    /// The server has served a client.
    pub(super) fn succeeded(&self) {
        self.server().live.connect_succeeded();
    }

    /// Takes a place at the server with this index for a client that came at `began`; `None` if it has none left.
    pub(super) fn take(pool: &Arc<Pool>, index: usize, core: usize, began: Instant) -> Option<Lease> {
        let server = &pool.servers[index];
        let taken = server.live.slots.try_take(server.config.settings.max_connections);
        let row = server.live.row();
        let accepted = Some(began);
        taken.then(|| Lease { pool: pool.clone(), index, core, accepted, row, open: false, own: None })
    }

    async fn connect(
        &mut self,
        port: u16,
        patience: Duration,
        data_waits: bool,
        ports: &LocalPorts,
        note: impl FnOnce(&Socket, SocketAddr) -> Option<OwnSocket>,
    ) -> io::Result<Leg> {
        let began = Instant::now();
        let server = self.server().config.addr_for(port);
        let socket = socket::connect(server, data_waits, ports)?;
        self.own = note(&socket, server);
        let attempt = timeout(patience, socket::connected(socket)).await;
        let stream = attempt.unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))?;
        self.pool.live.connect_times.record(self.core, began.elapsed());
        self.opened();
        if !self.is_judged_by_answers() {
            self.succeeded();
        }
        Ok(Leg::new(stream))
    }

    /// Its socket is one of ours.
    pub(super) fn note(&mut self, own: Option<OwnSocket>) {
        self.own = own;
    }

    /// The place is in use from now on.
    pub(super) fn opened(&mut self) {
        self.open = true;
        self.count(Counter::Opened, 1);
    }

    /// The server could not be connected to, or refused a datagram.
    pub(super) fn failed(
        &self,
        error: &io::Error,
        protocol: Protocol,
        failures: &mpsc::Sender<ConnectFailures>,
    ) {
        self.count(Counter::ConnectFailures, 1);
        if !is_shortage(error) {
            self.tell(error.to_string(), protocol, failures);
        }
    }

    /// Tells who decides on health that the server has failed a client, once it has often enough. Of TCP the kernel has
    /// seen to it that nobody has made it up. Of UDP it hands over whatever says that it is about a socket's datagrams.
    pub(super) fn tell(&self, error: String, protocol: Protocol, failures: &mpsc::Sender<ConnectFailures>) {
        let server = self.server();
        let Some(in_a_row) = server.live.connect_failed(self.row) else { return };
        if self.pool.config.failure_limit().is_some_and(|limit| in_a_row >= limit) {
            let key = ServerKey {
                backend: self.pool.config.name.clone(),
                server: server.config.name.clone(),
                addr: server.config.addr,
            };
            // A full channel has more of the same in it.
            let is_forgeable = protocol == Protocol::Udp;
            let news = ConnectFailures { server: key, in_a_row, error, protocol, is_forgeable };
            let _ = failures.try_send(news);
        }
    }

    /// Keeps the place in a newer `pool`, if its server is up there.
    pub(super) fn keep_in(&mut self, pool: &Arc<Pool>) -> bool {
        let live = &self.server().live;
        let row = live.row();
        let is_ours = |server: &Arc<Server>| Arc::ptr_eq(&server.live, live) && server.health.up;
        let Some(index) = pool.servers.iter().position(is_ours) else { return false };
        (self.pool, self.index, self.row) = (pool.clone(), index, row);
        true
    }

    /// Whether it is at a server of this backend.
    pub(super) fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.pool.live, &pool.live)
    }

    /// The session goes on here: it is the one that had `other`, and is timed as one.
    pub(super) fn go_on(&mut self, other: &mut Lease) {
        self.accepted = other.accepted.take();
    }

    /// Which of the pool's servers it is.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn server(&self) -> &Server {
        &self.pool.servers[self.index]
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.open {
            self.count(Counter::Closed, 1);
            if let Some(accepted) = self.accepted {
                self.pool.live.session_times.record(self.core, accepted.elapsed());
            }
        }
        self.server().live.slots.release();
        self.pool.live.freed.notify_one();
    }
}
