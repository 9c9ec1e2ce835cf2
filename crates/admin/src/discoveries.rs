//! State of the sources from which backends get servers.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use convey_snapshot::{Discovery, Snapshot};
use serde::Serialize;

use super::report::rfc3339;

/// Source of a backend's servers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiscoveryReport {
    /// Name of the source, such as `kubernetes default/web:http`.
    pub source: String,
    /// Whether the known servers are the source's current ones.
    pub connected: bool,
    /// Operator-facing reason why the source cannot be reached. Its servers stay meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Entries of the source that are no usable servers, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Number of endpoints that are servers, including draining ones.
    pub endpoints: usize,
    /// Number of endpoints that drain and get no new connections.
    pub draining: usize,
    /// Number of failed requests to the source.
    pub failures: u64,
    /// Time when the servers last changed, or failures last began or ended.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
}

impl DiscoveryReport {
    /// `started` is the wall-clock time of `Timestamp(0)`.
    fn new(discovery: &Discovery, started: SystemTime) -> DiscoveryReport {
        DiscoveryReport {
            source: discovery.source.to_string(),
            connected: discovery.is_connected(),
            error: discovery.fault.clone(),
            notes: discovery.notes.iter().cloned().collect(),
            endpoints: discovery.servers.unwrap_or_default(),
            draining: discovery.draining,
            failures: discovery.failures,
            since: started + Duration::from_nanos(discovery.since.0),
        }
    }

    /// Reports of all sources, by backend.
    pub(super) fn all(snapshot: &Snapshot, started: SystemTime) -> BTreeMap<String, DiscoveryReport> {
        let of_backend = snapshot.pools.iter().filter_map(|pool| {
            let source = &pool.config.discovery.as_ref()?.source;
            let known = snapshot.discoveries.iter().find(|known| known.source == *source)?;
            Some((pool.config.name.clone(), DiscoveryReport::new(known, started)))
        });
        of_backend.collect()
    }
}
