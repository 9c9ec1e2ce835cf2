//! Routes of a frontend, as `/stats` serves them. Pure.

use convey_snapshot::stats::Counter;
use convey_snapshot::{HttpAction, HttpRoute, SniRoute};
use serde::Serialize;

use super::{RequestReport, TimesReport};

/// Report of a route.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouteReport {
    /// Host and path, or host and protocol; `default` for the default route.
    pub name: String,
    /// Backend of the route, unless its requests are redirected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Target of redirects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<&'static str>,
    /// Finished requests of the route (mode http).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Durations from the head of a request to the last byte of its response (mode http).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_seconds: Option<TimesReport>,
    /// Connections of the route (proxy mode).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_connections: Option<u64>,
    /// Open connections of the route (proxy mode).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_connections: Option<u64>,
}

impl RouteReport {
    pub(super) fn new(route: &HttpRoute) -> Self {
        let (backend, redirect) = match &route.action {
            HttpAction::Forward(pool) => (Some(pool.config.name.clone()), None),
            HttpAction::Redirect(to) => (None, Some(to.name())),
        };
        RouteReport {
            name: route.name.to_string(),
            backend,
            redirect,
            requests: Some(RequestReport::of_servers(&route.live.traffic)),
            request_seconds: Some(TimesReport::new(route.live.times.read())),
            total_connections: None,
            current_connections: None,
        }
    }

    pub(super) fn of_connections(route: &SniRoute) -> Self {
        // Open connections are read first, so that they never outnumber all.
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
}
