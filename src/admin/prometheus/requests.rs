//! Requests (mode http).

use super::page::{Labels, MetricsPage, labels};
use crate::admin::StatsReport;
use crate::admin::report::RequestReport;

/// Adds what is counted of requests.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let frontends: Vec<(Labels, &RequestReport)> = report
        .frontends
        .iter()
        .filter_map(|(name, frontend)| Some((labels([("frontend", name)]), frontend.requests.as_ref()?)))
        .collect();
    let mut servers: Vec<(Labels, &RequestReport)> = Vec::new();
    for (backend, of_backend) in &report.backends {
        servers.extend(of_backend.servers.iter().filter_map(|(name, server)| {
            Some((labels([("backend", backend), ("server", name)]), server.requests.as_ref()?))
        }));
    }
    page.counter(
        "convey_frontend_http_requests_total",
        "Requests whose head has come (mode http).",
        &frontends,
        |requests| requests.total as f64,
    );
    page.counter(
        "convey_frontend_http_responses_total",
        "Responses by the class of their status, those of convey's own included (mode http).",
        &by_code(&frontends),
        |n| *n as f64,
    );
    let answers = frontends.iter().flat_map(|(of, requests)| {
        let answered = requests.answered.iter().flatten();
        answered.map(|(reason, n)| (with(of, "reason", reason), *n))
    });
    page.counter(
        "convey_frontend_http_answered_total",
        "Requests that convey answered itself, by reason (mode http).",
        &answers.collect::<Vec<_>>(),
        |n| *n as f64,
    );
    page.counter(
        "convey_server_http_requests_total",
        "Requests sent to the server, retries included (mode http).",
        &servers,
        |requests| requests.total as f64,
    );
    page.counter(
        "convey_server_http_responses_total",
        "Responses of the server by the class of their status (mode http).",
        &by_code(&servers),
        |n| *n as f64,
    );
}

fn by_code(members: &[(Labels, &RequestReport)]) -> Vec<(Labels, u64)> {
    let of = |(of, requests): &(Labels, &RequestReport)| {
        requests.responses.iter().map(|(code, n)| (with(of, "code", code), *n)).collect::<Vec<_>>()
    };
    members.iter().flat_map(of).collect()
}

fn with(of: &Labels, name: &str, value: &str) -> Labels {
    [of.clone(), labels([(name, value)])].concat()
}
