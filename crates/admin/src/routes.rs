//! Routes of the HTTP server, with their handlers.

use std::io;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use convey_control::OperatorRequest;
use tokio::sync::mpsc;

use super::pages::{Page, Pages, Rendered};
use super::ready::FrontendReadiness;
use super::wrong_tokens::WrongTokens;
use super::{StatsSource, api, dashboard};

/// Maximum number of queued page requests. Further requests wait.
const MAX_ASKING: usize = 128;

/// State that the handlers share.
pub(super) struct ApiContext {
    pub(super) source: Arc<StatsSource>,
    pages: Pages,
    /// Channel to the control task.
    pub(super) requests: mpsc::Sender<OperatorRequest>,
    /// Client addresses from which wrong tokens arrived at the statistics address.
    pub(super) wrong_tokens: Mutex<WrongTokens>,
}

/// Creates all routes. Each request must carry its client, a [`super::Requester`], in its
/// extensions.
///
/// # Errors
/// The thread that renders pages cannot be started.
pub fn routes(source: StatsSource, requests: mpsc::Sender<OperatorRequest>) -> io::Result<Router> {
    let source = Arc::new(source);
    let pages = Pages::start(source.clone(), MAX_ASKING)?;
    let answers = Arc::new(ApiContext { source, pages, requests, wrong_tokens: Mutex::default() });
    let routes = Router::new()
        .route("/stats", get(stats))
        .route("/metrics", get(metrics))
        .route("/healthz", get(alive))
        .route("/readyz", get(readiness))
        .nest("/v1", api::routes().layer(from_fn_with_state(answers.clone(), api::authorize)))
        .merge(dashboard::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method);
    Ok(routes.with_state(answers))
}

pub(super) async fn stats(State(answers): State<Arc<ApiContext>>) -> Response {
    page("application/json", answers.pages.get(Page::Stats).await)
}

async fn metrics(State(answers): State<Arc<ApiContext>>) -> Response {
    page(prometheus::TEXT_FORMAT, answers.pages.get(Page::Metrics).await)
}

/// Handler of `/healthz`. A draining process is reported as alive, because a restart would cut open
/// connections.
async fn alive(State(answers): State<Arc<ApiContext>>) -> &'static str {
    if answers.source.is_draining() { "draining\n" } else { "ok\n" }
}

/// Handler of `/readyz`, for VRRP trackers and orchestrators, which decide whether this convey gets
/// traffic.
async fn readiness(State(answers): State<Arc<ApiContext>>) -> Response {
    let source = &answers.source;
    let snapshot = source.snapshot.load();
    let certificates = source.certificates(&snapshot);
    let obstacles = FrontendReadiness::of(source.readiness_input(&snapshot, &certificates)).obstacles();
    if obstacles.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, obstacles.join("\n") + "\n").into_response()
}

async fn unknown() -> Response {
    api::failure(
        StatusCode::NOT_FOUND,
        "not found; see / (the dashboard), /stats, /metrics, /healthz, /readyz and /v1/openapi.json",
    )
}

async fn wrong_method() -> Response {
    api::failure(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not support the method of the request; the header Allow lists the supported methods",
    )
}

fn page(kind: &'static str, body: Rendered) -> Response {
    match body {
        Ok(body) => ([(CONTENT_TYPE, kind)], body).into_response(),
        Err(error) => api::failure(StatusCode::INTERNAL_SERVER_ERROR, &error),
    }
}
