//! API paths that change routes of mode http.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use convey_api::{ChangeReport, RouteChange};
use convey_control::{Done, Requested};
use convey_model::HttpTarget;

use super::super::Requester;
use super::{ApiContext, Failure, RequestBody, in_body, in_path, line, may_change, send_request};

pub(super) async fn steer(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    names: Result<Path<(String, String)>, PathRejection>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let (frontend, route) = in_path(names)?;
    may_change(&answers, &who)?;
    let RouteChange { weights } = in_body(&body)?;
    if weights.is_empty() {
        return Err(Failure::Bad("nothing to change: set a weight in \"weights\"".to_owned()));
    }
    let what = Requested::SetWeights(HttpTarget::Route { frontend, route }, weights);
    let done = send_request(&answers, who, what).await?;
    let changed = matches!(done, Done::Set { has_changed: true });
    Ok(line(&ChangeReport { changed, warnings: Vec::new() }))
}
