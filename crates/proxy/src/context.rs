//! Context of a worker: the state that its listeners, connections and sessions share. This module
//! does not depend on the worker's thread, commands or listeners.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::Guard;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client_stream::{HttpMode, ServeStream};
use super::clients::WorkerClients;
use super::own_sockets::Towards;
use super::registry::Registry;
use super::relay::RelayResources;
use super::udp;
use super::window_budget::WindowBudget;
use super::{ClientLines, Clients, Descriptors, OwnSockets, SourceHandshakes};
use convey_access_log::AccessLog;
use convey_model::{ConnectFailures, Endpoint, Timestamp};
use convey_snapshot::stats::Traffic;
use convey_snapshot::{NewestSnapshot, Snapshot, WorkerFrontends};
use convey_stream::PipePool;
use convey_trace::TraceHub;
use convey_upstream::LocalPorts;

/// State that all workers share.
#[derive(Clone)]
pub struct WorkersShared {
    /// Indexes of the workers' columns in the traffic counters. Each worker writes to its own
    /// column.
    pub columns: Range<usize>,
    /// Newest snapshot, which new connections load.
    pub snapshot: Arc<NewestSnapshot>,
    /// Channel for reports of failed connects to servers.
    pub failures: mpsc::Sender<ConnectFailures>,
    /// Budget of file descriptors.
    pub descriptors: Descriptors,
    /// Number of open UDP sessions, and its upper bound.
    pub udp_sessions: Arc<udp::Sessions>,
    /// Connection counts of each client.
    pub clients: Arc<Clients>,
    /// Addresses of convey's own sockets towards servers, to detect loops.
    pub own_sockets: Arc<OwnSockets>,
    /// Allocator of local ports for connections to servers.
    pub local_ports: Arc<LocalPorts>,
    /// Number of concurrent TLS handshakes of each source.
    pub handshakes: Arc<SourceHandshakes>,
    /// Rate limits of the log lines that clients can cause.
    pub lines: Arc<ClientLines>,
    /// Access log.
    pub access_log: Arc<AccessLog>,
    /// Subscribers of traces.
    pub trace: Arc<TraceHub>,
    /// Implementation of mode http; `None` without mode http.
    pub http: Option<Arc<dyn HttpMode>>,
    /// Whether the process is about to stop, but still accepts connections
    /// (`timeouts.drain_delay`).
    pub stops_soon: Arc<AtomicBool>,
    /// Time of `Timestamp(0)` in the tables that all workers share.
    pub started: Instant,
}

/// State that the listeners, connections and sessions of one worker share.
pub(super) struct WorkerContext {
    /// Index of this worker's column in the traffic counters.
    pub(super) core: usize,
    /// State that all workers share.
    pub(super) shared: WorkersShared,
    /// Handler of this worker's clients in mode http; `None` without mode http.
    pub(super) http: Option<Arc<dyn ServeStream>>,
    /// Open connections and requests of this worker.
    pub(super) registry: Arc<Registry>,
    /// Frontends of this worker's connections.
    pub(super) frontends: Arc<WorkerFrontends>,
    /// Connection counts of each client.
    pub(super) clients: WorkerClients,
    /// Pipes and memory for bulk data of this worker's connections.
    pub(super) relay: RelayResources,
    /// Counters of all traffic, which all snapshots share.
    totals: OnceLock<Arc<Traffic>>,
    /// Whether the worker is draining.
    is_draining: AtomicBool,
    /// Whether the process stops. Without a stop, a drain has no time limit.
    is_stopping: AtomicBool,
    /// Closes the channel of [`LastHolder`] when the context is dropped.
    _alive: mpsc::Sender<Infallible>,
}

/// Kind of a worker's drain, in which open connections may finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// Another process serves. Open connections have no time limit.
    Handover,
    /// The process stops within `timeouts.drain`.
    Stop,
}

/// Waits until the context of a worker is dropped. Every listener, connection and session holds the
/// context, so the drop means that all of them have ended.
pub(super) struct LastHolder(mpsc::Receiver<Infallible>);

impl WorkerContext {
    /// Creates the context of a worker; `core` is the index of the worker's column in the traffic
    /// counters.
    pub(super) fn new(core: usize, shared: WorkersShared) -> (Arc<WorkerContext>, LastHolder) {
        let (_alive, all_ended) = mpsc::channel(1);
        let (registry, frontends, totals, is_draining, is_stopping) = Default::default();
        let http = shared.http.as_ref().map(|http| http.for_worker());
        let pipes = PipePool::new(shared.descriptors.pipes());
        let (worker, most) = (core - shared.columns.start, shared.descriptors.connections());
        let clients = WorkerClients::new(shared.clients.clone(), worker, most);
        let relay = RelayResources { pipes, windows: WindowBudget::of_host() };
        let context = WorkerContext {
            core,
            shared,
            http,
            registry,
            frontends,
            clients,
            relay,
            totals,
            is_draining,
            is_stopping,
            _alive,
        };
        (Arc::new(context), LastHolder(all_ended))
    }

    /// Loads the newest snapshot. A connection loads the snapshot at accept, and again after each
    /// wait.
    pub(super) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        #[cfg(test)]
        tests::LOADS.set(tests::LOADS.get() + 1);
        self.shared.snapshot.load()
    }

    /// Counters of all traffic. Call this only once the first configuration is published.
    pub(super) fn totals(&self) -> &Traffic {
        self.totals.get_or_init(|| self.shared.snapshot.load().totals.clone())
    }

    /// Converts a time to a timestamp of the tables that all workers share.
    pub(super) fn timestamp(&self, at: Instant) -> Timestamp {
        Timestamp(at.saturating_duration_since(self.shared.started).as_nanos() as u64)
    }

    /// Drain of the worker, if it has begun.
    pub(super) fn drain(&self) -> Option<Drain> {
        let kind = if self.is_stopping.load(Ordering::Relaxed) { Drain::Stop } else { Drain::Handover };
        self.is_draining.load(Ordering::Relaxed).then_some(kind)
    }

    /// Begins the drain of the worker: it accepts no further connections.
    pub(super) fn begin_drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Notes that the process stops, so that the drain of the worker has a time limit.
    pub(super) fn begin_stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Returns convey's own sockets that have the address of this client. Such a client may be
    /// convey itself, which means a loop.
    pub(super) fn own_sockets_at(&self, client: Endpoint, snapshot: &Snapshot) -> Vec<Towards> {
        // Addresses of servers count, too: an address may be local only because of a route (`ip
        // route add local`), and a connection from this host to such an address has the same
        // address as its source.
        let ip = client.addr.ip();
        let may_be_ours = snapshot.is_own(ip) || snapshot.server_endpoints.have_ip(ip);
        if may_be_ours { self.shared.own_sockets.at(client) } else { Vec::new() }
    }
}

impl LastHolder {
    /// Waits until the last holder has dropped the context.
    pub(super) async fn is_gone(&mut self) {
        let _ = self.0.recv().await;
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests")]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Number of snapshots that this thread has loaded.
        pub(crate) static LOADS: Cell<u32> = const { Cell::new(0) };
    }

    /// Context of a worker with this snapshot.
    pub(crate) fn context(snapshot: Snapshot) -> Arc<WorkerContext> {
        let shared = WorkersShared {
            columns: 0..1,
            snapshot: Arc::new(NewestSnapshot::new(snapshot)),
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
            stops_soon: Arc::default(),
            started: Instant::now(),
        };
        WorkerContext::new(0, shared).0
    }
}
