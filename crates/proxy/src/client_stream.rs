//! A client's connection that something else than the relay of bytes serves: HTTP.
//!
//! It is admitted as every connection is: access lists, limits, PROXY header, share and slot. Then a [`ServeStream`] has it, and
//! asks for servers as often as it needs one ([`Attempts`](convey_upstream::Attempts)).

use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::QuicClient;
use super::clients::Clients;
use super::connection_bytes::ClientTransport;
use super::own_sockets::OwnSocket;
use super::quic::ClientPaths;
use super::registry::{ConnectionServer, RegisteredRequest};
use super::session::{TcpSession, reason_of};
use convey_access_log::{AccessLog, LoggedTls};
use convey_model::{ConnectFailures, Endpoint, Timeouts, Timestamp};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Pool, Snapshot};
use convey_stream::{ByteStream, Leg};
use convey_tls::SpokenWithin;
use convey_upstream::{Opening, Origin, Permit, PickContext};

/// Serves connections of clients in place of the relay of bytes.
pub trait ServeStream: Send + Sync + fmt::Debug {
    /// Serves a client until its connection is over. Dropped before, the connection is cut.
    fn serve(&self, client: ClientStream, bytes: ClientBytes) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// The same of a client that has come over QUIC.
    fn serve_quic(
        &self,
        client: ClientStream,
        connection: QuicClient,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Called on each worker's thread once a second, for what has to be looked at now and then.
    fn each_second(&self) {}
}

/// A client that was let in. Dropped before [`ClientStream::end`] it is cut.
pub struct ClientStream {
    session: TcpSession,
    /// Where the client connected to.
    local: Option<SocketAddr>,
    origin: Origin,
    early: Vec<u8>,
    /// The generation of the snapshot that its frontend is of.
    generation: u64,
    /// Whether a client over QUIC has proved another address than that of its handshake.
    has_moved: AtomicBool,
    transport: ClientTransport,
    /// Servers and files that its streams hold.
    held_resources: Arc<AtomicUsize>,
}

/// Its connection, as bytes. Dropped before [`ClientStream::end`] it is reset.
pub struct ClientBytes {
    leg: Leg,
}

/// How a client's connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// In order: what was written still arrives.
    Closed,
    /// Early, for this reason. What was written still arrives.
    Early(Counter),
    /// By a reset, for this reason: the client must not take what it has for the whole.
    Reset(Counter),
}

/// A connection to a server. Dropped without [`ServerStream::close_in_order`] it is reset.
pub struct ServerStream {
    leg: Leg,
    /// Where the server sees it come from.
    local: Option<SocketAddr>,
    _own: Option<OwnSocket>,
}

impl ClientStream {
    /// Has a client served that was accepted, once it may come in.
    pub(super) fn serve(
        session: TcpSession,
        leg: Leg,
        server: Arc<dyn ServeStream>,
    ) -> impl Future<Output = ()> + Send {
        // In a box, which is gone when the client has come in: a connection that rests holds no more than it needs.
        let let_in = Box::pin(ClientStream::let_in(session, leg));
        async move {
            if let Some(serving) = let_in.await.map(|(client, bytes)| server.serve(client, bytes)) {
                serving.await;
            }
        }
    }

    /// The client, once it may come in; `None`: it may not.
    async fn let_in(mut session: TcpSession, mut leg: Leg) -> Option<(ClientStream, ClientBytes)> {
        let denied = session.entry.over();
        let let_in = tokio::select! {
            biased;
            let_in = session.let_in(&mut leg) => let_in,
            end = denied => Err(reason_of(end)),
        };
        match let_in {
            Ok((origin, early)) => {
                // From now on each request has a line of its own.
                session.record = None;
                let local = session.local_address(leg.tcp());
                let has_moved = AtomicBool::new(false);
                let client = ClientStream {
                    session,
                    local,
                    origin,
                    early,
                    generation: 0,
                    has_moved,
                    transport: ClientTransport::Tcp(leg.tcp().as_raw_fd()),
                    held_resources: Arc::default(),
                };
                Some((client, ClientBytes { leg }))
            }
            Err(reason) => {
                session.refuse(&leg, reason);
                None
            }
        }
    }

    /// A client that was let in over QUIC, and connected to this address.
    pub(super) fn over_quic(
        mut session: TcpSession,
        local: Option<SocketAddr>,
        paths: Arc<ClientPaths>,
    ) -> ClientStream {
        // From now on each request has a line of its own.
        session.record = None;
        let (origin, early) = Default::default();
        ClientStream {
            session,
            local,
            origin,
            early,
            generation: 0,
            has_moved: AtomicBool::new(false),
            transport: ClientTransport::Quic(paths),
            held_resources: Arc::default(),
        }
    }

    /// Notes the address from which packets of a client over QUIC come now. The client keeps the
    /// identity of its handshake, and is no trusted proxy once it has moved. An address that the
    /// client has not proved changes nothing: anybody on the way can send copies of packets.
    ///
    /// # Errors
    /// `access` denies the address.
    pub fn note_address(&self, now: SocketAddr) -> Result<(), Counter> {
        let is_proven = self.transport.paths().is_none_or(|paths| paths.is_proven());
        if !is_proven || self.client().ip() == now.ip() {
            return Ok(());
        }
        self.has_moved.store(true, Ordering::Relaxed);
        match self.newest().config.access.admits(now.ip()) {
            true => Ok(()),
            false => Err(Counter::AccessDenied),
        }
    }

    pub(super) fn transport(&self) -> &ClientTransport {
        &self.transport
    }

    pub(super) fn held_resources(&self) -> &Arc<AtomicUsize> {
        &self.held_resources
    }

    /// The clients of all workers, and how many more connections there may be.
    pub(super) fn clients_and_left(&self) -> (&Arc<Clients>, u64) {
        let context = &self.session.context;
        (&context.shared.clients, context.shared.connections_left(&context.snapshot().totals))
    }

    /// Whether the client has proved another address since its handshake.
    pub fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// What the client has sent already, once.
    pub fn take_early(&mut self) -> Vec<u8> {
        mem::take(&mut self.early)
    }

    /// The client's address and port, by its PROXY header if it came with one.
    pub fn client(&self) -> SocketAddr {
        self.session.downstream.client
    }

    /// Whether the client's address is a proxy that this frontend, which is the client's own, trusts to name the client of each
    /// request. A PROXY header that names nobody (`UNKNOWN`, `LOCAL`) makes no sender such a proxy, and neither does a move.
    pub fn is_trusted_proxy(&self, frontend: &Frontend) -> bool {
        let is_named = !self.session.is_client_unnamed() && !self.has_moved();
        is_named && frontend.config.is_http_proxy(self.client().ip())
    }

    /// What its TLS handshake has agreed on; `None`: there was none.
    pub fn tls(&self) -> Option<&Arc<LoggedTls>> {
        self.session.tls.as_ref()
    }

    /// Index of the worker's counters.
    pub fn core(&self) -> usize {
        self.session.downstream.core
    }

    /// Input of the pick of a server for a request that begins now.
    pub fn pick_context(&self, began: Instant) -> PickContext {
        PickContext { began, ..self.session.downstream }
    }

    /// The frontend, as it was when the client came or when [`ClientStream::refresh`] was called last.
    pub fn frontend(&self) -> &Arc<Frontend> {
        &self.session.frontend
    }

    /// Goes by the newest snapshot from now on. Returns whether a client that comes now would be served in the same way: by this frontend,
    /// at this address, in this mode, with TLS or without it. If not, the connection is to end behind its next response.
    pub fn refresh(&mut self) -> bool {
        let context = self.session.context.clone();
        let snapshot = context.snapshot();
        if self.generation == snapshot.generation {
            return true;
        }
        let is_served = self.is_served_in(&snapshot);
        self.session.frontend = self.newest_in(&snapshot);
        if is_served {
            self.generation = snapshot.generation;
        }
        is_served
    }

    /// Whether a client that comes now would be served in the same way: see [`ClientStream::refresh`].
    pub fn is_served(&self) -> bool {
        self.is_served_in(&self.session.context.snapshot())
    }

    fn is_served_in(&self, snapshot: &Snapshot) -> bool {
        let at_address = snapshot.listener(&Endpoint::tcp(self.session.downstream.vip));
        at_address.is_some_and(|other| {
            let config = &other.config;
            Arc::ptr_eq(&other.live, &self.session.frontend.live)
                && config.mode.is_http()
                && config.tls.is_some() == self.session.tls.is_some()
        })
    }

    /// The frontend as it is now, for one of several requests at once.
    pub fn newest(&self) -> Arc<Frontend> {
        self.newest_in(&self.session.context.snapshot())
    }

    /// The frontend of this snapshot. If it is no longer in mode http, it stays as it was for the last request.
    fn newest_in(&self, snapshot: &Snapshot) -> Arc<Frontend> {
        let newest = self.session.frontend_in(snapshot);
        if newest.config.mode.is_http() { newest.clone() } else { self.session.frontend.clone() }
    }

    /// The time limits where this backend of the frontend serves.
    pub fn timeouts_with(&self, frontend: &Frontend, pool: &Pool) -> Timeouts {
        self.session.context.snapshot().timeouts_with(frontend, pool)
    }

    /// The newest pool of the backend that this one is of.
    pub fn newest_pool(&self, pool: &Arc<Pool>) -> Arc<Pool> {
        self.session.context.snapshot().newest_pool(pool)
    }

    /// Waits until something else than the two sides ends the connection: a reload that denies the
    /// client, an operator, or too many changes of address over QUIC.
    pub fn over(&self) -> impl Future<Output = Counter> + Send + use<> {
        let (over, paths) = (self.session.entry.over(), self.transport.paths().cloned());
        let overdrawn = async move {
            match paths {
                Some(paths) => paths.overdrawn().await,
                None => std::future::pending().await,
            }
        };
        async move {
            tokio::select! {
                biased;
                end = over => reason_of(end).unwrap_or(Counter::Cut),
                () = overdrawn => Counter::UnprovenPaths,
            }
        }
    }

    /// Whether the worker drains: a connection between two requests ends then. Whoever waits for [`ClientStream::over`] is woken when it
    /// begins.
    pub fn is_draining(&self) -> bool {
        self.session.context.is_draining()
    }

    /// A moment as tables have it that all workers share.
    pub fn timestamp(&self, at: Instant) -> Timestamp {
        self.session.context.timestamp(at)
    }

    /// Counts bytes from the client, and bytes to it.
    pub fn count_bytes(&self, rx: u64, tx: u64) {
        self.session.entry.count(rx, tx);
        for (counter, n) in [(Counter::BytesRx, rx), (Counter::BytesTx, tx)] {
            if n > 0 {
                self.session.count(counter, n);
            }
        }
    }

    /// Counts something at the frontend, and in all.
    pub fn count(&self, counter: Counter, n: u64) {
        self.session.count(counter, n);
    }

    /// Where failures of servers are told.
    pub fn failures(&self) -> &mpsc::Sender<ConnectFailures> {
        &self.session.context.shared.failures
    }

    /// The access log.
    pub fn access_log(&self) -> &Arc<AccessLog> {
        &self.session.context.shared.access_log
    }

    /// The server of the request that runs now is the permit's.
    pub fn goes_to(&self, permit: &Permit, server: &ServerStream) {
        self.session.entry.set_server(ConnectionServer {
            id: permit.server().live.id,
            names: permit.names(),
            addr: self.address_of(permit),
            seen_from: server.local,
            is_only: false,
        });
    }

    /// Registers a request at the server of the permit, if requests end when that server goes down (`on_down`).
    pub fn register_request(&self, permit: &Permit) -> Option<RegisteredRequest> {
        // The registry ends it by snapshots of the future; the newest one is looked up here.
        permit.ends_when_down().then(|| {
            RegisteredRequest::new(
                permit.server().live.id,
                permit.is_down_in(&self.session.context.snapshot()),
            )
        })
    }

    /// Where the server of a permit is.
    pub fn address_of(&self, permit: &Permit) -> SocketAddr {
        permit.server().config.addr_for(self.session.downstream.vip.port())
    }

    /// A new connection to the server of a permit. If it speaks TLS, this is spoken within. A PROXY header has the client that trusted
    /// proxies have `named`, if they have.
    ///
    /// # Errors
    /// It cannot be connected to, or did not accept in time.
    pub async fn connect(
        &self,
        permit: &Permit,
        named: Option<SocketAddr>,
        within: Duration,
        within_tls: SpokenWithin,
    ) -> io::Result<ServerStream> {
        let (client, local, origin, data_waits) = (self.client(), self.local, &self.origin, true);
        let opening = Opening { client, local, origin, named, data_waits, within, within_tls };
        let server = self.address_of(permit);
        let (leg, _own) = self.session.connect(server, permit, &opening).await?;
        Ok(ServerStream { local: leg.tcp().local_addr().ok(), leg, _own })
    }

    /// The connection is over.
    pub fn end(self, mut bytes: ClientBytes, end: StreamEnd) {
        if !matches!(end, StreamEnd::Reset(_)) {
            bytes.leg.close_in_order();
        }
        self.end_quic(end);
    }

    /// The same of one over QUIC, which whoever serves it has closed.
    pub fn end_quic(mut self, end: StreamEnd) {
        self.session.end(match end {
            StreamEnd::Closed => None,
            StreamEnd::Early(reason) | StreamEnd::Reset(reason) => Some(reason),
        });
    }
}

impl ClientBytes {
    /// What is read and written.
    pub fn stream(&mut self) -> &mut ByteStream {
        &mut self.leg.stream
    }
}

impl ServerStream {
    /// What is read and written.
    pub fn stream(&mut self) -> &mut ByteStream {
        &mut self.leg.stream
    }

    /// The connection as bytes, of which nothing is read or written.
    pub fn bytes(&self) -> &ByteStream {
        &self.leg.stream
    }

    /// The socket, if the kernel may move bytes between it and others.
    pub fn plain(&self) -> Option<&TcpStream> {
        self.leg.stream.plain()
    }

    /// Has the drop close the connection as usual.
    pub fn close_in_order(&mut self) {
        self.leg.close_in_order();
    }
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("downstream", &self.session.downstream).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBytes").field("stream", &self.leg.stream).finish()
    }
}

impl fmt::Debug for ServerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerStream").field("stream", &self.leg.stream).finish_non_exhaustive()
    }
}
