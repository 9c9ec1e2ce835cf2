//! What operators have said while the program runs, as the API serves it. Pure.

use std::time::{Duration, SystemTime};

use convey_model::{AddedServer, Overlay, OverlayValue, SaidLogLevel, ServerSettings, Target};
use convey_snapshot::Snapshot;
use serde::Serialize;

use super::report::rfc3339;

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
    /// There is no such server or backend now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
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

/// Whether there is such a backend, and such a server: by its name, one address of a host name, or a host name.
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

    /// The same, held against the servers that there are. One that was added or removed is `superseded` instead.
    pub(super) fn of_snapshot(overlay: &Overlay, snapshot: &Snapshot, started: SystemTime) -> Self {
        let is_presence = matches!(overlay.value, OverlayValue::Added(_) | OverlayValue::Removed);
        let absent = !is_presence && !exists(&overlay.target, snapshot);
        OverlayReport { absent, ..OverlayReport::new(overlay, started) }
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
            absent: false,
            since: started + Duration::from_nanos(said.since.0),
            by: said.by.clone(),
        }
    }
}
