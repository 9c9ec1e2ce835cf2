//! Context that a listener, connection or session needs. It refers to no thread, command or
//! listener of the worker.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client_stream::ServeStream;
use super::own_sockets::Towards;
use super::udp;
use super::{ClientLines, Clients, Descriptors, OwnSockets, SourceHandshakes};
use convey_access_log::AccessLog;
use convey_model::{ConnectFailures, Endpoint, Timestamp};
use convey_snapshot::Snapshot;
use convey_trace::TraceHub;
use convey_upstream::LocalPorts;

/// State that all workers share.
#[derive(Clone)]
pub struct WorkersShared {
    /// Columns of the counters: one for each worker.
    pub columns: Range<usize>,
    /// Newest snapshot, which new connections load.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Channel for reports of failed connects to servers.
    pub failures: mpsc::Sender<ConnectFailures>,
    /// Budget of file descriptors.
    pub descriptors: Descriptors,
    /// Number of UDP sessions and its upper bound.
    pub udp_sessions: Arc<udp::Sessions>,
    /// Connections of each client.
    pub clients: Arc<Clients>,
    /// Sockets towards servers.
    pub own_sockets: Arc<OwnSockets>,
    /// Local ports of connections to servers.
    pub local_ports: Arc<LocalPorts>,
    /// TLS handshakes of each source.
    pub handshakes: Arc<SourceHandshakes>,
    /// Log lines that clients can cause.
    pub lines: Arc<ClientLines>,
    /// Access log.
    pub access_log: Arc<AccessLog>,
    /// Subscribers of traces.
    pub trace: Arc<TraceHub>,
    /// Server of clients of frontends in mode http.
    pub http: Option<Arc<dyn ServeStream>>,
    /// `Timestamp(0)` of tables that the workers share with others.
    pub started: Instant,
}

/// State that the listeners, connections and sessions of one worker share.
pub(super) struct WorkerContext {
    /// Index of the worker's counters.
    pub(super) core: usize,
    /// State of all workers.
    pub(super) shared: WorkersShared,
    is_draining: AtomicBool,
    /// Closes the channel of [`LastHolder`] when the context is dropped.
    _alive: mpsc::Sender<Infallible>,
}

/// Waits until the context is dropped: every listener, connection and session holds it.
pub(super) struct LastHolder(mpsc::Receiver<Infallible>);

impl WorkerContext {
    /// Creates the context of the worker with these counters.
    pub(super) fn new(core: usize, shared: WorkersShared) -> (Arc<WorkerContext>, LastHolder) {
        let (_alive, all_ended) = mpsc::channel(1);
        let context = WorkerContext { core, shared, is_draining: AtomicBool::new(false), _alive };
        (Arc::new(context), LastHolder(all_ended))
    }

    /// Loads the newest snapshot. A client's connection loads it once, and again after each wait.
    pub(super) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        #[cfg(test)]
        tests::LOADS.set(tests::LOADS.get() + 1);
        self.shared.snapshot.load()
    }

    /// Converts a time to a timestamp of the tables that all workers share.
    pub(super) fn timestamp(&self, at: Instant) -> Timestamp {
        Timestamp(at.saturating_duration_since(self.shared.started).as_nanos() as u64)
    }

    /// Whether the worker is draining: it accepts no connections, and closes idle HTTP connections.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Notes that the worker drains.
    pub(super) fn begin_drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Returns convey's own sockets that may be this client.
    pub(super) fn own_sockets_at(&self, client: Endpoint, snapshot: &Snapshot) -> Vec<Towards> {
        // A connection to an address that is local only by a route (`ip route add local`) has that
        // address as its source.
        let ip = client.addr.ip();
        let may_be_ours = snapshot.is_own(ip) || snapshot.server_endpoints.have_ip(ip);
        if may_be_ours { self.shared.own_sockets.at(client) } else { Vec::new() }
    }
}

impl LastHolder {
    /// Waits until the context is dropped.
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
        WorkerContext::new(0, shared).0
    }
}
