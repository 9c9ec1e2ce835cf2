//! Relay of UDP datagrams between the clients of one listening socket and their servers.

mod begin;
mod handover;
mod list;

pub(crate) use list::{kill, list};

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use log::warn;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::by_source;
use super::inbound::Inbound;
use super::refusals::{Refusal, Refusals};
use super::send::{Destination, Run, is_refusal};
use super::session::UdpSession;
use super::socket::{self, BUFFERS, Datagrams, ReceiveBuffers};
use super::sockets::Listening;
use super::table::{SessionKey, SessionTable};
use crate::context::WorkerContext;
use crate::header_error::HeaderError;
use crate::traced;
use convey_model::{Endpoint, Protocol, Timestamp};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Snapshot};
use convey_upstream::{Attempts, PickContext};

/// Upper bound of the sessions with answers that one epoll call returns.
const EVENTS: usize = 64;

thread_local! {
    /// UDP sessions of one worker. All addresses of the worker share one table, so that a session
    /// of one address can evict a session of another address.
    static SESSIONS: RefCell<SessionTable<UdpSession>> = RefCell::new(SessionTable::new(fastrand::u32(..)));
}

/// Snapshot and time of a batch of datagrams.
#[derive(Clone, Copy)]
struct BatchContext<'a> {
    snapshot: &'a Snapshot,
    now: Timestamp,
}

/// UDP relay of one worker for one listen address.
pub(super) struct Relay {
    vip: SocketAddr,
    context: Arc<WorkerContext>,
    listening: Listening,
    /// Number of the listen address in the table of sessions.
    address: usize,
    /// Whether the listener drains, so that no new sessions begin.
    pub(super) drains: bool,
    /// Frontend of the address, from the last snapshot that contains it.
    frontend: Option<Arc<Frontend>>,
    generation: u64,
    idle: Duration,
    /// Last destination address that is neither broadcast nor multicast. Most clients send to the
    /// same address, so this cache avoids repeated checks.
    asked: Option<IpAddr>,
    /// Last seen value of the socket's counter of dropped datagrams.
    overruns: u32,
    /// Refused datagrams without a valid PROXY header, for the log.
    refusals: Refusals,
    /// Buffer for the PROXY header that precedes a datagram to a server.
    header: Vec<u8>,
}

impl Relay {
    /// Creates a relay without sessions, for a socket that is bound to `vip`. Call this function in
    /// the worker's thread.
    pub(super) fn new(vip: SocketAddr, listening: Listening, context: Arc<WorkerContext>) -> Relay {
        Relay {
            vip,
            context,
            overruns: socket::overruns(listening.socket()),
            listening,
            address: SESSIONS.with_borrow_mut(SessionTable::open),
            drains: false,
            frontend: None,
            generation: 0,
            idle: Duration::MAX,
            asked: None,
            refusals: Refusals::default(),
            header: Vec::new(),
        }
    }

    /// Whether the address has no sessions.
    pub(super) fn is_empty(&self) -> bool {
        SESSIONS.with_borrow(|sessions| sessions.is_empty(self.address))
    }

    /// Ends the sessions that have been idle for the idle timeout or for `at_most`, whichever is
    /// shorter. Returns the shorter time.
    pub(super) fn expire(&mut self, at_most: Duration) -> Duration {
        self.load_snapshot();
        let (idle, now) = (self.idle.min(at_most), self.now());
        SESSIONS.with_borrow_mut(|sessions| {
            while let Some(over) = sessions.expire(self.address, idle, now) {
                over.end(None);
            }
        });
        idle
    }

    /// Counts the datagrams that the socket has dropped since the last call.
    pub(super) fn count_overruns(&mut self) {
        let overruns = socket::overruns(self.listening.socket());
        self.dropped(Counter::DroppedOverrun, overruns.wrapping_sub(self.overruns).into());
        self.overruns = overruns;
    }

    /// Receives a batch of datagrams from clients, and sends them to servers. Returns `false` if
    /// more datagrams may be waiting.
    pub(super) fn forward(&mut self) -> bool {
        let snapshot = self.load_snapshot();
        let moment = BatchContext { snapshot: &snapshot, now: self.now() };
        BUFFERS.with_borrow_mut(|batch| {
            let Ok(received) = batch.receive(self.listening.state(), self.listening.socket()) else {
                return true;
            };
            let mut taken = 0;
            for datagrams in received {
                taken += 1;
                SESSIONS.with_borrow_mut(|sessions| self.forward_all(sessions, datagrams, moment));
            }
            taken < ReceiveBuffers::SIZE
        })
    }

    /// Receives a batch of datagrams from servers, and sends them to clients. Returns `false` if
    /// more datagrams may be waiting.
    pub(super) fn answer(&mut self) -> bool {
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let at_once = Timespec::default();
        let Ok((events, _)) = epoll::wait(self.listening.answers(), &mut room, Some(&at_once)) else {
            return true;
        };
        let now = self.now();
        let mut is_all = events.len() < EVENTS;
        SESSIONS.with_borrow_mut(|sessions| {
            for event in &*events {
                is_all &= self.answer_one(sessions, event.data.u64() as usize, now);
            }
        });
        is_all
    }

    /// Forwards the datagrams of one sender: a client, or a proxy with several clients.
    fn forward_all(
        &mut self,
        sessions: &mut SessionTable<UdpSession>,
        datagrams: Datagrams<'_>,
        moment: BatchContext<'_>,
    ) {
        let frontend = self.frontend.as_ref();
        let accepts = frontend.is_some_and(|frontend| frontend.config.accept_proxy);
        let sends = frontend.is_some_and(|frontend| frontend.pool.config.send_proxy.is_some());
        if !accepts && !sends {
            if let Err(reason) = self.forward_one(sessions, Inbound::of(datagrams), moment) {
                self.refuse(datagrams.meta.addr, reason, (datagrams.count(), moment));
            }
            return;
        }
        // With headers, each datagram is sent alone. If several were sent together and one failed,
        // a retry would send the first ones twice.
        for datagram in datagrams.split() {
            let inbound = if accepts { self.behind_header(datagram) } else { Ok(Inbound::of(datagram)) };
            let client = inbound.as_ref().map_or(datagram.meta.addr, |inbound| inbound.key(None).client);
            if let Err(reason) = inbound.and_then(|inbound| self.forward_one(sessions, inbound, moment)) {
                self.refuse(client, reason, (1, moment));
            }
        }
    }

    /// Parses the PROXY header of a datagram, if its sender is a trusted proxy.
    fn behind_header<'a>(&mut self, datagram: Datagrams<'a>) -> Result<Inbound<'a>, Counter> {
        let Some(frontend) = &self.frontend else { return Err(Counter::DroppedDraining) };
        let peer = datagram.meta.addr.ip();
        let is_trusted = frontend.config.trusts_proxy(peer);
        let inbound = if is_trusted { Inbound::behind_header(datagram) } else { Err(HeaderError::Untrusted) };
        inbound.map_err(|why| {
            self.refusals.add(peer, why);
            why.drop_reason()
        })
    }

    /// Logs the datagrams that were refused since the previous call because of their PROXY header.
    pub(super) fn log_refused_headers(&mut self) {
        let Some(frontend) = &self.frontend else { return };
        let told = self.refusals.take(frontend.live.id, &self.context.shared.lines);
        for (Refusal { peer, why, .. }, untold) in told.into_iter().flatten() {
            warn!("{}/udp: dropped a datagram of {peer} (accept_proxy): {why}{untold}", self.vip);
        }
    }

    fn forward_one(
        &mut self,
        sessions: &mut SessionTable<UdpSession>,
        inbound: Inbound<'_>,
        moment: BatchContext<'_>,
    ) -> Result<(), Counter> {
        let mut attempts = Attempts::default();
        let datagrams = inbound.datagrams;
        let asked = datagrams.meta.dst_ip.filter(|_| self.vip.ip().is_unspecified());
        let key = inbound.key(asked);
        let number = match sessions.find(self.address, &key) {
            Some(number) => {
                if sessions.sent(number, moment.now)
                    && let Some((_, session)) = sessions.get_mut(number)
                {
                    session.become_stream();
                }
                number
            }
            None => self.begin(sessions, (key, datagrams.bytes), moment, &mut attempts)?,
        };
        let mut is_too_long = false;
        while !attempts.are_over() {
            self.keep_or_replace_server(sessions, number, &mut attempts)?;
            let Some((_, session)) = sessions.get_mut(number) else { break };
            self.header.clear();
            if let Some(version) = session.send_proxy() {
                inbound.write_header(version, self.vip, &mut self.header);
            }
            match Run::of(datagrams).send(
                &self.header,
                session.socket(),
                Destination::Server(session.server()),
            ) {
                Ok(()) => {
                    session.count(Counter::PacketsRx, datagrams.count());
                    session.count(Counter::BytesRx, datagrams.bytes.len() as u64);
                    return Ok(());
                }
                // A router has reported an earlier datagram as too long, and the kernel has not
                // sent the current one: retry. Or the current datagram is too long for any path:
                // the retry fails, too.
                Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                    is_too_long = true;
                    attempts.repeat();
                }
                Err(error) if is_refusal(&error) => {
                    is_too_long = false;
                    session.refused(&error, Some(&mut attempts));
                }
                Err(_) => return Err(Counter::DroppedUnsent),
            }
        }
        Err(if is_too_long { Counter::DroppedUnsent } else { Counter::DroppedNoServer })
    }

    /// Moves the session to another server if its server is down or has refused a datagram. If the
    /// session gets no server, ends it.
    fn keep_or_replace_server(
        &self,
        sessions: &mut SessionTable<UdpSession>,
        number: usize,
        attempts: &mut Attempts,
    ) -> Result<(), Counter> {
        let (Some(frontend), Some((_, session))) = (&self.frontend, sessions.get_mut(number)) else {
            return Ok(());
        };
        match session.keep_or_replace_server(frontend, self.generation, attempts) {
            Ok(false) => Ok(()),
            Ok(true) => self.listen_to(sessions, number),
            Err(reason) => {
                fail(sessions, number, reason);
                Err(reason)
            }
        }
    }

    /// Adds the session's socket to the epoll instance for answers. If that fails, ends the
    /// session.
    fn listen_to(&self, sessions: &mut SessionTable<UdpSession>, number: usize) -> Result<(), Counter> {
        let Some((_, session)) = sessions.get_mut(number) else { return Ok(()) };
        let event = EventData::new_u64(number as u64);
        if epoll::add(self.listening.answers(), session.socket(), event, EventFlags::IN).is_err() {
            fail(sessions, number, Counter::DroppedNoResources);
            return Err(Counter::DroppedNoResources);
        }
        Ok(())
    }

    /// Receives a batch of answers for one session, and sends them to its client. Returns `false`
    /// if more answers may be waiting.
    fn answer_one(&self, sessions: &mut SessionTable<UdpSession>, number: usize, now: Timestamp) -> bool {
        let Some((key, session)) = sessions.get_mut(number) else { return true };
        let (socket, to) = (self.listening.socket(), Destination::Client(key.peer(), key.asked));
        let mut taken = 0;
        let heard = BUFFERS.with_borrow_mut(|batch| {
            let mut received = batch.receive(self.listening.state(), session.socket())?.peekable();
            while let Some(first) = received.next() {
                let mut run = Run::of(first);
                taken += 1;
                while received.next_if(|datagrams| run.try_push(*datagrams)).is_some() {
                    taken += 1;
                }
                let (counter, bytes) = match run.send(&[], socket, to) {
                    Ok(()) => (Counter::PacketsTx, run.bytes()),
                    Err(_) => (Counter::DroppedUnsent, 0),
                };
                session.count(counter, run.count());
                session.count(Counter::BytesTx, bytes);
            }
            io::Result::Ok(())
        });
        match heard {
            Ok(()) => {
                session.answered();
                sessions.answered(number, now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Other errors come from routers and concern the path, for example its MTU. The
                // kernel has already handled them.
                if is_refusal(&error) {
                    session.refused(&error, None);
                }
                return false; // answers may have come before
            }
        }
        taken < ReceiveBuffers::SIZE
    }

    /// Counts and traces dropped datagrams of a client.
    fn refuse(&self, client: SocketAddr, reason: Counter, (n, moment): (u64, BatchContext<'_>)) {
        self.dropped(reason, n);
        if let Some(frontend) = self.frontend.as_ref().filter(|_| self.context.shared.trace.is_watched()) {
            let downstream = self.downstream(SessionKey { client, via: None, asked: None }, moment.now);
            traced::publish(&self.context, &downstream, frontend, None, traced::drops(reason));
        }
    }

    fn dropped(&self, reason: Counter, n: u64) {
        if let (Some(frontend), 1..) = (&self.frontend, n) {
            frontend.live.traffic.add(self.context.core, reason, n);
        }
    }

    /// Loads the newest snapshot, and updates the frontend and the idle timeout if the snapshot has
    /// changed. Called once for each batch.
    fn load_snapshot(&mut self) -> Guard<Arc<Snapshot>> {
        let snapshot = self.context.snapshot();
        if snapshot.generation == self.generation {
            return snapshot;
        }
        self.generation = snapshot.generation;
        if let Some(frontend) = snapshot.listener(&Endpoint::udp(self.vip)) {
            let before = self.frontend.replace(frontend.clone());
            self.end_denied(before.as_deref(), frontend);
            let table = |frontend: &Frontend| frontend.sources.as_ref().map(Arc::as_ptr);
            if before.is_some_and(|before| table(&before) != table(frontend)) {
                SESSIONS.with_borrow_mut(|all| by_source::count_open(all, self.address, frontend));
            }
        }
        let own = self.frontend.as_ref().map(|frontend| snapshot.timeouts_of(frontend));
        self.idle = own.unwrap_or(snapshot.timeouts).udp_idle;
        snapshot
    }

    /// Ends the sessions of clients that the access list now denies.
    fn end_denied(&self, before: Option<&Frontend>, now: &Frontend) {
        let access = &now.config.access;
        if before.is_none_or(|before| before.config.access == *access) {
            return;
        }
        let denied = |key: &SessionKey| !access.admits(key.client.ip());
        let ended = SESSIONS.with_borrow_mut(|sessions| sessions.remove_where(self.address, denied));
        ended.into_iter().for_each(|session| session.end(Some(Counter::AccessDenied)));
    }

    fn downstream(&self, SessionKey { client, via, .. }: SessionKey, now: Timestamp) -> PickContext {
        let began = self.context.shared.started + Duration::from_nanos(now.0);
        let proxy = via.filter(|proxy| *proxy != client);
        let (vip, core) = (self.vip, self.context.core);
        PickContext { client, proxy, vip, protocol: Protocol::Udp, core, began, request: None }
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.context.shared.started.elapsed().as_nanos() as u64)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(SESSIONS.with_borrow_mut(|sessions| sessions.close(self.address)));
    }
}

/// Ends a session because a datagram of its client could not be forwarded.
fn fail(sessions: &mut SessionTable<UdpSession>, number: usize, reason: Counter) {
    if let Some(session) = sessions.remove(number) {
        session.fail(reason);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use tokio::runtime::Handle;

    use super::super::sockets::UdpSockets;
    use super::*;
    use crate::Reserved;
    use crate::context::tests::{LOADS, context};
    use convey_snapshot::fixture;

    #[tokio::test]
    async fn a_batch_loads_the_snapshot_once_however_many_sessions_begin() {
        let [server, vip] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (at_server, at_vip) = (server.local_addr().unwrap(), vip.local_addr().unwrap());
        drop(vip);
        let pool = fixture::pool("dns", vec![(fixture::server("a", &at_server.to_string()), fixture::up())]);
        let mut frontend = Arc::into_inner(fixture::frontend("dns", &[&at_vip.to_string()], &pool)).unwrap();
        frontend.config.protocol = Protocol::Udp;
        let snapshot = fixture::snapshot(vec![Arc::new(frontend)], vec![pool]);
        let snapshot = Snapshot { generation: 1, ..snapshot };
        let sockets =
            UdpSockets::bind(at_vip, [&Handle::current()], [], 65_536, Reserved::default()).unwrap();
        let mut relay = Relay::new(at_vip, sockets.split().next().unwrap(), context(snapshot));
        let clients = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        clients.iter().for_each(|client| _ = client.send_to(b"who?", at_vip).unwrap());
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        LOADS.set(0);
        assert!(relay.forward());
        assert_eq!(LOADS.get(), 1);
        let mut heard = [0; 9];
        (0..3).for_each(|_| assert_eq!(server.recv(&mut heard).unwrap(), 4));
    }
}
