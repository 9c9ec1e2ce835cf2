//! `/v1/log-level`: reads and changes the level of the log.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::response::Response;
use convey_config::parse_log_level;
use convey_control::{Done, Requested};
use serde::{Deserialize, Serialize};

use super::super::{OverlayReport, Requester};
use super::{ApiContext, Failure, RequestBody, ask, in_body, line, may_change};

/// Level of the log in an answer.
#[derive(Serialize)]
struct LevelAnswer {
    /// Least important level that is written. `RUST_LOG` may override it for some modules.
    level: &'static str,
    /// Override by an operator, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlay: Option<OverlayReport>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    level: String,
}

#[derive(Serialize)]
struct Changed {
    changed: bool,
}

pub(super) async fn show(State(answers): State<Arc<ApiContext>>) -> Response {
    let source = &answers.source;
    let said = source.snapshot.load().log_level.clone();
    let overlay = said.as_ref().map(|said| OverlayReport::of_log_level(said, source.started));
    line(&LevelAnswer { level: (source.log_level)().name(), overlay })
}

pub(super) async fn set(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    body: RequestBody,
) -> Result<Response, Failure> {
    may_change(&answers, &who)?;
    let Wanted { level } = in_body(&body)?;
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
    let done = ask(answers, who, what).await?;
    Ok(line(&Changed { changed: matches!(done, Done::Set { has_changed: true }) }))
}
