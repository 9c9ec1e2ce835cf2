//! `/v1/flows`: lists flows, and ends a flow.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::response::Response;
use convey_api::{FlowParameters, KilledFlow};
use convey_config::did_you_mean;
use convey_control::{EventKind, EventLevel, RequestRefusal};
use convey_forward::FlowState;
use convey_model::{
    ClientFilter, FlowFilter, FlowGrouping, FlowQuery, FlowSort, FlowsUnavailable, ListedFlow, ListedFlowId,
};
use humantime::parse_duration;

use super::super::Requester;
use super::super::flows::{flow_list_report, flow_report};
use super::{ApiContext, Failure, in_path, line, may_change, may_see_clients, unknown};

/// State of a proxied connection before it has a server. With a server, the state is `established`.
const CONNECTING: &str = "connecting";

pub(super) async fn list(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    asked: Result<Query<FlowParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    may_see_clients(&answers, &who)?;
    let Query(asked) = asked.map_err(|wrong| Failure::of_query(&wrong))?;
    let query = query_of(asked)?;
    let answer = answers.source.flows.list(&query).await.map_err(unavailable)?;
    if answer.matching == 0 {
        // Names are checked only if no flow matches: a flow may outlast its frontend and its
        // server.
        check_names(&answers, &query.filter)?;
        check_bytes(&answers, query.filter.clone()).await?;
    }
    Ok(line(&flow_list_report(answer, query.count_by.is_some())))
}

pub(super) async fn kill(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    may_change(&answers, &who)?;
    let name = in_path(name)?;
    let id: ListedFlowId = name.parse().map_err(|()| {
        Failure::Bad(format!("{name:?} is not a flow ID; `convey flows` lists the IDs, such as p0.1f.9a3c"))
    })?;
    let killed = answers.source.flows.kill(id).await.map_err(unavailable)?;
    let killed = killed.ok_or_else(|| {
        Failure::Refused(RequestRefusal::Unknown(format!(
            "there is no flow {name}: it has ended, or never existed"
        )))
    })?;
    log_ended(&answers, &killed, &who);
    Ok(line(&KilledFlow { killed: flow_report(killed) }))
}

/// Logs the ended flow and records an event.
fn log_ended(answers: &ApiContext, killed: &ListedFlow, who: &Requester) {
    let ListedFlow { client, listen, frontend, .. } = killed;
    let server = killed.server.as_ref().map_or_else(
        || "without a server".to_owned(),
        |(backend, server, _)| format!("server {backend}/{server}"),
    );
    let text =
        format!("{} has ended the flow {client} -> {listen} of frontend {frontend}, {server}", who.name);
    log::info!("{text}");
    let source = &answers.source;
    source.events.record(EventKind::Operator, EventLevel::Info, (source.now)(), &text);
}

/// Validates the parameters, and converts them to a query.
fn query_of(asked: FlowParameters) -> Result<FlowQuery, Failure> {
    let (named, server) = match asked.server.as_deref().map(|server| server.split_once('/')) {
        None => (None, None),
        Some(Some((backend, server))) if !backend.is_empty() && !server.is_empty() => {
            (Some(backend.to_owned()), Some(server.to_owned()))
        }
        Some(_) => return Err(Failure::Bad("server: expected BACKEND/SERVER, such as web/a".to_owned())),
    };
    let client = asked.client.map(|client| client_of(&client)).transpose()?;
    let states = FlowState::ALL.into_iter().map(FlowState::name).chain([CONNECTING]);
    let state = asked.state.map(|state| one_of("state", &state, states)).transpose()?;
    let sorts = FlowSort::ALL;
    let sort = asked.sort.map(|sort| one_of("sort", &sort, sorts.map(FlowSort::name))).transpose()?;
    let groupings = FlowGrouping::ALL;
    let count_by = asked.count_by.map(|by| one_of("count_by", &by, groupings.map(FlowGrouping::name)));
    let count_by = count_by.transpose()?;
    Ok(FlowQuery {
        filter: FlowFilter {
            client,
            frontend: asked.frontend,
            backend: asked.backend.or(named),
            server,
            state: state.map(str::to_owned),
            older_than: time("older_than", asked.older_than.as_deref())?,
            idle: time("idle", asked.idle.as_deref())?,
            min_bytes: asked.min_bytes,
            only_open: false,
        },
        sort: sorts.into_iter().find(|known| Some(known.name()) == sort).unwrap_or_default(),
        limit: limit(asked.limit)?,
        count_by: groupings.into_iter().find(|known| Some(known.name()) == count_by),
    })
}

fn limit(limit: Option<usize>) -> Result<usize, Failure> {
    let limit = limit.unwrap_or(FlowQuery::DEFAULT_LIMIT);
    if limit > FlowQuery::MAX_LIMIT {
        return Err(Failure::Bad(format!("limit: found {limit}, the maximum is {}", FlowQuery::MAX_LIMIT)));
    }
    Ok(limit)
}

fn client_of(text: &str) -> Result<ClientFilter, Failure> {
    text.parse().map_err(|()| {
        Failure::Bad(format!(
            "client: found {text:?}, expected IP[/LEN][:PORT], such as 192.0.2.0/24 or [2001:db8::1]:4242"
        ))
    })
}

fn time(key: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
    let wrong = |text| Failure::Bad(format!("{key}: found {text:?}, expected a time, such as 90s or 1h"));
    text.map(|text| parse_duration(text).map_err(|_| wrong(text))).transpose()
}

fn one_of(
    key: &str,
    word: &str,
    allowed: impl IntoIterator<Item = &'static str> + Clone,
) -> Result<&'static str, Failure> {
    let found = allowed.clone().into_iter().find(|allowed| *allowed == word);
    found.ok_or_else(|| {
        let names: Vec<&str> = allowed.into_iter().collect();
        let meant = did_you_mean(word, names.iter().copied());
        Failure::Bad(format!("{key}: found {word:?}, allowed: {}{meant}", names.join(", ")))
    })
}

/// Checks that the names in the filter exist. Called after a query that found no flow.
fn check_names(answers: &ApiContext, filter: &FlowFilter) -> Result<(), Failure> {
    let report = answers.source.report();
    if let Some(name) = &filter.frontend
        && !report.frontends.contains_key(name)
    {
        return Err(unknown("frontend", name, report.frontends.keys()));
    }
    let Some(name) = &filter.backend else { return Ok(()) };
    let backend = report.backends.get(name);
    let backend = backend.ok_or_else(|| unknown("backend", name, report.backends.keys()))?;
    let is_known = |name: &String| {
        let is_it = |known: &String| {
            known.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        backend.servers.keys().any(is_it)
    };
    match &filter.server {
        Some(server) if !is_known(server) => Err(unknown("server", server, backend.servers.keys())),
        _ => Ok(()),
    }
}

/// Checks that the bytes of flows are counted at all. Called after a query that found no flow.
async fn check_bytes(answers: &ApiContext, filter: FlowFilter) -> Result<(), Failure> {
    if filter.min_bytes.is_none_or(|bytes| bytes == 0) {
        return Ok(());
    }
    let filter = FlowFilter { min_bytes: None, ..filter };
    let any = FlowQuery { filter, sort: FlowSort::default(), limit: 1, count_by: None };
    let any = answers.source.flows.list(&any).await.map_err(unavailable)?;
    match any.flows.first() {
        Some(flow) if flow.activity.bytes_rx.is_none() && flow.activity.bytes_tx.is_none() => {
            let why = "min_bytes: the bytes of these flows are not counted; in packet modes an access log enables these counters";
            Err(Failure::Bad(why.to_owned()))
        }
        _ => Ok(()),
    }
}

fn unavailable(why: FlowsUnavailable) -> Failure {
    Failure::Later(why.to_string())
}
