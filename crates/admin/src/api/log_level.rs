//! `/v1/log-level`: returns and changes the level of the log.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::response::Response;
use convey_api::{ChangeReport, LogLevelChange, LogLevelReport};
use convey_config::parse_log_level;
use convey_control::{Done, Requested};

use super::super::Requester;
use super::super::overlays::of_log_level;
use super::{ApiContext, Failure, RequestBody, in_body, line, may_change, send_request};

pub(super) async fn show(State(answers): State<Arc<ApiContext>>) -> Response {
    let source = &answers.source;
    let said = source.snapshot.load().log_level.clone();
    let overlay = said.as_ref().map(|said| of_log_level(said, source.started));
    line(&LogLevelReport { level: (source.log_level)().name().into(), overlay })
}

pub(super) async fn set(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    body: RequestBody,
) -> Result<Response, Failure> {
    may_change(&answers, &who)?;
    let LogLevelChange { level } = in_body(&body)?;
    let level = parse_log_level(&level).map_err(|wrong| Failure::Bad(format!("level: {wrong}")))?;
    change(&answers, who, Requested::LogLevel(Some(level))).await
}

pub(super) async fn reset(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
) -> Result<Response, Failure> {
    change(&answers, who, Requested::LogLevel(None)).await
}

async fn change(answers: &ApiContext, who: Requester, what: Requested) -> Result<Response, Failure> {
    let done = send_request(answers, who, what).await?;
    let changed = matches!(done, Done::Set { has_changed: true });
    Ok(line(&ChangeReport { changed, warnings: Vec::new() }))
}
