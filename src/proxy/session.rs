//! One connection from accept to end: a place at the frontend, a server, the relay.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::debug;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::relay::{End, relay};
use super::socket;
use super::worker::Context;
use crate::model::{ConnectFailures, ServerKey, Timeouts};
use crate::snapshot::{Frontend, Pick, Pool, Server};
use crate::stats::{Counter, Traffic};

/// Servers tried for one connection, the first one included.
const ATTEMPTS: usize = 4;

/// Serves a client that connected to `vip` until both sides have closed or something ended it.
pub(super) async fn serve(
    mut client: TcpStream,
    addr: SocketAddr,
    vip: SocketAddr,
    frontend: Arc<Frontend>,
    context: Arc<Context>,
) {
    let mut session = Session::begin(addr, vip, frontend, context).await;
    let timeouts = session.context.shared.snapshot.load().timeouts;
    let (mut server, lease) = match session.find_server(&timeouts).await {
        Ok(found) => found,
        Err(reason) => {
            session.end(Some(reason));
            let _ = client.set_zero_linger(); // closing now sends a reset
            return;
        }
    };
    let meter = Meter { session: &session, lease: &lease };
    let end = relay(&mut client, &mut server, timeouts.idle, |rx, tx| meter.add(rx, tx)).await;
    let reason = match end {
        End::Closed => None,
        End::Idle => Some(Counter::IdleTimeout),
        End::ClientReset => Some(Counter::ClientReset),
        End::ServerReset => Some(Counter::ServerReset),
    };
    if reason.is_some() {
        // Whoever is still there learns that this was no orderly end.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
    session.end(reason);
}

/// A connection's place at its frontend. Dropped before [`Session::end`], it was cut.
struct Session {
    client: SocketAddr,
    vip: SocketAddr,
    frontend: Arc<Frontend>,
    context: Arc<Context>,
    totals: Arc<Traffic>,
    ended: bool,
}

impl Session {
    async fn begin(
        client: SocketAddr,
        vip: SocketAddr,
        mut frontend: Arc<Frontend>,
        context: Arc<Context>,
    ) -> Session {
        // Several workers may have accepted for the last free slot; all but one wait here.
        while !frontend.live.slots.try_take(frontend.config.max_connections) {
            let full = frontend.clone();
            let freed = full.live.freed.notified();
            if !full.live.slots.has_room(full.config.max_connections) {
                freed.await;
            }
            // A reload may have raised the limit.
            frontend = context.frontend(vip).unwrap_or(frontend);
        }
        let totals = context.shared.snapshot.load().totals.clone();
        frontend.live.traffic.add(context.core, Counter::Opened, 1);
        totals.add(context.core, Counter::Opened, 1);
        Session { client, vip, frontend, context, totals, ended: false }
    }

    /// A connected server, or why there is none. The client has not been sent a byte yet, so a server that
    /// does not answer is replaced by another.
    async fn find_server(&self, timeouts: &Timeouts) -> Result<(TcpStream, Lease), Counter> {
        let mut pool = self.frontend.pool.clone();
        let mut tried = [0; ATTEMPTS];
        let mut failed = 0;
        let give_up = Instant::now() + timeouts.connect;
        while failed < ATTEMPTS {
            let live = pool.live.clone();
            let freed = live.freed.notified();
            match pool.pick(self.client, self.vip, &tried[..failed]) {
                Pick::Server(index) => {
                    let Some(lease) = Lease::take(&pool, index, self.context.core) else { continue };
                    if failed > 0 {
                        lease.count(Counter::Retries, 1);
                    }
                    match self.connect(lease, timeouts.connect).await {
                        Some(connected) => return Ok(connected),
                        None => {
                            tried[failed] = index;
                            failed += 1;
                        }
                    }
                }
                Pick::Busy => {
                    timeout_at(give_up, freed).await.map_err(|_| Counter::QueueTimeout)?;
                    // While we waited servers may have come and gone.
                    if let Some(frontend) = self.context.frontend(self.vip)
                        && !Arc::ptr_eq(&frontend.pool, &pool)
                    {
                        pool = frontend.pool.clone();
                        failed = 0;
                    }
                }
                Pick::Nobody if failed == 0 => return Err(Counter::NoServer),
                Pick::Nobody => break,
            }
        }
        Err(Counter::ConnectFailed)
    }

    async fn connect(&self, mut lease: Lease, patience: Duration) -> Option<(TcpStream, Lease)> {
        let addr = lease.server().config.addr;
        let attempt = timeout(patience, socket::connect(addr)).await;
        match attempt.unwrap_or_else(|_| Err(Errno::TIMEDOUT.into())) {
            Ok(stream) => {
                lease.open();
                Some((stream, lease))
            }
            Err(error) => {
                lease.count(Counter::ConnectFailures, 1);
                debug!("{} -> {}: cannot connect to server {addr}: {error}", self.client, self.vip);
                if blames_server(&error) {
                    self.tell_failure(&lease, &error);
                }
                None
            }
        }
    }

    fn tell_failure(&self, lease: &Lease, error: &io::Error) {
        let server = lease.server();
        let in_a_row = server.live.connect_failed();
        if in_a_row < lease.pool.config.health_check.fall {
            return;
        }
        let key = ServerKey {
            backend: lease.pool.config.name.clone(),
            server: server.config.name.clone(),
            addr: server.config.addr,
        };
        let news = ConnectFailures { server: key, in_a_row, error: error.to_string() };
        // A full channel has more of the same in it.
        let _ = self.context.shared.failures.try_send(news);
    }

    fn end(&mut self, reason: Option<Counter>) {
        self.ended = true;
        if let Some(reason) = reason {
            debug!("{} -> {}: ended: {}", self.client, self.vip, reason.label());
            self.count(reason, 1);
        }
    }

    fn count(&self, counter: Counter, n: u64) {
        self.frontend.live.traffic.add(self.context.core, counter, n);
        self.totals.add(self.context.core, counter, n);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ended {
            self.count(Counter::Cut, 1);
        }
        self.count(Counter::Closed, 1);
        self.frontend.live.slots.release();
        if self.frontend.config.max_connections.is_some() {
            // All of them: a listener that is woken may have no client for the slot, a session has one.
            self.frontend.live.freed.notify_waiters();
        }
    }
}

/// A connection's place at a server.
struct Lease {
    pool: Arc<Pool>,
    index: usize,
    core: usize,
    open: bool,
}

impl Lease {
    /// `None` if another connection took the last slot since the pick.
    fn take(pool: &Arc<Pool>, index: usize, core: usize) -> Option<Lease> {
        let server = &pool.servers[index];
        let taken = server.live.slots.try_take(server.config.max_connections);
        taken.then(|| Lease { pool: pool.clone(), index, core, open: false })
    }

    /// The server has accepted.
    fn open(&mut self) {
        self.open = true;
        self.count(Counter::Opened, 1);
        self.server().live.connect_succeeded();
    }

    fn server(&self) -> &Server {
        &self.pool.servers[self.index]
    }

    fn count(&self, counter: Counter, n: u64) {
        self.server().live.traffic.add(self.core, counter, n);
        self.pool.live.traffic.add(self.core, counter, n);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.open {
            self.count(Counter::Closed, 1);
        }
        self.server().live.slots.release();
        if self.server().config.max_connections.is_some() {
            self.pool.live.freed.notify_one();
        }
    }
}

/// Counts a connection's bytes wherever they are shown.
struct Meter<'a> {
    session: &'a Session,
    lease: &'a Lease,
}

impl Meter<'_> {
    fn add(&self, rx: u64, tx: u64) {
        for (counter, n) in [(Counter::BytesRx, rx), (Counter::BytesTx, tx)] {
            if n > 0 {
                self.session.count(counter, n);
                self.lease.count(counter, n);
            }
        }
    }
}

/// Whether a failed connect speaks against the server, rather than against us (no port, descriptor or
/// memory left).
fn blames_server(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
    )
}
