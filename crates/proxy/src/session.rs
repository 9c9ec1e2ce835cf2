//! One TCP connection from accept to end: a connection slot of the frontend, a server, the relay.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::poll_fn;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use log::debug;
use socket2::Socket;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::byte_stream::ByteStream;
use super::client_stream::ClientStream;
use super::clients::{Counted, Left, Waiting};
use super::connect::{Connected, Opening};
use super::contained::Contained;
use super::context::WorkerContext;
use super::header_error::HeaderError;
use super::own_sockets::{self, FrontendPath, OwnSocket};
use super::proxy_header::{self, Origin};
use super::relay::{Patience, RelayEnd, relay};
use super::socket::{self, Leg};
use super::source;
use super::tally::{Tally, termination_for};
use super::tls_hello::Routed;
use super::traced;
use super::watch::{Watched, WatchedClient, WatchedServer};
use convey_access_log::{LoggedTls, Termination};
use convey_model::{Endpoint, OverLimit, Protocol, Timeouts};
use convey_snapshot::stats::{Counter, Traffic};
use convey_snapshot::{Frontend, Pool, Snapshot};
use convey_trace::ConnectionStep;
use convey_upstream::{Permit, PickContext};

/// A client's connection, counted from accept on. Dropped before it has ended, it was cut.
pub(super) struct TcpSession {
    pub(super) downstream: PickContext,
    pub(super) context: Arc<WorkerContext>,
    /// As of accept or, if the client had to wait, of the end of the wait.
    pub(super) frontend: Arc<Frontend>,
    /// The same.
    pub(super) timeouts: Timeouts,
    totals: Arc<Traffic>,
    /// Whether it has a connection slot of its frontend.
    has_slot: bool,
    /// Whether its frontend counts it as open: once, even if it gives its slot back and takes another.
    is_open: bool,
    ended: bool,
    /// Why it ended early.
    reason: Option<Counter>,
    /// For the access log and for traces, if anybody wants it.
    pub(super) tally: Option<Box<Tally>>,
    /// Among its client's connections.
    counted: Counted,
    /// Its place among those beyond their client's share of the frontend.
    waiting: Option<Waiting>,
    /// How the client came here, if it is one of ours.
    path: Option<Arc<FrontendPath>>,
    /// Whether the connection begins with a PROXY header. Until that is read, the client is who opened the connection.
    awaits_header: bool,
    /// What its TLS handshake has agreed on.
    pub(super) tls: Option<Arc<LoggedTls>>,
    /// What its client asks for, where its frontend has routes.
    pub(super) routed: Option<Box<Routed>>,
    /// Tells when it is to end.
    pub(super) watched: Watched,
}

impl TcpSession {
    /// A client that was accepted on `vip`; `None` if no frontend has that address any more.
    pub(super) fn new(
        client: SocketAddr,
        vip: SocketAddr,
        context: &Arc<WorkerContext>,
        snapshot: &Snapshot,
    ) -> Option<TcpSession> {
        let frontend = snapshot.listener(&Endpoint::tcp(vip))?.clone();
        let timeouts = snapshot.timeouts_of(&frontend);
        let totals = snapshot.totals.clone();
        totals.add(context.core, Counter::Opened, 1);
        let (protocol, core, began) = (Protocol::Tcp, context.core, Instant::now());
        let watched = Watched::new(WatchedClient {
            frontend: (frontend.live.id, frontend.live.name.clone()),
            mode: frontend.config.mode,
            client,
            vip,
            is_client_known: !frontend.config.accept_proxy,
            began,
        });
        Some(TcpSession {
            downstream: PickContext { client, proxy: None, vip, protocol, core, began, request: None },
            context: context.clone(),
            frontend,
            timeouts,
            totals,
            has_slot: false,
            is_open: false,
            ended: false,
            reason: None,
            tally: Tally::begin(&context.shared, began),
            counted: Counted::default(),
            waiting: None,
            path: None,
            awaits_header: false,
            tls: None,
            routed: None,
            watched,
        })
    }

    /// Whether the client may be served, or at least who came in its name.
    ///
    /// # Errors
    /// Why not: its connection is reset then.
    pub(super) fn admit(&mut self, stream: &TcpStream, snapshot: &Snapshot) -> Result<(), Counter> {
        let config = &self.frontend.config;
        if !config.accept_proxy && !config.admits(self.client_ip()) {
            return Err(Counter::RefusedAccess);
        }
        self.path = self.path_of(stream, snapshot);
        if self.path.as_ref().is_some_and(|path| path.has(self.frontend.live.id)) {
            return Err(Counter::Loop);
        }
        self.awaits_header = self.frontend.config.accept_proxy;
        match self.awaits_header {
            true if self.frontend.config.trusts_proxy(self.client_ip()) => self.count_proxy(snapshot),
            true => Err(Counter::ProxyUntrusted),
            false => self.count_client(snapshot, self.downstream.began),
        }
    }

    /// The same of a client over QUIC. It has no PROXY header, and convey itself asks nobody over QUIC.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn admit_without_header(&mut self, snapshot: &Snapshot) -> Result<(), Counter> {
        if !self.frontend.config.admits(self.client_ip()) {
            return Err(Counter::RefusedAccess);
        }
        self.count_client(snapshot, self.downstream.began)
    }

    /// Counts the connection among its proxy's, until a header names the client.
    fn count_proxy(&mut self, snapshot: &Snapshot) -> Result<(), Counter> {
        // This one is open already.
        let left = self.context.shared.connections_left(&snapshot.totals) + 1;
        let counted = self.context.shared.clients.count_proxy(self.client_ip(), &self.frontend, left);
        self.counted = counted.ok_or(Counter::ClientLimit)?;
        Ok(())
    }

    /// Counts the connection among its client's and its source's. A connection beyond its client's share takes nothing of
    /// its source's rate.
    fn count_client(&mut self, snapshot: &Snapshot, now: Instant) -> Result<(), Counter> {
        // This one is open already.
        let left = Left {
            connections: self.context.shared.connections_left(&snapshot.totals) + 1,
            local_ports: self.context.shared.ports_left(&self.frontend).saturating_add(1),
        };
        let counted = self.context.shared.clients.count_or_wait(self.client_ip(), &self.frontend, left);
        let (counted, waiting) = counted.ok_or(Counter::ClientLimit)?;
        // A reload while its PROXY header was awaited may have brought another table of sources.
        let frontend = self.frontend_in(snapshot);
        let source = source::count(frontend, self.client_ip(), self.context.timestamp(now))?;
        self.watched.set_source(source);
        (self.counted, self.waiting) = (counted, waiting);
        Ok(())
    }

    /// Whether its client is not to hear that it was refused for this reason.
    pub(super) fn is_dropped_for(&self, reason: Counter) -> bool {
        source::is_over_limit(reason) && self.frontend.config.limits.action == OverLimit::Drop
    }

    /// The number of its frontend.
    pub(super) fn frontend_id(&self) -> u32 {
        self.frontend.live.id
    }

    /// Whether its client has its share of the frontend: others go before it.
    pub(super) fn is_beyond_share(&self) -> bool {
        self.waiting.is_some()
    }

    /// Who the client is by its PROXY header, and what it has sent after it; nothing where it needs none. Its share is looked
    /// at only now, and it may have to give its slot back.
    ///
    /// # Errors
    /// Why the connection is over; `None` if it was closed in order.
    async fn take_header(&mut self, client: &mut Leg) -> Result<(Origin, Vec<u8>), Option<Counter>> {
        if !self.awaits_header {
            return Ok(Default::default());
        }
        let (origin, early) = match proxy_header::receive(client.tcp()).await {
            Ok(received) => received,
            Err(HeaderError::Silent) => {
                client.close_in_order();
                return Err(None);
            }
            Err(why) => {
                if why != HeaderError::Reset {
                    self.tell_of_header(why);
                }
                return Err(why.end());
            }
        };
        if let Some(addresses) = origin.addresses {
            let proxy = mem::replace(&mut self.downstream.client, addresses.client());
            self.downstream.proxy = Some(proxy);
        }
        if let Some(tally) = &mut self.tally {
            tally.has_header();
        }
        self.counted = Counted::default();
        self.watched.set_client(self.downstream.client);
        self.trace(None, ConnectionStep::Header);
        let context = self.context.clone();
        let snapshot = context.snapshot();
        // The newest lists: the code that ends denied connections did not know the client before.
        if !self.frontend_in(&snapshot).config.admits(self.client_ip()) {
            return Err(Some(Counter::RefusedAccess));
        }
        let counted = self.count_client(&snapshot, Instant::now());
        if counted.is_err() || self.is_beyond_share() {
            self.tell(counted.err());
            self.give_slot_back();
            // It may be of use to one that waits.
            self.context.shared.clients.call_next(&self.frontend, self.client_ip());
        }
        counted.map_err(Some)?;
        Ok((origin, early))
    }

    /// Whether its PROXY header names no client.
    pub(super) fn is_client_unnamed(&self) -> bool {
        self.awaits_header && self.downstream.proxy.is_none()
    }

    fn client_ip(&self) -> IpAddr {
        self.downstream.client.ip()
    }

    /// Waits until its client has room at the frontend; from now on as long as one would wait for a server.
    async fn wait_for_share(&mut self) -> Result<(), Counter> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        self.trace(None, ConnectionStep::Waits);
        let live = self.frontend.live.clone();
        let waits = live.waiters.enter();
        let turn = timeout(self.timeouts.connect, self.wait_for_turn(&mut waiting));
        turn.await.map_err(|_| Counter::ClientLimit)?;
        drop((waiting, waits));
        self.wait_for_slot().await;
        // There may be room for more than this one.
        self.context.shared.clients.call_next(&self.frontend, self.client_ip());
        Ok(())
    }

    /// Waits until it is the first of its client, and there is room.
    async fn wait_for_turn(&mut self, waiting: &mut Waiting) {
        loop {
            let live = self.frontend.live.clone();
            let mut changed = pin!(live.share_changed.notified());
            changed.as_mut().enable();
            // Looked up only now: `share_changed` tells of every later change.
            self.reload();
            if !Arc::ptr_eq(&live, &self.frontend.live) {
                continue;
            }
            let clients = &self.context.shared.clients;
            if clients.count_waiting(&self.frontend, self.client_ip(), &mut self.counted, waiting) {
                return;
            }
            tokio::select! {
                () = waiting.called() => {}
                () = changed => {}
            }
        }
    }

    /// Its frontend as this snapshot has it, if it still does; the address may belong to another.
    pub(super) fn frontend_in<'a>(&'a self, snapshot: &'a Snapshot) -> &'a Arc<Frontend> {
        let is_ours = |frontend: &&Arc<Frontend>| Arc::ptr_eq(&frontend.live, &self.frontend.live);
        let at_address = snapshot.listener(&Endpoint::tcp(self.downstream.vip)).filter(is_ours);
        let anywhere = || snapshot.frontends.iter().find(is_ours);
        at_address.or_else(anywhere).unwrap_or(&self.frontend)
    }

    /// Takes a connection slot if the frontend is below its limit.
    pub(super) fn try_take_slot(&mut self) -> bool {
        let live = &self.frontend.live;
        if !self.has_slot && live.slots.try_take(self.frontend.config.max_connections) {
            if !mem::replace(&mut self.is_open, true) {
                live.traffic.add(self.context.core, Counter::Opened, 1);
            }
            self.has_slot = true;
        }
        self.has_slot
    }

    fn give_slot_back(&mut self) {
        if mem::take(&mut self.has_slot) {
            let live = &self.frontend.live;
            live.slots.release();
            live.freed.notify_one();
        }
    }

    /// Its frontend counts it as open no more.
    fn count_closed(&mut self) {
        if mem::take(&mut self.is_open) {
            self.frontend.live.traffic.add(self.context.core, Counter::Closed, 1);
        }
    }

    /// How the client came here, if it is one of our sockets: that is bound where the client is and asked what the client
    /// did.
    fn path_of(&self, stream: &TcpStream, snapshot: &Snapshot) -> Option<Arc<FrontendPath>> {
        let client = Endpoint::tcp(self.downstream.client);
        let sockets = self.context.own_sockets_at(client, snapshot);
        if sockets.is_empty() {
            return None;
        }
        let asked = [stream.local_addr().ok(), socket::asked_before_nat(stream)];
        let asked = asked.map(|addr| addr.map(own_sockets::plain));
        sockets.into_iter().find(|socket| asked.contains(&Some(socket.server))).map(|socket| socket.path)
    }

    /// Remembers a socket towards a server.
    pub(super) fn remember(&self, socket: &Socket, server: SocketAddr) -> Option<OwnSocket> {
        let (own, frontend) = (&self.context.shared.own_sockets, self.frontend.live.id);
        own.note(socket, Endpoint::tcp(server), frontend, self.path.as_ref())
    }

    /// Waits until the frontend has a connection slot for it.
    ///
    /// # Errors
    /// A reload has denied its client meanwhile.
    pub(super) async fn wait_for_slot_or_denial(&mut self) -> Result<(), Counter> {
        let denied = self.watched.over();
        tokio::select! {
            biased;
            () = self.wait_for_slot() => Ok(()),
            end = denied => Err(reason_of(end).unwrap_or(Counter::AccessDenied)),
        }
    }

    /// Waits until the frontend has a connection slot for it.
    async fn wait_for_slot(&mut self) {
        if self.try_take_slot() {
            return;
        }
        self.trace(None, ConnectionStep::Waits);
        let first = self.frontend.live.clone();
        let _waits = first.waiters.enter();
        while !self.try_take_slot() {
            let live = self.frontend.live.clone();
            let mut freed = pin!(live.freed.notified());
            freed.as_mut().enable();
            // Looked up only now: `freed` tells of every later change.
            self.reload();
            if !Arc::ptr_eq(&live, &self.frontend.live) || self.try_take_slot() {
                continue;
            }
            freed.await;
            // Its server may have been removed since.
            self.reload();
        }
    }

    /// Has a task of its own serve the client until both sides have closed or something ends the connection. It is as large as its mode
    /// needs.
    pub(super) fn spawn(self, client: Leg) {
        match self.context.shared.http.clone().filter(|_| self.frontend.config.mode.is_http()) {
            Some(http) => drop(tokio::spawn(Contained::new(ClientStream::serve(self, client, http)))),
            None => drop(tokio::spawn(Contained::new(self.serve_bytes(client)))),
        }
    }

    /// Relays bytes between the client and a server.
    async fn serve_bytes(mut self, mut client: Leg) {
        // A client that a reload denies is reset wherever it waits.
        let denied = self.watched.over();
        let opened = tokio::select! {
            biased;
            opened = self.open(&mut client) => opened,
            end = denied => Err(reason_of(end)),
        };
        let (early, mut server) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.refuse(&client, reason),
        };
        let end = self.relay(&mut client, &mut server, early).await;
        if end == RelayEnd::Closed {
            client.close_in_order();
            server.leg.close_in_order();
        }
        if end == RelayEnd::ServerReset {
            server.permit.reset(&self.context.shared.failures);
        }
        self.end(reason_of(end));
    }

    /// The client gets no server, for this reason; `None` if it has closed in order.
    pub(super) fn refuse(&mut self, client: &Leg, reason: Option<Counter>) {
        if reason.is_some_and(|reason| self.is_dropped_for(reason)) {
            socket::keep_reset_near(client.tcp());
        }
        self.end(reason);
    }

    /// A server for the client, and what that has sent already.
    ///
    /// # Errors
    /// Why there is none; `None` if the client has closed in order.
    async fn open(&mut self, client: &mut Leg) -> Result<(Vec<u8>, Connected), Option<Counter>> {
        let (origin, mut early) = self.let_in(client).await?;
        self.choose_route(client, &early).await?;
        if early.is_empty() {
            early = self.wait_for_first_bytes(&mut client.stream).await?;
        }
        let opening = Opening {
            local: self.local_address(client.tcp()),
            origin: &origin,
            named: None,
            data_waits: !early.is_empty(),
            within: self.timeouts.connect,
        };
        let server = self.connect_to_server(opening).await?;
        Ok((early, server))
    }

    /// Waits until the client may come in: its PROXY header, its share of the frontend, a slot, its TLS handshake.
    ///
    /// # Errors
    /// Why it may not; `None` if it has closed in order.
    pub(super) async fn let_in(&mut self, client: &mut Leg) -> Result<(Origin, Vec<u8>), Option<Counter>> {
        let (origin, early) = self.take_header(client).await?;
        self.wait_for_share().await?;
        self.wait_for_slot().await;
        self.check_access()?;
        let early = self.shake_hands(client, early).await?;
        Ok((origin, early))
    }

    /// Whether the client may come in, also by a reload since it came.
    fn check_access(&self) -> Result<(), Counter> {
        if let Some(reason) = self.watched.end().and_then(reason_of) {
            return Err(reason);
        }
        let is_let_in = self.frontend.config.access.admits(self.client_ip());
        if is_let_in { Ok(()) } else { Err(Counter::AccessDenied) }
    }

    /// Waits until the client has sent something or closed, where the file says how long it may take: no server waits for it. Returns what
    /// there is: at most as long as a usual request, for the connection may wait for a server.
    async fn wait_for_first_bytes(&self, client: &mut ByteStream) -> Result<Vec<u8>, Counter> {
        let limit = self.frontend.config.limits.first_byte_timeout;
        let mut late = pin!(limit.map(|limit| sleep_until(self.downstream.began + limit)));
        poll_fn(|cx| {
            let mut buffer = [0; 4096];
            match (client.poll_read(cx, &mut buffer), late.as_mut().as_pin_mut()) {
                (Poll::Ready(Ok(n)), _) => Poll::Ready(Ok(buffer[..n].to_vec())),
                (Poll::Ready(Err(_)), _) => Poll::Ready(Err(Counter::ClientReset)),
                (Poll::Pending, Some(late)) => late.poll(cx).map(|()| Err(Counter::FirstByteTimeout)),
                (Poll::Pending, None) => Poll::Ready(Ok(Vec::new())),
            }
        })
        .await
    }

    /// Where the client connected to.
    pub(super) fn local_address(&self, client: &TcpStream) -> Option<SocketAddr> {
        let vip = self.downstream.vip;
        if vip.ip().is_unspecified() { client.local_addr().ok() } else { Some(vip) }
    }

    /// Moves bytes until something ends the connection. The server's permit is told of an answer.
    async fn relay(&self, client: &mut Leg, server: &mut Connected, early: Vec<u8>) -> RelayEnd {
        let Connected { leg, permit, .. } = server;
        let mut is_silent = true;
        let count = |rx, tx| {
            is_silent &= rx + tx == 0;
            if tx > 0 {
                permit.answered();
            }
            if let Some(tally) = &self.tally {
                tally.count(rx, tx);
            }
            self.watched.count(rx, tx);
            for (counter, n) in [(Counter::BytesRx, rx), (Counter::BytesTx, tx)] {
                if n > 0 {
                    self.count(counter, n);
                    permit.count(counter, n);
                }
            }
        };
        let patience = Patience { idle: self.timeouts.idle, unanswered: self.timeouts.tcp_user_timeout };
        self.watched.set_server(WatchedServer {
            id: permit.server().live.id,
            names: permit.names(),
            addr: permit.server().config.addr_for(self.downstream.vip.port()),
            seen_from: leg.tcp().local_addr().ok(),
            is_only: true,
        });
        if let Some(end) = self.watched.end() {
            return end;
        }
        let end = tokio::select! {
            biased;
            end = relay(&mut client.stream, &mut leg.stream, early, patience, count) => end,
            end = self.until_it_is_to_end(permit) => end,
        };
        // A client that asks nothing proves nothing of the server: load balancers before us look in like
        // this.
        if end == RelayEnd::Closed && !is_silent {
            permit.answered();
        }
        end
    }

    /// Waits until the connection is to end: its server is down, or its client denied.
    async fn until_it_is_to_end(&self, permit: &Permit) -> RelayEnd {
        // The server may have gone down before it was watched: whatever the watch tells of has been published before.
        if permit.ends_when_down() && permit.is_down_in(&self.context.snapshot()) {
            return RelayEnd::ServerGone;
        }
        self.watched.over().await
    }

    /// Goes by the newest snapshot from now on: it may have changed while the client waited. Only without a slot, which
    /// is the frontend's. If a reload took the address away, the frontend stays.
    fn reload(&mut self) {
        let snapshot = self.context.snapshot();
        if let Some(frontend) = snapshot.listener(&Endpoint::tcp(self.downstream.vip)) {
            if !Arc::ptr_eq(&frontend.live, &self.frontend.live) {
                self.count_closed();
            }
            self.frontend = frontend.clone();
            self.watched.set_frontend(frontend.live.id, &frontend.live.name, frontend.config.mode);
        }
        self.timeouts = snapshot.timeouts_of(&self.frontend);
    }

    /// The servers of its route, or else of the address, as of now; as they were if a reload took them away.
    pub(super) fn newest_pool(&self) -> Arc<Pool> {
        let snapshot = self.context.snapshot();
        if let Some(routed) = &self.routed {
            return snapshot.newest_pool(routed.pool());
        }
        let frontend = snapshot.listener(&Endpoint::tcp(self.downstream.vip));
        frontend.unwrap_or(&self.frontend).pool.clone()
    }

    /// The client's connection is over; early if there is a reason.
    pub(super) fn end(&mut self, reason: Option<Counter>) {
        (self.ended, self.reason) = (true, reason);
        if let Some(reason) = reason {
            let PickContext { client, vip, .. } = self.downstream;
            debug!("{client} -> {vip}: ended: {}", reason.label());
            self.count(reason, 1);
        }
    }

    pub(super) fn count(&self, counter: Counter, n: u64) {
        self.frontend.live.traffic.add(self.context.core, counter, n);
        self.totals.add(self.context.core, counter, n);
    }
}

/// Why a connection is over that ended like this; `None` if both sides have closed.
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
        let termination = termination_for(self.reason, Termination::Closed);
        let bytes = self.tally.as_ref().map(|tally| tally.bytes());
        if self.context.shared.trace.is_watched() {
            self.trace(self.watched.server(), traced::end(termination, bytes, &self.downstream));
        }
        if let Some(tally) = self.tally.take() {
            let of_client = (self.tls.take(), self.routed.as_deref());
            (*tally).end(&self.downstream, &self.frontend, of_client, termination);
        }
        self.totals.add(self.context.core, Counter::Closed, 1);
        if let Some(routed) = &self.routed {
            routed.count(self.context.core, Counter::Closed);
        }
        self.count_closed();
        self.give_slot_back();
        drop((self.waiting.take(), mem::take(&mut self.counted)));
        let clients = &self.context.shared.clients;
        if clients.some_wait() {
            clients.call_next(self.frontend_in(&self.context.snapshot()), self.client_ip());
        }
    }
}
