//! A server in the report: its health, its handshakes and its traffic.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use convey_model::{ServerAddr, Timestamp};
use convey_snapshot::stats::{Counter, Traffic};
use convey_snapshot::{Ejected, Health, Pool, ServerLive};
use serde::Serialize;

use super::requests::RequestReport;
use super::{TimesReport, TrafficReport, Uses, rfc3339};

/// A server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerReport {
    /// Where it listens.
    pub addr: String,
    /// Share of new connections relative to the other servers.
    pub weight: u16,
    /// Weight in use now: less during slow start.
    pub effective_weight: f64,
    /// Used only while no other server of the backend is usable.
    pub backup: bool,
    /// Connections it is given at once; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Administrative state: `ready`, `drain` or `maint`.
    pub state: &'static str,
    /// Whether it is healthy.
    pub up: bool,
    /// Whether it can be chosen now: ready, healthy, not ejected (or nobody else is left), of some weight, and not a backup that
    /// is not needed.
    pub eligible: bool,
    /// Its health.
    pub health: HealthReport,
    /// Why and how long it gets no new connections although it is healthy; `None`: it is not ejected.
    pub ejected: Option<EjectedReport>,
    /// Times it has been ejected.
    pub ejections: u64,
    /// Its traffic.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Attempts to connect to it that failed.
    pub connect_failures: u64,
    /// Attempts to connect to it after one to another server had failed.
    pub retries: u64,
    /// The requests that it got. Backends of mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// From a request to the head of its response. Backends of mode http only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_seconds: Option<TimesReport>,
    /// TCP handshakes with it. Backends of packet modes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<HandshakeReport>,
    /// Connections whose large packets do not arrive, and short ones do. Backends of packet modes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu_suspicions: Option<PathMtuReport>,
}

/// Connections whose large packets do not arrive, by which way these go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PathMtuReport {
    /// To the server.
    pub to_server: u64,
    /// To the client: `passthrough` alone sees that.
    pub to_client: u64,
}

/// TCP handshakes of clients with a server (packet modes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HandshakeReport {
    /// Handshakes that clients have begun.
    pub begun: u64,
    /// Handshakes that clients have completed.
    pub completed: u64,
    /// SYNs that came again before their handshake was complete.
    pub syn_repeated: u64,
    /// Handshakes that clients have begun since one was last completed.
    pub in_vain: u64,
    /// Whether the server answers no client of late: it completes none, and others of its backend do.
    pub answers_nobody: bool,
}

/// A server's health.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealthReport {
    /// Whether it is healthy.
    pub up: bool,
    /// Operator-facing reason.
    pub reason: String,
    /// When it last changed.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
}

/// A server that was taken out because clients fared badly.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EjectedReport {
    /// Operator-facing reason.
    pub reason: String,
    /// When it comes back, in seconds from now.
    pub remaining_seconds: f64,
    /// How many times it has been ejected in short succession: it comes back after so many times the base time.
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
        // Completed is read first: none may be complete before it began.
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
