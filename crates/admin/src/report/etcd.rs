//! A configuration in etcd, as `/stats` has it. Pure.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::rfc3339;
use crate::RemoteState;

/// A configuration in etcd.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EtcdReport {
    /// Where it is.
    pub address: String,
    /// Whether it is followed; it is not while etcd cannot be reached.
    pub connected: bool,
    /// Since when that is so.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
    /// Why etcd cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The revision in force.
    pub revision: i64,
    /// The newest revision, if it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_revision: Option<i64>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl EtcdReport {
    /// `None`: the configuration is in a file.
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
