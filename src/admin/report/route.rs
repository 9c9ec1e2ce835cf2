//! The routes of a frontend, as `/stats` has them. Pure.

use serde::Serialize;

use crate::model::{RouteAction, RouteConfig};

/// A route of a frontend in mode `http`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouteReport {
    /// Its host and path.
    pub name: String,
    /// The backend that serves its requests, unless they are redirected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Where they are redirected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<&'static str>,
}

impl RouteReport {
    pub(super) fn new(route: &RouteConfig) -> Self {
        let redirect = match route.action {
            RouteAction::Redirect(to) => Some(to.name()),
            RouteAction::Backend(_) => None,
        };
        let backend = route.backend().map(str::to_owned);
        RouteReport { name: route.name.clone(), backend, redirect }
    }
}
