//! Runtime overrides of operators, as the API serves them. Pure.

use std::time::{Duration, SystemTime};

use convey_model::{AddedServer, Overlay, OverlayValue, SaidLogLevel, ServerSettings, Target};
use convey_snapshot::Snapshot;
use serde::Serialize;

use super::report::rfc3339;

/// Runtime override by an operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverlayReport {
    /// Backend of the override; `None`: it applies to the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Server of the override; `None`: it applies to all servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Administrative state: `ready`, `drain` or `maint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// Weight of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Settings of an added server: its address, its weight and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedReport>,
    /// Whether the server was removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Least important level of the log that is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<&'static str>,
    /// Whether the file takes precedence now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// Whether the server or backend does not exist now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Time of the override.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
    /// Requester of the override.
    pub by: String,
}

/// Server that an operator added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AddedReport {
    /// Address in the notation of the file.
    pub addr: String,
    /// Weight of the server.
    pub weight: u16,
    /// Whether the server is used only while no other server is usable.
    pub backup: bool,
    /// Limit of concurrent connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
}

impl From<&AddedServer> for AddedReport {
    fn from(server: &AddedServer) -> AddedReport {
        let ServerSettings { weight, backup, max_connections } = server.settings;
        AddedReport { addr: server.addr.clone(), weight, backup, max_connections }
    }
}

/// Whether the backend and the server exist. A server matches by its name, by one address of a host
/// name, or by a host name.
fn exists(target: &Target, snapshot: &Snapshot) -> bool {
    snapshot.pools.iter().filter(|pool| pool.config.name == target.backend).any(|pool| {
        target.server.as_ref().is_none_or(|name| {
            let mut names = pool.servers.iter().map(|server| &server.config.name);
            names.any(|server| target.includes(&pool.config.name, server))
                || pool.config.named.iter().any(|named| named.name == *name)
        })
    })
}

impl OverlayReport {
    /// `started` is the wall-clock time of `Timestamp(0)`.
    pub fn new(overlay: &Overlay, started: SystemTime) -> Self {
        let (mut state, mut weight, mut added, mut removed) = (None, None, None, false);
        match &overlay.value {
            OverlayValue::State(value) => state = Some(value.name()),
            OverlayValue::Weight(value) => weight = Some(*value),
            OverlayValue::Added(server) => added = Some(server.into()),
            OverlayValue::Removed => removed = true,
        }
        OverlayReport {
            backend: Some(overlay.target.backend.clone()),
            server: overlay.target.server.clone(),
            state,
            weight,
            added,
            removed,
            log_level: None,
            superseded: overlay.superseded,
            absent: false,
            since: started + Duration::from_nanos(overlay.since.0),
            by: overlay.by.clone(),
        }
    }

    /// Report of an override, with `absent` from this snapshot. An added or removed server is
    /// `superseded` instead.
    pub(super) fn of_snapshot(overlay: &Overlay, snapshot: &Snapshot, started: SystemTime) -> Self {
        let is_presence = matches!(overlay.value, OverlayValue::Added(_) | OverlayValue::Removed);
        let absent = !is_presence && !exists(&overlay.target, snapshot);
        OverlayReport { absent, ..OverlayReport::new(overlay, started) }
    }

    /// Report of an override of the log level.
    pub fn of_log_level(said: &SaidLogLevel, started: SystemTime) -> Self {
        OverlayReport {
            backend: None,
            server: None,
            state: None,
            weight: None,
            added: None,
            removed: false,
            log_level: Some(said.level.name()),
            superseded: false,
            absent: false,
            since: started + Duration::from_nanos(said.since.0),
            by: said.by.clone(),
        }
    }
}
