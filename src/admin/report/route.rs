//! The routes of a frontend, as `/stats` has them. Pure.

use serde::Serialize;

use super::{RequestReport, TimesReport};
use crate::snapshot::{HttpAction, HttpRoute};

/// A route of a frontend in mode `http`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouteReport {
    /// Its host and path; `default` for requests that no other is for.
    pub name: String,
    /// The backend that serves its requests, unless they are redirected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Where they are redirected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<&'static str>,
    /// Its requests, those that are over.
    pub requests: RequestReport,
    /// From the head of a request to the last byte of its response.
    pub request_seconds: TimesReport,
}

impl RouteReport {
    pub(super) fn new(route: &HttpRoute) -> Self {
        let (backend, redirect) = match &route.action {
            HttpAction::Forward(pool) => (Some(pool.config.name.clone()), None),
            HttpAction::Redirect(to) => (None, Some(to.name())),
        };
        let requests = RequestReport::of_servers(&route.live.traffic);
        let request_seconds = TimesReport::new(route.live.times.read());
        RouteReport { name: route.name.to_string(), backend, redirect, requests, request_seconds }
    }
}
