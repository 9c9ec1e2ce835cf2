//! What is known of the sources that backends have servers from.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use convey_snapshot::{Discovery, Snapshot};
use serde::Serialize;

use super::report::rfc3339;

/// The source of a backend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiscoveryReport {
    /// Which, such as `kubernetes default/web:http`.
    pub source: String,
    /// Whether what is known is what the source has now.
    pub connected: bool,
    /// Why it cannot be asked, in words for an operator. Its servers stay meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it has that is no server, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Its endpoints that are servers, those that drain too.
    pub endpoints: usize,
    /// Those of them that get no new connections.
    pub draining: usize,
    /// How often it could not be asked.
    pub failures: u64,
    /// When its servers last changed, or it began or ceased to fail.
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

    /// Those of all backends that have one, by backend.
    pub(super) fn all(snapshot: &Snapshot, started: SystemTime) -> BTreeMap<String, DiscoveryReport> {
        let of_backend = snapshot.pools.iter().filter_map(|pool| {
            let source = &pool.config.discovery.as_ref()?.source;
            let known = snapshot.discoveries.iter().find(|known| known.source == *source)?;
            Some((pool.config.name.clone(), DiscoveryReport::new(known, started)))
        });
        of_backend.collect()
    }
}
