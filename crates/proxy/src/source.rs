//! Limits of a source (the network of a client) at a frontend. Both TCP connections and UDP
//! sessions count towards these limits.

use std::net::IpAddr;
use std::sync::Arc;

use convey_model::{CountedSource, Excess, Sources, Timestamp};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;

/// Counts a new connection of a client at its source. Returns `None` if the source has no limits,
/// or if the table of sources is full.
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

/// Returns the counter for a refusal because this limit is exceeded.
pub fn reason(excess: Excess) -> Counter {
    match excess {
        Excess::Connections => Counter::RefusedSourceConnections,
        Excess::Rate => Counter::RefusedSourceRate,
    }
}

/// Counts an open connection at its source, even beyond the limits. Returns `None` if the source
/// has no limits, or if the table of sources is full.
pub(super) fn count_open(frontend: &Frontend, client: IpAddr) -> Option<CountedSource> {
    limited(frontend, client)?.opened_counted(client)
}

/// Returns the rate token of a connection that was counted but not established, so that the
/// connection does not use up the rate of its source.
pub(super) fn refund_rate(frontend: &Frontend, client: IpAddr) {
    if let Some(sources) = limited(frontend, client) {
        sources.refund_token(client, &frontend.config.limits);
    }
}

/// Returns the frontend's table of sources; `None` if the frontend has no limits for sources, or
/// trusts this client.
pub(super) fn limited(frontend: &Frontend, client: IpAddr) -> Option<&Arc<Sources>> {
    frontend.sources.as_ref().filter(|_| !frontend.config.trusts(client))
}

/// Whether `reason` is a refusal because of a source's limits.
pub(super) fn is_over_limit(reason: Counter) -> bool {
    matches!(reason, Counter::RefusedSourceConnections | Counter::RefusedSourceRate)
}
