//! Everything there is to say about one snapshot, as `/stats` serves it. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use super::{NameReport, PacketReport};
use crate::model::Timestamp;
use crate::snapshot::{Frontend, Health, Pool, Snapshot};
use crate::stats::{Counter, PacketStats, Traffic};

/// The whole report. Received (`rx`) is from clients, sent (`tx`) is to clients; all counts begin when the
/// program starts, or later for what a reload added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The program's version.
    pub version: &'static str,
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
    /// The frontends there are now, by name.
    pub frontends: BTreeMap<String, FrontendReport>,
    /// The backends there are now, by name.
    pub backends: BTreeMap<String, BackendReport>,
    /// The names that servers go by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, NameReport>,
    /// Packet modes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketReport>,
}

/// What went through a frontend, a backend or a server.
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
}

/// A frontend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrontendReport {
    /// How its traffic is forwarded.
    pub mode: &'static str,
    /// What clients speak to it.
    pub protocol: &'static str,
    /// Addresses clients connect to.
    pub listen_addr: Vec<SocketAddr>,
    /// Who serves them.
    pub backend: String,
    /// Connections served at once; `None`: no limit.
    pub max_connections: Option<u32>,
    /// What went through it.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Connections that ended otherwise than by both sides closing, by the labels of [`Counter::ENDS`].
    pub ended: BTreeMap<&'static str, u64>,
    /// Times accepting paused because descriptors or memory ran out.
    pub accept_backoffs: u64,
}

/// A backend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendReport {
    /// How a server is chosen.
    pub algorithm: &'static str,
    /// Servers that are healthy, whether or not they are eligible.
    pub servers_up: usize,
    /// What went through it.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Attempts to connect to one of its servers that failed.
    pub connect_failures: u64,
    /// Attempts repeated on another server.
    pub retries: u64,
    /// Its servers, by name.
    pub servers: BTreeMap<String, ServerReport>,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerReport {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Share of new connections relative to the other servers.
    pub weight: u16,
    /// Used only while no other server of the backend is usable.
    pub backup: bool,
    /// Connections it is given at once; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Whether it is healthy.
    pub up: bool,
    /// Whether it can be chosen now: healthy, of some weight, and not a backup that is not needed.
    pub eligible: bool,
    /// What is known of its health.
    pub health: HealthReport,
    /// What went through it.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Attempts to connect to it that failed.
    pub connect_failures: u64,
    /// Attempts to connect to it after one to another server had failed.
    pub retries: u64,
}

/// What is known of a server's health.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealthReport {
    /// Whether it is healthy.
    pub up: bool,
    /// Why, in words for an operator.
    pub reason: String,
    /// When it last changed.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
}

impl Report {
    /// Reads the counters of a snapshot at `now`. `started` is the wall-clock time of `Timestamp(0)`.
    pub fn new(snapshot: &Snapshot, started: SystemTime, now: Timestamp) -> Self {
        let totals = TrafficReport::new(&snapshot.totals);
        let frontends = snapshot.frontends.iter();
        let pools = snapshot.pools.iter();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            started,
            uptime_seconds: now.since(Timestamp(0)).as_secs(),
            total_connections: totals.total_connections,
            current_connections: totals.current_connections,
            total_bytes_rx: totals.bytes_rx,
            total_bytes_tx: totals.bytes_tx,
            frontends: frontends.map(|f| (f.config.name.clone(), FrontendReport::new(f))).collect(),
            backends: pools.map(|p| (p.config.name.clone(), BackendReport::new(p, started))).collect(),
            names: snapshot.names.iter().map(|n| (n.host.clone(), NameReport::new(n, started))).collect(),
            packets: None,
        }
    }

    /// The same with what packet modes count.
    pub fn with_packets(self, stats: Option<&PacketStats>) -> Self {
        Report { packets: stats.map(PacketReport::new), ..self }
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
        }
    }
}

impl FrontendReport {
    fn new(frontend: &Frontend) -> Self {
        let traffic = &frontend.live.traffic;
        FrontendReport {
            mode: frontend.config.mode.name(),
            protocol: frontend.config.protocol.name(),
            listen_addr: frontend.config.listen.clone(),
            backend: frontend.config.backend.clone(),
            max_connections: frontend.config.max_connections,
            traffic: TrafficReport::new(traffic),
            ended: Counter::ENDS.iter().map(|(end, label)| (*label, traffic.sum(*end))).collect(),
            accept_backoffs: traffic.sum(Counter::AcceptBackoff),
        }
    }
}

impl BackendReport {
    fn new(pool: &Pool, started: SystemTime) -> Self {
        let traffic = &pool.live.traffic;
        let indices = 0..pool.servers.len();
        BackendReport {
            algorithm: pool.config.algorithm.name(),
            servers_up: pool.servers.iter().filter(|server| server.health.up).count(),
            traffic: TrafficReport::new(traffic),
            connect_failures: traffic.sum(Counter::ConnectFailures),
            retries: traffic.sum(Counter::Retries),
            servers: indices.map(|index| ServerReport::new(pool, index, started)).collect(),
        }
    }
}

impl ServerReport {
    fn new(pool: &Pool, index: usize, started: SystemTime) -> (String, Self) {
        let server = &pool.servers[index];
        let traffic = &server.live.traffic;
        let report = ServerReport {
            addr: server.config.addr,
            weight: server.config.weight,
            backup: server.config.backup,
            max_connections: server.config.max_connections,
            up: server.health.up,
            eligible: pool.is_eligible(index),
            health: HealthReport::new(&server.health, started),
            traffic: TrafficReport::new(traffic),
            connect_failures: traffic.sum(Counter::ConnectFailures),
            retries: traffic.sum(Counter::Retries),
        };
        (server.config.name.clone(), report)
    }
}

impl HealthReport {
    fn new(health: &Health, started: SystemTime) -> Self {
        let since = started + Duration::from_nanos(health.since.0);
        HealthReport { up: health.up, reason: health.reason.clone(), since }
    }
}

pub(super) fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*time))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model;
    use crate::snapshot::fixture;

    const STARTED: Duration = Duration::from_secs(1_700_000_000);

    fn stats(snapshot: &Snapshot, now: Duration) -> Value {
        let now = Timestamp(now.as_nanos() as u64);
        let report = Report::new(snapshot, SystemTime::UNIX_EPOCH + STARTED, now);
        serde_json::to_value(report).unwrap()
    }

    #[test]
    fn before_the_first_configuration_everything_is_zero() {
        let stats = stats(&Snapshot::empty(2), Duration::from_millis(61_900));
        let expected = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started": "2023-11-14T22:13:20.000Z", "uptime_seconds": 61,
            "total_connections": 0, "current_connections": 0, "total_bytes_rx": 0, "total_bytes_tx": 0,
            "frontends": {}, "backends": {},
        });
        assert_eq!(stats, expected);
    }

    #[test]
    fn a_frontend_tells_where_it_listens_what_it_carried_and_how_connections_ended() {
        let pool = fixture::pool("app", vec![]);
        let frontend = fixture::frontend("web", &["127.0.0.1:8080", "[::1]:8080"], &pool);
        let traffic = &frontend.live.traffic;
        for (counter, n) in [
            (Counter::Opened, 5),
            (Counter::Closed, 3),
            (Counter::BytesRx, 100),
            (Counter::BytesTx, 2_000),
            (Counter::IdleTimeout, 1),
            (Counter::ClientReset, 2),
            (Counter::AcceptBackoff, 4),
        ] {
            traffic.add(0, counter, n);
        }
        let snapshot = fixture::snapshot(vec![frontend], vec![pool]);
        let expected = json!({
            "mode": "proxy", "protocol": "tcp",
            "listen_addr": ["127.0.0.1:8080", "[::1]:8080"], "backend": "app", "max_connections": null,
            "total_connections": 5, "current_connections": 2, "bytes_rx": 100, "bytes_tx": 2_000,
            "ended": {
                "no_server": 0, "connect_failed": 0, "queue_timeout": 0, "idle_timeout": 1,
                "client_reset": 2, "server_reset": 0, "server_gone": 0, "cut": 0,
            },
            "accept_backoffs": 4,
        });
        assert_eq!(stats(&snapshot, Duration::ZERO)["frontends"]["web"], expected);
    }

    #[test]
    fn totals_keep_what_a_removed_frontend_carried() {
        let snapshot = Snapshot::empty(1);
        snapshot.totals.add(0, Counter::Opened, 7);
        snapshot.totals.add(0, Counter::Closed, 7);
        snapshot.totals.add(0, Counter::BytesRx, 70);
        snapshot.totals.add(0, Counter::BytesTx, 700);
        let stats = stats(&snapshot, Duration::ZERO);
        assert_eq!(stats["total_connections"], 7);
        assert_eq!(stats["current_connections"], 0);
        assert_eq!(stats["total_bytes_rx"], 70);
        assert_eq!(stats["total_bytes_tx"], 700);
    }

    #[test]
    fn a_server_that_went_down_says_why_and_since_when() {
        let refused = fixture::down("connection refused", Duration::from_millis(90_250));
        let mut server = fixture::server("a", "127.0.0.1:8081");
        server.max_connections = Some(50);
        let pool = fixture::pool("app", vec![(server, refused)]);
        pool.servers[0].live.traffic.add(0, Counter::ConnectFailures, 3);
        pool.servers[0].live.traffic.add(0, Counter::Retries, 2);
        let snapshot = fixture::snapshot(vec![], vec![pool]);
        let expected = json!({
            "addr": "127.0.0.1:8081", "weight": 1, "backup": false, "max_connections": 50,
            "up": false, "eligible": false,
            "health": { "up": false, "reason": "connection refused", "since": "2023-11-14T22:14:50.250Z" },
            "total_connections": 0, "current_connections": 0, "bytes_rx": 0, "bytes_tx": 0,
            "connect_failures": 3, "retries": 2,
        });
        let stats = stats(&snapshot, Duration::from_secs(100));
        assert_eq!(stats["backends"]["app"]["servers"]["a"], expected);
        assert_eq!(stats["backends"]["app"]["servers_up"], 0);
        assert_eq!(stats["backends"]["app"]["algorithm"], "round_robin");
    }

    #[test]
    fn a_backup_is_up_but_not_eligible_until_it_is_needed() {
        let backup = model::Server { backup: true, ..fixture::server("spare", "127.0.0.1:8082") };
        let app = fixture::server("a", "127.0.0.1:8081");
        let eligible = |health: Health| {
            let pool = fixture::pool("app", vec![(app.clone(), health), (backup.clone(), fixture::up())]);
            let stats = stats(&fixture::snapshot(vec![], vec![pool]), Duration::ZERO);
            let servers = &stats["backends"]["app"]["servers"];
            assert_eq!(servers["spare"]["up"], true);
            (servers["a"]["eligible"].clone(), servers["spare"]["eligible"].clone())
        };
        assert_eq!(eligible(fixture::up()), (json!(true), json!(false)));
        assert_eq!(eligible(fixture::down("timed out", Duration::ZERO)), (json!(false), json!(true)));
    }
}
