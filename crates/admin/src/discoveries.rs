//! Report on the sources from which backends get servers.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use convey_api::DiscoveryReport;
use convey_snapshot::{Discovery, Snapshot};

/// Reports of all sources, by backend name. `started` is the wall-clock time of `Timestamp(0)`.
pub(super) fn discovery_reports(
    snapshot: &Snapshot,
    started: SystemTime,
) -> BTreeMap<String, DiscoveryReport> {
    let of_backend = snapshot.pools.iter().filter_map(|pool| {
        let source = &pool.config.discovery.as_ref()?.source;
        let known = snapshot.discoveries.iter().find(|known| known.source == *source)?;
        Some((pool.config.name.clone(), discovery_report(known, started)))
    });
    of_backend.collect()
}

fn discovery_report(discovery: &Discovery, started: SystemTime) -> DiscoveryReport {
    DiscoveryReport {
        source: discovery.source.to_string(),
        connected: discovery.is_connected(),
        error: discovery.fault.clone(),
        notes: discovery.notes.iter().cloned().collect(),
        endpoints: discovery.servers.unwrap_or_default() as u64,
        draining: discovery.draining as u64,
        failures: discovery.failures,
        since: (started + Duration::from_nanos(discovery.since.0)).into(),
    }
}
