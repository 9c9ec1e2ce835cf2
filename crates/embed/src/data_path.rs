//! Data path of an embedded balancer: proxy workers, which the control task configures.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use convey_config::Config;
use convey_control::{ConfigRefusal, DataPath};
use convey_model::{ConnectFailures, Endpoint, FrontendConfig, Mode};
use convey_proxy::{
    ConnectionReaper, Descriptors, HttpMode, LocalPorts, PreparedSockets, Sessions, Workers, WorkersShared,
};
use convey_snapshot::{NewestSnapshot, Snapshot};
use rustix::process::{Resource, getrlimit};
use tokio::sync::mpsc;

/// Number of file descriptors to use if the system has no limit.
const UNLIMITED: u64 = 1 << 20;

/// Default range of local ports on Linux.
const LOCAL_PORTS: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Data path of an embedded balancer: proxy workers.
pub(crate) struct EmbeddedPath {
    workers: Workers,
    reaper: ConnectionReaper,
}

impl EmbeddedPath {
    /// Starts one thread for each worker. The threads do not listen on addresses yet.
    pub(crate) fn start(
        workers: usize,
        snapshot: &Arc<NewestSnapshot>,
        failures: mpsc::Sender<ConnectFailures>,
        http: Arc<dyn HttpMode>,
        started: Instant,
    ) -> io::Result<EmbeddedPath> {
        let open_files = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED);
        let local_ports = LocalPorts::new([LOCAL_PORTS]);
        let shared = WorkersShared {
            columns: 0..workers,
            snapshot: snapshot.clone(),
            failures,
            // convey takes half of the descriptors, because the embedding program needs some as
            // well.
            descriptors: Descriptors::share(open_files / 2, 0, workers),
            udp_sessions: Arc::new(Sessions::share(local_ports.count())),
            clients: Arc::default(),
            own_sockets: Arc::default(),
            local_ports: Arc::new(local_ports),
            handshakes: Arc::default(),
            lines: Arc::default(),
            access_log: Arc::default(),
            trace: Arc::default(),
            http: Some(http),
            stops_soon: Arc::default(),
            started: started.into(),
        };
        let workers = Workers::start(&shared)?;
        Ok(EmbeddedPath { workers, reaper: ConnectionReaper::default() })
    }

    pub(crate) fn into_workers(self) -> Workers {
        self.workers
    }
}

impl DataPath for EmbeddedPath {
    type Ready = PreparedSockets;

    fn refuse(&self, _: &Config, _: &Config) -> Option<String> {
        None
    }

    fn prepare(&mut self, config: &Config) -> Result<PreparedSockets, ConfigRefusal> {
        if config.backends.iter().any(|backend| backend.files.is_some()) {
            convey_http::start_disk_threads().map_err(|error| error.to_string())?;
        }
        let wanted: BTreeSet<Endpoint> =
            config.frontends_where(Mode::is_proxied).flat_map(FrontendConfig::endpoints).collect();
        let quic: HashSet<Endpoint> =
            config.frontends_where(Mode::is_proxied).flat_map(FrontendConfig::http3_endpoints).collect();
        Ok(self.workers.prepare(&wanted, &quic).map_err(|error| error.to_string())?)
    }

    async fn switch<T>(
        &mut self,
        ready: PreparedSockets,
        snapshot: &Arc<Snapshot>,
        publish: impl FnOnce() -> T,
    ) -> T {
        self.workers.close(&ready, snapshot.timeouts.drain).await;
        let published = publish();
        self.workers.open(ready, Vec::new());
        self.on_snapshot(snapshot);
        published
    }

    fn see(&mut self, _: &Arc<Snapshot>) {}

    fn on_snapshot(&mut self, snapshot: &Snapshot) {
        self.reaper.on_snapshot(&self.workers, snapshot);
    }
}
