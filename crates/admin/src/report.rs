//! Complete report of one snapshot, for `/stats`. Pure.

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

use convey_api::{
    BackendReport, Buckets, FrontendReport, OverlayReport, StatsReport, TimesReport, TrafficReport,
};
use convey_control::ConfigLoad;
use convey_model::{FrontendConfig, Listen, Protocol, Timestamp};
use convey_snapshot::stats::{Counter, Distribution, Traffic};
use convey_snapshot::{Frontend, HttpFrontend, Pool, Snapshot, SniRoutes};

pub(super) use self::acme::acme_report;
pub(super) use self::announce::announced_reports;
pub(super) use self::etcd::etcd_report;
use super::ready::{FrontendReadiness, ReadinessInput, Unserved};
use super::{config, discoveries, names, overlays};

/// Reports of the runtime overrides.
pub(super) fn overlay_reports(snapshot: &Snapshot, started: SystemTime) -> Vec<OverlayReport> {
    let of_servers = snapshot.overlays.iter().map(|one| overlays::of_snapshot(one, snapshot, started));
    let of_http = snapshot.http_overlays.iter().map(|one| overlays::of_http(one, snapshot, started));
    let of_log = snapshot.log_level.iter().map(|said| overlays::of_log_level(said, started));
    of_servers.chain(of_http).chain(of_log).collect()
}

/// Report of the state and the counters of a snapshot at `now`. `started` is the wall-clock time of
/// `Timestamp(0)`. The report does not contain state outside the snapshot.
pub fn stats_report(input: ReadinessInput<'_>, started: SystemTime, now: Timestamp) -> StatsReport {
    let (snapshot, readiness) = (input.snapshot, FrontendReadiness::of(input));
    let totals = traffic_report(&snapshot.totals);
    let frontend = |(frontend, unserved): &(&Frontend, Unserved<'_>)| {
        (frontend.config.name.clone(), frontend_report(frontend, unserved, now))
    };
    let backend = |pool: &Arc<Pool>| {
        let name = &pool.config.name;
        (name.clone(), pool_report(pool, Uses::of(name, snapshot), started, now))
    };
    let name = |name| names::name_report(name, started);
    StatsReport {
        version: env!("CARGO_PKG_VERSION").into(),
        process: 0,
        started: started.into(),
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
        config: config::config_report(ConfigLoad::default(), started),
        frontends: readiness.frontends.iter().map(frontend).collect(),
        backends: snapshot.pools.iter().map(backend).collect(),
        overlays: overlay_reports(snapshot, started),
        names: snapshot.names.iter().map(|known| (known.host.clone(), name(known))).collect(),
        discovery: discoveries::discovery_reports(snapshot, started),
        acme: None,
        announced: BTreeMap::new(),
        etcd: None,
        packets: None,
    }
}

fn traffic_report(traffic: &Traffic) -> TrafficReport {
    // Read open connections first, so that the report never shows more open connections than
    // connections in total.
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

fn frontend_report(frontend: &Frontend, unserved: &Unserved<'_>, now: Timestamp) -> FrontendReport {
    let traffic = &frontend.live.traffic;
    let of_requests = frontend.http.iter().flat_map(HttpFrontend::routes);
    let of_connections = frontend.sni.iter().flat_map(SniRoutes::routes);
    let is_http = frontend.config.mode.is_http();
    let routes = of_requests.map(|route| route::http_route_report(route, now));
    let routes = routes.chain(of_connections.map(|route| route::sni_route_report(route)));
    FrontendReport {
        mode: frontend.config.mode.name().into(),
        protocol: frontend.config.protocol.name().into(),
        listen_addr: frontend.config.listen.iter().map(Listen::to_string).collect(),
        backend: frontend.config.backend.clone().unwrap_or_default(),
        routes: routes.collect(),
        not_ready: unserved.obstacle(frontend),
        unserved: unserved.backends(),
        max_connections: frontend.config.max_connections,
        waiting_connections: frontend.live.waiters.count(),
        traffic: traffic_report(traffic),
        ended: requests::sums(traffic, &Counter::ENDS),
        drops: requests::sums(traffic, &Counter::DROPS),
        refused: requests::sums(traffic, &Counter::REFUSALS),
        tls: tls::tls_report(frontend, unserved.certificate_fault()),
        requests: is_http.then(|| requests::of_frontend(&frontend.live, now)),
        request_seconds: is_http.then(|| times_report(frontend.live.request_times.read())),
        uncounted_sources: frontend.sources.as_ref().map_or(0, |sources| sources.uncounted()),
        accept_backoffs: traffic.sum(Counter::AcceptBackoff),
    }
}

/// How frontends use a backend. The report of the backend has no values that cannot occur with
/// these uses.
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

/// Report of one backend. Reads only the counters of this backend, because there may be thousands
/// of backends.
pub(super) fn backend_report(
    name: &str,
    snapshot: &Snapshot,
    started: SystemTime,
    now: Timestamp,
) -> Option<BackendReport> {
    let pool = snapshot.pools.iter().find(|pool| pool.config.name == name)?;
    Some(pool_report(pool, Uses::of(name, snapshot), started, now))
}

fn pool_report(pool: &Pool, uses: Uses, started: SystemTime, now: Timestamp) -> BackendReport {
    let traffic = &pool.live.traffic;
    let indices = 0..pool.servers.len();
    BackendReport {
        files: pool.config.files.as_ref().map(|files| files.root.display().to_string()),
        file_cache: pool.config.files.as_ref().map(|_| files::file_cache_report(traffic)),
        algorithm: pool.config.algorithm.name().into(),
        source: pool.config.source.clone(),
        servers_up: pool.servers.iter().filter(|server| server.health.up).count() as u64,
        waiting_connections: pool.live.waiters.count(),
        traffic: traffic_report(traffic),
        connect_failures: traffic.sum(Counter::ConnectFailures),
        retries: traffic.sum(Counter::Retries),
        requests: uses.has_requests.then(|| requests::of_backend(traffic)),
        connect_seconds: uses.is_proxied.then(|| times_report(pool.live.connect_times.read())),
        session_seconds: uses.is_proxied.then(|| times_report(pool.live.session_times.read())),
        servers: indices.map(|index| server::server_report(pool, index, uses, started, now)).collect(),
    }
}

/// Note on percentiles: the bucket of the histogram that contains a percentile is known, but not
/// the exact value.
const INTERPOLATED: &str = "interpolated from buckets";

fn times_report(distribution: Distribution) -> TimesReport {
    TimesReport {
        count: distribution.count,
        mean: distribution.mean(),
        p50: distribution.quantile(0.5),
        p90: distribution.quantile(0.9),
        p99: distribution.quantile(0.99),
        percentiles: INTERPOLATED.into(),
        sum: distribution.sum,
        buckets: Buckets(distribution.buckets),
    }
}

#[cfg(test)]
mod tests;
