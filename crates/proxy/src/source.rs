//! Limits of a source at a frontend: TCP connections and UDP sessions count alike.

use std::net::IpAddr;
use std::sync::Arc;

use convey_model::{CountedSource, Excess, Sources, Timestamp};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;

/// Counts a new connection of a client at its source. `None` if the source has no limits.
///
/// # Errors
/// Reason of the refusal.
pub(super) fn count(
    frontend: &Frontend,
    client: IpAddr,
    now: Timestamp,
) -> Result<Option<CountedSource>, Counter> {
    let Some(sources) = limited(frontend, client) else { return Ok(None) };
    sources.begin_counted(client, &frontend.config.limits, now).map_err(reason)
}

/// Reason of a refusal, for the counters.
pub fn reason(excess: Excess) -> Counter {
    match excess {
        Excess::Connections => Counter::RefusedSourceConnections,
        Excess::Rate => Counter::RefusedSourceRate,
    }
}

/// Counts an open connection regardless of the limits. `None` if the source has no limits.
pub(super) fn count_open(frontend: &Frontend, client: IpAddr) -> Option<CountedSource> {
    limited(frontend, client)?.opened_counted(client)
}

/// Gives back a counted connection that was not established, so that it does not use up the
/// source's rate.
pub(super) fn give_back(frontend: &Frontend, client: IpAddr) {
    if let Some(sources) = limited(frontend, client) {
        sources.give_back(client, &frontend.config.limits);
    }
}

/// Sources of a frontend, if this client counts at its own source.
pub(super) fn limited(frontend: &Frontend, client: IpAddr) -> Option<&Arc<Sources>> {
    frontend.sources.as_ref().filter(|_| !frontend.config.trusts(client))
}

/// Whether this is a refusal because of a source's limits.
pub(super) fn is_over_limit(reason: Counter) -> bool {
    matches!(reason, Counter::RefusedSourceConnections | Counter::RefusedSourceRate)
}
