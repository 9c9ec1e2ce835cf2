//! What convey has answered at one moment. Fields that another version lacks or adds do not matter. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use humantime::parse_rfc3339;
use serde::{Deserialize, Deserializer};

use crate::model::{Mode, Timestamp};
use crate::stats::Distribution;

/// The status, what has happened before it, and when it came.
#[derive(Debug, Clone)]
pub struct TopSample {
    /// When, to subtract.
    pub at: Timestamp,
    /// When, to show.
    pub clock: SystemTime,
    /// How convey fares.
    pub status: TopStatus,
    /// Events that the samples before did not have.
    pub events: Vec<TopEvent>,
}

/// What of the status is shown.
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
    /// Whether another process has answered than before, one that is not an upgrade: its counters and its events begin anew.
    pub fn is_restarted(&self, before: &TopStatus) -> bool {
        self.uptime_seconds < before.uptime_seconds || !is_same_time(&self.started, &before.started)
    }
}

/// An upgrade knows when the first process started to some milliseconds.
fn is_same_time(one: &str, other: &str) -> bool {
    let (Ok(one), Ok(other)) = (parse_rfc3339(one), parse_rfc3339(other)) else { return one == other };
    one.max(other).duration_since(one.min(other)).is_ok_and(|between| between < Duration::from_secs(1))
}

/// The traffic of a frontend, a backend or a server; of all frontends, whose bytes have other names.
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
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct TopRoute {
    backend: Option<String>,
}

impl TopFrontend {
    /// Whether a backend serves clients of it.
    pub(super) fn uses(&self, backend: &str) -> bool {
        let is_it = |route: &TopRoute| route.backend.as_deref() == Some(backend);
        self.backend == backend || self.routes.iter().any(is_it)
    }

    /// What it has turned away, by reason. Packet modes have their refusals among the drops of all frontends.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (&String, &u64)> {
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
    pub(super) connect_seconds: Option<TopTimes>,
    pub(super) session_seconds: Option<TopTimes>,
    pub(super) servers: BTreeMap<String, TopServer>,
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
    pub(super) handshakes: Option<TopHandshakes>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopHandshakes {
    pub(super) begun: u64,
    pub(super) completed: u64,
    pub(super) syn_repeated: u64,
}

/// How long something took.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopTimes {
    pub(super) count: u64,
    /// Upper bounds in seconds, ascending, each with the number of times that were at most as long.
    #[serde(deserialize_with = "by_bound")]
    pub(super) buckets: Vec<(f64, u64)>,
}

impl TopTimes {
    /// What has come since `before`; all of it if the counters have begun anew in between.
    pub(super) fn since(&self, before: &TopTimes) -> Distribution {
        let nothing = TopTimes::default();
        let before = if before.count > self.count { &nothing } else { before };
        let at =
            |bound: f64| before.buckets.iter().find(|(at, _)| *at == bound).map_or(0, |(_, count)| *count);
        let buckets = self.buckets.iter().map(|&(bound, count)| (bound, count.saturating_sub(at(bound))));
        Distribution { buckets: buckets.collect(), count: self.count - before.count, sum: 0.0 }
    }
}

/// The bounds are the keys of an object, in no order.
fn by_bound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(f64, u64)>, D::Error> {
    let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let mut buckets: Vec<(f64, u64)> =
        counts.into_iter().filter_map(|(bound, count)| Some((bound.parse().ok()?, count))).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(buckets)
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TopPackets {
    pub(super) drops: BTreeMap<String, u64>,
}

/// Something that has happened.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct TopEvent {
    /// Counts from 0.
    pub number: u64,
    pub(super) at: String,
    pub(super) level: String,
    pub(super) text: String,
}
