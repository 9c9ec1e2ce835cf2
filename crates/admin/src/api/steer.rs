//! API paths that change the running program.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use convey_api::{
    AdditionReport, ChangeReport, NewServer, OverlayParameters, ReloadReport, RemovalParameters, ServerChange,
};
use convey_config::{check_server_address, did_you_mean};
use convey_control::{Done, RequestRefusal, Requested, ResetScope};
use convey_model::{AddedServer, AdminState, HttpTarget, OverlayValue, ServerSettings, Target};

use super::super::Requester;
use super::super::overlays::reset_report;
use super::super::ready::{self, LostReadiness};
use super::{ApiContext, Failure, RequestBody, in_body, in_path, line, may_change, send_request};

pub(super) async fn steer_backend(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    name: Result<Path<String>, PathRejection>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let target = Target { backend: in_path(name)?, server: None };
    steer(&answers, who, target, &body).await
}

pub(super) async fn steer_server(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    names: Result<Path<(String, String)>, PathRejection>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let (backend, server) = in_path(names)?;
    steer(&answers, who, Target { backend, server: Some(server) }, &body).await
}

pub(super) async fn add_server(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    names: Result<Path<(String, String)>, PathRejection>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let (backend, server) = in_path(names)?;
    may_change(&answers, &who)?;
    let NewServer { addr, weight, backup, max_connections } = in_body(&body)?;
    check_server_address(&addr).map_err(|wrong| Failure::Bad(format!("addr: {wrong}")))?;
    let default = ServerSettings::default();
    let weight = weight.unwrap_or(default.weight);
    let settings = ServerSettings { weight, backup, max_connections: max_connections.map(NonZeroU32::get) };
    let what = Requested::Add(Target { backend, server: Some(server) }, AddedServer { addr, settings });
    let Done::Added { is_new, warnings } = send_request(&answers, who, what).await? else {
        return Err(Failure::Gone);
    };
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, line(&AdditionReport { new: is_new, warnings })).into_response())
}

pub(super) async fn remove_server(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    names: Result<Path<(String, String)>, PathRejection>,
    removal: Result<Query<RemovalParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    let (backend, server) = in_path(names)?;
    let Query(RemovalParameters { force }) = removal.map_err(|wrong| Failure::of_query(&wrong))?;
    let target = Target { backend, server: Some(server) };
    may_change(&answers, &who)?;
    may_withdraw(&answers, &target, force)?;
    let warnings = unserved_warning(&answers, &target);
    send_request(&answers, who, Requested::Remove(target)).await?;
    Ok(line(&ChangeReport { changed: true, warnings }))
}

async fn steer(
    answers: &ApiContext,
    who: Requester,
    target: Target,
    body: &RequestBody,
) -> Result<Response, Failure> {
    may_change(answers, &who)?;
    let ServerChange { state, weight, force } = in_body(body)?;
    let state = state.map(|name| state_called(&name)).transpose()?;
    let values = [state.map(OverlayValue::State), weight.map(OverlayValue::Weight)];
    if values.iter().all(Option::is_none) {
        return Err(Failure::Bad("nothing to change: set \"state\" or \"weight\"".to_owned()));
    }
    let mut warnings = Vec::new();
    if matches!(state, Some(AdminState::Drain | AdminState::Maint)) || weight == Some(0) {
        may_withdraw(answers, &target, force)?;
        warnings = unserved_warning(answers, &target);
    }
    let mut changed = false;
    for value in values.into_iter().flatten() {
        let done = send_request(answers, who.clone(), Requested::Set(target.clone(), value)).await?;
        changed |= matches!(done, Done::Set { has_changed: true });
    }
    Ok(line(&ChangeReport { changed, warnings }))
}

/// Warning if the backend of the target would have no server left; empty otherwise.
fn unserved_warning(answers: &ApiContext, target: &Target) -> Vec<String> {
    let snapshot = answers.source.snapshot.load();
    let backend = ready::backend_left_without(&snapshot, target);
    let warning = |backend| format!("backend {backend} has no server left: its clients are refused");
    backend.map(warning).into_iter().collect()
}

/// Refuses to take a target out of service if convey would then withdraw an announced address, or
/// if a frontend needs the target to be ready. Forced requests are allowed.
fn may_withdraw(answers: &ApiContext, target: &Target, is_forced: bool) -> Result<(), Failure> {
    let snapshot = answers.source.snapshot.load();
    let certificates = answers.source.certificates_of_addresses(&snapshot);
    let input = answers.source.readiness_input(&snapshot, &certificates);
    let LostReadiness { addresses, frontends } = LostReadiness::without(input, target);
    let lost = if !addresses.is_empty() {
        let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
        format!("convey withdraws {}", addresses.join(", "))
    } else if !frontends.is_empty() {
        format!(
            "/readyz answers 503, because frontend {} needs the backend (ready_needs)",
            frontends.join(", ")
        )
    } else {
        return Ok(());
    };
    if is_forced {
        return Ok(());
    }
    let why = format!("if {target} goes out of service, {lost}; use --force to continue anyway");
    Err(Failure::Refused(RequestRefusal::Refused(why)))
}

pub(super) async fn reset(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    scope: Result<Query<OverlayParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    may_change(&answers, &who)?;
    let Query(scope) = scope.map_err(|wrong| Failure::of_query(&wrong))?;
    let what = Requested::Reset(reset_scope(scope)?);
    let Done::Reset(gone) = send_request(&answers, who, what).await? else {
        return Err(Failure::Gone);
    };
    Ok(line(&reset_report(&gone, answers.source.started)))
}

fn reset_scope(parameters: OverlayParameters) -> Result<ResetScope, Failure> {
    let OverlayParameters { backend, server, frontend, route } = parameters;
    let missing = |name, needed| Failure::Bad(format!("{name}: the parameter `{needed}` is missing"));
    match (backend, server, frontend, route) {
        (Some(_), _, Some(_), _) => {
            Err(Failure::Bad("frontend: backend is also set; keep one of them".to_owned()))
        }
        (None, Some(_), ..) => Err(missing("server", "backend")),
        (.., None, Some(_)) => Err(missing("route", "frontend")),
        (Some(backend), server, ..) => Ok(ResetScope::Servers(Target { backend, server })),
        (.., Some(frontend), Some(route)) => Ok(ResetScope::Http(HttpTarget::Route { frontend, route })),
        (.., Some(frontend), None) => Ok(ResetScope::Http(HttpTarget::Frontend(frontend))),
        (.., None, None) => Ok(ResetScope::All),
    }
}

pub(super) async fn reload(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
) -> Result<Response, Failure> {
    let Done::Reloaded(diff) = send_request(&answers, who, Requested::Reload).await? else {
        return Err(Failure::Gone);
    };
    let load = answers.source.loads.now();
    let refused_certificates = load.refused_certificates.iter().map(|chain| chain.display().to_string());
    Ok(line(&ReloadReport {
        changes: diff.changes,
        needs_restart: diff.needs_restart,
        refused_certificates: refused_certificates.collect(),
    }))
}

fn state_called(name: &str) -> Result<AdminState, Failure> {
    let found = AdminState::ALL.into_iter().find(|state| state.name() == name);
    found.ok_or_else(|| {
        let names = AdminState::ALL.map(AdminState::name);
        let meant = did_you_mean(name, names);
        Failure::Bad(format!("state: found {name:?}, allowed: {}{meant}", names.join(", ")))
    })
}
