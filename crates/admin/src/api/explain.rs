//! `/v1/explain`: reports which server a client gets, and why.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::Response;
use convey_api::ExplainParameters;
use convey_control::RequestRefusal;
use convey_explain::{AskedRequest, ClientAddr, Unanswerable};

use super::super::Requester;
use super::{ApiContext, Failure, line, may_see_clients};

pub(super) async fn explain(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    query: Result<Query<ExplainParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    may_see_clients(&answers, &who)?;
    let Query(ExplainParameters { client, frontend, url, method, headers }) =
        query.map_err(|wrong| Failure::of_query(&wrong))?;
    let client: ClientAddr = client.parse().map_err(Failure::Bad)?;
    let request: Option<AskedRequest> = url.as_deref().map(str::parse).transpose().map_err(Failure::Bad)?;
    let headers = headers.iter().flat_map(|lines| lines.lines()).map(str::to_owned).collect();
    let request = request.map(|request| request.with(method.as_deref(), headers)).transpose();
    let request = request.map_err(Failure::Bad)?;
    let explanation =
        answers.source.explain(client, &frontend, request.as_ref()).await.map_err(|why| match why {
            Unanswerable::Unknown(why) => Failure::Refused(RequestRefusal::Unknown(why)),
            Unanswerable::Unclear(why) => Failure::Bad(why),
        })?;
    Ok(line(&explanation))
}
