//! Report on the routes of a frontend, for `/stats`. Pure.

use convey_api::RouteReport;
use convey_model::Timestamp;
use convey_snapshot::stats::Counter;
use convey_snapshot::{HttpAction, HttpRoute, SniRoute};

use super::{requests, times_report};

/// Report of a route of mode http.
pub(super) fn http_route_report(route: &HttpRoute, now: Timestamp) -> RouteReport {
    let (backend, redirect) = match &route.action {
        HttpAction::Forward(pool) => (Some(pool.config.name.clone()), None),
        HttpAction::Redirect(to) => (None, Some(to.to_string().into())),
        HttpAction::Split(all) => {
            let names: Vec<&str> = all.iter().map(|backend| &*backend.pool.config.name).collect();
            (Some(names.join(", ")), None)
        }
        HttpAction::Respond(_) => (None, None),
    };
    RouteReport {
        name: route.name.to_string(),
        backend,
        redirect,
        requests: Some(requests::of_route(&route.live, now)),
        request_seconds: Some(times_report(route.live.times.read())),
        total_connections: None,
        current_connections: None,
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
        redirect: None,
        requests: None,
        request_seconds: None,
        total_connections: Some(route.live.traffic.sum(Counter::Opened)),
        current_connections,
    }
}
