//! Everything there is to say about one snapshot, as `/stats` serves it. Pure.

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

/// The whole report. Received (`rx`) is from clients, sent (`tx`) is to clients; all counts begin when the
/// program starts, or later for what a reload added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatsReport {
    /// The program's version.
    pub version: &'static str,
    /// The number of its process, as it sees it itself.
    pub process: u32,
    /// When the program started.
    #[serde(serialize_with = "rfc3339")]
    pub started: SystemTime,
    /// Whole seconds since then.
    pub uptime_seconds: u64,
    /// Connections accepted by all frontends, those that are gone too.
    pub total_connections: u64,
    /// Of those, the ones that are open.
    pub current_connections: u64,
    /// Bytes received by all frontends, those that are gone too.
    pub total_bytes_rx: u64,
    /// Bytes sent by all frontends, those that are gone too.
    pub total_bytes_tx: u64,
    /// Packets or datagrams received by all frontends, those that are gone too.
    pub total_packets_rx: u64,
    /// Packets or datagrams sent by all frontends, those that are gone too.
    pub total_packets_tx: u64,
    /// Lines of the log that were dropped because nobody read them in time.
    pub log_lines_dropped: u64,
    /// Lines of the access log that were dropped because they came faster than they are written.
    pub access_log_lines_dropped: u64,
    /// Why this convey should get no traffic, a line for each reason: what `/readyz` says. Empty if it can serve all.
    pub not_ready: Vec<String>,
    /// The configuration that runs, and the last reload.
    pub config: ConfigReport,
    /// The frontends there are now, by name.
    pub frontends: BTreeMap<String, FrontendReport>,
    /// The backends there are now, by name.
    pub backends: BTreeMap<String, BackendReport>,
    /// What operators have said while the program runs; it goes before the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<OverlayReport>,
    /// The names that servers go by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, NameReport>,
    /// The sources that backends have servers from, by backend.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub discovery: BTreeMap<String, DiscoveryReport>,
    /// Certificates that convey orders itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acme: Option<AcmeReport>,
    /// Addresses that convey announces while their frontends can serve.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub announced: BTreeMap<String, AnnouncedReport>,
    /// The configuration, if it is in etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdReport>,
    /// Packet modes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketReport>,
}

/// The traffic of a frontend, a backend or a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrafficReport {
    /// Connections accepted (frontend) or given to a server (backend, server).
    pub total_connections: u64,
    /// Of those, the ones that are open.
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

/// A frontend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrontendReport {
    /// How its traffic is forwarded.
    pub mode: &'static str,
    /// The protocol that clients speak to it.
    pub protocol: &'static str,
    /// Addresses clients connect to.
    pub listen_addr: Vec<String>,
    /// The backend that serves them; with routes that of requests and connections without one. Empty if there is none.
    pub backend: String,
    /// Its routes, the default one last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteReport>,
    /// Why it cannot serve; `None`: it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<String>,
    /// Its backends that cannot serve, each with the reason. The frontend may be ready by others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unserved: BTreeMap<String, String>,
    /// All of its backends.
    #[serde(skip)]
    pub backends: Vec<String>,
    /// Connections served at once; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Connections that wait for one of these, or for their client's share (proxy mode). Connections in the kernel's queue
    /// are not among them.
    pub waiting_connections: u32,
    /// Its traffic.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Connections that ended otherwise than by both sides closing, by the labels of [`Counter::ENDS`].
    pub ended: BTreeMap<&'static str, u64>,
    /// Datagrams that went no further (UDP in proxy mode), by the labels of [`Counter::DROPS`].
    pub drops: BTreeMap<&'static str, u64>,
    /// Connections, datagrams and (packet modes) packets of clients that may not come in, by the labels of
    /// [`Counter::REFUSALS`].
    pub refused: BTreeMap<&'static str, u64>,
    /// How clients have shaken hands; `None`: they speak no TLS with convey.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsReport>,
    /// Its requests. Mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Times a source was not counted, for want of a place.
    pub uncounted_sources: u64,
    /// Times accepting paused because descriptors or memory ran out.
    pub accept_backoffs: u64,
}

/// A backend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendReport {
    /// The directory whose files it serves in place of servers. Backends with files only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// The files that workers keep at hand. The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_cache: Option<FileCacheReport>,
    /// How a server is chosen.
    pub algorithm: &'static str,
    /// Servers that are healthy, whether or not they are eligible.
    pub servers_up: usize,
    /// Connections that wait for a server, all being at their `max_connections` (proxy mode).
    pub waiting_connections: u32,
    /// Its traffic.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Attempts to connect to one of its servers that failed.
    pub connect_failures: u64,
    /// Attempts repeated on another server.
    pub retries: u64,
    /// The requests that its servers got. Backends of mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// How long connects to its servers took, those that failed left out. Backends of proxies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_seconds: Option<TimesReport>,
    /// From accepting a client to the end of its connection, of those that ended and had got a server. Backends of
    /// proxies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_seconds: Option<TimesReport>,
    /// Its servers, by name.
    pub servers: BTreeMap<String, ServerReport>,
}

/// How long something took, in seconds. `None` as long as nothing has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimesReport {
    /// How many times it was measured.
    pub count: u64,
    /// The average.
    pub mean: Option<f64>,
    /// Half took at most this long.
    pub p50: Option<f64>,
    /// All but one in a hundred took at most this long.
    pub p99: Option<f64>,
    /// How the last two are known, in words for whoever reads them.
    pub percentiles: &'static str,
    /// All of it: upper bounds in seconds, each with the number of times that were at most as long.
    #[serde(rename = "buckets", serialize_with = "by_bound")]
    pub distribution: Distribution,
}

/// What operators have said while the program runs.
pub(super) fn overlays(snapshot: &Snapshot, started: SystemTime) -> Vec<OverlayReport> {
    let of_servers = snapshot.overlays.iter().map(|one| OverlayReport::of_snapshot(one, snapshot, started));
    let of_log = snapshot.log_level.iter().map(|said| OverlayReport::of_log_level(said, started));
    of_servers.chain(of_log).collect()
}

impl StatsReport {
    /// Reads the counters of a snapshot at `now`. `started` is the wall-clock time of `Timestamp(0)`.
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

    /// The same, of this process.
    pub fn of_process(self, process: u32) -> Self {
        StatsReport { process, ..self }
    }

    /// The same with what packet modes count.
    pub fn with_packets(self, stats: Option<&PacketStats>) -> Self {
        StatsReport { packets: stats.map(PacketReport::new), ..self }
    }

    /// The same with what has become of the configuration.
    pub fn with_load(self, load: ConfigLoad) -> Self {
        StatsReport { config: ConfigReport::new(load, self.started), ..self }
    }

    /// The same with the certificates that convey orders itself.
    pub(super) fn with_acme(self, state: &AcmeState) -> Self {
        StatsReport { acme: AcmeReport::new(state), ..self }
    }

    /// The same with the addresses that convey announces.
    pub(super) fn with_announced(self, state: &AnnounceState) -> Self {
        StatsReport { announced: announce::reports(state), ..self }
    }

    /// The same with the configuration in etcd, if it is there.
    pub(super) fn with_remote(self, state: &RemoteState, started: SystemTime) -> Self {
        StatsReport { etcd: EtcdReport::new(state, started), ..self }
    }

    /// The same with what has become of the log and the access log.
    pub fn with_dropped_lines(self, log_lines_dropped: u64, access_log_lines_dropped: u64) -> Self {
        StatsReport { log_lines_dropped, access_log_lines_dropped, ..self }
    }
}

impl TrafficReport {
    fn new(traffic: &Traffic) -> Self {
        // Open connections are read first, so that they can never outnumber all.
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

/// What a backend is used for, so that its report has nothing that cannot happen.
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
    /// One backend alone: with thousands of others they need not be read.
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

/// They lie within a bucket of the histogram; where is not known.
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
