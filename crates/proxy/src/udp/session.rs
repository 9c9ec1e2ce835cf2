//! UDP session of one client: its slot, its permit for a server, and the socket that is connected
//! to the server.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use log::debug;

use super::slot::SessionSlot;
use super::socket;
use crate::own_sockets::OwnSocket;
use crate::session_record::{ClientFacts, SessionRecord, ending_for};
use crate::traced;
use convey_access_log::{Ending, Termination};
use convey_model::{FlowServer, ProxyVersion};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Pool, WorkerArc};
use convey_trace::ConnectionStep;
use convey_upstream::{Attempts, Permit, PickContext, Unavailable};

/// UDP session of one client, counted as open from its beginning. A drop without `end`, `leave` or
/// `fail` counts as a cut session.
pub(super) struct UdpSession {
    upstream: Upstream,
    slot: SessionSlot,
    downstream: PickContext,
    /// Generation of the snapshot in which the server was last looked up.
    generation: u64,
    /// Whether the server has refused the last datagram.
    is_refused: bool,
    ended: bool,
    /// Kind and reason of the end, once the session has ended.
    ending: Option<Ending>,
    /// Record for the access log and for traces; `None` if neither needs it.
    record: Option<Box<SessionRecord>>,
    /// Number of bytes from the client, and to the client.
    bytes: [Cell<u64>; 2],
}

/// Server of a session, and the socket that is connected to the server.
struct Upstream {
    socket: UdpSocket,
    /// Address of the server.
    server: SocketAddr,
    permit: Permit,
    _own: Option<OwnSocket>,
}

impl UdpSession {
    /// Opens the session of a client that has a `slot`: picks a server and connects a socket to it.
    /// If `datagram`, the client's first, is a QUIC packet whose connection id contains a server
    /// id, picks that server first. `generation` is the generation of the snapshot.
    ///
    /// # Errors
    /// Reason why the datagram is dropped.
    pub(super) fn open(
        downstream: PickContext,
        mut slot: SessionSlot,
        generation: u64,
        datagram: &[u8],
        attempts: &mut Attempts,
    ) -> Result<UdpSession, Counter> {
        let pool = slot.pool_of(&slot.frontend);
        let named = pool.named_by(datagram).and_then(|index| Permit::take(&pool, index, &downstream));
        let upstream = connect(&downstream, &slot, &pool, (named, attempts))?;
        slot.opened();
        Ok(UdpSession::new(upstream, slot, downstream, generation))
    }

    /// Restores a session that another process has handed over. Returns `None` if its server is
    /// gone. `generation` is the generation of the snapshot.
    pub(super) fn known(
        downstream: PickContext,
        mut slot: SessionSlot,
        generation: u64,
        server: SocketAddr,
        socket: UdpSocket,
    ) -> Option<UdpSession> {
        let mut permit = Permit::at(&slot.pool_of(&slot.frontend), server, &downstream)?;
        let _own = slot.record_own_socket(&socket, server);
        permit.opened();
        slot.opened();
        let upstream = Upstream { socket, server, permit, _own };
        Some(UdpSession::new(upstream, slot, downstream, generation))
    }

    fn new(upstream: Upstream, slot: SessionSlot, downstream: PickContext, generation: u64) -> UdpSession {
        let mut record = slot.record(downstream.began);
        if let Some(record) = &mut record {
            record.moves_to(&upstream.permit, upstream.server);
        }
        let (is_refused, ended, ending) = (false, false, None);
        let bytes = Default::default();
        let session =
            UdpSession { upstream, slot, downstream, generation, is_refused, ended, ending, record, bytes };
        session.trace(ConnectionStep::Begun);
        session
    }

    /// Sends a step of the session to the trace subscribers.
    fn trace(&self, step: ConnectionStep) {
        self.slot.trace(&self.downstream, self.upstream.permit.server().live.id, step);
    }

    /// Socket towards the server.
    pub(super) fn socket(&self) -> &UdpSocket {
        &self.upstream.socket
    }

    /// Address of the server.
    pub(super) fn server(&self) -> SocketAddr {
        self.upstream.server
    }

    /// Server of the session, for lists of sessions.
    pub(super) fn flow_server(&self) -> FlowServer<'_> {
        let Upstream { permit, server, .. } = &self.upstream;
        let (backend, live) = (permit.backend(), &permit.server().live);
        FlowServer { id: live.id, backend, name: &live.name, addr: *server }
    }

    /// Address that the client sent to.
    pub(super) fn vip(&self) -> SocketAddr {
        self.downstream.vip
    }

    /// Number of bytes from the client, and to the client.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [self.bytes[0].get(), self.bytes[1].get()]
    }

    /// Version of the PROXY header that the server expects; `None` if it expects no header.
    pub(super) fn send_proxy(&self) -> Option<ProxyVersion> {
        self.upstream.permit.send_proxy()
    }

    /// Frontend of the session.
    pub(super) fn frontend(&self) -> &Frontend {
        &self.slot.frontend
    }

    /// Whether the session is counted at its source.
    pub(super) fn is_counted_at_source(&self) -> bool {
        self.slot.is_counted_at_source()
    }

    /// Counts the session in the frontend's current table of sources. Returns whether it is counted
    /// there.
    pub(super) fn count_at_source(&mut self, frontend: &Frontend) -> bool {
        self.slot.count_at_source(frontend, self.downstream.client.ip())
    }

    /// Whether the server belongs to this backend.
    pub(super) fn is_of(&self, pool: &Pool) -> bool {
        self.upstream.permit.is_of(pool)
    }

    /// Keeps the server of the session if the server is up and has not refused the last datagram.
    /// Otherwise picks another server. If no other server is available, keeps a server that is up,
    /// even though it has refused the datagram. Returns whether the session has a new server and
    /// socket.
    ///
    /// `generation` is the generation of the snapshot that `frontend` comes from.
    ///
    /// # Errors
    /// Reason why the caller must drop the client's datagram and end the session.
    pub(super) fn keep_or_replace_server(
        &mut self,
        frontend: &Arc<Frontend>,
        generation: u64,
        attempts: &mut Attempts,
    ) -> Result<bool, Counter> {
        let is_up =
            self.generation == generation || self.upstream.permit.keep_in(&self.slot.pool_of(frontend));
        self.generation = generation;
        let is_refused = std::mem::take(&mut self.is_refused);
        if is_up && !is_refused {
            return Ok(false);
        }
        if is_refused {
            attempts.pass_over(&self.upstream.permit);
        }
        let pool = self.slot.pool_of(frontend);
        let found = connect(&self.downstream, &self.slot, &pool, (None, attempts));
        if is_up && found.is_err() {
            return Ok(false);
        }
        self.count_overruns();
        let upstream = found?;
        self.upstream.permit.stop_timing();
        self.upstream = upstream;
        if let Some(record) = &mut self.record {
            record.moves_to(&self.upstream.permit, self.upstream.server);
        }
        self.trace(ConnectionStep::Moved);
        Ok(true)
    }

    /// Reports to the permit that the server has answered.
    pub(super) fn answered(&self) {
        self.upstream.permit.succeeded();
    }

    /// Records that the server is unreachable or has refused a datagram. `attempts` are the
    /// attempts of this datagram; `None` if the error concerns an earlier datagram.
    pub(super) fn refused(&mut self, error: &io::Error, attempts: Option<&mut Attempts>) {
        let PickContext { client, vip, .. } = self.downstream;
        let Upstream { permit, server, .. } = &self.upstream;
        debug!("{client} -> {vip}/udp: server {} ({server}) refuses: {error}", permit.name());
        self.trace(traced::connect_failed(error));
        let (permit, failures) = (&self.upstream.permit, self.slot.failures());
        match attempts {
            Some(attempts) => attempts.failed(permit, error, failures),
            None => permit.failed(error, failures),
        }
        self.is_refused = true;
    }

    /// Turns the session from a question into a stream, because the client has sent again after an
    /// answer.
    pub(super) fn become_stream(&mut self) {
        self.slot.become_stream();
    }

    /// Adds `n` to a counter of the frontend and of the server.
    pub(super) fn count(&self, counter: Counter, n: u64) {
        self.slot.count(counter, n);
        self.upstream.permit.count(counter, n);
        match counter {
            Counter::BytesRx => self.bytes[0].update(|bytes| bytes + n),
            Counter::BytesTx => self.bytes[1].update(|bytes| bytes + n),
            _ => {}
        }
        match (&self.record, counter) {
            (Some(record), Counter::BytesRx) => record.count(n, 0),
            (Some(record), Counter::BytesTx) => record.count(0, n),
            _ => {}
        }
    }

    /// Ends the session. `reason` is `None` if the session has expired as usual.
    pub(super) fn end(mut self, reason: Option<Counter>) {
        self.ended = true;
        self.ending = Some(ending_for(reason, Termination::Expired));
        if let Some(reason) = reason {
            self.slot.count(reason, 1);
        }
    }

    /// Ends the session in this process, because the session continues in another process.
    pub(super) fn leave(mut self) {
        self.ended = true;
        self.ending = Some(Ending::usual(Termination::Left));
    }

    /// Ends the session because a datagram of its client could not be forwarded for this reason.
    pub(super) fn fail(mut self, reason: Counter) {
        self.ended = true;
        self.ending = Some(Ending::early(Termination::Refused, reason.drop_label()));
    }

    fn count_overruns(&self) {
        match socket::overruns(self.socket()) {
            0 => {}
            n => self.slot.count(Counter::DroppedOverrun, n.into()),
        }
    }
}

impl Drop for UdpSession {
    fn drop(&mut self) {
        self.count_overruns();
        if !self.ended {
            self.slot.count(Counter::Cut, 1);
        }
        let ending = self.ending.unwrap_or_else(|| ending_for(Some(Counter::Cut), Termination::Cut));
        if self.slot.is_traced() {
            let bytes = self.record.as_ref().map(|record| record.bytes());
            self.trace(traced::end(ending, bytes, &self.downstream));
        }
        if let Some(record) = self.record.take() {
            (*record).end(&self.downstream, &self.slot.frontend, ClientFacts::default(), ending);
        }
    }
}

/// Connects a socket to the `named` server. If `named` is `None` or the connect fails, picks a
/// server that has not yet failed in these attempts.
fn connect(
    downstream: &PickContext,
    slot: &SessionSlot,
    pool: &WorkerArc<Pool>,
    (mut named, attempts): (Option<Permit>, &mut Attempts),
) -> Result<Upstream, Counter> {
    loop {
        let permit = named.take().map_or_else(|| attempts.next(downstream, pool), Ok);
        let mut permit = permit.map_err(drop_reason)?;
        let server = permit.server().config.addr_for(downstream.vip.port());
        match socket::connect(server, permit.source_to(server)) {
            Ok(socket) => {
                let _own = slot.record_own_socket(&socket, server);
                permit.opened();
                return Ok(Upstream { socket, server, permit, _own });
            }
            Err(error) => {
                slot.log_source_error(&permit, &error);
                attempts.failed(&permit, &error, slot.failures());
            }
        }
    }
}

/// Counter for the drop of a datagram, if no server is available. For UDP, `NoLocalPort` means that
/// this host has no address towards the server: a lack of ports is `NoResources`, for which another
/// session is evicted.
fn drop_reason(unavailable: Unavailable) -> Counter {
    match unavailable {
        Unavailable::NoServer | Unavailable::Failed | Unavailable::NoLocalPort => Counter::DroppedNoServer,
        Unavailable::Full => Counter::DroppedFull,
        Unavailable::NoResources => Counter::DroppedNoResources,
    }
}
