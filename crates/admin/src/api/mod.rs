//! Control API, version 1, with JSON requests and answers. [`convey_api::OPENAPI`] describes it.

mod authorize;
mod explain;
mod flows;
mod log_level;
mod maintenance;
mod read;
mod routes;
mod steer;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use convey_api::ErrorReport;
use convey_config::did_you_mean;
use convey_control::{Done, OperatorRequest, RequestRefusal, Requested};
use hyper::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

pub(super) use self::authorize::authorize;
use self::authorize::{may_change, may_see_clients};
use super::Requester;
use super::routes::{ApiContext, stats};

/// `WWW-Authenticate` challenge for a missing or wrong token.
const CHALLENGE: &str = "Bearer realm=\"convey\"";

/// Maximum length of a request body, in bytes.
const MAX_BODY: usize = 64 << 10;

/// Maximum length of a request body with a maintenance page, in bytes. In JSON, a character of the
/// page may take six bytes.
const MAX_PAGE_BODY: usize = 512 << 10;

/// Routes of the API, below `/v1`.
pub(super) fn routes() -> Router<Arc<ApiContext>> {
    Router::new()
        .route("/openapi.json", get(read::openapi))
        .route("/access", get(read::access))
        .route("/status", get(stats))
        .route("/backends/{backend}", get(read::backend).patch(steer::steer_backend))
        .route(
            "/backends/{backend}/servers/{server}",
            get(read::server).patch(steer::steer_server).put(steer::add_server).delete(steer::remove_server),
        )
        .route("/frontends/{frontend}/routes/{route}", patch(routes::steer))
        .route(
            "/frontends/{frontend}/maintenance",
            put(maintenance::start_frontend).delete(maintenance::end_frontend).layer(page_limit()),
        )
        .route(
            "/frontends/{frontend}/routes/{route}/maintenance",
            put(maintenance::start_route).delete(maintenance::end_route).layer(page_limit()),
        )
        .route(
            "/backends/{backend}/maintenance",
            put(maintenance::start_backend).delete(maintenance::end_backend).layer(page_limit()),
        )
        .route("/events", get(read::events))
        .route("/flows", get(flows::list))
        .route("/flows/{id}", delete(flows::kill))
        .route("/explain", get(explain::explain))
        .route("/overlays", get(read::overlays).delete(steer::reset))
        .route("/log-level", get(log_level::show).put(log_level::set).delete(log_level::reset))
        .route("/reload", post(steer::reload))
        .route("/trace", get(trace::trace))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

fn page_limit() -> DefaultBodyLimit {
    DefaultBodyLimit::max(MAX_PAGE_BODY)
}

/// Reason why a request fails.
enum Failure {
    /// Clients of the statistics address may not change things, because no token is configured.
    Forbidden,
    /// Only requesters on this host may see clients' addresses at the statistics address.
    ClientsForbidden,
    /// The request needs the token.
    NeedsToken,
    /// The token differs from the configured one.
    WrongToken,
    /// The request uses a host name that may belong to another site.
    WrongHost(String),
    /// Too many wrong tokens came from the client's address. The address is blocked for this time.
    TooManyTokens(Duration),
    /// The request is invalid.
    Bad(String),
    /// The body is longer than [`MAX_BODY`], or than [`MAX_PAGE_BODY`] for a maintenance page.
    TooLong,
    /// The control task refused the request.
    Refused(RequestRefusal),
    /// Too many requests of this kind are running.
    Busy(String),
    /// Temporary failure, with an operator-facing message.
    Later(String),
    /// The program is ending.
    Gone,
}

impl Failure {
    /// Failure for a query with an unknown parameter or an invalid value.
    fn of_query(wrong: &QueryRejection) -> Failure {
        const LIBRARY: &str = "Failed to deserialize query string: ";
        let text = wrong.body_text();
        Failure::Bad(text.strip_prefix(LIBRARY).unwrap_or(&text).to_owned())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        let (status, error, problems) = match self {
            Failure::Forbidden => {
                let error = "this address is read-only; send changes to the control socket, or here with the \
                             header \"Authorization: Bearer TOKEN\" (stats.token_file)";
                (StatusCode::FORBIDDEN, error.to_owned(), vec![])
            }
            Failure::ClientsForbidden => {
                let error = "the response contains addresses of clients: this address sends it only to this host (127.0.0.1, \
                             ::1), or with a token (stats.token_file); without a token, use the control socket";
                (StatusCode::FORBIDDEN, error.to_owned(), vec![])
            }
            Failure::NeedsToken => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
                let error = "this request needs the header \"Authorization: Bearer TOKEN\" (stats.token_file), or the control socket";
                (StatusCode::UNAUTHORIZED, error.to_owned(), vec![])
            }
            Failure::WrongToken => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
                let error = "the token does not match stats.token_file";
                (StatusCode::UNAUTHORIZED, error.to_owned(), vec![])
            }
            Failure::WrongHost(host) => {
                let error = format!(
                    "the request is for host {host:?}; without a token convey accepts only an IP address, localhost and the \
                     name of this machine"
                );
                (StatusCode::MISDIRECTED_REQUEST, error, vec![])
            }
            Failure::TooLong => {
                let error = format!(
                    "the body is longer than {MAX_BODY} bytes (with a maintenance page: {MAX_PAGE_BODY})"
                );
                (StatusCode::PAYLOAD_TOO_LARGE, error, vec![])
            }
            Failure::TooManyTokens(time) => {
                let seconds = time.as_secs().saturating_add(1);
                headers.insert(RETRY_AFTER, seconds.into());
                let error =
                    format!("too many wrong tokens from this address; try again in {seconds} seconds");
                (StatusCode::TOO_MANY_REQUESTS, error, vec![])
            }
            Failure::Bad(why) => (StatusCode::BAD_REQUEST, why, vec![]),
            Failure::Busy(why) => (StatusCode::TOO_MANY_REQUESTS, why, vec![]),
            Failure::Later(why) => (StatusCode::SERVICE_UNAVAILABLE, why, vec![]),
            Failure::Gone => (StatusCode::SERVICE_UNAVAILABLE, "this process is stopping".to_owned(), vec![]),
            Failure::Refused(RequestRefusal::Unknown(why)) => (StatusCode::NOT_FOUND, why, vec![]),
            Failure::Refused(RequestRefusal::Later(why)) => (StatusCode::SERVICE_UNAVAILABLE, why, vec![]),
            Failure::Refused(RequestRefusal::Refused(why)) => (StatusCode::CONFLICT, why, vec![]),
            Failure::Refused(RequestRefusal::Invalid(problems)) => {
                let error = "the file was refused; the running configuration stays";
                (StatusCode::UNPROCESSABLE_ENTITY, error.to_owned(), problems)
            }
        };
        (status, headers, line(&ErrorReport { error, problems })).into_response()
    }
}

/// Error response for unknown paths, unsupported methods and internal errors. It has the format of
/// all API errors.
pub(super) fn failure(status: StatusCode, error: &str) -> Response {
    (status, line(&ErrorReport { error: error.to_owned(), problems: vec![] })).into_response()
}

/// JSON response that ends with a newline, for use in a shell.
fn line(body: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(body) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn unknown<'a>(kind: &str, name: &str, there: impl Iterator<Item = &'a String>) -> Failure {
    let meant = did_you_mean(name, there.map(String::as_str));
    Failure::Refused(RequestRefusal::Unknown(format!("there is no {kind} {name}{meant}")))
}

/// Sends a request to the control task and waits for the answer. The wait ends early if the
/// client's connection ends.
async fn send_request(answers: &ApiContext, who: Requester, what: Requested) -> Result<Done, Failure> {
    may_change(answers, &who)?;
    let (answer, outcome) = oneshot::channel();
    let request = OperatorRequest { what, by: who.name, answer };
    answers.requests.send(request).await.map_err(|_| Failure::Gone)?;
    outcome.await.map_err(|_| Failure::Gone)?.map_err(Failure::Refused)
}

fn in_path<T>(names: Result<Path<T>, PathRejection>) -> Result<T, Failure> {
    names.map(|Path(names)| names).map_err(|wrong| Failure::Bad(wrong.body_text()))
}

/// Body of a request.
struct RequestBody(Bytes);

impl<S: Send + Sync> FromRequest<S> for RequestBody {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<RequestBody, Failure> {
        Bytes::from_request(request, state).await.map(RequestBody).map_err(|wrong| match wrong.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Failure::TooLong,
            _ => Failure::Bad(wrong.body_text()),
        })
    }
}

fn in_body<T: DeserializeOwned>(RequestBody(body): &RequestBody) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|wrong| Failure::Bad(format!("invalid body: {wrong}")))
}
