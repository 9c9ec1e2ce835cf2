//! The routes of a frontend, as `/stats` has them. Pure.

use convey_snapshot::stats::Counter;
use convey_snapshot::{HttpAction, HttpRoute, SniRoute};
use serde::Serialize;

use super::{RequestReport, TimesReport};

/// A route of a frontend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouteReport {
    /// Its host and path, or host and protocol; `default` for what no other is for.
    pub name: String,
    /// The backend that serves it, unless its requests are redirected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Where they are redirected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<&'static str>,
    /// Its requests, those that are over (mode http).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// From the head of a request to the last byte of its response (mode http).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_seconds: Option<TimesReport>,
    /// Its connections (proxy mode).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_connections: Option<u64>,
    /// Those that are open.
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
        // Open connections are read first, so that they can never outnumber all.
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
