//! Report on the outcomes of requests (mode http). Pure.

use convey_api::{CompressionReport, Counts, RecentRequestReport, RequestReport};
use convey_model::Timestamp;
use convey_snapshot::stats::{Counter, RecentRequests, Traffic};
use convey_snapshot::{FrontendLive, RouteLive, ServerLive};

/// Report on the requests of a frontend.
pub(super) fn of_frontend(frontend: &FrontendLive, now: Timestamp) -> RequestReport {
    let traffic = &frontend.traffic;
    RequestReport {
        local_replies: Some(sums(traffic, &Counter::ANSWERS)),
        local_5xx: Some(traffic.sum(Counter::Answered5xx)),
        recent: recent(frontend.request_samples.read(now, traffic, &frontend.request_times)),
        early_ends: Some(sums(traffic, &Counter::EARLY_ENDS)),
        compression: Some(CompressionReport {
            responses: sums(traffic, &Counter::COMPRESSED),
            no_memory: traffic.sum(Counter::CompressionNoRoom),
            bytes_in: traffic.sum(Counter::CompressionBytesIn),
            bytes_out: traffic.sum(Counter::CompressionBytesOut),
        }),
        ..of_backend(traffic)
    }
}

/// Report on the requests of a route. There may be thousands of routes, so only the reasons of
/// local replies that have occurred are listed.
pub(super) fn of_route(route: &RouteLive, now: Timestamp) -> RequestReport {
    let traffic = &route.traffic;
    let mut local_replies = sums(traffic, &Counter::ANSWERS);
    local_replies.retain(|_, count| *count > 0);
    RequestReport {
        local_replies: Some(local_replies),
        local_5xx: Some(traffic.sum(Counter::Answered5xx)),
        recent: recent(route.samples.read(now, traffic, &route.times)),
        ..of_backend(traffic)
    }
}

/// Report on the requests of a server.
pub(super) fn of_server(server: &ServerLive, now: Timestamp) -> RequestReport {
    let traffic = &server.traffic;
    let recent = recent(server.request_samples.read(now, traffic, &server.response_times));
    RequestReport { recent, ..of_backend(traffic) }
}

/// Report on the requests of a backend.
pub(super) fn of_backend(traffic: &Traffic) -> RequestReport {
    RequestReport {
        total: traffic.sum(Counter::Requests),
        responses: sums(traffic, &Counter::RESPONSES),
        local_replies: None,
        local_5xx: None,
        recent: None,
        early_ends: None,
        compression: None,
    }
}

fn recent(recent: Option<RecentRequests>) -> Option<RecentRequestReport> {
    let RecentRequests { period, total, responses, times } = recent?;
    let responses = Counter::RESPONSES.iter().zip(responses);
    Some(RecentRequestReport {
        seconds: (period.as_secs_f64() * 1_000.0).round() / 1_000.0,
        total,
        responses: responses.map(|((_, label), count)| ((*label).into(), count)).collect(),
        p50: times.quantile(0.5),
        p90: times.quantile(0.9),
        p99: times.quantile(0.99),
    })
}

/// Values of these counters, by label.
pub(super) fn sums(traffic: &Traffic, counters: &[(Counter, &'static str)]) -> Counts {
    counters.iter().map(|(counter, label)| ((*label).into(), traffic.sum(*counter))).collect()
}
