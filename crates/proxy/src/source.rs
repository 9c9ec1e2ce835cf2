//! The limits of one source at a frontend: its connections of TCP and its sessions of UDP are counted alike.

use std::net::IpAddr;
use std::sync::Arc;

use convey_model::{CountedSource, Excess, Sources, Timestamp};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;

/// Counts a new connection of a client at its source. `None` if nothing is counted for it.
///
/// # Errors
/// Why it is refused.
pub(super) fn count(
    frontend: &Frontend,
    client: IpAddr,
    now: Timestamp,
) -> Result<Option<CountedSource>, Counter> {
    let Some(sources) = limited(frontend, client) else { return Ok(None) };
    sources.begin_counted(client, &frontend.config.limits, now).map_err(reason)
}

/// Why a source is refused.
pub fn reason(excess: Excess) -> Counter {
    match excess {
        Excess::Connections => Counter::RefusedSourceConnections,
        Excess::Rate => Counter::RefusedSourceRate,
    }
}

/// Counts a connection that goes on, whatever the limits say. `None` if nothing is counted for it.
pub(super) fn count_open(frontend: &Frontend, client: IpAddr) -> Option<CountedSource> {
    limited(frontend, client)?.opened_counted(client)
}

/// A connection that was counted came to nothing: it takes nothing of what its source may begin.
pub(super) fn give_back(frontend: &Frontend, client: IpAddr) {
    if let Some(sources) = limited(frontend, client) {
        sources.give_back(client, &frontend.config.limits);
    }
}

/// The sources of a frontend, if this client is counted at its own.
pub(super) fn limited(frontend: &Frontend, client: IpAddr) -> Option<&Arc<Sources>> {
    frontend.sources.as_ref().filter(|_| !frontend.config.trusts(client))
}

/// Whether this refuses a connection because of its source's limits.
pub(super) fn is_over_limit(reason: Counter) -> bool {
    matches!(reason, Counter::RefusedSourceConnections | Counter::RefusedSourceRate)
}
