//! What one source may have of a frontend: its connections of TCP and its sessions of UDP are counted alike.

use std::net::IpAddr;

use convey_model::{CountedSource, Excess, Timestamp};
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
    let Some(sources) = frontend.sources.as_ref().filter(|_| !frontend.config.trusts(client)) else {
        return Ok(None);
    };
    sources.begin_counted(client, &frontend.config.limits, now).map_err(|excess| match excess {
        Excess::Connections => Counter::RefusedSourceConnections,
        Excess::Rate => Counter::RefusedSourceRate,
    })
}

/// Whether this refuses a connection because of its source's limits.
pub(super) fn is_over_limit(reason: Counter) -> bool {
    matches!(reason, Counter::RefusedSourceConnections | Counter::RefusedSourceRate)
}
