//! Requests (mode http).

use super::page::{Labels, MetricsPage, labels};
use crate::admin::StatsReport;
use crate::admin::report::{RequestReport, RouteReport};
use crate::stats::Distribution;

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
    add_routes(page, report);
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
    add_response_times(page, report);
}

/// Adds how long servers take to the head of a response.
fn add_response_times(page: &mut MetricsPage, report: &StatsReport) {
    let times: Vec<(Labels, &Distribution)> = report
        .backends
        .iter()
        .flat_map(|(backend, of_backend)| {
            of_backend.servers.iter().filter_map(move |(name, server)| {
                let times = &server.response_seconds.as_ref()?.distribution;
                Some((labels([("backend", backend), ("server", name)]), times))
            })
        })
        .collect();
    page.histogram(
        "convey_server_http_response_duration_seconds",
        "From a request to the head of its response (mode http).",
        &times,
        |times| Some(times),
    );
}

/// Adds what is counted of routes.
fn add_routes(page: &mut MetricsPage, report: &StatsReport) {
    let mut routes: Vec<(Labels, &RouteReport)> = Vec::new();
    for (frontend, of_frontend) in &report.frontends {
        for route in &of_frontend.routes {
            routes.push((labels([("frontend", frontend), ("route", &route.name)]), route));
        }
    }
    let responses: Vec<(Labels, &RequestReport)> =
        routes.iter().map(|(of, route)| (of.clone(), &route.requests)).collect();
    page.counter(
        "convey_route_http_responses_total",
        "Responses to requests of the route by the class of their status, those of convey's own included (mode http).",
        &by_code(&responses),
        |n| *n as f64,
    );
    page.histogram(
        "convey_route_http_request_duration_seconds",
        "From the head of a request to the last byte of its response (mode http).",
        &routes,
        |route| Some(&route.request_seconds.distribution),
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
