//! Settings of mode `http`: routes, redirects, headers.

use std::sync::Arc;

use super::{ErrorPages, HttpLimits, Maintenance, RequestRate, RouteAction, RouteConfig, TotalRate};
use convey_http_core::{
    ClientAddress, CompressionRules, CorsRules, FieldRules, PathView, Redirect, RetryRules,
};

/// Settings of mode `http`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpConfig {
    /// Routes, in the order of the file. Each has a name of its own.
    pub routes: Vec<RouteConfig>,
    /// Form of request paths that routes are matched against.
    pub path_view: PathView,
    /// Redirect of requests that match no route; `None`: no redirect. A frontend with a redirect
    /// has no backend of its own.
    pub redirect: Option<Redirect>,
    /// Header changes for all requests and responses.
    pub headers: HeaderRules,
    /// Whether servers also get `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// Field in which trusted proxies name the client of each request.
    pub client_address: ClientAddress,
    /// Whether convey starts a trace (W3C Trace Context) for a request without one.
    pub begin_traces: bool,
    /// Request rate limit per source; `None`: no limit.
    pub rate: Option<RequestRate>,
    /// Request rate limit of all clients together; `None`: no limit.
    pub total: Option<TotalRate>,
    /// Limits of a request and its connection.
    pub limits: HttpLimits,
    /// Rules for pages of other origins; `None`: servers decide.
    pub cors: Option<CorsRules>,
    /// Rules for retries; `None`: connects and resets are retried within the usual bounds.
    pub retry: Option<RetryRules>,
    /// Pages for convey's local replies.
    pub error_pages: ErrorPages,
    /// Rules for compression of responses; `None`: no compression.
    pub compression: Option<CompressionRules>,
    /// Maintenance of the frontend that an operator has set; always `None` in a file.
    pub maintenance: Option<Arc<Maintenance>>,
    /// Maintenance of the default route that an operator has set; always `None` in a file.
    pub default_maintenance: Option<Arc<Maintenance>>,
}

/// Header changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderRules {
    /// Changes of requests.
    pub request: FieldRules,
    /// Changes of responses.
    pub response: FieldRules,
}

impl HttpConfig {
    /// Action for a request that matches no route; `None`: convey replies with status 404.
    /// `backend` is the frontend's own.
    pub fn default_action(&self, backend: Option<&str>) -> Option<RouteAction> {
        match (backend, &self.redirect) {
            (Some(backend), _) => Some(RouteAction::Backend(backend.to_owned())),
            (None, Some(to)) => Some(RouteAction::Redirect(to.clone())),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrontendConfig, Mode};

    fn route(path: &str, action: RouteAction) -> RouteConfig {
        RouteConfig::new(None, path, action)
    }

    #[test]
    fn a_frontend_uses_each_backend_once() {
        let to = |name: &str| RouteAction::Backend(name.to_owned());
        let routes = vec![
            route("/a", to("api")),
            route("/b", RouteAction::Redirect(Redirect::to_https())),
            route("/c", to("site")),
            route("/d", to("api")),
            route("/e", RouteAction::Split(vec![("api".into(), 1), ("new".into(), 0)])),
        ];
        let mut frontend = FrontendConfig::new("web", Mode::Http, Vec::new(), "site");
        frontend.http = Some(Box::new(HttpConfig { routes, ..HttpConfig::default() }));
        assert_eq!(frontend.backends().collect::<Vec<_>>(), ["site", "api", "new"]);
        frontend.backend = None;
        assert_eq!(frontend.backends().collect::<Vec<_>>(), ["api", "site", "new"]);
        assert!(frontend.uses("site") && !frontend.uses("other"));
    }

    #[test]
    fn frontend_without_a_backend_names_its_redirect() {
        let mut frontend = FrontendConfig::new("web", Mode::Http, Vec::new(), "site");
        frontend.backend = None;
        assert_eq!(frontend.backends_in_words(), "no backend");
        let redirect = Some(Redirect::to_https());
        frontend.http = Some(Box::new(HttpConfig { redirect, ..HttpConfig::default() }));
        assert_eq!(frontend.backends_in_words(), "redirect to https");
    }

    #[test]
    fn http_settings_exist_only_in_mode_http() {
        for mode in Mode::ALL {
            let frontend = FrontendConfig::new("web", mode, Vec::new(), "site");
            assert_eq!(frontend.http.is_some(), mode.is_http(), "{}", mode.name());
        }
    }
}
