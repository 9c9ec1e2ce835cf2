//! Settings of mode `http`: routes, redirects, headers.

use std::fmt;

use super::{ErrorPages, HttpLimits, RequestRate};
use convey_http_core::{ClientAddress, CompressionRules, FieldRules, HostPattern, PathPrefix, PathView};

/// Settings of mode `http`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpConfig {
    /// Routes, sorted by name. No two routes have the same host and path.
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
    /// Limits of a request and its connection.
    pub limits: HttpLimits,
    /// Pages for convey's local replies.
    pub error_pages: ErrorPages,
    /// Rules for compression of responses; `None`: no compression.
    pub compression: Option<CompressionRules>,
}

/// Route of requests to another backend than the frontend's own, or to a redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteConfig {
    /// Host and path as in the configuration, such as `api.example/v1`; `*` matches any host.
    pub name: String,
    /// Hosts that the route matches.
    pub host: HostPattern,
    /// Paths that the route matches.
    pub path: PathPrefix,
    /// Action for matching requests.
    pub action: RouteAction,
    /// Path that replaces `path` in the request to the server, beginning with a slash; `None`: the
    /// path stays.
    pub rewrite_path: Option<String>,
    /// Host in the request to the server; `None`: the client's host.
    pub rewrite_host: Option<String>,
    /// Header changes, applied after those of the frontend.
    pub headers: HeaderRules,
    /// Request rate limit per source of this route, in addition to the frontend's; `None`: no
    /// limit.
    pub rate: Option<RequestRate>,
    /// Compression of responses.
    pub compression: RouteCompression,
}

/// Compression of a route's responses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RouteCompression {
    /// Compression by the frontend's rules.
    #[default]
    OfFrontend,
    /// No compression.
    Off,
    /// Compression by the route's own rules.
    Rules(CompressionRules),
}

/// Action for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteAction {
    /// Forward to a server of this backend.
    Backend(String),
    /// Redirect the client.
    Redirect(Redirect),
}

/// Redirect target (status 308).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirect {
    /// Same host and path over HTTPS.
    Https,
}

/// Header changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderRules {
    /// Changes of requests.
    pub request: FieldRules,
    /// Changes of responses.
    pub response: FieldRules,
}

impl fmt::Display for RouteCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteCompression::OfFrontend => f.write_str("as the frontend"),
            RouteCompression::Off => f.write_str("off"),
            RouteCompression::Rules(rules) => write!(f, "{rules}"),
        }
    }
}

impl RouteConfig {
    /// Name of a route with this host and this path, as in the configuration.
    pub fn name_of(host: Option<&str>, path: &str) -> String {
        format!("{}{path}", host.unwrap_or("*"))
    }

    /// Backend of the route, unless it redirects.
    pub fn backend(&self) -> Option<&str> {
        match &self.action {
            RouteAction::Backend(name) => Some(name),
            RouteAction::Redirect(_) => None,
        }
    }
}

impl Redirect {
    /// All targets, in the order the documentation lists them.
    pub const ALL: [Redirect; 1] = [Redirect::Https];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Redirect::Https => "https",
        }
    }
}

impl fmt::Display for RouteAction {
    /// Formats as `backend api` or `redirect to https`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteAction::Backend(name) => write!(f, "backend {name}"),
            RouteAction::Redirect(to) => write!(f, "redirect to {}", to.name()),
        }
    }
}

impl HttpConfig {
    /// Action for a request that matches no route; `None`: convey replies with status 404.
    /// `backend` is the frontend's own.
    pub fn default_action(&self, backend: Option<&str>) -> Option<RouteAction> {
        match (backend, self.redirect) {
            (Some(backend), _) => Some(RouteAction::Backend(backend.to_owned())),
            (None, Some(to)) => Some(RouteAction::Redirect(to)),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrontendConfig, Mode};

    fn route(path: &str, action: RouteAction) -> RouteConfig {
        RouteConfig {
            name: RouteConfig::name_of(None, path),
            host: HostPattern::Any,
            path: PathPrefix::parse(path).unwrap(),
            action,
            rewrite_path: None,
            rewrite_host: None,
            headers: HeaderRules::default(),
            rate: None,
            compression: RouteCompression::OfFrontend,
        }
    }

    #[test]
    fn a_frontend_uses_each_backend_once() {
        let to = |name: &str| RouteAction::Backend(name.to_owned());
        let routes = vec![
            route("/a", to("api")),
            route("/b", RouteAction::Redirect(Redirect::Https)),
            route("/c", to("site")),
            route("/d", to("api")),
        ];
        let mut frontend = FrontendConfig::new("web", Mode::Http, Vec::new(), "site");
        frontend.http = Some(Box::new(HttpConfig { routes, ..HttpConfig::default() }));
        assert_eq!(frontend.backends().collect::<Vec<_>>(), ["site", "api"]);
        frontend.backend = None;
        assert_eq!(frontend.backends().collect::<Vec<_>>(), ["api", "site"]);
        assert!(frontend.uses("site") && !frontend.uses("other"));
    }

    #[test]
    fn http_settings_exist_only_in_mode_http() {
        for mode in Mode::ALL {
            let frontend = FrontendConfig::new("web", mode, Vec::new(), "site");
            assert_eq!(frontend.http.is_some(), mode.is_http(), "{}", mode.name());
        }
    }
}
