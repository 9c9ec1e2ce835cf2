//! Metrics of requests (mode http).

use convey_api::{RequestReport, RouteReport, StatsReport, TimesReport};

use super::page::{Labels, MetricsPage, labels};

/// Adds the counters of requests.
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
        "Received requests (mode http).",
        &frontends,
        |requests| requests.total as f64,
    );
    page.counter(
        "convey_frontend_http_responses_total",
        "Responses by the class of their status, including convey's own responses (mode http).",
        &by_code(&frontends),
        |n| *n as f64,
    );
    add_routes(page, report);
    let by_reason = frontends.iter().flat_map(|(of, requests)| {
        let replies = requests.local_replies.iter().flatten();
        replies.map(|(reason, n)| (with(of, "reason", reason), *n))
    });
    page.counter(
        "convey_frontend_http_local_replies_total",
        "Requests that convey answered itself, by reason (mode http).",
        &by_reason.collect::<Vec<_>>(),
        |n| *n as f64,
    );
    let by_phase = frontends.iter().flat_map(|(of, requests)| {
        let ends = requests.early_ends.iter().flatten();
        ends.map(|(phase, n)| (with(of, "phase", phase), *n))
    });
    page.counter(
        "convey_frontend_http_early_ends_total",
        "Requests that ended early or got a local reply, by their phase (mode http).",
        &by_phase.collect::<Vec<_>>(),
        |n| *n as f64,
    );
    add_compression(page, &frontends);
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
    add_request_times(page, report);
    add_response_times(page, report);
}

/// Adds the durations of the requests of frontends.
fn add_request_times(page: &mut MetricsPage, report: &StatsReport) {
    let times = report.frontends.iter().filter_map(|(name, frontend)| {
        Some((labels([("frontend", name)]), frontend.request_seconds.as_ref()?))
    });
    page.histogram(
        "convey_frontend_http_request_duration_seconds",
        "Time from the head of a request to the last byte of its response (mode http).",
        &times.collect::<Vec<_>>(),
        |times| Some(times),
    );
}

/// Adds the counters of compressed responses, by frontend.
fn add_compression(page: &mut MetricsPage, frontends: &[(Labels, &RequestReport)]) {
    let reports = frontends.iter().filter_map(|(of, requests)| Some((of, requests.compression.as_ref()?)));
    let reports: Vec<_> = reports.collect();
    let responses = reports.iter().flat_map(|(of, report)| {
        report.responses.iter().map(|(encoding, n)| (with(of, "encoding", encoding), *n))
    });
    page.counter(
        "convey_frontend_http_compressed_total",
        "Responses that convey has compressed, by their encoding (mode http).",
        &responses.collect::<Vec<_>>(),
        |n| *n as f64,
    );
    let no_memory: Vec<(Labels, u64)> =
        reports.iter().map(|(of, report)| ((*of).clone(), report.no_memory)).collect();
    page.counter(
        "convey_frontend_http_compression_no_memory_total",
        "Responses sent uncompressed, because there was no memory for another encoder (mode http).",
        &no_memory,
        |n| *n as f64,
    );
    let bytes = reports.iter().flat_map(|(of, report)| {
        [("in", report.bytes_in), ("out", report.bytes_out)].map(|(side, n)| (with(of, "side", side), n))
    });
    page.counter(
        "convey_frontend_http_compression_bytes_total",
        "Bytes of bodies before they were compressed (in) and afterwards (out) (mode http).",
        &bytes.collect::<Vec<_>>(),
        |n| *n as f64,
    );
}

/// Adds the times until the response head of a server arrived.
fn add_response_times(page: &mut MetricsPage, report: &StatsReport) {
    let times: Vec<(Labels, &TimesReport)> = report
        .backends
        .iter()
        .flat_map(|(backend, of_backend)| {
            of_backend.servers.iter().filter_map(move |(name, server)| {
                let times = server.response_seconds.as_ref()?;
                Some((labels([("backend", backend), ("server", name)]), times))
            })
        })
        .collect();
    page.histogram(
        "convey_server_http_response_duration_seconds",
        "Time from a request to the head of its response (mode http).",
        &times,
        |times| Some(times),
    );
}

/// Adds the counters of routes.
fn add_routes(page: &mut MetricsPage, report: &StatsReport) {
    let mut routes: Vec<(Labels, &RouteReport)> = Vec::new();
    for (frontend, of_frontend) in &report.frontends {
        for route in &of_frontend.routes {
            routes.push((labels([("frontend", frontend), ("route", &route.name)]), route));
        }
    }
    let responses: Vec<(Labels, &RequestReport)> =
        routes.iter().filter_map(|(of, route)| Some((of.clone(), route.requests.as_ref()?))).collect();
    page.counter(
        "convey_route_http_responses_total",
        "Responses to requests of the route by the class of their status, including convey's own responses (mode http).",
        &by_code(&responses),
        |n| *n as f64,
    );
    page.histogram(
        "convey_route_http_request_duration_seconds",
        "Time from the head of a request to the last byte of its response (mode http).",
        &routes,
        |route| route.request_seconds.as_ref(),
    );
    let connections: Vec<(Labels, u64)> =
        routes.iter().filter_map(|(of, route)| Some((of.clone(), route.total_connections?))).collect();
    page.counter(
        "convey_route_connections_total",
        "Connections of a route by TLS server name (proxy mode).",
        &connections,
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
