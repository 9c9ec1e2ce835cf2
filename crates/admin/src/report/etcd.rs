//! Configuration in etcd, as `/stats` serves it. Pure.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::rfc3339;
use crate::RemoteState;

/// Report of a configuration in etcd.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EtcdReport {
    /// Address of the configuration.
    pub address: String,
    /// Whether convey follows etcd. False while etcd cannot be reached.
    pub connected: bool,
    /// Time of the last change of `connected`.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
    /// Reason why etcd cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The revision in force.
    pub revision: i64,
    /// Newest revision, if it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_revision: Option<i64>,
    /// Problems of the revision, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl EtcdReport {
    /// Returns `None` if the configuration is in a file.
    pub(super) fn new(state: &RemoteState, started: SystemTime) -> Option<EtcdReport> {
        let known = state.now();
        let (refused_revision, problems) =
            known.refused.map_or((None, Vec::new()), |refused| (Some(refused.number), refused.problems));
        Some(EtcdReport {
            address: known.address?,
            connected: known.is_connected,
            since: started + Duration::from_nanos(known.since.0),
            error: known.fault,
            revision: known.revision,
            refused_revision,
            problems,
        })
    }
}
