//! Client connections in mode http. A [`ServeStream`] serves them instead of the byte relay.
//!
//! Admission is the same as in mode proxy: access lists, limits, PROXY header, share and slot. Then
//! the [`ServeStream`] receives the connection, and picks a server for each request with
//! [`Attempts`](convey_upstream::Attempts).

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::QuicClient;
use super::client_task::ServingFuture;
use super::clients::{Left, WorkerClients};
use super::connection_bytes::ClientTransport;
use super::context::Drain;
use super::proxy_header::ReceivedHeader;
use super::quic::ClientPaths;
use super::registry::{ConnectionServer, RegisteredRequest, SeenFrom};
use super::server_stream::ServerStream;
use super::session::{TcpSession, reason_of};
use convey_access_log::{AccessLog, LoggedTls};
use convey_model::{ConnectFailures, Endpoint, Timeouts, Timestamp};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Pool, Snapshot, WorkerArc, WorkerFrontend};
use convey_stream::{ByteStream, Leg, PipePool};
use convey_trace::TracedRequest;
use convey_upstream::{Origin, Permit, PickContext};

/// Implementation of mode http. Each worker has its own [`ServeStream`].
pub trait HttpMode: Send + Sync + fmt::Debug {
    /// Returns the handler of one worker, with the state that the worker's requests share. Each
    /// worker calls this function once.
    fn for_worker(&self) -> Arc<dyn ServeStream>;
}

/// Handler of a worker's client connections in mode http, instead of the byte relay.
pub trait ServeStream: Send + Sync + fmt::Debug {
    /// Serves a client until its connection has ended. If the future is dropped earlier, the
    /// connection is cut.
    fn serve(&self, client: ClientStream, bytes: ClientBytes) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Serves a client that is connected over QUIC, like [`ServeStream::serve`].
    fn serve_quic(
        &self,
        client: ClientStream,
        connection: QuicClient,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Periodic work: the worker calls this function once a second.
    fn each_second(&self) {}
}

/// Admitted client of mode http. A drop without [`ClientStream::end`] cuts its connection.
pub struct ClientStream {
    pub(super) session: Box<TcpSession>,
    /// Local address of the connection; `None` if it is that of the listener.
    elsewhere: Option<Box<Option<SocketAddr>>>,
    /// PROXY header and first bytes of the client; `None` if neither was read during admission.
    received: Option<Box<ReceivedHeader>>,
    transport: ClientTransport,
    /// Number of servers and files that the client's streams hold. Only connections with streams
    /// have it.
    held_resources: OnceLock<Arc<AtomicUsize>>,
    /// Reason for which the connection ends while requests run.
    early_end: OnceLock<Counter>,
}

/// Byte stream of a client's TCP connection. A drop without [`ClientStream::end`] resets the
/// connection.
pub struct ClientBytes {
    leg: Leg,
}

/// How a client's connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// Orderly close: the client still receives all written bytes.
    Closed,
    /// Early but orderly close, for this reason: the client still receives all written bytes.
    Early(Counter),
    /// Reset, for this reason. The client sees that its data is incomplete.
    Reset(Counter),
}

impl ClientStream {
    /// Completes the admission of an accepted client, and returns the future that serves it. If the
    /// client is refused, ends its connection and returns `None`.
    pub(super) async fn admit(
        session: Box<TcpSession>,
        leg: Leg,
        server: Arc<dyn ServeStream>,
    ) -> Option<ServingFuture> {
        let (client, bytes) = ClientStream::complete_admission(session, leg).await?;
        Some(server.serve(client, bytes))
    }

    /// Completes the admission of the client. If the client is refused, ends its connection and
    /// returns `None`.
    async fn complete_admission(
        mut session: Box<TcpSession>,
        mut leg: Leg,
    ) -> Option<(ClientStream, ClientBytes)> {
        let denied = session.entry.over();
        let admitted = tokio::select! {
            biased;
            admitted = session.complete_admission(&mut leg) => admitted,
            end = denied => Err(reason_of(end)),
        };
        match admitted {
            Ok(received) => Some(ClientStream::admitted(session, leg, received)),
            Err(reason) => {
                session.refuse(&leg, reason);
                None
            }
        }
    }

    /// Creates the stream of an admitted client.
    pub(super) fn admitted(
        session: Box<TcpSession>,
        leg: Leg,
        received: ReceivedHeader,
    ) -> (ClientStream, ClientBytes) {
        let local = session.local_address(leg.tcp());
        let transport = ClientTransport::Tcp(leg.tcp().as_raw_fd());
        let mut client = ClientStream::new(session, local, transport);
        client.received = received.has_content().then(|| Box::new(received));
        (client, ClientBytes { leg })
    }

    /// Creates the stream of a client that was admitted over QUIC. `local` is the address that the
    /// client connected to.
    pub(super) fn over_quic(
        session: Box<TcpSession>,
        local: Option<SocketAddr>,
        paths: Arc<ClientPaths>,
    ) -> ClientStream {
        ClientStream::new(session, local, ClientTransport::Quic(paths))
    }

    fn new(
        mut session: Box<TcpSession>,
        local: Option<SocketAddr>,
        transport: ClientTransport,
    ) -> ClientStream {
        // From now on each request has its own log line.
        session.record = None;
        let elsewhere = (local != Some(session.vip())).then(|| Box::new(local));
        ClientStream {
            session,
            elsewhere,
            received: None,
            transport,
            held_resources: OnceLock::new(),
            early_end: OnceLock::new(),
        }
    }

    /// Records the current address of a QUIC client. A client that has moved keeps its first
    /// address for limits and logs, but it is no longer a trusted proxy.
    ///
    /// An address that the client has not validated has no effect, because anybody on the path can
    /// send copies of its packets from other addresses.
    ///
    /// # Errors
    /// `access` denies the new address.
    pub fn note_address(&self, now: SocketAddr) -> Result<(), Counter> {
        let Some(paths) = self.transport.paths().filter(|paths| paths.is_proven()) else { return Ok(()) };
        if self.client().ip() == now.ip() {
            return Ok(());
        }
        paths.note_move();
        match self.newest().config.access.admits(now.ip()) {
            true => Ok(()),
            false => Err(Counter::AccessDenied),
        }
    }

    pub(super) fn transport(&self) -> &ClientTransport {
        &self.transport
    }

    pub(super) fn held_resources(&self) -> &Arc<AtomicUsize> {
        self.held_resources.get_or_init(Arc::default)
    }

    /// Returns the connection counts of all clients, and what is left for further connections.
    pub(super) fn clients_and_left(&self) -> (&WorkerClients, Left) {
        let context = &self.session.context;
        (&context.clients, context.left())
    }

    /// Whether a QUIC client has moved: it has validated another address since its handshake.
    pub fn has_moved(&self) -> bool {
        self.transport.paths().is_some_and(|paths| paths.has_moved())
    }

    /// Takes the bytes that were read from the client during admission. Later calls return no
    /// bytes.
    pub fn take_early(&mut self) -> Vec<u8> {
        self.received.as_mut().map(|received| mem::take(&mut received.early)).unwrap_or_default()
    }

    /// Content of the client's PROXY header; `None` without one.
    pub(super) fn origin(&self) -> Option<&Origin> {
        self.received.as_ref().map(|received| &received.origin)
    }

    /// Address and port of the client, from its PROXY header if there was one.
    pub fn client(&self) -> SocketAddr {
        self.session.client()
    }

    /// Address that the client connected to; `None` if it is not known.
    pub fn local(&self) -> Option<SocketAddr> {
        self.elsewhere.as_ref().map_or_else(|| Some(self.session.vip()), |local| **local)
    }

    /// Whether the client is a proxy whose description of clients, such as `X-Forwarded-For`, this
    /// frontend trusts. A client is not trusted if its PROXY header names no client (`UNKNOWN`,
    /// `LOCAL`), or if it is a QUIC client that has moved.
    pub fn is_trusted_proxy(&self, frontend: &Frontend) -> bool {
        let is_named = !self.session.is_client_unnamed() && !self.has_moved();
        is_named && frontend.config.trusts_fields_of(self.client().ip())
    }

    /// Facts of the TLS handshake; `None` without TLS.
    pub fn tls(&self) -> Option<&Arc<LoggedTls>> {
        self.session.tls.as_ref()
    }

    /// Index of the worker's column in the traffic counters.
    pub fn core(&self) -> usize {
        self.session.context.core
    }

    /// Context for picking a server for a request that began at this time.
    pub fn pick_context(&self, began: Instant) -> PickContext {
        PickContext { began, ..self.session.downstream() }
    }

    /// Client, and the address that it connected to.
    #[inline]
    pub fn downstream(&self) -> PickContext {
        self.session.downstream()
    }

    /// Frontend of the client, as of admission or of the last [`ClientStream::refresh`].
    pub fn frontend(&self) -> &Arc<WorkerFrontend> {
        &self.session.frontend
    }

    /// Updates the frontend from the newest snapshot. Returns whether a new client at this address
    /// would be served in the same way: by this frontend, in mode http, and with or without TLS as
    /// before. If not, the connection should end after its next response.
    pub fn refresh(&mut self) -> bool {
        if self.session.is_current() {
            return true;
        }
        let snapshot = self.session.context.snapshot();
        let is_served = self.is_served_in(&snapshot);
        self.session.set_frontend(self.newest_in(&snapshot));
        if is_served {
            self.session.generation = snapshot.generation;
        }
        is_served
    }

    /// Whether a new client would be served in the same way as this one: see
    /// [`ClientStream::refresh`].
    pub fn is_served(&self) -> bool {
        self.session.is_current() || self.is_served_in(&self.session.context.snapshot())
    }

    fn is_served_in(&self, snapshot: &Snapshot) -> bool {
        let at_address = snapshot.listener(&Endpoint::tcp(self.session.vip()));
        at_address.is_some_and(|other| {
            let config = &other.config;
            Arc::ptr_eq(&other.live, &self.session.frontend.live)
                && config.mode.is_http()
                && config.tls.is_some() == self.session.tls.is_some()
        })
    }

    /// Returns the newest version of the frontend, and leaves `ClientStream::frontend` unchanged.
    /// For connections with concurrent requests.
    pub fn newest(&self) -> Arc<WorkerFrontend> {
        match self.session.is_current() {
            true => self.session.frontend.clone(),
            false => self.newest_in(&self.session.context.snapshot()),
        }
    }

    /// Returns the frontend's version in this snapshot. If the frontend has left mode http, returns
    /// the old version, which serves the last request.
    fn newest_in(&self, snapshot: &Snapshot) -> Arc<WorkerFrontend> {
        let newest = self.session.frontend_in(snapshot);
        match newest.config.mode.is_http() && !Arc::ptr_eq(newest, self.session.frontend.shared()) {
            true => self.session.context.frontends.get(newest),
            false => self.session.frontend.clone(),
        }
    }

    /// Timeouts for this frontend and backend in the newest snapshot.
    pub fn timeouts_with(&self, frontend: &Frontend, pool: &Pool) -> Timeouts {
        self.session.context.snapshot().timeouts_with(frontend, pool)
    }

    /// Returns this pool's version in the newest snapshot.
    pub fn newest_pool(&self, pool: &WorkerArc<Pool>) -> WorkerArc<Pool> {
        let newest = self.session.context.snapshot().newest_pool(pool.shared());
        if Arc::ptr_eq(&newest, pool.shared()) { pool.clone() } else { newest.into() }
    }

    /// Waits until convey must end the connection, and returns the reason: a reload denies the
    /// client, an operator ends the connection, or convey has sent too many bytes to QUIC addresses
    /// that the client has not validated.
    pub fn over(&self) -> impl Future<Output = Counter> + Send + use<> {
        let mut over = self.session.entry.over();
        let paths = self.transport.paths().cloned();
        let mut overdrawn = paths.map(|paths| Box::pin(async move { paths.overdrawn().await }));
        poll_fn(move |cx| {
            if let Poll::Ready(end) = Pin::new(&mut over).poll(cx) {
                return Poll::Ready(reason_of(end).unwrap_or(Counter::Cut));
            }
            match &mut overdrawn {
                Some(overdrawn) => overdrawn.as_mut().poll(cx).map(|()| Counter::UnprovenPaths),
                None => Poll::Pending,
            }
        })
    }

    /// Notes the reason for which the connection ends while requests run.
    pub fn note_early_end(&self, reason: Counter) {
        let _ = self.early_end.set(reason);
    }

    /// Counter for a request that ends because its connection ends now: the reason of
    /// [`ClientStream::note_early_end`], otherwise the reason of [`ClientStream::over`]. Without
    /// either reason, convey is stopping, and the counter is `Counter::Cut`.
    pub fn cut_reason(&self) -> Counter {
        let noted = self.early_end.get().copied();
        let overdrawn = || self.transport.paths().is_some_and(|paths| paths.is_overdrawn());
        noted
            .or_else(|| self.session.entry.end().and_then(reason_of))
            .or_else(|| overdrawn().then_some(Counter::UnprovenPaths))
            .unwrap_or(Counter::Cut)
    }

    /// Whether the worker is draining, so that an HTTP connection should end with its next
    /// response.
    pub fn is_draining(&self) -> bool {
        self.drain().is_some()
    }

    /// Whether an HTTP/1 connection should end with its next response: the worker drains, or the
    /// process stops once `timeouts.drain_delay` has passed. The response then announces the close,
    /// so that a client that pauses between requests does not send a request to a connection that
    /// convey closes.
    pub fn ends_with_response(&self) -> bool {
        self.is_draining() || self.session.context.shared.stops_soon.load(Ordering::Relaxed)
    }

    /// Drain of the worker, if it has begun. Each change wakes the tasks that wait for
    /// [`ClientStream::over`].
    pub fn drain(&self) -> Option<Drain> {
        self.session.context.drain()
    }

    /// Converts a time to a timestamp of the tables that all workers share.
    pub fn timestamp(&self, at: Instant) -> Timestamp {
        self.session.context.timestamp(at)
    }

    /// Counts bytes from the client (`rx`) and to the client (`tx`).
    pub fn count_bytes(&self, rx: u64, tx: u64) {
        self.session.entry.count(rx, tx);
        for (counter, n) in [(Counter::BytesRx, rx), (Counter::BytesTx, tx)] {
            if n > 0 {
                self.session.count(counter, n);
            }
        }
    }

    /// Adds `n` to a counter of the frontend, and to the same counter of all traffic.
    pub fn count(&self, counter: Counter, n: u64) {
        self.session.count(counter, n);
    }

    /// Pipes for bulk data of the worker's connections.
    pub fn pipes(&self) -> &Arc<PipePool> {
        &self.session.context.relay.pipes
    }

    /// Channel for reports of server failures.
    pub fn failures(&self) -> &mpsc::Sender<ConnectFailures> {
        &self.session.context.shared.failures
    }

    /// The access log.
    pub fn access_log(&self) -> &Arc<AccessLog> {
        &self.session.context.shared.access_log
    }

    /// Sends a step of a request to the trace subscribers, if there are any. `named` is the client
    /// that a trusted proxy named, and `server` is the number of the server that the step concerns.
    #[inline]
    pub fn trace(
        &self,
        named: Option<SocketAddr>,
        server: Option<u32>,
        request: impl FnOnce() -> TracedRequest,
    ) {
        self.session.trace_request(named, server, request);
    }

    /// Whether any trace runs.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.session.context.shared.trace.is_watched()
    }

    /// Records the server of the current request, for lists of connections.
    pub fn goes_to(&self, permit: &Permit, server: &ServerStream) {
        self.session.entry.set_server(&ConnectionServer {
            frontend: &self.session.frontend,
            pool: permit.pool(),
            index: permit.index(),
            seen_from: SeenFrom::Addr(server.local_address()),
            is_only: false,
        });
    }

    /// Registers a request at the permit's server, so that the request ends when the server goes
    /// down. Returns `None` if `on_down` lets requests continue.
    pub fn register_request(&self, permit: &Permit) -> Option<RegisteredRequest> {
        // The registry acts only on later snapshots, so this call checks whether the server is
        // already down in the newest snapshot.
        permit.ends_when_down().then(|| {
            let context = &self.session.context;
            let is_down = permit.is_down_in(&context.snapshot());
            RegisteredRequest::new(&context.registry, permit.server().live.id, is_down)
        })
    }

    /// Address of the permit's server.
    pub fn address_of(&self, permit: &Permit) -> SocketAddr {
        permit.server().config.addr_for(self.session.vip().port())
    }

    /// Ends the client's connection.
    pub fn end(self, mut bytes: ClientBytes, end: StreamEnd) {
        if !matches!(end, StreamEnd::Reset(_)) {
            bytes.leg.close_in_order();
        }
        self.end_quic(end);
    }

    /// Ends the session of a QUIC client. The [`ServeStream`] must have closed the QUIC connection.
    pub fn end_quic(mut self, end: StreamEnd) {
        self.session.end(match end {
            StreamEnd::Closed => None,
            StreamEnd::Early(reason) | StreamEnd::Reset(reason) => Some(reason),
        });
    }
}

impl ClientBytes {
    /// Byte stream of the client's connection.
    pub fn stream(&mut self) -> &mut ByteStream {
        &mut self.leg.stream
    }
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("downstream", &self.session.downstream()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBytes").field("stream", &self.leg.stream).finish()
    }
}
