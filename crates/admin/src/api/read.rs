//! API paths that only read.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use convey_api::{AccessReport, BackendReport, EventParameters};

use super::super::Requester;
use super::super::events::event_report;
use super::{ApiContext, Failure, in_path, line, unknown};

pub(super) async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], convey_api::OPENAPI).into_response()
}

pub(super) async fn access(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
) -> Response {
    let token = answers.source.loads.token().is_some();
    line(&AccessReport { name: who.name, may_change: who.may_change, token })
}

pub(super) async fn backend(
    State(answers): State<Arc<ApiContext>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    Ok(line(&found(&answers, &in_path(name)?)?))
}

pub(super) async fn server(
    State(answers): State<Arc<ApiContext>>,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Failure> {
    let (backend, name) = in_path(names)?;
    let mut of = found(&answers, &backend)?.servers;
    let server = of.remove(&name);
    let server = server.ok_or_else(|| unknown("server", &name, of.keys()))?;
    Ok(line(&server))
}

fn found(answers: &ApiContext, name: &str) -> Result<BackendReport, Failure> {
    answers.source.backend(name).map_err(|names| unknown("backend", name, names.iter()))
}

pub(super) async fn events(
    State(answers): State<Arc<ApiContext>>,
    parameters: Result<Query<EventParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(EventParameters { since }) = parameters.map_err(|wrong| Failure::of_query(&wrong))?;
    let source = &answers.source;
    let events = source.events.since(since).into_iter();
    Ok(line(&events.map(|event| event_report(event, source.started)).collect::<Vec<_>>()))
}

pub(super) async fn overlays(State(answers): State<Arc<ApiContext>>) -> Response {
    line(&answers.source.overlays())
}
