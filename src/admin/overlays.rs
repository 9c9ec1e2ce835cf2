//! What operators have said while the program runs, as the API serves it. Pure.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::report::rfc3339;
use crate::model::{AddedServer, Overlay, OverlayValue, SaidLogLevel, ServerSettings};

/// A change that an operator has made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverlayReport {
    /// Of this backend; of the program, without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Of this server; of all of them, without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Whether it may serve: `ready`, `drain` or `maint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// Its weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// It was added: its address, its weight and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedReport>,
    /// It was removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// The least important lines of the log that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<&'static str>,
    /// The file goes before that by now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// Since when.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
    /// Who has made it.
    pub by: String,
}

/// A server that the file does not have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AddedReport {
    /// Its address, as a file would have it.
    pub addr: String,
    /// Its weight.
    pub weight: u16,
    /// Whether it serves only while no other server is usable.
    pub backup: bool,
    /// Connections it is given at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
}

impl From<&AddedServer> for AddedReport {
    fn from(server: &AddedServer) -> AddedReport {
        let ServerSettings { weight, backup, max_connections } = server.settings;
        AddedReport { addr: server.addr.clone(), weight, backup, max_connections }
    }
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
            since: started + Duration::from_nanos(overlay.since.0),
            by: overlay.by.clone(),
        }
    }

    /// The same for the log.
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
            since: started + Duration::from_nanos(said.since.0),
            by: said.by.clone(),
        }
    }
}
