//! Report on runtime overrides by operators, for the API. Pure.

use std::time::{Duration, SystemTime};

use convey_api::{AddedReport, MaintenanceReport, OverlayReport, ResetReport};
use convey_control::RemovedOverlays;
use convey_model::{
    AddedServer, HttpOverlay, HttpOverlayValue, HttpTarget, Maintenance, Overlay, OverlayValue, SaidLogLevel,
    ServerSettings, Target,
};
use convey_snapshot::{HttpAction, HttpRoute, Snapshot};

/// Report of an override. `started` is the wall-clock time of `Timestamp(0)`.
fn overlay_report(overlay: &Overlay, started: SystemTime) -> OverlayReport {
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
        superseded: overlay.superseded,
        since: (started + Duration::from_nanos(overlay.since.0)).into(),
        by: overlay.by.clone(),
        ..OverlayReport::default()
    }
}

/// Report of an override. Its `absent` is true if the target does not exist in this snapshot.
/// Overrides that add or remove a server report `superseded` instead of `absent`.
pub(super) fn of_snapshot(overlay: &Overlay, snapshot: &Snapshot, started: SystemTime) -> OverlayReport {
    let is_presence = matches!(overlay.value, OverlayValue::Added(_) | OverlayValue::Removed);
    let absent = !is_presence && !exists(&overlay.target, snapshot);
    OverlayReport { absent, ..overlay_report(overlay, started) }
}

/// Report of an override in mode http. `started` is the wall-clock time of `Timestamp(0)`.
fn http_report(overlay: &HttpOverlay, started: SystemTime) -> OverlayReport {
    let report = OverlayReport {
        since: (started + Duration::from_nanos(overlay.since.0)).into(),
        by: overlay.by.clone(),
        ..OverlayReport::default()
    };
    let report = match overlay.target.clone() {
        HttpTarget::Frontend(frontend) => OverlayReport { frontend: Some(frontend), ..report },
        HttpTarget::Route { frontend, route } => {
            OverlayReport { frontend: Some(frontend), route: Some(route), ..report }
        }
        HttpTarget::Backend(backend) => OverlayReport { backend: Some(backend), ..report },
    };
    match &overlay.value {
        HttpOverlayValue::Weights(weights) => OverlayReport { weights: weights.clone(), ..report },
        HttpOverlayValue::Maintenance(maintenance) => {
            OverlayReport { maintenance: Some(maintenance_report(maintenance)), ..report }
        }
    }
}

fn maintenance_report(maintenance: &Maintenance) -> MaintenanceReport {
    let Maintenance { status, retry_after, page, allow } = maintenance;
    MaintenanceReport {
        status: *status,
        retry_after: *retry_after,
        page_bytes: page.as_ref().map(|page| page.body.len() as u64),
        allow: allow.iter().map(ToString::to_string).collect(),
    }
}

/// Report of an override in mode http. Its `absent` is true if this snapshot does not have the
/// target, or the route none of the backends. Its `superseded` is true if weights would leave no
/// backend.
pub(super) fn of_http(overlay: &HttpOverlay, snapshot: &Snapshot, started: SystemTime) -> OverlayReport {
    let report = http_report(overlay, started);
    let HttpOverlayValue::Weights(weights) = &overlay.value else {
        return OverlayReport { absent: !is_reached(&overlay.target, snapshot), ..report };
    };
    let route = route(&overlay.target, snapshot);
    let split = route.map_or(&[][..], |route| match &route.action {
        HttpAction::Split(all) => all,
        HttpAction::Forward(_) | HttpAction::Redirect(_) | HttpAction::Respond(_) => &[],
    });
    let mut set = split.iter().filter_map(|one| Some((one.weight, weights.get(&one.pool.config.name)?)));
    let absent = set.clone().next().is_none();
    OverlayReport { absent, superseded: set.any(|(now, set)| now != *set), ..report }
}

/// Whether requests in mode http reach the target.
fn is_reached(target: &HttpTarget, snapshot: &Snapshot) -> bool {
    let mut frontends = snapshot.frontends.iter().filter(|frontend| frontend.http.is_some());
    match target {
        HttpTarget::Frontend(name) => frontends.any(|frontend| frontend.config.name == *name),
        HttpTarget::Route { .. } => route(target, snapshot).is_some(),
        HttpTarget::Backend(name) => frontends.any(|frontend| frontend.config.uses(name)),
    }
}

fn route<'a>(target: &HttpTarget, snapshot: &'a Snapshot) -> Option<&'a HttpRoute> {
    let HttpTarget::Route { frontend, route } = target else { return None };
    let frontend = snapshot.frontends.iter().find(|one| one.config.name == *frontend)?;
    frontend.http.as_ref()?.routes().find(|one| *one.name == **route).map(|route| &**route)
}

/// Report of removed overrides.
pub(super) fn reset_report(gone: &RemovedOverlays, started: SystemTime) -> ResetReport {
    let of_servers = gone.servers.iter().map(|overlay| overlay_report(overlay, started));
    let of_http = gone.http.iter().map(|overlay| http_report(overlay, started));
    let of_log = gone.log_level.iter().map(|said| of_log_level(said, started));
    ResetReport { reset: of_servers.chain(of_http).chain(of_log).collect() }
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
