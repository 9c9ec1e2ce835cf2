//! Report on the routes of a frontend, for `/stats`. Pure.

use convey_api::RouteReport;
use convey_model::Timestamp;
use convey_snapshot::stats::Counter;
use convey_snapshot::{HttpAction, HttpRoute, SniRoute};

use super::{requests, times_report};

/// Report of a route of mode http.
pub(super) fn http_route_report(route: &HttpRoute, now: Timestamp) -> RouteReport {
    let report = RouteReport {
        name: route.name.to_string(),
        requests: Some(requests::of_route(&route.live, now)),
        request_seconds: Some(times_report(route.live.times.read())),
        ..RouteReport::default()
    };
    match &route.action {
        HttpAction::Forward(pool) => RouteReport { backend: Some(pool.config.name.clone()), ..report },
        HttpAction::Redirect(to) => RouteReport { redirect: Some(to.to_string().into()), ..report },
        HttpAction::Split(all) => {
            let weights = all.iter().map(|backend| (backend.pool.config.name.clone(), backend.weight));
            RouteReport { split: weights.collect(), ..report }
        }
        HttpAction::Respond(reply) => RouteReport { respond: Some(reply.status), ..report },
    }
}

/// Report of a route by TLS server name (proxy mode).
pub(super) fn sni_route_report(route: &SniRoute) -> RouteReport {
    // Read open connections first, so that the report never shows more open connections than
    // connections in total.
    let current_connections = Some(route.live.traffic.current());
    RouteReport {
        name: route.name.to_string(),
        backend: Some(route.pool.config.name.clone()),
        total_connections: Some(route.live.traffic.sum(Counter::Opened)),
        current_connections,
        ..RouteReport::default()
    }
}
