//! Admission: checks of a new client before convey serves it.
//!
//! For each transport and stage, one function runs the checks in their order. The comment after
//! each check names the counter of a refusal.
//!
//! | moment | function |
//! |---|---|
//! | TCP, at accept | [`TcpSession::admit`] |
//! | TCP, once a PROXY header has named the client | [`TcpSession::admit_named`] |
//! | TCP, in the connection's task: PROXY header, share, slot, TLS handshake | [`TcpSession::complete_admission`] |
//! | QUIC, at the first packet | [`QuicAcceptor::admit`], with [`TcpSession::admit_quic`] |
//! | UDP, at the first datagram of a client | [`UdpCandidate::check`] |
//! | UDP, after the session has been counted at its source | [`SessionSlot::take`] |
//!
//! Two checks come before admission. While the process is short of descriptors, workers accept no
//! TCP connections, and clients wait in the accept queue (`AcceptBackoff` in `listener`). Where
//! datagrams must begin with a PROXY header, convey drops datagrams without a valid header
//! (`DroppedProxyUntrusted` and `DroppedProxyHeader` in `udp::relay`).
//!
//! In mode proxy, two more checks follow [`TcpSession::complete_admission`]: the ClientHello, if
//! the frontend has routes (`tls_hello`), and the arrival of the first bytes, if the configuration
//! limits the wait for them (`FirstByteTimeout`).
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quinn::Incoming;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::context::WorkerContext;
use super::own_sockets::{self, FrontendPath};
use super::proxy_header::ReceivedHeader;
use super::quic::{AdmittedQuic, ClientPaths, QuicAcceptor, QuicRefusal};
use super::session::{TcpSession, reason_of};
use super::socket;
use super::source;
use super::udp::{SessionKey, SessionSlot};
use convey_model::{CountedSource, Endpoint, Mode, Protocol};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Snapshot};
use convey_stream::Leg;

impl TcpSession {
    /// Checks a connection at accept, before its first byte has arrived. With `accept_proxy`, the
    /// peer is a proxy, and [`TcpSession::admit_named`] checks the client later.
    ///
    /// # Errors
    /// Reason of the refusal. The caller resets the connection.
    pub(super) fn admit(&mut self, stream: &TcpStream, snapshot: &Snapshot) -> Result<(), Counter> {
        self.awaits_header = self.frontend.config.accept_proxy;
        if self.awaits_header {
            self.check_loop(stream, snapshot)?; // Loop
            self.check_proxy()?; // ProxyUntrusted
            self.count_proxy() // ClientLimit
        } else {
            check_access(&self.frontend, self.client_ip())?; // RefusedAccess
            self.check_loop(stream, snapshot)?; // Loop
            self.count_client(snapshot, self.entry.began()) // ClientLimit, RefusedSource...
        }
    }

    /// Checks the client that the PROXY header names, with the newest snapshot. If the client is
    /// refused or has to wait for its share, the connection releases its slot.
    ///
    /// # Errors
    /// Reason of the refusal.
    pub(super) fn admit_named(&mut self) -> Result<(), Counter> {
        let context = self.context.clone();
        let snapshot = context.snapshot();
        // A reload may have changed the access list while convey waited for the header. The
        // registry, which ends denied connections after a reload, did not know the client then.
        check_access(self.frontend_in(&snapshot), self.client_ip())?; // RefusedAccess
        let counted = self.count_client(&snapshot, Instant::now()); // ClientLimit, RefusedSource...
        if counted.is_err() || self.is_beyond_share() {
            self.log_refusal(counted.err());
            self.release_slot();
            // Another waiting connection may take the released slot.
            self.context.clients.call_next(&self.frontend, self.client_ip());
        }
        counted
    }

    /// Completes admission in the connection's task: PROXY header, waits for share and slot, TLS
    /// handshake. Returns the PROXY header and the first bytes of the client.
    ///
    /// # Errors
    /// Reason of the refusal; `None` if the client has closed in order.
    pub(super) async fn complete_admission(
        &mut self,
        client: &mut Leg,
    ) -> Result<ReceivedHeader, Option<Counter>> {
        let mode = self.frontend.config.mode;
        let ReceivedHeader { origin, early } = self.take_header(client).await?; // ProxyHeader..., then `admit_named`
        self.wait_for_share().await?; // ClientLimit
        self.wait_for_slot().await; // waits without a limit
        self.check_mode(mode)?; // ModeChanged
        self.check_still_admitted()?; // AccessDenied, Killed
        let early = self.perform_handshake(client, early).await?; // TlsHandshake...
        Ok(ReceivedHeader { origin, early })
    }

    /// Checks a QUIC connection at its first packet. QUIC has no PROXY header, and no loop check is
    /// needed because convey opens no QUIC connections. A client that would have to wait for its
    /// share or a slot is refused: it can connect over TCP and wait there.
    ///
    /// # Errors
    /// Reason of the refusal.
    fn admit_quic(&mut self, snapshot: &Snapshot) -> Result<(), Counter> {
        check_access(&self.frontend, self.client_ip())?; // RefusedAccess
        self.count_client(snapshot, self.entry.began())?; // ClientLimit, RefusedSource...
        if self.is_beyond_share() || !self.try_take_slot() {
            return Err(Counter::RefusedFull);
        }
        Ok(())
    }

    /// Refuses a connection that has already passed through its frontend: a loop.
    fn check_loop(&mut self, stream: &TcpStream, snapshot: &Snapshot) -> Result<(), Counter> {
        self.path = self.path_of(stream, snapshot);
        let is_loop = self.path.as_ref().is_some_and(|path| path.has(self.frontend.live.id));
        if is_loop { Err(Counter::Loop) } else { Ok(()) }
    }

    /// Returns the frontends that the connection has passed through, if its client is one of
    /// convey's own sockets; otherwise `None`. Such a socket has the client's address as its local
    /// address, and is connected to the address that the client connected to.
    fn path_of(&self, stream: &TcpStream, snapshot: &Snapshot) -> Option<Arc<FrontendPath>> {
        let client = Endpoint::tcp(self.client());
        let sockets = self.context.own_sockets_at(client, snapshot);
        if sockets.is_empty() {
            return None;
        }
        let asked = [stream.local_addr().ok(), socket::original_destination(stream)];
        let asked = asked.map(|addr| addr.map(own_sockets::plain));
        sockets.into_iter().find(|socket| asked.contains(&Some(socket.server))).map(|socket| socket.path)
    }

    /// Refuses a peer that is not in `trusted_proxies`.
    fn check_proxy(&self) -> Result<(), Counter> {
        let is_trusted = self.frontend.config.trusts_proxy(self.client_ip());
        if is_trusted { Ok(()) } else { Err(Counter::ProxyUntrusted) }
    }

    /// Counts the connection in the proxy's share of the process, until the PROXY header names the
    /// client.
    fn count_proxy(&mut self) -> Result<(), Counter> {
        let left = self.context.left_at(&self.frontend);
        let counted = self.context.clients.count_proxy(self.client_ip(), &self.frontend, left);
        self.counted = counted.ok_or(Counter::ClientLimit)?;
        Ok(())
    }

    /// Counts the connection in the client's shares (of the process, of the local ports and of the
    /// frontend), and then towards the limits of the client's source. In this order, a connection
    /// beyond its client's share does not use up the rate of the source.
    fn count_client(&mut self, snapshot: &Snapshot, now: Instant) -> Result<(), Counter> {
        let left = self.context.left_at(&self.frontend);
        let room = || self.context.exact_room();
        let counted = self.context.clients.count_or_wait(self.client_ip(), &self.frontend, left, room);
        let (counted, waiting) = counted.ok_or(Counter::ClientLimit)?;
        // A reload during the wait for the PROXY header may have brought a new table of sources.
        let frontend = self.frontend_in(snapshot);
        let source = source::count(frontend, self.client_ip(), self.context.timestamp(now))?;
        self.entry.set_source(source);
        (self.counted, self.waiting) = (counted, waiting.map(Box::new));
        Ok(())
    }

    /// Refuses a client whose frontend changed its mode while the client waited. The caller has
    /// already chosen to relay bytes or to serve HTTP, by the mode `before` the wait.
    fn check_mode(&self, before: Mode) -> Result<(), Counter> {
        let is_same = self.frontend.config.mode == before;
        if is_same { Ok(()) } else { Err(Counter::ModeChanged) }
    }

    /// Refuses a client that a reload has denied since accept, or whose connection an operator has
    /// ended.
    fn check_still_admitted(&self) -> Result<(), Counter> {
        if let Some(reason) = self.entry.end().and_then(reason_of) {
            return Err(reason);
        }
        let is_admitted = self.frontend.config.admits(self.client_ip());
        if is_admitted { Ok(()) } else { Err(Counter::AccessDenied) }
    }
}

impl QuicAcceptor {
    /// Checks the first packet of a QUIC connection, and counts the reason of a refusal.
    ///
    /// # Errors
    /// Kind of the refusal: whether convey answers the packet or ignores it.
    pub(super) fn admit(&mut self, incoming: &Incoming) -> Result<AdmittedQuic, QuicRefusal> {
        let context = self.context.clone();
        let snapshot = context.snapshot();
        let frontend = snapshot.listener(&Endpoint::udp(self.vip)).ok_or(QuicRefusal::Refuse)?;
        let settings = self.settings(frontend).ok_or(QuicRefusal::Refuse)?;
        let http = context.http.clone().ok_or(QuicRefusal::Refuse)?;
        self.check_descriptors()?; // DroppedNoResources
        let arrived = self.unproven.take_arrived(incoming.remote_address());
        let place = self.handshake_place(frontend, incoming)?; // Retry, TlsHandshakeLimit
        let address = self.limited_address(incoming, arrived)?; // Retry
        let client = incoming.remote_address();
        let session = TcpSession::new(client, self.vip, &context, &snapshot);
        let mut session = session.ok_or(QuicRefusal::Refuse)?;
        match session.admit_quic(&snapshot) {
            Ok(()) => {
                let paths = ClientPaths::new();
                Ok(AdmittedQuic { session, settings, address, paths, place, http })
            }
            Err(reason) => {
                let is_dropped = session.is_dropped_for(reason);
                session.end(Some(reason));
                Err(if is_dropped { QuicRefusal::Ignore } else { QuicRefusal::Refuse })
            }
        }
    }

    /// Refuses a client while the process is short of descriptors.
    fn check_descriptors(&self) -> Result<(), QuicRefusal> {
        if self.context.has_room() {
            return Ok(());
        }
        self.count(Counter::DroppedNoResources);
        Err(QuicRefusal::Refuse)
    }
}

/// UDP client that has no session yet.
pub(super) struct UdpCandidate<'a> {
    /// Key of the session.
    pub(super) key: SessionKey,
    /// Address that the listening socket is bound to.
    pub(super) vip: SocketAddr,
    /// Frontend of the address.
    pub(super) frontend: &'a Arc<Frontend>,
    /// Snapshot of the batch of datagrams.
    pub(super) snapshot: &'a Snapshot,
    /// Frontends that the datagram has passed through, if the client is one of convey's own
    /// sockets. [`UdpCandidate::check`] sets them.
    pub(super) path: Option<Arc<FrontendPath>>,
}

impl UdpCandidate<'_> {
    /// Checks the first datagram of a client. `is_group_address` returns whether an address is a
    /// broadcast or multicast address.
    ///
    /// # Errors
    /// Reason why the datagram is dropped.
    pub(super) fn check(
        &mut self,
        context: &WorkerContext,
        is_group_address: impl FnOnce(IpAddr) -> bool,
    ) -> Result<(), Counter> {
        check_access(self.frontend, self.key.client.ip())?; // RefusedAccess
        if self.key.asked.is_some_and(is_group_address) {
            return Err(Counter::DroppedNotUnicast);
        }
        if self.key.peer().port() == 0 {
            return Err(Counter::DroppedUnsent); // no answer can be sent there
        }
        self.check_loop(context) // DroppedLoop
    }

    /// Refuses a client that is a server of convey, or that has already passed through this
    /// frontend. In both cases the datagrams would circulate in an endless loop.
    fn check_loop(&mut self, context: &WorkerContext) -> Result<(), Counter> {
        let (peer, snapshot) = (self.key.peer(), self.snapshot);
        if snapshot.server_endpoints.contain(Protocol::Udp, peer, self.vip.port()) {
            return Err(Counter::DroppedLoop);
        }
        // At most one of convey's UDP sockets is bound to an address and port.
        let own = context.own_sockets_at(Endpoint::udp(peer), snapshot).pop();
        self.path = own.map(|socket| socket.path);
        let is_loop = self.path.as_ref().is_some_and(|path| path.has(self.frontend.live.id));
        if is_loop { Err(Counter::DroppedLoop) } else { Ok(()) }
    }
}

impl SessionSlot {
    /// Takes a slot for a new UDP session. On success, the slot takes over the guard in `source`,
    /// so that `source` is `None` afterwards. If there is no room, the caller may evict another
    /// session and try again.
    ///
    /// # Errors
    /// Reason why the datagram is dropped.
    pub(super) fn take(
        of: &UdpCandidate<'_>,
        source: &mut Option<CountedSource>,
        context: &Arc<WorkerContext>,
    ) -> Result<SessionSlot, Counter> {
        let UdpCandidate { key, frontend, snapshot, path, .. } = of;
        let (shared, sessions) = (&context.shared, &context.shared.udp_sessions);
        let connections = shared.connections_left(&snapshot.totals);
        let (most, left) = sessions.room(shared.descriptors.connections(), connections);
        let left = context.left_for_session(left);
        let counted = context.clients.count(key.client.ip(), frontend, left);
        let counted = counted.ok_or(Counter::DroppedClientLimit)?;
        if !sessions.try_open(most, connections) {
            return Err(Counter::DroppedNoResources);
        }
        if !frontend.live.slots.try_take(frontend.config.max_connections) {
            sessions.close();
            return Err(Counter::DroppedFull);
        }
        let totals = snapshot.totals.clone();
        let (client, source) = ((path.clone(), counted), source.take());
        Ok(SessionSlot::taken((*frontend).clone(), totals, context.clone(), client, source))
    }
}

/// Refuses a client that the access list of its frontend denies. Trusted HTTP proxies pass, because
/// each of their requests is checked.
fn check_access(frontend: &Frontend, client: IpAddr) -> Result<(), Counter> {
    if frontend.config.admits(client) { Ok(()) } else { Err(Counter::RefusedAccess) }
}
