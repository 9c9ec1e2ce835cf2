//! Complete report of one snapshot, as `/stats` serves it. Pure.

mod acme;
mod announce;
mod etcd;
mod files;
mod requests;
mod route;
mod server;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use convey_control::ConfigLoad;
use convey_model::{FrontendConfig, Listen, Protocol, Timestamp};
use convey_snapshot::stats::{Counter, Distribution, PacketStats, Traffic};
use convey_snapshot::{Frontend, HttpFrontend, Pool, Snapshot, SniRoutes};
use serde::{Serialize, Serializer};

pub use self::acme::AcmeReport;
pub use self::announce::AnnouncedReport;
pub use self::etcd::EtcdReport;
pub(super) use self::files::FileCacheReport;
pub(super) use self::requests::RequestReport;
pub use self::route::RouteReport;
pub use self::server::{EjectedReport, HealthReport, ServerReport};
pub use self::tls::TlsReport;
use super::ready::{FrontendReadiness, ReadinessInput, Unserved};
use super::{
    AcmeState, AnnounceState, ConfigReport, DiscoveryReport, NameReport, OverlayReport, PacketReport,
    RemoteState,
};

/// Complete report. Received (`rx`) is from clients, sent (`tx`) is to clients. Counts begin at the
/// program's start, or later for parts that a reload added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatsReport {
    /// Version of the program.
    pub version: &'static str,
    /// Process id, in the process's own PID namespace.
    pub process: u32,
    /// Time of the program's start.
    #[serde(serialize_with = "rfc3339")]
    pub started: SystemTime,
    /// Whole seconds since the start.
    pub uptime_seconds: u64,
    /// Connections accepted by all frontends, including removed ones.
    pub total_connections: u64,
    /// Open connections among them.
    pub current_connections: u64,
    /// Bytes received by all frontends, including removed ones.
    pub total_bytes_rx: u64,
    /// Bytes sent by all frontends, including removed ones.
    pub total_bytes_tx: u64,
    /// Packets or datagrams received by all frontends, including removed ones.
    pub total_packets_rx: u64,
    /// Packets or datagrams sent by all frontends, including removed ones.
    pub total_packets_tx: u64,
    /// Log lines that were dropped because the output did not take them in time.
    pub log_lines_dropped: u64,
    /// Access log lines that were dropped because they came faster than they are written.
    pub access_log_lines_dropped: u64,
    /// Reasons why this convey should get no traffic, a line each, as in `/readyz`. Empty if it can
    /// serve all.
    pub not_ready: Vec<String>,
    /// Running configuration, and the last reload.
    pub config: ConfigReport,
    /// Current frontends, by name.
    pub frontends: BTreeMap<String, FrontendReport>,
    /// Current backends, by name.
    pub backends: BTreeMap<String, BackendReport>,
    /// Runtime overrides, which take precedence over the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<OverlayReport>,
    /// Host names of servers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, NameReport>,
    /// Sources from which backends get servers, by backend.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub discovery: BTreeMap<String, DiscoveryReport>,
    /// Certificates that convey orders itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acme: Option<AcmeReport>,
    /// Addresses that convey announces while their frontends can serve.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub announced: BTreeMap<String, AnnouncedReport>,
    /// State of a configuration in etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdReport>,
    /// Counters of packet modes. Packet modes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketReport>,
}

/// Traffic of a frontend, a backend or a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrafficReport {
    /// Connections accepted (frontend) or given to a server (backend, server).
    pub total_connections: u64,
    /// Open connections among them.
    pub current_connections: u64,
    /// Bytes received from clients.
    pub bytes_rx: u64,
    /// Bytes sent to clients.
    pub bytes_tx: u64,
    /// Packets (packet modes) or datagrams (UDP in proxy mode) received from clients.
    pub packets_rx: u64,
    /// Packets or datagrams sent to clients.
    pub packets_tx: u64,
}

/// Report of a frontend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrontendReport {
    /// Mode of forwarding.
    pub mode: &'static str,
    /// Protocol between clients and the frontend.
    pub protocol: &'static str,
    /// Addresses that clients connect to.
    pub listen_addr: Vec<String>,
    /// Backend of the frontend; with routes, the backend of requests and connections that match no
    /// route. Empty without such a backend.
    pub backend: String,
    /// Routes, the default one last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteReport>,
    /// Reason why the frontend cannot serve; `None`: it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<String>,
    /// Backends that cannot serve, each with the reason. The frontend may be ready through other
    /// backends.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unserved: BTreeMap<String, String>,
    /// All backends of the frontend.
    #[serde(skip)]
    pub backends: Vec<String>,
    /// Limit of concurrent connections; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Connections that wait for a free slot of the frontend, or of their client's quota (proxy
    /// mode). The kernel's accept queue does not count.
    pub waiting_connections: u32,
    /// Traffic of the frontend.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Connections that did not end by both sides closing, by the labels of [`Counter::ENDS`].
    pub ended: BTreeMap<&'static str, u64>,
    /// Dropped datagrams (UDP in proxy mode), by the labels of [`Counter::DROPS`].
    pub drops: BTreeMap<&'static str, u64>,
    /// Connections, datagrams and (packet modes) packets of denied clients, by the labels of
    /// [`Counter::REFUSALS`].
    pub refused: BTreeMap<&'static str, u64>,
    /// TLS handshakes of clients; `None`: clients use no TLS with convey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsReport>,
    /// Requests of the frontend. Mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Number of times that a source was not counted because the table was full.
    pub uncounted_sources: u64,
    /// Number of times that accepting paused because descriptors or memory ran out.
    pub accept_backoffs: u64,
}

/// Report of a backend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendReport {
    /// Directory of served files. Backends with files only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// Cached files of the workers. Backends with files only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_cache: Option<FileCacheReport>,
    /// Load balancing algorithm.
    pub algorithm: &'static str,
    /// Number of healthy servers, whether or not they are eligible.
    pub servers_up: usize,
    /// Connections that wait for a server, because all are at their `max_connections` (proxy mode).
    pub waiting_connections: u32,
    /// Traffic of the backend.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Failed attempts to connect to a server of the backend.
    pub connect_failures: u64,
    /// Attempts that were repeated on another server.
    pub retries: u64,
    /// Requests that the backend's servers received. Backends of mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Durations of successful connects to servers. Backends of proxies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_seconds: Option<TimesReport>,
    /// Durations from accepting a client to the end of its connection, for ended connections that
    /// had a server. Backends of proxies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_seconds: Option<TimesReport>,
    /// Servers of the backend, by name.
    pub servers: BTreeMap<String, ServerReport>,
}

/// Statistics of durations, in seconds. Values are `None` before the first measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimesReport {
    /// Number of measurements.
    pub count: u64,
    /// Average duration.
    pub mean: Option<f64>,
    /// Median: half of the durations are at most this long.
    pub p50: Option<f64>,
    /// 99th percentile: 99 in a hundred durations are at most this long.
    pub p99: Option<f64>,
    /// Precision of the percentiles, in words for readers.
    pub percentiles: &'static str,
    /// Cumulative histogram: upper bounds in seconds, each with the number of durations up to this
    /// bound.
    #[serde(rename = "buckets", serialize_with = "by_bound")]
    pub distribution: Distribution,
}

/// Reports of the runtime overrides.
pub(super) fn overlays(snapshot: &Snapshot, started: SystemTime) -> Vec<OverlayReport> {
    let of_servers = snapshot.overlays.iter().map(|one| OverlayReport::of_snapshot(one, snapshot, started));
    let of_log = snapshot.log_level.iter().map(|said| OverlayReport::of_log_level(said, started));
    of_servers.chain(of_log).collect()
}

impl StatsReport {
    /// Reads the counters of a snapshot at `now`. `started` is the wall-clock time of
    /// `Timestamp(0)`.
    pub fn new(input: ReadinessInput<'_>, started: SystemTime, now: Timestamp) -> Self {
        let (snapshot, readiness) = (input.snapshot, FrontendReadiness::of(input));
        let totals = TrafficReport::new(&snapshot.totals);
        let frontend = |(frontend, unserved): &(&Frontend, Unserved<'_>)| {
            (frontend.config.name.clone(), FrontendReport::new(frontend, unserved))
        };
        let backend = |pool: &Arc<Pool>| {
            let name = &pool.config.name;
            (name.clone(), BackendReport::new(pool, Uses::of(name, snapshot), started, now))
        };
        StatsReport {
            version: env!("CARGO_PKG_VERSION"),
            process: 0,
            started,
            uptime_seconds: now.since(Timestamp(0)).as_secs(),
            total_connections: totals.total_connections,
            current_connections: totals.current_connections,
            total_bytes_rx: totals.bytes_rx,
            total_bytes_tx: totals.bytes_tx,
            total_packets_rx: totals.packets_rx,
            total_packets_tx: totals.packets_tx,
            log_lines_dropped: 0,
            access_log_lines_dropped: 0,
            not_ready: readiness.obstacles(),
            config: ConfigReport::new(ConfigLoad::default(), started),
            frontends: readiness.frontends.iter().map(frontend).collect(),
            backends: snapshot.pools.iter().map(backend).collect(),
            overlays: overlays(snapshot, started),
            names: snapshot.names.iter().map(|n| (n.host.clone(), NameReport::new(n, started))).collect(),
            discovery: DiscoveryReport::all(snapshot, started),
            acme: None,
            announced: BTreeMap::new(),
            etcd: None,
            packets: None,
        }
    }

    /// Sets the process id.
    pub fn of_process(self, process: u32) -> Self {
        StatsReport { process, ..self }
    }

    /// Adds the counters of packet modes.
    pub fn with_packets(self, stats: Option<&PacketStats>) -> Self {
        StatsReport { packets: stats.map(PacketReport::new), ..self }
    }

    /// Adds the state of the configuration.
    pub fn with_load(self, load: ConfigLoad) -> Self {
        StatsReport { config: ConfigReport::new(load, self.started), ..self }
    }

    /// Adds the certificates that convey orders itself.
    pub(super) fn with_acme(self, state: &AcmeState) -> Self {
        StatsReport { acme: AcmeReport::new(state), ..self }
    }

    /// Adds the addresses that convey announces.
    pub(super) fn with_announced(self, state: &AnnounceState) -> Self {
        StatsReport { announced: announce::reports(state), ..self }
    }

    /// Adds the configuration in etcd, if there is one.
    pub(super) fn with_remote(self, state: &RemoteState, started: SystemTime) -> Self {
        StatsReport { etcd: EtcdReport::new(state, started), ..self }
    }

    /// Adds the numbers of dropped lines of the log and the access log.
    pub fn with_dropped_lines(self, log_lines_dropped: u64, access_log_lines_dropped: u64) -> Self {
        StatsReport { log_lines_dropped, access_log_lines_dropped, ..self }
    }
}

impl TrafficReport {
    fn new(traffic: &Traffic) -> Self {
        // Open connections are read first, so that they never outnumber all.
        let current_connections = traffic.current();
        TrafficReport {
            total_connections: traffic.sum(Counter::Opened),
            current_connections,
            bytes_rx: traffic.sum(Counter::BytesRx),
            bytes_tx: traffic.sum(Counter::BytesTx),
            packets_rx: traffic.sum(Counter::PacketsRx),
            packets_tx: traffic.sum(Counter::PacketsTx),
        }
    }
}

impl FrontendReport {
    fn new(frontend: &Frontend, unserved: &Unserved<'_>) -> Self {
        let traffic = &frontend.live.traffic;
        let of_requests = frontend.http.iter().flat_map(HttpFrontend::routes);
        let of_connections = frontend.sni.iter().flat_map(SniRoutes::routes);
        let routes = of_requests.map(|route| RouteReport::new(route));
        let routes = routes.chain(of_connections.map(|route| RouteReport::of_connections(route)));
        FrontendReport {
            mode: frontend.config.mode.name(),
            protocol: frontend.config.protocol.name(),
            listen_addr: frontend.config.listen.iter().map(Listen::to_string).collect(),
            backend: frontend.config.backend.clone().unwrap_or_default(),
            routes: routes.collect(),
            not_ready: unserved.obstacle(frontend),
            unserved: unserved.backends(),
            backends: frontend.config.backends().map(str::to_owned).collect(),
            max_connections: frontend.config.max_connections,
            waiting_connections: frontend.live.waiters.count(),
            traffic: TrafficReport::new(traffic),
            ended: Counter::ENDS.iter().map(|(end, label)| (*label, traffic.sum(*end))).collect(),
            drops: Counter::DROPS.iter().map(|(drop, label)| (*label, traffic.sum(*drop))).collect(),
            refused: Counter::REFUSALS.iter().map(|(why, label)| (*label, traffic.sum(*why))).collect(),
            tls: TlsReport::new(frontend, unserved.certificate_fault()),
            requests: frontend.config.mode.is_http().then(|| RequestReport::of_frontend(traffic)),
            uncounted_sources: frontend.sources.as_ref().map_or(0, |sources| sources.uncounted()),
            accept_backoffs: traffic.sum(Counter::AcceptBackoff),
        }
    }
}

/// Uses of a backend: its report leaves out values that cannot occur.
#[derive(Clone, Copy)]
struct Uses {
    is_proxied: bool,
    has_requests: bool,
    has_handshakes: bool,
}

impl Uses {
    fn of(backend: &str, snapshot: &Snapshot) -> Uses {
        let of = |uses: fn(&FrontendConfig) -> bool| {
            snapshot.frontends.iter().any(|f| f.config.uses(backend) && uses(&f.config))
        };
        Uses {
            is_proxied: of(|frontend| frontend.mode.is_proxied()),
            has_requests: of(|frontend| frontend.mode.is_http()),
            has_handshakes: of(|frontend| {
                frontend.mode.forwards_packets() && frontend.protocol == Protocol::Tcp
            }),
        }
    }
}

impl BackendReport {
    /// Report of one backend, without reading thousands of others.
    pub(super) fn of(name: &str, snapshot: &Snapshot, started: SystemTime, now: Timestamp) -> Option<Self> {
        let pool = snapshot.pools.iter().find(|pool| pool.config.name == name)?;
        Some(BackendReport::new(pool, Uses::of(name, snapshot), started, now))
    }

    fn new(pool: &Pool, uses: Uses, started: SystemTime, now: Timestamp) -> Self {
        let traffic = &pool.live.traffic;
        let indices = 0..pool.servers.len();
        BackendReport {
            files: pool.config.files.as_ref().map(|files| files.root.display().to_string()),
            file_cache: pool.config.files.as_ref().map(|_| FileCacheReport::new(traffic)),
            algorithm: pool.config.algorithm.name(),
            servers_up: pool.servers.iter().filter(|server| server.health.up).count(),
            waiting_connections: pool.live.waiters.count(),
            traffic: TrafficReport::new(traffic),
            connect_failures: traffic.sum(Counter::ConnectFailures),
            retries: traffic.sum(Counter::Retries),
            requests: uses.has_requests.then(|| RequestReport::of_servers(traffic)),
            connect_seconds: uses.is_proxied.then(|| TimesReport::new(pool.live.connect_times.read())),
            session_seconds: uses.is_proxied.then(|| TimesReport::new(pool.live.session_times.read())),
            servers: indices.map(|index| ServerReport::new(pool, index, uses, started, now)).collect(),
        }
    }
}

/// Percentiles lie within a bucket of the histogram; the exact position is unknown.
const INTERPOLATED: &str = "interpolated from buckets";

impl TimesReport {
    fn new(distribution: Distribution) -> Self {
        TimesReport {
            count: distribution.count,
            mean: distribution.mean(),
            p50: distribution.quantile(0.5),
            p99: distribution.quantile(0.99),
            percentiles: INTERPOLATED,
            distribution,
        }
    }
}

pub(super) fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*time))
}

fn by_bound<S: Serializer>(distribution: &Distribution, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(distribution.buckets.iter().map(|(bound, count)| (bound.to_string(), count)))
}

#[cfg(test)]
mod tests;
