//! Report on runtime overrides by operators, for the API. Pure.

use std::time::{Duration, SystemTime};

use convey_api::{AddedReport, OverlayReport};
use convey_model::{AddedServer, Overlay, OverlayValue, SaidLogLevel, ServerSettings, Target};
use convey_snapshot::Snapshot;

/// Report of an override. `started` is the wall-clock time of `Timestamp(0)`.
pub(super) fn overlay_report(overlay: &Overlay, started: SystemTime) -> OverlayReport {
    let (mut state, mut weight, mut added, mut removed) = (None, None, None, false);
    match &overlay.value {
        OverlayValue::State(value) => state = Some(value.name().into()),
        OverlayValue::Weight(value) => weight = Some(*value),
        OverlayValue::Added(server) => added = Some(added_report(server)),
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
        since: (started + Duration::from_nanos(overlay.since.0)).into(),
        by: overlay.by.clone(),
    }
}

/// Report of an override. Its `absent` is true if the target does not exist in this snapshot.
/// Overrides that add or remove a server report `superseded` instead of `absent`.
pub(super) fn of_snapshot(overlay: &Overlay, snapshot: &Snapshot, started: SystemTime) -> OverlayReport {
    let is_presence = matches!(overlay.value, OverlayValue::Added(_) | OverlayValue::Removed);
    let absent = !is_presence && !exists(&overlay.target, snapshot);
    OverlayReport { absent, ..overlay_report(overlay, started) }
}

/// Report of an override of the log level.
pub(super) fn of_log_level(said: &SaidLogLevel, started: SystemTime) -> OverlayReport {
    OverlayReport {
        log_level: Some(said.level.name().into()),
        since: (started + Duration::from_nanos(said.since.0)).into(),
        by: said.by.clone(),
        ..OverlayReport::default()
    }
}

fn added_report(server: &AddedServer) -> AddedReport {
    let ServerSettings { weight, backup, max_connections } = server.settings;
    AddedReport { addr: server.addr.clone(), weight, backup, max_connections }
}

/// Whether the target's backend and server exist. A server name in the target matches the name of a
/// server, one address of a host name, or a host name.
fn exists(target: &Target, snapshot: &Snapshot) -> bool {
    snapshot.pools.iter().filter(|pool| pool.config.name == target.backend).any(|pool| {
        target.server.as_ref().is_none_or(|name| {
            let mut names = pool.servers.iter().map(|server| &server.config.name);
            names.any(|server| target.includes(&pool.config.name, server))
                || pool.config.named.iter().any(|named| named.name == *name)
        })
    })
}
