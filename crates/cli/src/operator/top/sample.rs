//! Sample of the status. Pure.

use std::time::{Duration, SystemTime};

use convey_api::{BackendReport, EventReport, FrontendReport, Label, StatsReport, WallTime};
use convey_model::{Mode, Timestamp};
use convey_snapshot::stats::Distribution;

use crate::operator::requests::{limited, refusals, server_errors};
use crate::operator::times::sum;

/// Status of convey with its time, and the events since the previous sample.
#[derive(Debug, Clone)]
pub struct TopSample {
    /// Time of the sample, for differences.
    pub at: Timestamp,
    /// Wall-clock time of the sample, for display.
    pub clock: SystemTime,
    /// Status of the running convey.
    pub status: StatsReport,
    /// Events that earlier samples did not include.
    pub events: Vec<EventReport>,
}

/// Whether convey was restarted since `before`, so that its counters and events restarted at 0. An
/// upgrade is no restart.
pub fn is_restarted(now: &StatsReport, before: &StatsReport) -> bool {
    now.uptime_seconds < before.uptime_seconds || !is_same_time(now.started, before.started)
}

/// Compares start times. After an upgrade the start time may differ by some milliseconds.
fn is_same_time(WallTime(one): WallTime, WallTime(other): WallTime) -> bool {
    one.max(other).duration_since(one.min(other)).is_ok_and(|between| between < Duration::from_secs(1))
}

/// Whether the frontend or one of its routes uses this backend.
pub(super) fn uses(frontend: &FrontendReport, backend: &str) -> bool {
    frontend.backends().contains(&backend)
}

/// Refusals, drops and early ends by reason. In packet modes, the drops of all frontends include
/// the refusals.
pub(super) fn reasons(frontend: &FrontendReport) -> impl Iterator<Item = (&Label, &u64)> {
    losses(frontend).chain(frontend.requests.iter().flat_map(refusals))
}

/// Number of errors: refused connections and datagrams, responses with status 5xx, and requests
/// refused by a limit.
pub(super) fn errors(frontend: &FrontendReport) -> u64 {
    let losses: u64 = losses(frontend).map(|(_, count)| count).sum();
    losses + frontend.requests.as_ref().map_or(0, |requests| server_errors(requests) + limited(requests))
}

fn losses(frontend: &FrontendReport) -> impl Iterator<Item = (&Label, &u64)> {
    let is_proxied = Mode::ALL.into_iter().any(|mode| mode.is_proxied() && mode.name() == frontend.mode);
    let refused = is_proxied.then_some(&frontend.refused).into_iter().flatten();
    frontend.drops.iter().chain(&frontend.ended).chain(refused)
}

/// Time from a request to the head of its response, for all servers (mode http).
pub(super) fn response_seconds(backend: &BackendReport) -> Option<Distribution> {
    sum(backend.servers.values().filter_map(|server| server.response_seconds.as_ref()))
}
