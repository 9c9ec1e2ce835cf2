//! Sample of the status. Fields that another version lacks or adds do not matter.
//! Pure.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use convey_model::{Mode, Timestamp};
use humantime::parse_rfc3339;
use serde::Deserialize;

use crate::operator::requests::RequestCounts;
use crate::operator::times::Times;

/// Status of convey with its time, and the events since the sample before.
#[derive(Debug, Clone)]
pub struct TopSample {
    /// Time of the sample, for differences.
    pub at: Timestamp,
    /// Wall-clock time of the sample, for display.
    pub clock: SystemTime,
    /// Status of the running convey.
    pub status: TopStatus,
    /// Events that earlier samples did not include.
    pub events: Vec<TopEvent>,
}

/// Fields of the status that the screen shows.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct TopStatus {
    pub(super) version: String,
    pub(super) started: String,
    pub(super) uptime_seconds: u64,
    pub(super) not_ready: Vec<String>,
    #[serde(flatten)]
    pub(super) totals: TopTraffic,
    pub(super) frontends: BTreeMap<String, TopFrontend>,
    pub(super) backends: BTreeMap<String, TopBackend>,
    pub(super) packets: Option<TopPackets>,
}

impl TopStatus {
    /// Whether convey was restarted since `before`, so that its counters and events restarted at
    /// 0. An upgrade is no restart.
    pub fn is_restarted(&self, before: &TopStatus) -> bool {
        self.uptime_seconds < before.uptime_seconds || !is_same_time(&self.started, &before.started)
    }
}

/// Compares start times. After an upgrade the start time may differ by some milliseconds.
fn is_same_time(one: &str, other: &str) -> bool {
    let (Ok(one), Ok(other)) = (parse_rfc3339(one), parse_rfc3339(other)) else { return one == other };
    one.max(other).duration_since(one.min(other)).is_ok_and(|between| between < Duration::from_secs(1))
}

/// Traffic of a frontend, a backend, a server or of all frontends; for the latter the byte
/// counters have other names.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopTraffic {
    pub(super) total_connections: u64,
    pub(super) current_connections: u64,
    #[serde(alias = "total_bytes_rx")]
    pub(super) bytes_rx: u64,
    #[serde(alias = "total_bytes_tx")]
    pub(super) bytes_tx: u64,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopFrontend {
    pub(super) mode: String,
    backend: String,
    routes: Vec<TopRoute>,
    pub(super) not_ready: Option<String>,
    #[serde(flatten)]
    pub(super) traffic: TopTraffic,
    pub(super) drops: BTreeMap<String, u64>,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) ended: BTreeMap<String, u64>,
    pub(super) requests: Option<RequestCounts>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct TopRoute {
    backend: Option<String>,
    request_seconds: Option<Times>,
}

impl TopFrontend {
    /// Whether the frontend or one of its routes uses this backend.
    pub(super) fn uses(&self, backend: &str) -> bool {
        let is_it = |route: &TopRoute| route.backend.as_deref() == Some(backend);
        self.backend == backend || self.routes.iter().any(is_it)
    }

    /// Duration of the requests of all routes (mode http).
    pub(super) fn request_seconds(&self) -> Option<Times> {
        Times::sum(self.routes.iter().filter_map(|route| route.request_seconds.as_ref()))
    }

    /// Refusals, drops and early ends by reason. In packet modes, the drops of all frontends
    /// include the refusals.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.losses().chain(self.requests.iter().flat_map(RequestCounts::refusals))
    }

    /// Number of errors: refused connections and datagrams, responses with status 5xx, and requests
    /// refused by a limit.
    pub(super) fn errors(&self) -> u64 {
        let losses: u64 = self.losses().map(|(_, count)| count).sum();
        losses + self.requests.as_ref().map_or(0, |requests| requests.server_errors() + requests.limited())
    }

    fn losses(&self) -> impl Iterator<Item = (&String, &u64)> {
        let is_proxied = Mode::ALL.into_iter().any(|mode| mode.is_proxied() && mode.name() == self.mode);
        let refused = is_proxied.then_some(&self.refused).into_iter().flatten();
        self.drops.iter().chain(&self.ended).chain(refused)
    }
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopBackend {
    #[serde(flatten)]
    pub(super) traffic: TopTraffic,
    pub(super) connect_failures: u64,
    pub(super) connect_seconds: Option<Times>,
    pub(super) session_seconds: Option<Times>,
    pub(super) requests: Option<RequestCounts>,
    pub(super) servers: BTreeMap<String, TopServer>,
}

impl TopBackend {
    /// Time from a request to the head of its response, for all servers (mode http).
    pub(super) fn response_seconds(&self) -> Option<Times> {
        Times::sum(self.servers.values().filter_map(|server| server.response_seconds.as_ref()))
    }
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopServer {
    pub(super) state: String,
    pub(super) up: bool,
    pub(super) eligible: bool,
    pub(super) effective_weight: f64,
    pub(super) ejected: Option<serde::de::IgnoredAny>,
    #[serde(flatten)]
    pub(super) traffic: TopTraffic,
    pub(super) connect_failures: u64,
    pub(super) requests: Option<RequestCounts>,
    pub(super) response_seconds: Option<Times>,
    pub(super) handshakes: Option<TopHandshakes>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopHandshakes {
    pub(super) begun: u64,
    pub(super) completed: u64,
    pub(super) syn_repeated: u64,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopPackets {
    pub(super) drops: BTreeMap<String, u64>,
}

/// Event of the running convey.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct TopEvent {
    /// Number of the event, counted from 0.
    pub number: u64,
    pub(super) at: String,
    pub(super) level: String,
    pub(super) text: String,
}
