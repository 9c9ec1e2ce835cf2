//! Worker threads of a process: their listen addresses, drain and stop.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::oneshot;

use super::context::WorkersShared;
use super::descriptors::{Descriptors, Reserved};
use super::handover::{self, HandedSession, HandedSockets};
use super::reaper::AdmittedPeers;
use super::worker::{self, ClientSocket, WorkerCommand, WorkerThread};
use super::{BindError, quic, socket, udp};
use convey_model::{Endpoint, Protocol};
use convey_snapshot::Frontend;

/// Worker threads of a process.
pub struct Workers {
    pub(super) threads: Vec<WorkerThread>,
    listening: BTreeSet<Endpoint>,
    /// UDP sockets by address. After an address is removed from the configuration, its sockets stay
    /// open until its last session has ended.
    in_use: HashMap<SocketAddr, SocketsInUse>,
    descriptors: Descriptors,
    /// Reserved descriptors of TCP sockets, by address. The reservations of UDP sockets are in the
    /// sockets themselves.
    reserved: HashMap<SocketAddr, Reserved>,
    /// Sockets that the previous process has handed over and that are not in use yet.
    pub(super) handed: HandedSockets,
    /// HTTP/3 endpoints whose ports another process has bound; convey retries them.
    late: quic::LatePlaces,
    /// Endpoints that use the sockets of the previous process.
    pub(super) taken: BTreeSet<Endpoint>,
}

/// New sockets that are bound but not served yet (the kernel queues their clients), and all wanted
/// endpoints. Input of [`Workers::close`] and [`Workers::open`].
pub struct PreparedSockets {
    new: Vec<(Endpoint, ListeningSockets)>,
    late: Vec<quic::LatePlace>,
    wanted: BTreeSet<Endpoint>,
}

/// Sockets of one endpoint: one for each worker.
enum ListeningSockets {
    Tcp(Vec<std::net::TcpListener>, Reserved),
    Udp(Arc<udp::UdpSockets>),
    Quic(Arc<quic::QuicSockets>),
}

/// UDP sockets that may be in use, for sessions or for HTTP/3.
enum SocketsInUse {
    Udp(Weak<udp::UdpSockets>),
    Quic(Weak<quic::QuicSockets>),
}

impl SocketsInUse {
    fn upgrade(&self) -> Option<ListeningSockets> {
        match self {
            SocketsInUse::Udp(sockets) => sockets.upgrade().map(ListeningSockets::Udp),
            SocketsInUse::Quic(sockets) => sockets.upgrade().map(ListeningSockets::Quic),
        }
    }

    fn are_closed(&self) -> bool {
        self.upgrade().is_none()
    }
}

/// Error message: an address cannot change from UDP datagrams to HTTP/3, or back.
const OTHER_KIND: &str = "a reload cannot change the address between UDP and HTTP/3, because clients would get each other's packets: restart convey";

impl PreparedSockets {
    /// Endpoints whose new sockets are bound but not served yet.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.new.iter().map(|(at, _)| *at)
    }
}

impl Workers {
    /// Starts a thread for each column of the counters. The threads do not listen yet.
    pub fn start(shared: &WorkersShared) -> io::Result<Self> {
        let threads = shared.columns.clone().map(|core| worker::start(core, shared.clone()));
        let threads = threads.collect::<io::Result<_>>()?;
        let descriptors = shared.descriptors.clone();
        let (listening, in_use, reserved) = Default::default();
        let (handed, late, taken) = Default::default();
        Ok(Workers { threads, listening, in_use, descriptors, reserved, handed, late, taken })
    }

    /// Number of descriptors that `workers` threads need to listen at these endpoints.
    pub fn descriptors<'a>(at: impl IntoIterator<Item = &'a Endpoint>, workers: usize) -> u64 {
        // Each UDP socket also has an epoll instance.
        let of_one = |at: &Endpoint| if at.protocol == Protocol::Udp { 2 } else { 1 };
        at.into_iter().map(of_one).sum::<u64>() * workers as u64
    }

    /// Number of additional descriptors that are needed to listen at the wanted endpoints.
    pub fn missing(&self, wanted: &BTreeSet<Endpoint>) -> u64 {
        Self::descriptors(wanted.difference(&self.listening), self.threads.len())
    }

    /// Binds the wanted endpoints that have no sockets yet: one socket for each worker. Uses the
    /// sockets that another process has handed over, if there are any. After an error no new
    /// endpoint stays bound.
    ///
    /// The UDP endpoints in `quic` serve HTTP/3. If the port of such an endpoint is taken, convey
    /// retries the bind later, because HTTP clients can use TCP meanwhile.
    pub fn prepare(
        &mut self,
        wanted: &BTreeSet<Endpoint>,
        quic: &HashSet<Endpoint>,
    ) -> Result<PreparedSockets, BindError> {
        self.note_late();
        self.in_use.retain(|_, sockets| !sockets.are_closed());
        let is_other = |at: &&Endpoint| {
            let in_use = self.in_use.get(&at.addr).filter(|_| at.protocol == Protocol::Udp);
            in_use.is_some_and(|sockets| matches!(sockets, SocketsInUse::Quic(_)) != quic.contains(at))
        };
        if let Some(at) = wanted.iter().find(is_other) {
            return Err(BindError { at: *at, cause: io::Error::other(OTHER_KIND) });
        }
        let (mut new, mut late): (Vec<(Endpoint, _)>, _) = (Vec::new(), Vec::new());
        let of_udp = wanted.iter().filter(|at| at.protocol == Protocol::Udp).count();
        let receive_buffer = udp::receive_buffer(of_udp);
        for at in wanted.difference(&self.listening) {
            if self.late.has(at) {
                continue;
            }
            let handed = self.handed.keys().chain(&self.taken);
            let listening = self.listening.iter().chain(handed).copied().chain(new.iter().map(|(at, _)| *at));
            let ours = listening.filter(|other| other.protocol == at.protocol).map(|other| other.addr);
            let ours: Vec<SocketAddr> = ours.collect();
            let handed = self.handed.remove(at).unwrap_or_default();
            if !handed.is_empty() {
                self.taken.insert(*at);
            }
            let ours = ours.into_iter();
            let is_quic = quic.contains(at);
            match self.bind(*at, (is_quic, receive_buffer), handed, ours) {
                Ok(sockets) => new.push((*at, sockets)),
                Err(error) if is_quic && error.kind() == io::ErrorKind::AddrInUse => {
                    late.push(quic::LatePlace { at: *at, receive_buffer });
                }
                Err(cause) => return Err(BindError { at: *at, cause }),
            }
        }
        Ok(PreparedSockets { new, late, wanted: wanted.clone() })
    }

    /// Records the HTTP/3 endpoints that were bound late, after another process had freed their
    /// ports.
    fn note_late(&mut self) {
        for (at, sockets) in self.late.take_begun() {
            self.in_use.insert(at.addr, SocketsInUse::Quic(sockets));
            self.listening.insert(at);
        }
    }

    /// Binds one endpoint, or takes its `handed` sockets. A UDP endpoint serves HTTP/3 if `is_quic`
    /// is set; `receive_buffer` is in bytes. `ours` are the addresses that this process has bound.
    fn bind(
        &self,
        at: Endpoint,
        (is_quic, receive_buffer): (bool, usize),
        handed: Vec<OwnedFd>,
        ours: impl Iterator<Item = SocketAddr>,
    ) -> io::Result<ListeningSockets> {
        let reserved = self.descriptors.reserve(Self::descriptors([&at], self.threads.len()));
        if at.protocol == Protocol::Tcp {
            return Ok(ListeningSockets::Tcp(
                socket::listen(at.addr, self.threads.len(), handed, ours)?,
                reserved,
            ));
        }
        let runtimes = self.threads.iter().map(|worker| &worker.runtime);
        if !handed.is_empty() {
            return Ok(match is_quic {
                true => ListeningSockets::Quic(quic::QuicSockets::take(handed, runtimes, reserved)?),
                false => ListeningSockets::Udp(udp::UdpSockets::take(handed, runtimes, reserved)?),
            });
        }
        // Reuses the old sockets: the kernel would distribute the datagrams of open sessions over
        // old and new sockets.
        if let Some(in_use) = self.in_use.get(&at.addr).and_then(SocketsInUse::upgrade) {
            return Ok(in_use);
        }
        let ours = ours.chain(self.in_use.keys().copied());
        let (addr, size) = (at.addr, receive_buffer);
        Ok(match is_quic {
            true => ListeningSockets::Quic(quic::QuicSockets::bind(addr, runtimes, ours, size, reserved)?),
            false => ListeningSockets::Udp(udp::UdpSockets::bind(addr, runtimes, ours, size, reserved)?),
        })
    }

    /// Closes the endpoints that are no longer wanted, and returns when they are closed. convey
    /// still serves the clients in their accept queues. Established TCP connections continue. UDP
    /// sessions continue for at most `patience`, because they have no visible end.
    pub async fn close(&mut self, ready: &PreparedSockets, patience: Duration) {
        let mut closed = Vec::new();
        self.late.retain(&ready.wanted);
        self.note_late();
        let gone: Vec<Endpoint> = self.listening.difference(&ready.wanted).copied().collect();
        for WorkerThread { commands, .. } in &self.threads {
            let (done, is_done) = oneshot::channel();
            let _ = commands.send(WorkerCommand::Close { places: gone.clone(), patience, done });
            closed.push(is_done);
        }
        for is_done in closed {
            let _ = is_done.await;
        }
        self.listening.retain(|at| !gone.contains(at));
        let of_tcp = gone.iter().filter(|at| at.protocol == Protocol::Tcp);
        of_tcp.for_each(|at| drop(self.reserved.remove(&at.addr)));
    }

    /// Starts to accept at the new endpoints, and continues the UDP `sessions` that another process
    /// has begun there.
    pub fn open(&mut self, ready: PreparedSockets, sessions: Vec<HandedSession>) {
        let mut sessions = handover::by_listener(sessions);
        for (at, sockets) in ready.new {
            let sockets: Vec<ClientSocket> = match sockets {
                ListeningSockets::Tcp(sockets, reserved) => {
                    self.reserved.insert(at.addr, reserved);
                    sockets.into_iter().map(ClientSocket::Tcp).collect()
                }
                ListeningSockets::Udp(sockets) => {
                    self.in_use.insert(at.addr, SocketsInUse::Udp(Arc::downgrade(&sockets)));
                    sockets.split().map(ClientSocket::Udp).collect()
                }
                ListeningSockets::Quic(sockets) => {
                    self.in_use.insert(at.addr, SocketsInUse::Quic(Arc::downgrade(&sockets)));
                    sockets.split().map(ClientSocket::Quic).collect()
                }
            };
            for ((number, worker), socket) in self.threads.iter().enumerate().cycle().zip(sockets) {
                let sessions = match at.protocol {
                    Protocol::Tcp => Vec::new(),
                    Protocol::Udp => sessions.remove(&(at.addr, number)).unwrap_or_default(),
                };
                let _ = worker.commands.send(WorkerCommand::Listen { addr: at.addr, socket, sessions });
            }
            self.listening.insert(at);
        }
        ready.late.into_iter().for_each(|place| self.late.add(place, &self.threads, &self.descriptors));
    }

    /// Ends the connections to the servers with these ids.
    pub(super) fn end_connections(&self, servers: &Arc<BTreeSet<u32>>) {
        for WorkerThread { commands, .. } in &self.threads {
            let _ = commands.send(WorkerCommand::EndConnections { servers: servers.clone() });
        }
    }

    /// Ends the open connections of clients that `access` denies; its keys are the ids of the
    /// frontends. New connections are checked by the snapshot.
    pub(super) fn end_denied(&self, access: &Arc<HashMap<u32, AdmittedPeers>>) {
        for WorkerThread { commands, .. } in &self.threads {
            let _ = commands.send(WorkerCommand::EndDenied { access: access.clone() });
        }
    }

    /// Counts the open connections to these frontends in the frontends' new tables of sources. New
    /// connections use the tables of the snapshot.
    pub(super) fn count_sources(&self, frontends: &Arc<[Arc<Frontend>]>) {
        for WorkerThread { commands, .. } in &self.threads {
            let _ = commands.send(WorkerCommand::CountSources { frontends: frontends.clone() });
        }
    }

    /// Stops accepting. The returned future waits until all open connections have ended. Call this
    /// function once.
    ///
    /// Another process has the sockets of the endpoints in `left`, and serves the clients in their
    /// accept queues.
    pub fn drain(&self, left: BTreeSet<Endpoint>) -> impl Future<Output = ()> + use<> {
        self.late.end();
        let (mut drained, left) = (Vec::new(), Arc::new(left));
        for WorkerThread { commands, .. } in &self.threads {
            let (done, is_done) = oneshot::channel();
            let _ = commands.send(WorkerCommand::Drain { left: left.clone(), done });
            drained.push(is_done);
        }
        async {
            for is_done in drained {
                let _ = is_done.await;
            }
        }
    }

    /// Returns a function that notifies the draining workers that the process stops
    /// ([`Drain::Stop`](crate::Drain::Stop)).
    pub fn stop_notifier(&self) -> impl Fn() + use<> {
        // Weak, because a worker ends when its command channel closes.
        let threads: Vec<_> = self.threads.iter().map(|thread| thread.commands.downgrade()).collect();
        move || {
            for commands in threads.iter().filter_map(WeakUnboundedSender::upgrade) {
                let _ = commands.send(WorkerCommand::Stop);
            }
        }
    }

    /// Cuts the connections that are still open, and stops the threads.
    pub fn stop(self) {
        for WorkerThread { commands, thread, .. } in self.threads {
            drop(commands); // ends the worker
            let _ = thread.join();
        }
    }
}
