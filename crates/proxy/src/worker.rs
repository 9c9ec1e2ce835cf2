//! One worker thread: its listeners, its connections, its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use log::warn;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::client_stream::ServeStream;
use super::cut_offs::AdmittedPeers;
use super::handover::HandedSession;
use super::own_sockets::Towards;
use super::quic::{QuicListener, QuicPlace};
use super::{
    ClientLines, Clients, LocalPorts, OwnSockets, SourceHandshakes, flow_desk, listener, pipe, server_watch,
    udp, watch,
};
use convey_access_log::AccessLog;
use convey_model::{
    ConnectFailures, Endpoint, FlowListing, FlowQuery, ListedFlow, ListedFlowId, Protocol, Timestamp,
};
use convey_snapshot::{Frontend, Snapshot};
use convey_trace::TraceHub;

/// State that all workers share.
#[derive(Clone)]
pub struct WorkersShared {
    /// The columns of the counters that are the workers', one each.
    pub columns: Range<usize>,
    /// The state that new connections read.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Where failed connects to servers are told.
    pub failures: mpsc::Sender<ConnectFailures>,
    /// Descriptors this process may use.
    pub descriptors: Descriptors,
    /// Sessions of UDP.
    pub udp_sessions: Arc<udp::Sessions>,
    /// Connections of each client.
    pub clients: Arc<Clients>,
    /// Sockets towards servers.
    pub own_sockets: Arc<OwnSockets>,
    /// Ports of connections to servers.
    pub local_ports: Arc<LocalPorts>,
    /// TLS handshakes of each source.
    pub handshakes: Arc<SourceHandshakes>,
    /// Lines of the log about clients.
    pub lines: Arc<ClientLines>,
    /// What is logged of each connection.
    pub access_log: Arc<AccessLog>,
    /// Who watches what becomes of clients.
    pub trace: Arc<TraceHub>,
    /// Serves clients of frontends in mode http.
    pub http: Option<Arc<dyn ServeStream>>,
    /// `Timestamp(0)` of tables that the workers share with others.
    pub started: Instant,
}

/// How many descriptors go to what. The rest is for listeners, probes, statistics and the file, so that a
/// peak of connections does not blind us.
#[derive(Debug, Clone)]
pub struct Descriptors {
    /// For connections and listeners together.
    shared: u64,
    /// Of these, what listeners have now.
    reserved: Arc<AtomicU64>,
    /// Most pipes for bulk transfers, of two descriptors each, in one worker.
    pipes: usize,
}

impl Descriptors {
    /// Shares `limit` descriptors out: of what `listeners` leave an eighth stays in reserve, and a quarter goes to the
    /// `workers`' pipes. Reloads may change how many listeners there are: connections have what these leave.
    pub fn share(limit: u64, listeners: u64, workers: usize) -> Descriptors {
        let left = limit.saturating_sub(listeners);
        let reserve = (left / 8).clamp(24, 1024);
        let pipes = left / 4 / 2 / workers as u64;
        let shared = limit.saturating_sub(reserve + pipes * 2 * workers as u64);
        Descriptors { shared, reserved: Arc::default(), pipes: usize::try_from(pipes).unwrap_or(usize::MAX) }
    }

    /// Most connections there may be now, of two descriptors each.
    pub fn connections(&self) -> u64 {
        (self.left_beside(0) / 2).max(1)
    }

    /// How many descriptors there are beside the listeners and so many connections.
    pub fn left_beside(&self, connections: u64) -> u64 {
        self.shared.saturating_sub(self.reserved.load(Ordering::Relaxed) + 2 * connections)
    }

    /// Takes some for listeners, for as long as what this returns lives.
    pub fn reserve(&self, descriptors: u64) -> Reserved {
        self.reserved.fetch_add(descriptors, Ordering::Relaxed);
        Reserved { of: self.reserved.clone(), descriptors }
    }
}

/// Descriptors that listeners have.
#[derive(Debug, Default)]
pub struct Reserved {
    of: Arc<AtomicU64>,
    descriptors: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.of.fetch_sub(self.descriptors, Ordering::Relaxed);
    }
}

/// What a worker is told to do.
pub(super) enum WorkerCommand {
    /// Accept on a socket, which is bound to `addr`.
    ///
    /// Sessions of UDP that another process has begun there go on.
    Listen { addr: SocketAddr, socket: ClientSocket, sessions: Vec<HandedSession> },
    /// Empty the accept queues of these places and close them; sessions of UDP have `patience` to end.
    Close { places: Vec<Endpoint>, patience: Duration, done: oneshot::Sender<()> },
    /// End the connections to these servers.
    EndConnections { servers: Arc<BTreeSet<u32>> },
    /// End the connections of clients that may not come in, by the numbers of the frontends.
    EndDenied { access: Arc<HashMap<u32, AdmittedPeers>> },
    /// Count open connections to these frontends at their sources.
    CountSources { frontends: Arc<[Arc<Frontend>]> },
    /// Read no datagrams until [`WorkerCommand::Release`], and tell the sessions of UDP.
    Hold { sessions: oneshot::Sender<Vec<HandedSession>> },
    /// Read datagrams again.
    Release,
    /// List connections and sessions.
    ListFlows { query: FlowQuery, answer: oneshot::Sender<FlowListing> },
    /// End one of them.
    KillFlow { id: ListedFlowId, answer: oneshot::Sender<Option<ListedFlow>> },
    /// Tell the listening sockets.
    Offer { sockets: oneshot::Sender<Vec<(Endpoint, OwnedFd)>> },
    /// Close every listener and say when the last connection has ended. Another process has the sockets of the places that
    /// are `left`: it serves who waits there.
    Drain { left: Arc<BTreeSet<Endpoint>>, done: oneshot::Sender<()> },
}

/// A socket that clients come to.
pub(super) enum ClientSocket {
    Tcp(std::net::TcpListener),
    Udp(udp::Listening),
    Quic(QuicPlace),
}

/// State that the listeners and connections of one worker share.
pub(super) struct Context {
    /// Index of the worker's counters.
    pub(super) core: usize,
    pub(super) shared: WorkersShared,
    /// Whether no more are accepted: connections that are between two requests end.
    pub(super) is_draining: AtomicBool,
    /// Closes its channel when the last holder of the context is gone: every listener and connection
    /// holds it.
    _alive: mpsc::Sender<Infallible>,
}

impl Context {
    /// The newest snapshot. Clients' connections load it here, once each unless they have to wait.
    pub(super) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        #[cfg(test)]
        tests::LOADS.set(tests::LOADS.get() + 1);
        self.shared.snapshot.load()
    }

    /// A moment as tables have it that all workers share.
    pub(super) fn timestamp(&self, at: Instant) -> Timestamp {
        Timestamp(at.saturating_duration_since(self.shared.started).as_nanos() as u64)
    }

    /// Sockets of ours that a client may be.
    pub(super) fn own_sockets_at(&self, client: Endpoint, snapshot: &Snapshot) -> Vec<Towards> {
        // A connection to an address that is this host's by a route alone (`ip route add local`) comes from that address.
        let ip = client.addr.ip();
        let may_be_ours = snapshot.is_own(ip) || snapshot.server_endpoints.have_ip(ip);
        if may_be_ours { self.shared.own_sockets.at(client) } else { Vec::new() }
    }
}

/// A worker thread that runs; it ends when its command channel is dropped.
pub(super) struct WorkerThread {
    pub(super) commands: mpsc::UnboundedSender<WorkerCommand>,
    /// Tells it what has come to its sockets.
    pub(super) runtime: Handle,
    pub(super) thread: JoinHandle<()>,
}

/// Starts the thread.
pub(super) fn start(core: usize, shared: WorkersShared) -> io::Result<WorkerThread> {
    let (commands, receiver) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let runtime = WorkerRuntime(Some(runtime));
    let thread = thread::Builder::new().name(format!("proxy-{core}")).spawn(move || {
        if let Some(runtime) = &runtime.0 {
            runtime.block_on(run(core, shared, receiver));
        }
    })?;
    Ok(WorkerThread { commands, runtime: handle, thread })
}

/// The runtime of a worker. A thread that cannot be made drops it among the tasks of another runtime, where a `Runtime` panics.
struct WorkerRuntime(Option<Runtime>);

impl Drop for WorkerRuntime {
    fn drop(&mut self) {
        // Nobody waits for its work.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Gives up this thread's capabilities: sockets come to it bound. Those of others stay. It keeps the one for pipes that are
/// longer than an unprivileged user's (`fs.pipe-user-pages-soft`).
fn drop_capabilities() {
    let Ok(sets) = capabilities(None) else { return };
    let kept = sets.permitted & CapabilitySet::SYS_RESOURCE;
    let none = CapabilitySet::empty();
    if let Err(error) =
        set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
    {
        warn!("a thread keeps capabilities that it does not need: {error}");
    }
}

async fn run(core: usize, shared: WorkersShared, mut commands: mpsc::UnboundedReceiver<WorkerCommand>) {
    drop_capabilities();
    pipe::limit(shared.descriptors.pipes);
    let (_alive, mut all_ended) = mpsc::channel(1);
    let operators = Operators { worker: (core - shared.columns.start) as u16, started: shared.started };
    tokio::spawn(tell_time(shared.http.clone()));
    let context = Arc::new(Context { core, shared, is_draining: AtomicBool::new(false), _alive });
    let mut listeners = Listeners { context, tcp: HashMap::new(), udp: HashMap::new(), quic: HashMap::new() };
    let (left, drained) = loop {
        match commands.recv().await {
            Some(WorkerCommand::Listen { addr, socket, sessions }) => {
                listeners.listen(addr, socket, sessions)
            }
            Some(WorkerCommand::Close { places, patience, done }) => {
                listeners.close(places, patience).await;
                let _ = done.send(());
            }
            Some(WorkerCommand::Hold { sessions }) => drop(sessions.send(listeners.hold().await)),
            Some(WorkerCommand::Release) => listeners.release(),
            Some(WorkerCommand::Offer { sockets }) => drop(sockets.send(listeners.sockets())),
            Some(WorkerCommand::Drain { left, done }) => break (left, done),
            Some(other) => operators.obey(other),
            None => return,
        }
    };
    listeners.context.is_draining.store(true, Ordering::Relaxed);
    watch::wake_all();
    listeners.drain(&left).await;
    // Closed by the last connection; the end of the commands cuts those that take too long.
    tokio::select! {
        _ = all_ended.recv() => { let _ = drained.send(()); }
        () = async {
            while let Some(command) = commands.recv().await {
                operators.obey(command);
            }
        } => {}
    }
}

/// What is done to connections, also while they drain.
#[derive(Clone, Copy)]
struct Operators {
    worker: u16,
    started: Instant,
}

impl Operators {
    fn obey(self, command: WorkerCommand) {
        match command {
            WorkerCommand::EndConnections { servers } => {
                watch::end(&servers);
                server_watch::end(&servers);
            }
            WorkerCommand::EndDenied { access } => watch::end_denied(&access),
            WorkerCommand::CountSources { frontends } => watch::count_sources(&frontends),
            WorkerCommand::ListFlows { query, answer } => {
                flow_desk::begin_list(self.worker, self.started, query, answer);
            }
            WorkerCommand::KillFlow { id, answer } => {
                let _ = answer.send(flow_desk::kill(id, self.started));
            }
            // A task that waits for an answer hears that there is none.
            _ => {}
        }
    }
}

/// Tells this thread's connections once a second how late it is.
async fn tell_time(http: Option<Arc<dyn ServeStream>>) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        watch::pass_to(Instant::now());
        if let Some(http) = &http {
            http.each_second();
        }
    }
}

/// Where one worker listens.
struct Listeners {
    context: Arc<Context>,
    /// More than one where a process before this one had more workers.
    tcp: HashMap<SocketAddr, Vec<listener::Listener>>,
    udp: HashMap<SocketAddr, udp::UdpListener>,
    quic: HashMap<SocketAddr, QuicListener>,
}

impl Listeners {
    fn listen(&mut self, addr: SocketAddr, socket: ClientSocket, sessions: Vec<HandedSession>) {
        let context = self.context.clone();
        match socket {
            ClientSocket::Tcp(socket) => {
                self.tcp.entry(addr).or_default().push(listener::start(addr, socket, context))
            }
            // One that drains has this very socket.
            ClientSocket::Udp(_) if self.udp.get(&addr).is_some_and(udp::UdpListener::resume) => {}
            ClientSocket::Udp(socket) => {
                drop(self.udp.insert(addr, udp::UdpListener::start(addr, socket, context, sessions)));
            }
            ClientSocket::Quic(_) if self.quic.get(&addr).is_some_and(QuicListener::resume) => {}
            ClientSocket::Quic(place) => {
                drop(self.quic.insert(addr, QuicListener::start(addr, place, context)));
            }
        }
    }

    async fn close(&mut self, places: Vec<Endpoint>, patience: Duration) {
        for Endpoint { protocol, addr } in places {
            match protocol {
                Protocol::Tcp => {
                    for listener in self.tcp.remove(&addr).unwrap_or_default() {
                        listener.close().await;
                    }
                }
                Protocol::Udp => {
                    if let Some(listener) = self.udp.get(&addr) {
                        listener.drain(Some(patience));
                    }
                    if let Some(listener) = self.quic.get(&addr) {
                        listener.drain(Some(patience));
                    }
                }
            }
        }
        self.udp.retain(|_, listener| !listener.has_ended());
        self.quic.retain(|_, listener| !listener.has_ended());
    }

    /// The sockets once more, for another process.
    fn sockets(&self) -> Vec<(Endpoint, OwnedFd)> {
        let tcp = self.tcp.iter().flat_map(|(addr, listeners)| {
            let sockets = listeners.iter().filter_map(listener::Listener::socket);
            sockets.map(|socket| (Endpoint::tcp(*addr), socket))
        });
        let udp = self.udp.iter().filter(|(_, listener)| !listener.has_ended());
        let udp = udp.filter_map(|(addr, listener)| Some((Endpoint::udp(*addr), listener.socket()?)));
        let quic = self.quic.iter().filter(|(_, listener)| !listener.has_ended());
        let quic = quic.filter_map(|(addr, listener)| Some((Endpoint::udp(*addr), listener.offer().ok()?)));
        let quic = quic.flat_map(|(at, offered)| offered.into_iter().map(move |one| (at, one)));
        tcp.chain(udp).chain(quic).collect()
    }

    /// Has listeners of UDP read again.
    fn release(&self) {
        self.udp.values().for_each(udp::UdpListener::release);
        self.quic.values().for_each(QuicListener::release);
    }

    /// Has listeners of UDP read nothing. Returns their sessions.
    async fn hold(&self) -> Vec<HandedSession> {
        self.quic.values().for_each(QuicListener::hold);
        let held: Vec<_> = self.udp.values().map(udp::UdpListener::hold).collect();
        let mut sessions = Vec::new();
        for held in held {
            sessions.extend(held.await.unwrap_or_default());
        }
        sessions
    }

    /// Listens nowhere any more. Sessions of UDP go on.
    async fn drain(self, left: &BTreeSet<Endpoint>) {
        for (addr, listener) in &self.udp {
            if left.contains(&Endpoint::udp(*addr)) {
                listener.leave();
            } else {
                listener.release();
                listener.drain(None);
            }
        }
        for (addr, listener) in &self.quic {
            if left.contains(&Endpoint::udp(*addr)) {
                listener.leave();
            } else {
                listener.release();
                listener.drain(None);
            }
        }
        for (addr, listeners) in self.tcp {
            let is_left = left.contains(&Endpoint::tcp(addr));
            for listener in listeners {
                if is_left { listener.leave().await } else { listener.close().await }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How often this thread has loaded the snapshot.
        pub(crate) static LOADS: Cell<u32> = const { Cell::new(0) };
    }

    /// A worker that goes by this snapshot.
    pub(crate) fn context(snapshot: Snapshot) -> Arc<Context> {
        let shared = WorkersShared {
            columns: 0..1,
            snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
            failures: mpsc::channel(1).0,
            descriptors: Descriptors::share(1_000, 0, 1),
            udp_sessions: Arc::new(udp::Sessions::share(1_000)),
            clients: Arc::default(),
            own_sockets: Arc::default(),
            local_ports: Arc::default(),
            handshakes: Arc::default(),
            lines: Arc::default(),
            access_log: Arc::default(),
            trace: Arc::default(),
            http: None,
            started: Instant::now(),
        };
        Arc::new(Context { core: 0, shared, is_draining: AtomicBool::new(false), _alive: mpsc::channel(1).0 })
    }

    #[test]
    fn connections_have_what_listeners_leave_at_the_start_and_after_each_reload() {
        let descriptors = Descriptors::share(1_000, 200, 2);
        let first = descriptors.reserve(200);
        assert_eq!((descriptors.connections(), descriptors.pipes), (250, 50));
        let more = descriptors.reserve(100);
        assert_eq!((descriptors.connections(), descriptors.left_beside(150)), (200, 100));
        assert_eq!(descriptors.left_beside(300), 0);
        drop(first);
        assert_eq!(descriptors.connections(), 300);
        drop(more);
        let _too_many = descriptors.reserve(10_000);
        assert_eq!(descriptors.connections(), 1);
    }
}
