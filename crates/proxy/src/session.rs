//! One connection from accept to end: a seat at the frontend, a server, the relay.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use log::debug;
use socket2::Socket;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::clients::{Counted, Left};
use super::lease::Lease;
use super::own_sockets::{self, OwnSocket, Path};
use super::relay::{End, Patience, relay};
use super::share_queue::Waiting;
use super::socket::{self, Leg};
use super::stream;
use super::watch::Watched;
use super::worker::Context;
use convey_model::Protocol;
use convey_snapshot::Frontend;
use convey_snapshot::stats::{Counter, Traffic};

/// A client's connection, counted from accept on. Dropped before it has ended, it was cut.
pub(super) struct Session {
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
    pub(super) context: Arc<Context>,
    pub(super) accepted: Instant,
    frontend: Arc<Frontend>,
    totals: Arc<Traffic>,
    seated: bool,
    ended: bool,
    /// Among its client's connections.
    counted: Counted,
    /// Its place among those beyond their client's share of the frontend.
    waiting: Option<Waiting>,
    /// How the client came here, if it is one of ours.
    path: Option<Arc<Path>>,
}

impl Session {
    /// A client that was accepted on `vip`, an address of `frontend`.
    pub(super) fn new(
        client: SocketAddr,
        vip: SocketAddr,
        frontend: Arc<Frontend>,
        context: Arc<Context>,
    ) -> Session {
        let totals = context.shared.snapshot.load().totals.clone();
        totals.add(context.core, Counter::Opened, 1);
        let accepted = Instant::now();
        Session {
            client,
            vip,
            context,
            accepted,
            frontend,
            totals,
            seated: false,
            ended: false,
            counted: Counted::default(),
            waiting: None,
            path: None,
        }
    }

    /// Whether the client may be served.
    ///
    /// # Errors
    /// Why not: its connection is reset then.
    pub(super) fn admit(&mut self, stream: &TcpStream) -> Result<(), Counter> {
        self.path = self.path_of(stream);
        if self.path.as_ref().is_some_and(|path| path.has(self.frontend.live.id)) {
            return Err(Counter::Loop);
        }
        // This one is open already.
        let left = Left {
            connections: self.context.connections_left() + 1,
            local_ports: self.context.ports_left(&self.frontend).saturating_add(1),
        };
        let counted = self.context.shared.clients.count_or_wait(self.client.ip(), &self.frontend, left);
        (self.counted, self.waiting) = counted.ok_or(Counter::ClientLimit)?;
        Ok(())
    }

    /// The number of its frontend.
    pub(super) fn frontend_id(&self) -> u32 {
        self.frontend.live.id
    }

    /// Whether its client has its share of the frontend: others go before it.
    pub(super) fn is_beyond_share(&self) -> bool {
        self.waiting.is_some()
    }

    /// Waits until its client has room at the frontend; as long as one would wait for a server.
    async fn wait_for_share(&mut self) -> Result<(), Counter> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        let give_up = self.accepted + self.context.shared.snapshot.load().timeouts.connect;
        timeout_at(give_up, self.wait_for_turn(&mut waiting)).await.map_err(|_| Counter::ClientLimit)?;
        drop(waiting);
        self.wait_for_seat().await;
        // There may be room for more than this one.
        self.context.shared.clients.call_next(&self.frontend, self.client.ip());
        Ok(())
    }

    /// Waits until it is the first of its client, and there is room.
    async fn wait_for_turn(&mut self, waiting: &mut Waiting) {
        loop {
            let live = self.frontend.live.clone();
            let mut changed = pin!(live.share_changed.notified());
            changed.as_mut().enable();
            // Looked up only now: of any later change `share_changed` tells.
            self.frontend = self.frontend();
            if !Arc::ptr_eq(&live, &self.frontend.live) {
                continue;
            }
            let clients = &self.context.shared.clients;
            if clients.count_waiting(&self.frontend, self.client.ip(), &mut self.counted, waiting) {
                return;
            }
            tokio::select! {
                () = waiting.called() => {}
                () = changed => {}
            }
        }
    }

    /// Its frontend as configured now, if there still is one; the address may belong to another.
    fn frontend_of_now(&self) -> Arc<Frontend> {
        let is_ours = |frontend: &&Arc<Frontend>| Arc::ptr_eq(&frontend.live, &self.frontend.live);
        let at_address = Some(self.frontend()).filter(|frontend| is_ours(&frontend));
        let anywhere = || self.context.shared.snapshot.load().frontends.iter().find(is_ours).cloned();
        at_address.or_else(anywhere).unwrap_or_else(|| self.frontend.clone())
    }

    /// Takes a seat if the frontend is below its limit.
    pub(super) fn try_seat(&mut self) -> bool {
        let live = &self.frontend.live;
        if !self.seated && live.slots.try_take(self.frontend.config.max_connections) {
            live.traffic.add(self.context.core, Counter::Opened, 1);
            self.seated = true;
        }
        self.seated
    }

    /// How the client came here, if it is one of our sockets: that is bound where the client is and asked what the client
    /// did.
    fn path_of(&self, stream: &TcpStream) -> Option<Arc<Path>> {
        let sockets = self.context.own_sockets_at(Protocol::Tcp, self.client);
        if sockets.is_empty() {
            return None;
        }
        let asked = [stream.local_addr().ok(), socket::asked_before_nat(stream)];
        let asked = asked.map(|addr| addr.map(own_sockets::plain));
        sockets.into_iter().find(|socket| asked.contains(&Some(socket.server))).map(|socket| socket.path)
    }

    /// Remembers a socket towards a server.
    pub(super) fn note(&self, socket: &Socket, server: SocketAddr) -> Option<OwnSocket> {
        let (own, frontend) = (&self.context.shared.own_sockets, self.frontend.live.id);
        own.note(Protocol::Tcp, socket, server, frontend, self.path.as_ref())
    }

    /// Waits until there is a seat.
    pub(super) async fn wait_for_seat(&mut self) {
        while !self.try_seat() {
            let live = self.frontend.live.clone();
            let mut freed = pin!(live.freed.notified());
            freed.as_mut().enable();
            // Looked up only now: of any later change `freed` tells.
            self.frontend = self.frontend();
            if !Arc::ptr_eq(&live, &self.frontend.live) || self.try_seat() {
                continue;
            }
            freed.await;
        }
    }

    /// Serves the client until both sides have closed or something ends the connection.
    pub(super) async fn serve(mut self, mut client: Leg) {
        if let Err(reason) = self.wait_for_share().await {
            return self.end(Some(reason));
        }
        self.wait_for_seat().await;
        let timeouts = self.context.shared.snapshot.load().timeouts;
        let Ok(early) = read_early(&client.stream) else { return self.end(Some(Counter::ClientReset)) };
        let (mut server, lease) = match self.connect_to_server(&timeouts, !early.is_empty()).await {
            Ok(found) => found,
            Err(reason) => return self.end(Some(reason)),
        };
        let (mut is_judged, mut is_silent) = (!lease.is_judged_by_answers(), true);
        let count = |rx, tx| {
            is_silent &= rx + tx == 0;
            if tx > 0 && !is_judged {
                lease.succeeded();
                is_judged = true;
            }
            for (counter, n) in [(Counter::BytesRx, rx), (Counter::BytesTx, tx)] {
                if n > 0 {
                    self.count(counter, n);
                    lease.count(counter, n);
                }
            }
        };
        let patience = Patience { idle: timeouts.idle, unanswered: timeouts.tcp_user_timeout };
        let watched = Watched::new(lease.server().live.id);
        let end = tokio::select! {
            biased;
            end = relay(&mut client.stream, &mut server.stream, early, patience, count) => end,
            () = self.until_server_is_down(&watched, &lease) => End::ServerGone,
        };
        match end {
            End::Closed => {
                // Who asks nothing learns nothing: load balancers before us look in like this.
                if !is_judged && !is_silent {
                    lease.succeeded();
                }
                client.close_in_order();
                server.close_in_order();
                self.end(None);
            }
            End::ServerGone => self.end(Some(Counter::ServerGone)),
            End::Idle => self.end(Some(Counter::IdleTimeout)),
            End::ClientReset => self.end(Some(Counter::ClientReset)),
            End::ServerReset => {
                if !is_judged {
                    let error = "reset before an answer".to_owned();
                    lease.tell(error, Protocol::Tcp, &self.context.shared.failures);
                }
                self.end(Some(Counter::ServerReset));
            }
        }
    }

    /// Waits until the connections of a server that is down are to end.
    async fn until_server_is_down(&self, watched: &Watched, lease: &Lease) {
        // It may have gone down before it was watched: who is told from now on has been published before.
        if !lease.is_cut_off(&self.context.shared.snapshot.load()) {
            watched.over().await;
        }
    }

    /// The frontend that the address belongs to now; the one we know if a reload took it away.
    pub(super) fn frontend(&self) -> Arc<Frontend> {
        self.context.frontend(self.vip).unwrap_or_else(|| self.frontend.clone())
    }

    /// The client's connection is over; early if there is a reason.
    pub(super) fn end(&mut self, reason: Option<Counter>) {
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

/// What the client has sent so far: not more than a usual request, for the connection may wait for a server, and
/// nothing if it has sent nothing or has closed.
fn read_early(client: &TcpStream) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 4096];
    let n = stream::try_read(client, &mut buffer).transpose()?.unwrap_or_default();
    Ok(buffer[..n].to_vec())
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.ended {
            self.count(Counter::Cut, 1);
        }
        self.totals.add(self.context.core, Counter::Closed, 1);
        if self.seated {
            let live = &self.frontend.live;
            live.traffic.add(self.context.core, Counter::Closed, 1);
            live.slots.release();
            live.freed.notify_one();
        }
        drop((self.waiting.take(), mem::take(&mut self.counted)));
        let clients = &self.context.shared.clients;
        if clients.some_wait() {
            clients.call_next(&self.frontend_of_now(), self.client.ip());
        }
    }
}
