//! Report of a server: its health, its handshakes and its traffic.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use convey_model::{ServerAddr, Timestamp};
use convey_snapshot::stats::{Counter, Traffic};
use convey_snapshot::{Ejected, Health, Pool, ServerLive};
use serde::Serialize;

use super::requests::RequestReport;
use super::{TimesReport, TrafficReport, Uses, rfc3339};

/// Report of a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerReport {
    /// Address of the server.
    pub addr: String,
    /// Share of new connections, relative to the other servers of the backend.
    pub weight: u16,
    /// Current weight: lower during slow start.
    pub effective_weight: f64,
    /// Whether the server is used only while no other server of the backend is usable.
    pub backup: bool,
    /// Limit of concurrent connections; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Administrative state: `ready`, `drain` or `maint`.
    pub state: &'static str,
    /// Whether the server is healthy.
    pub up: bool,
    /// Whether the server can be chosen now: ready, healthy, not ejected (unless no other server is
    /// left), with a weight above 0, and not an unneeded backup.
    pub eligible: bool,
    /// Health of the server.
    pub health: HealthReport,
    /// Reason and remaining time of an ejection: the server gets no new connections although it is
    /// healthy. `None`: it is not ejected.
    pub ejected: Option<EjectedReport>,
    /// Number of ejections.
    pub ejections: u64,
    /// Traffic of the server.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Failed attempts to connect to the server.
    pub connect_failures: u64,
    /// Attempts to connect to the server after a failed attempt on another server.
    pub retries: u64,
    /// Requests that the server received. Backends of mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Durations from a request to the head of its response. Backends of mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_seconds: Option<TimesReport>,
    /// TCP handshakes with the server. Backends of packet modes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<HandshakeReport>,
    /// Connections on which short packets arrive, but large ones do not. Backends of packet modes
    /// only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu_suspicions: Option<PathMtuReport>,
}

/// Connections whose large packets do not arrive, by their direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PathMtuReport {
    /// Large packets to the server.
    pub to_server: u64,
    /// Large packets to the client: only `passthrough` sees them.
    pub to_client: u64,
}

/// TCP handshakes of clients with a server (packet modes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HandshakeReport {
    /// Handshakes that clients have begun.
    pub begun: u64,
    /// Handshakes that clients have completed.
    pub completed: u64,
    /// SYNs that were repeated before their handshake was complete.
    pub syn_repeated: u64,
    /// Handshakes that clients have begun since the last completed one.
    pub in_vain: u64,
    /// Whether the server has stopped answering clients: no handshake with it completes, and
    /// handshakes with others of its backend do.
    pub answers_nobody: bool,
}

/// Health of a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealthReport {
    /// Whether the server is healthy.
    pub up: bool,
    /// Operator-facing reason.
    pub reason: String,
    /// Time of the last change.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
}

/// Ejection of a server because of its clients' failures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EjectedReport {
    /// Operator-facing reason.
    pub reason: String,
    /// Time until the server comes back, in seconds.
    pub remaining_seconds: f64,
    /// Number of ejections in short succession. The ejection lasts the base time multiplied by this
    /// number.
    pub times: u32,
}

impl ServerReport {
    pub(super) fn new(
        pool: &Pool,
        index: usize,
        uses: Uses,
        started: SystemTime,
        now: Timestamp,
    ) -> (String, Self) {
        let server = &pool.servers[index];
        let traffic = &server.live.traffic;
        let report = ServerReport {
            addr: ServerAddr(server.config.addr).to_string(),
            weight: server.config.settings.weight,
            effective_weight: f64::from(server.config.settings.weight) * f64::from(server.health.percent)
                / 100.0,
            backup: server.config.settings.backup,
            max_connections: server.config.settings.max_connections,
            state: server.admin.name(),
            up: server.health.up,
            eligible: pool.is_eligible(index),
            health: HealthReport::new(&server.health, started),
            ejected: server.health.ejected.as_ref().map(|ejected| EjectedReport::new(ejected, now)),
            ejections: server.live.ejections(),
            traffic: TrafficReport::new(traffic),
            connect_failures: traffic.sum(Counter::ConnectFailures),
            retries: traffic.sum(Counter::Retries),
            requests: uses.has_requests.then(|| RequestReport::of_servers(traffic)),
            response_seconds: uses.has_requests.then(|| TimesReport::new(server.live.response_times.read())),
            handshakes: uses.has_handshakes.then(|| HandshakeReport::new(&server.live)),
            path_mtu_suspicions: uses.has_handshakes.then(|| PathMtuReport::new(traffic)),
        };
        (server.config.name.clone(), report)
    }
}

impl HandshakeReport {
    fn new(server: &ServerLive) -> Self {
        let traffic = &server.traffic;
        // Completed handshakes are read first, so that they never outnumber begun ones.
        let completed = traffic.sum(Counter::HandshakesCompleted);
        let syn_repeated = traffic.sum(Counter::SynsRepeated);
        let answers_nobody = server.answers_nobody.load(Ordering::Relaxed);
        HandshakeReport {
            begun: traffic.sum(Counter::HandshakesBegun),
            completed,
            syn_repeated,
            in_vain: server.in_vain.load(Ordering::Relaxed),
            answers_nobody,
        }
    }
}

impl PathMtuReport {
    fn new(traffic: &Traffic) -> Self {
        PathMtuReport {
            to_server: traffic.sum(Counter::PathMtuToServer),
            to_client: traffic.sum(Counter::PathMtuToClient),
        }
    }
}

impl HealthReport {
    fn new(health: &Health, started: SystemTime) -> Self {
        let since = started + Duration::from_nanos(health.since.0);
        HealthReport { up: health.up, reason: health.reason.clone(), since }
    }
}

impl EjectedReport {
    fn new(ejected: &Ejected, now: Timestamp) -> Self {
        EjectedReport {
            reason: ejected.reason.clone(),
            remaining_seconds: (ejected.until.since(now).as_secs_f64() * 1000.0).round() / 1000.0,
            times: ejected.times,
        }
    }
}
