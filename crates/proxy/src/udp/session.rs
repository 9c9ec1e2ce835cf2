//! One client's session: its place at the frontend and at a server, and the socket between.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use log::debug;
use tokio::time::Instant;

use super::socket;
use crate::clients::Counted;
use crate::lease::Lease;
use crate::own_sockets::Path;
use crate::worker::Context;
use convey_model::{Protocol, is_shortage};
use convey_snapshot::stats::{Counter, Traffic};
use convey_snapshot::{Frontend, Pick, Pool};

/// Servers tried for one datagram, the first one included.
const ATTEMPTS: usize = 4;

/// A session, counted from its beginning on. Dropped before it has ended, it was cut.
pub(super) struct Session {
    pub(super) socket: UdpSocket,
    /// Where that is connected to.
    server: SocketAddr,
    lease: Lease,
    seat: Seat,
    /// Of the snapshot in which its server was last looked for.
    generation: u64,
    /// Whether the server has refused what it was sent last.
    refused: bool,
    ended: bool,
}

/// Who asks whom.
#[derive(Clone, Copy)]
pub(super) struct Parties {
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
}

impl Session {
    /// Finds a server for a client that came by `path`, in the snapshot of this `generation`.
    ///
    /// # Errors
    /// Why its datagram is dropped.
    pub(super) fn open(
        parties: Parties,
        path: Option<Arc<Path>>,
        frontend: &Arc<Frontend>,
        generation: u64,
        context: &Arc<Context>,
    ) -> Result<Session, Counter> {
        let mut seat = Seat::take(parties.client, path, frontend, context)?;
        let (lease, socket) = seat.find_server(parties, &frontend.pool, Vec::new())?;
        seat.opened();
        let server = lease.server().config.addr_for(parties.vip.port());
        Ok(Session { socket, server, lease, seat, generation, refused: false, ended: false })
    }

    /// Where its server is.
    pub(super) fn server(&self) -> SocketAddr {
        self.server
    }

    /// Whether its server is one of this backend's.
    pub(super) fn is_of(&self, pool: &Pool) -> bool {
        self.lease.is_of(pool)
    }

    /// Stays with its server where that is there and up in the `pool` of this `generation`, and has not refused what it
    /// was sent last; else takes another. A server that has refused is kept if there is no other. Returns whether the
    /// session has another socket now.
    ///
    /// # Errors
    /// Why the client's datagram is dropped, and the session is over.
    pub(super) fn settle(
        &mut self,
        parties: Parties,
        pool: &Arc<Pool>,
        generation: u64,
    ) -> Result<bool, Counter> {
        let is_up = self.generation == generation || self.lease.keep_in(pool);
        self.generation = generation;
        let refused = std::mem::take(&mut self.refused);
        if is_up && !refused {
            return Ok(false);
        }
        let tried = if is_up { vec![self.lease.index()] } else { Vec::new() };
        let found = self.seat.find_server(parties, pool, tried);
        if is_up && found.is_err() {
            return Ok(false);
        }
        self.count_overruns();
        let (mut lease, socket) = found?;
        lease.go_on(&mut self.lease);
        self.server = lease.server().config.addr_for(parties.vip.port());
        (self.lease, self.socket) = (lease, socket);
        if refused {
            self.lease.count(Counter::Retries, 1);
        }
        Ok(true)
    }

    /// The server has answered.
    pub(super) fn answered(&self) {
        self.lease.succeeded();
    }

    /// The server cannot be reached, or says that nobody is there.
    pub(super) fn on_refusal(&mut self, parties: Parties, error: &io::Error) {
        let Parties { client, vip } = parties;
        debug!("{client} -> {vip}/udp: server {} refuses: {error}", self.server());
        self.lease.failed(error, Protocol::Udp, &self.seat.context.shared.failures);
        self.refused = true;
    }

    /// The client has sent again after an answer.
    pub(super) fn become_stream(&mut self) {
        self.seat.become_stream();
    }

    /// Counts at the frontend and the server.
    pub(super) fn count(&self, counter: Counter, n: u64) {
        self.seat.count(counter, n);
        self.lease.count(counter, n);
    }

    /// Ends it, for a reason if it is an early end.
    pub(super) fn end(mut self, reason: Option<Counter>) {
        self.ended = true;
        if let Some(reason) = reason {
            self.seat.count(reason, 1);
        }
    }

    fn count_overruns(&self) {
        match socket::overruns(&self.socket) {
            0 => {}
            n => self.seat.count(Counter::DroppedOverrun, n.into()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.count_overruns();
        if !self.ended {
            self.seat.count(Counter::Cut, 1);
        }
    }
}

/// A session's place at its frontend, and among all sessions.
struct Seat {
    frontend: Arc<Frontend>,
    totals: Arc<Traffic>,
    context: Arc<Context>,
    open: bool,
    /// How the client came here, if it is one of ours.
    path: Option<Arc<Path>>,
    /// Among its client's sessions.
    counted: Counted,
    /// Whether it gives way to any new one.
    is_question: bool,
}

impl Seat {
    fn take(
        client: SocketAddr,
        path: Option<Arc<Path>>,
        frontend: &Arc<Frontend>,
        context: &Arc<Context>,
    ) -> Result<Seat, Counter> {
        let shared = &context.shared;
        let connections = context.connections_left();
        let most = shared.udp_sessions.most(shared.descriptors.connections());
        let left = shared.udp_sessions.left(most, connections);
        let counted = match shared.clients.count(client.ip(), frontend, left) {
            Some(counted) => counted,
            None => return Err(Counter::DroppedClientLimit),
        };
        if !shared.udp_sessions.leave(connections) || !shared.udp_sessions.open.try_take(Some(most)) {
            return Err(Counter::DroppedNoResources);
        }
        if !frontend.live.slots.try_take(frontend.config.max_connections) {
            context.shared.udp_sessions.open.release();
            return Err(Counter::DroppedFull);
        }
        frontend.live.questions.try_take(None);
        shared.udp_sessions.questions.try_take(None);
        let totals = context.shared.snapshot.load().totals.clone();
        let (frontend, context) = (frontend.clone(), context.clone());
        Ok(Seat { frontend, totals, context, open: false, path, counted, is_question: true })
    }

    /// A server that is none of those tried, and a socket that is connected to it.
    fn find_server(
        &self,
        parties: Parties,
        pool: &Arc<Pool>,
        mut tried: Vec<usize>,
    ) -> Result<(Lease, UdpSocket), Counter> {
        for _ in 0..ATTEMPTS {
            let mut lease = match pool.pick(parties.client, parties.vip, &tried) {
                // `None`: another worker took the last slot since the pick.
                Pick::Server(index) => match Lease::take(pool, index, self.context.core, Instant::now()) {
                    Some(lease) => lease,
                    None => continue,
                },
                Pick::Busy => return Err(Counter::DroppedFull),
                Pick::Nobody => return Err(Counter::DroppedNoServer),
            };
            let server = lease.server().config.addr_for(parties.vip.port());
            match socket::connect(server) {
                Ok(socket) => {
                    let (own, frontend) = (&self.context.shared.own_sockets, self.frontend.live.id);
                    lease.note(own.note(Protocol::Udp, &socket, server, frontend, self.path.as_ref()));
                    lease.opened();
                    return Ok((lease, socket));
                }
                Err(error) if is_shortage(&error) || error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Counter::DroppedNoResources); // "would block": no port is left
                }
                Err(error) => {
                    lease.failed(&error, Protocol::Udp, &self.context.shared.failures);
                    tried.push(lease.index());
                }
            }
        }
        Err(Counter::DroppedNoServer)
    }

    fn become_stream(&mut self) {
        if std::mem::take(&mut self.is_question) {
            self.frontend.live.questions.release();
            self.context.shared.udp_sessions.questions.release();
            self.counted.become_stream();
        }
    }

    fn opened(&mut self) {
        self.open = true;
        self.count(Counter::Opened, 1);
    }

    fn count(&self, counter: Counter, n: u64) {
        self.frontend.live.traffic.add(self.context.core, counter, n);
        self.totals.add(self.context.core, counter, n);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.open {
            self.count(Counter::Closed, 1);
        }
        if self.is_question {
            self.frontend.live.questions.release();
            self.context.shared.udp_sessions.questions.release();
        }
        self.frontend.live.slots.release();
        self.context.shared.udp_sessions.open.release();
    }
}
