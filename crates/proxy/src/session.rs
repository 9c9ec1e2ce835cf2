//! Connection of a client from accept to its end: state, counters, and the version of its frontend.
//!
//! The steps of a connection are in other modules: `admission` (checks), `slots` (waits), `connect`
//! (servers) and `serve` (relay).
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

mod serve;
mod slots;

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use log::debug;
use socket2::Socket;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::clients::{Counted, Waiting};
use super::context::WorkerContext;
use super::own_sockets::{FrontendPath, OwnSocket};
use super::registry::{ConnectionClient, RegisteredConnection};
use super::relay::RelayEnd;
use super::session_record::{ClientFacts, SessionRecord, ending_for};
use super::socket;
use super::source;
use super::tls_hello::Routed;
use super::traced;
use convey_access_log::{LoggedTls, Termination};
use convey_model::{Endpoint, OverLimit, Protocol, TakenSlot, Timeouts};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Pool, Snapshot, WorkerArc, WorkerFrontend};
use convey_stream::Leg;
use convey_upstream::PickContext;

/// TCP or QUIC connection of a client, counted as open from accept on. A drop without
/// `TcpSession::end` counts as a cut connection.
pub(super) struct TcpSession {
    pub(super) context: Arc<WorkerContext>,
    /// Frontend, as of accept or of the end of the client's last wait.
    pub(super) frontend: Arc<WorkerFrontend>,
    /// Generation of the last snapshot that serves the client by this version of the frontend.
    pub(super) generation: u64,
    /// Timeouts, as of the same time as the frontend.
    pub(super) timeouts: SessionTimeouts,
    /// Slot of the frontend, if the connection has one.
    slot: Option<TakenSlot>,
    /// Whether the frontend counts the connection as open. It counts the connection only once, even
    /// if the connection releases its slot and takes another one.
    is_open: bool,
    ended: bool,
    /// Reason of an early end; `None` if the connection ends in order.
    reason: Option<Counter>,
    /// Record for the access log and for traces; `None` if neither needs it.
    pub(super) record: Option<Box<SessionRecord>>,
    /// Guard that counts the connection in its client's shares.
    pub(super) counted: Counted,
    /// Place in the queue, if the connection waits for its client's share of the frontend.
    pub(super) waiting: Option<Box<Waiting>>,
    /// Frontends that the connection has passed through, if its client is one of convey's own
    /// sockets.
    pub(super) path: Option<Arc<FrontendPath>>,
    /// Whether the connection must begin with a PROXY header. Until the header arrives, the peer
    /// counts as the client.
    pub(super) awaits_header: bool,
    /// Client that the PROXY header names; `None`: the peer is the client.
    pub(super) named: Option<Box<SocketAddr>>,
    /// Facts of the TLS handshake; `None` without TLS.
    pub(super) tls: Option<Arc<LoggedTls>>,
    /// Route that the ClientHello selected, if the frontend has routes.
    pub(super) routed: Option<Box<Routed>>,
    /// Entry in the registry, through which a reload or an operator ends the connection. It has the
    /// addresses of the connection.
    pub(super) entry: RegisteredConnection,
}

/// Time limits of a relayed connection, in nanoseconds: a [`Duration`] would need twice the memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionTimeouts {
    connect: u64,
    idle: u64,
    tcp_user_timeout: u64,
}

impl SessionTimeouts {
    pub(super) fn connect(self) -> Duration {
        Duration::from_nanos(self.connect)
    }

    pub(super) fn idle(self) -> Duration {
        Duration::from_nanos(self.idle)
    }

    pub(super) fn tcp_user_timeout(self) -> Duration {
        Duration::from_nanos(self.tcp_user_timeout)
    }
}

impl From<Timeouts> for SessionTimeouts {
    fn from(Timeouts { connect, idle, tcp_user_timeout, .. }: Timeouts) -> SessionTimeouts {
        let [connect, idle, tcp_user_timeout] =
            [connect, idle, tcp_user_timeout].map(|time| time.as_nanos() as u64);
        SessionTimeouts { connect, idle, tcp_user_timeout }
    }
}

impl TcpSession {
    /// Creates the session of a client that was accepted at `vip`. Returns `None` if no frontend
    /// has this address any more.
    pub(super) fn new(
        peer: SocketAddr,
        vip: SocketAddr,
        context: &Arc<WorkerContext>,
        snapshot: &Snapshot,
    ) -> Option<Box<TcpSession>> {
        let frontend = context.frontends.get(snapshot.listener(&Endpoint::tcp(vip))?);
        let timeouts = snapshot.timeouts_of(&frontend).into();
        context.clients.take_place();
        context.totals().add(context.core, Counter::Opened, 1);
        let began = Instant::now();
        let of = ConnectionClient { frontend: frontend.clone(), peer, vip, began };
        let entry = RegisteredConnection::new(&context.registry, of);
        Some(Box::new(TcpSession {
            context: context.clone(),
            frontend,
            generation: snapshot.generation,
            timeouts,
            slot: None,
            is_open: false,
            ended: false,
            reason: None,
            record: SessionRecord::begin(&context.shared, began),
            counted: Counted::default(),
            waiting: None,
            path: None,
            awaits_header: false,
            named: None,
            tls: None,
            routed: None,
            entry,
        }))
    }

    /// Whether the client must not notice a refusal for this reason (`action = "drop"`).
    pub(super) fn is_dropped_for(&self, reason: Counter) -> bool {
        source::is_over_limit(reason) && self.frontend.config.limits.action == OverLimit::Drop
    }

    /// Id of the frontend.
    pub(super) fn frontend_id(&self) -> u32 {
        self.frontend.live.id
    }

    /// Whether the connection has a PROXY header that names no client.
    pub(super) fn is_client_unnamed(&self) -> bool {
        self.awaits_header && self.named.is_none()
    }

    /// Address and port of the client, from its PROXY header if there was one.
    pub(super) fn client(&self) -> SocketAddr {
        self.named.as_deref().copied().unwrap_or_else(|| self.entry.peer())
    }

    /// Address of the client.
    pub(super) fn client_ip(&self) -> IpAddr {
        self.client().ip()
    }

    /// Address that the client connected to.
    pub(super) fn vip(&self) -> SocketAddr {
        self.entry.vip()
    }

    /// Facts about the client for the choice of a server, and for logs.
    pub(super) fn downstream(&self) -> PickContext {
        PickContext {
            client: self.client(),
            proxy: self.named.is_some().then(|| self.entry.peer()),
            vip: self.vip(),
            protocol: Protocol::Tcp,
            core: self.context.core,
            began: self.entry.began(),
            request: None,
        }
    }

    /// Returns the frontend's version in this snapshot, or the old version if a reload removed the
    /// frontend. Searches all frontends if the client's destination address belongs to another
    /// frontend now.
    pub(super) fn frontend_in<'a>(&'a self, snapshot: &'a Snapshot) -> &'a Arc<Frontend> {
        if snapshot.generation == self.generation {
            return self.frontend.shared();
        }
        let is_ours = |frontend: &&Arc<Frontend>| Arc::ptr_eq(&frontend.live, &self.frontend.live);
        let at_address = snapshot.listener(&Endpoint::tcp(self.vip())).filter(is_ours);
        let anywhere = || snapshot.frontends.iter().find(is_ours);
        at_address.or_else(anywhere).unwrap_or(self.frontend.shared())
    }

    /// Counts the connection as closed at the frontend, if it was counted as open.
    fn count_closed(&mut self) {
        if mem::take(&mut self.is_open) {
            self.frontend.live.traffic.add(self.context.core, Counter::Closed, 1);
        }
    }

    /// Records a socket towards a server in `OwnSockets`, to detect loops.
    pub(super) fn record_own_socket(&self, socket: &Socket, server: SocketAddr) -> Option<OwnSocket> {
        let (own, frontend) = (&self.context.shared.own_sockets, self.frontend.live.id);
        own.note(socket, Endpoint::tcp(server), frontend, self.path.as_ref())
    }

    /// Ends the connection of a client that convey does not serve. `reason` is `None` if the client
    /// closed in order.
    pub(super) fn refuse(&mut self, client: &Leg, reason: Option<Counter>) {
        if reason.is_some_and(|reason| self.is_dropped_for(reason)) {
            socket::limit_reset_ttl(client.tcp());
        }
        self.end(reason);
    }

    /// Local address of the client's connection, even if its listener is bound to all addresses.
    pub(super) fn local_address(&self, client: &TcpStream) -> Option<SocketAddr> {
        let vip = self.vip();
        if vip.ip().is_unspecified() { client.local_addr().ok() } else { Some(vip) }
    }

    /// Updates frontend and timeouts from the newest snapshot, after a wait. If a reload removed
    /// the address, the connection keeps its old frontend.
    ///
    /// Call this function only for connections without a slot, because a slot belongs to the old
    /// frontend.
    fn reload(&mut self) {
        let snapshot = self.context.snapshot();
        if let Some(frontend) = snapshot.listener(&Endpoint::tcp(self.vip())) {
            if !Arc::ptr_eq(&frontend.live, &self.frontend.live) {
                self.count_closed();
            }
            self.set_frontend(self.context.frontends.get(frontend));
            self.generation = snapshot.generation;
        }
        self.timeouts = snapshot.timeouts_of(&self.frontend).into();
    }

    /// Whether no snapshot has been published since the one of `frontend`.
    pub(super) fn is_current(&self) -> bool {
        self.generation == self.context.shared.snapshot.generation()
    }

    /// Sets the version of the frontend, here and in the registry.
    pub(super) fn set_frontend(&mut self, frontend: Arc<WorkerFrontend>) {
        if !Arc::ptr_eq(&frontend, &self.frontend) {
            self.entry.set_frontend(&frontend);
            self.frontend = frontend;
        }
    }

    /// Returns the current pool for this session: the pool of its route, otherwise the pool of the
    /// frontend at the client's destination address.
    ///
    /// If a reload removed that address or changed its mode, returns the newest pool of the same
    /// backend. If the backend is gone, returns the old pool.
    pub(super) fn newest_pool(&self) -> WorkerArc<Pool> {
        let snapshot = self.context.snapshot();
        if let Some(routed) = &self.routed {
            return snapshot.newest_pool(routed.pool().shared()).into();
        }
        let frontend = snapshot.listener(&Endpoint::tcp(self.vip()));
        let mode = self.frontend.config.mode;
        match frontend.filter(|newest| newest.config.mode == mode) {
            Some(newest) => self.context.frontends.get(newest).default_pool().clone(),
            None => snapshot.newest_pool(&self.frontend.pool).into(),
        }
    }

    /// Records the end of the client's connection. `reason` is `None` for an orderly end.
    pub(super) fn end(&mut self, reason: Option<Counter>) {
        (self.ended, self.reason) = (true, reason);
        if let Some(reason) = reason {
            debug!("{} -> {}: ended: {}", self.client(), self.vip(), reason.label());
            self.count(reason, 1);
        }
    }

    /// Adds `n` to a counter of the frontend, and to the same counter of all traffic.
    pub(super) fn count(&self, counter: Counter, n: u64) {
        self.frontend.live.traffic.add(self.context.core, counter, n);
        self.context.totals().add(self.context.core, counter, n);
    }
}

/// Counter for this end of a connection; `None` if both sides have closed.
pub(super) fn reason_of(end: RelayEnd) -> Option<Counter> {
    match end {
        RelayEnd::Closed => None,
        RelayEnd::ServerGone => Some(Counter::ServerGone),
        RelayEnd::Idle => Some(Counter::IdleTimeout),
        RelayEnd::ClientReset => Some(Counter::ClientReset),
        RelayEnd::ServerReset => Some(Counter::ServerReset),
        RelayEnd::Denied => Some(Counter::AccessDenied),
        RelayEnd::Killed => Some(Counter::Killed),
    }
}

impl Drop for TcpSession {
    fn drop(&mut self) {
        if !self.ended {
            self.count(Counter::Cut, 1);
            self.reason = Some(Counter::Cut);
        }
        let ending = ending_for(self.reason, Termination::Closed);
        let bytes = self.record.as_ref().map(|record| record.bytes());
        if self.context.shared.trace.is_watched() {
            self.trace(self.entry.server(), traced::end(ending, bytes, &self.downstream()));
        }
        if let Some(record) = self.record.take() {
            let facts = ClientFacts { tls: self.tls.take(), routed: self.routed.as_deref() };
            (*record).end(&self.downstream(), &self.frontend, facts, ending);
        }
        self.context.totals().add(self.context.core, Counter::Closed, 1);
        self.context.clients.put_place();
        if let Some(routed) = &self.routed {
            routed.count(self.context.core, Counter::Closed);
        }
        self.count_closed();
        self.release_slot();
        drop((self.waiting.take(), mem::take(&mut self.counted)));
        let clients = &self.context.clients;
        if clients.some_wait() {
            clients.call_next(self.frontend_in(&self.context.snapshot()), self.client_ip());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_of_a_connection_takes_176_bytes() {
        assert!(size_of::<TcpSession>() <= 176, "{}", size_of::<TcpSession>());
    }
}
