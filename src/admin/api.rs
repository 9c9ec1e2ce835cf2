//! The control API, version 1: JSON in, JSON out. `openapi.json` describes it.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::routes::{ApiContext, stats};
use super::{BackendReport, EventReport, OverlayReport, Requester};
use crate::config::did_you_mean;
use crate::control::{Done, OperatorRequest, RequestRefusal, Requested};
use crate::model::{AdminState, OverlayValue, Target};

/// The longest body of a request, in bytes.
const MAX_BODY: usize = 64 << 10;

/// What there is, for programs that make clients, and for people.
const OPENAPI: &str = include_str!("openapi.json");

/// Its paths, below `/v1`.
pub(super) fn routes() -> Router<Arc<ApiContext>> {
    Router::new()
        .route("/openapi.json", get(openapi))
        .route("/status", get(stats))
        .route("/backends/{backend}", get(backend).patch(steer_backend))
        .route("/backends/{backend}/servers/{server}", get(server).patch(steer_server))
        .route("/events", get(events))
        .route("/overlays", get(overlays).delete(reset))
        .route("/reload", post(reload))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

/// What is wrong with a request.
enum Failure {
    /// Who asks may not.
    Forbidden,
    /// The request makes no sense.
    Bad(String),
    /// It was not granted.
    Refused(RequestRefusal),
    /// The program ends.
    Gone,
}

#[derive(Serialize)]
struct ErrorBody {
    /// In words for an operator.
    error: String,
    /// What is wrong with the file, a line for each problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error, problems) = match self {
            Failure::Forbidden => {
                let error = "this address is for reading; the control socket may change things";
                (StatusCode::FORBIDDEN, error.to_owned(), vec![])
            }
            Failure::Bad(why) => (StatusCode::BAD_REQUEST, why, vec![]),
            Failure::Gone => (StatusCode::SERVICE_UNAVAILABLE, "this process ends".to_owned(), vec![]),
            Failure::Refused(RequestRefusal::Unknown(why)) => (StatusCode::NOT_FOUND, why, vec![]),
            Failure::Refused(RequestRefusal::Refused(why)) => (StatusCode::CONFLICT, why, vec![]),
            Failure::Refused(RequestRefusal::Invalid(problems)) => {
                let error = "the file was refused; the running configuration stays";
                (StatusCode::UNPROCESSABLE_ENTITY, error.to_owned(), problems)
            }
        };
        (status, line(&ErrorBody { error, problems })).into_response()
    }
}

/// JSON, with the prompt of a shell on a line of its own.
fn line(body: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(body) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// What to change of a server, or of all of a backend.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    state: Option<String>,
    weight: Option<u16>,
}

/// What was changed.
#[derive(Serialize)]
struct Changed {
    /// False if everything held already.
    changed: bool,
}

/// What was taken back.
#[derive(Serialize)]
struct TakenBack {
    reset: Vec<OverlayReport>,
}

/// What a reload has changed, a line for each thing.
#[derive(Serialize)]
struct Reloaded {
    changes: Vec<String>,
    needs_restart: Vec<String>,
}

/// Of which overlays; of all, without a backend.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    backend: Option<String>,
    server: Option<String>,
}

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn backend(
    State(answers): State<Arc<ApiContext>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    Ok(line(&found(&answers, &in_path(name)?)?))
}

async fn server(
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
    let mut backends = answers.source.report().backends;
    let backend = backends.remove(name);
    backend.ok_or_else(|| unknown("backend", name, backends.keys()))
}

fn unknown<'a>(kind: &str, name: &str, there: impl Iterator<Item = &'a String>) -> Failure {
    let meant = did_you_mean(name, there.map(String::as_str));
    Failure::Refused(RequestRefusal::Unknown(format!("there is no {kind} {name}{meant}")))
}

/// From which event on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    #[serde(default)]
    since: u64,
}

async fn events(
    State(answers): State<Arc<ApiContext>>,
    since: Result<Query<Since>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(Since { since }) = since.map_err(|wrong| Failure::Bad(wrong.body_text()))?;
    let source = &answers.source;
    let events = source.events.since(since).into_iter();
    Ok(line(&events.map(|event| EventReport::new(event, source.started)).collect::<Vec<_>>()))
}

async fn overlays(State(answers): State<Arc<ApiContext>>) -> Response {
    line(&answers.source.report().overlays)
}

async fn steer_backend(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    name: Result<Path<String>, PathRejection>,
    body: Bytes,
) -> Result<Response, Failure> {
    let target = Target { backend: in_path(name)?, server: None };
    steer(&answers, who, target, &body).await
}

async fn steer_server(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    names: Result<Path<(String, String)>, PathRejection>,
    body: Bytes,
) -> Result<Response, Failure> {
    let (backend, server) = in_path(names)?;
    steer(&answers, who, Target { backend, server: Some(server) }, &body).await
}

async fn steer(
    answers: &ApiContext,
    who: Requester,
    target: Target,
    body: &Bytes,
) -> Result<Response, Failure> {
    let Change { state, weight } = in_body(body)?;
    let state = state.map(|name| state_called(&name)).transpose()?;
    let values = [state.map(OverlayValue::State), weight.map(OverlayValue::Weight)];
    if values.iter().all(Option::is_none) {
        return Err(Failure::Bad("nothing to change: say \"state\" or \"weight\"".to_owned()));
    }
    let mut changed = false;
    for value in values.into_iter().flatten() {
        let done = ask(answers, who.clone(), Requested::Set(target.clone(), value)).await?;
        changed |= matches!(done, Done::Set { has_changed: true });
    }
    Ok(line(&Changed { changed }))
}

async fn reset(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(which) = which.map_err(|wrong| Failure::Bad(wrong.body_text()))?;
    let target = match which {
        Which { backend: Some(backend), server } => Some(Target { backend, server }),
        Which { backend: None, server: None } => None,
        Which { backend: None, server: Some(_) } => {
            return Err(Failure::Bad("server: say the backend, too".to_owned()));
        }
    };
    let Done::Reset(gone) = ask(&answers, who, Requested::Reset(target)).await? else {
        return Err(Failure::Gone);
    };
    let source = &answers.source;
    Ok(line(&TakenBack {
        reset: gone.iter().map(|overlay| OverlayReport::new(overlay, source.started)).collect(),
    }))
}

async fn reload(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
) -> Result<Response, Failure> {
    let Done::Reloaded(diff) = ask(&answers, who, Requested::Reload).await? else {
        return Err(Failure::Gone);
    };
    Ok(line(&Reloaded { changes: diff.changes, needs_restart: diff.needs_restart }))
}

/// Waits for the answer no longer than the connection lasts.
async fn ask(answers: &ApiContext, who: Requester, what: Requested) -> Result<Done, Failure> {
    if !who.may_change {
        return Err(Failure::Forbidden);
    }
    let (answer, outcome) = oneshot::channel();
    let request = OperatorRequest { what, by: who.name, answer };
    answers.requests.send(request).await.map_err(|_| Failure::Gone)?;
    outcome.await.map_err(|_| Failure::Gone)?.map_err(Failure::Refused)
}

fn in_path<T>(names: Result<Path<T>, PathRejection>) -> Result<T, Failure> {
    names.map(|Path(names)| names).map_err(|wrong| Failure::Bad(wrong.body_text()))
}

fn in_body<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(body)
        .map_err(|wrong| Failure::Bad(format!("the body is not what is expected: {wrong}")))
}

fn state_called(name: &str) -> Result<AdminState, Failure> {
    let found = AdminState::ALL.into_iter().find(|state| state.name() == name);
    found.ok_or_else(|| {
        let names = AdminState::ALL.map(AdminState::name);
        let meant = did_you_mean(name, names);
        Failure::Bad(format!("state: found {name:?}, allowed: {}{meant}", names.join(", ")))
    })
}
