//! What a frontend in mode `http` does with requests: routes, redirects, headers.

use std::fmt;

use super::{ErrorPages, HttpLimits, RequestRate};
use convey_http_core::{CompressionRules, FieldRules, HostPattern, PathPrefix, PathView};

/// The settings of mode `http`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpConfig {
    /// Sorted by name. No two have the same host and path.
    pub routes: Vec<RouteConfig>,
    /// How routes see the paths of requests.
    pub path_view: PathView,
    /// Where a request without a route is redirected to. Then the frontend has no backend.
    pub redirect: Option<Redirect>,
    /// The headers that change, of all requests and responses.
    pub headers: HeaderRules,
    /// Whether servers also get `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// Whether a request that is a part of no trace begins one.
    pub begin_traces: bool,
    /// How many requests one source may send; `None`: no limit.
    pub rate: Option<RequestRate>,
    /// How much a request and its connection may take.
    pub limits: HttpLimits,
    /// What convey's own answers say.
    pub error_pages: ErrorPages,
    /// Which responses are compressed; `None`: no response is.
    pub compression: Option<CompressionRules>,
}

/// Which requests go elsewhere than to the frontend's own backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteConfig {
    /// Host and path as the file has them, such as `api.example/v1`; `*` stands for any host.
    pub name: String,
    /// The hosts that it is for.
    pub host: HostPattern,
    /// The paths that it is for.
    pub path: PathPrefix,
    /// What becomes of a request.
    pub action: RouteAction,
    /// What takes the place of `path` on the way to the server. Begins with a slash.
    pub rewrite_path: Option<String>,
    /// The host that the server is asked for, in place of the client's.
    pub rewrite_host: Option<String>,
    /// The headers that change, after those of the frontend.
    pub headers: HeaderRules,
    /// How many requests one source may send to it, beside the limit of the frontend; `None`: no limit.
    pub rate: Option<RequestRate>,
    /// Which responses are compressed.
    pub compression: RouteCompression,
}

/// Which responses of a route are compressed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RouteCompression {
    /// As the frontend says.
    #[default]
    OfFrontend,
    /// None of them.
    Off,
    /// By rules of its own.
    Rules(CompressionRules),
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteAction {
    /// A server of this backend gets it.
    Backend(String),
    /// The client is sent elsewhere.
    Redirect(Redirect),
}

/// Where a client is sent (status 308).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirect {
    /// To the same host and path by HTTPS.
    Https,
}

/// The headers that change on their way through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderRules {
    /// Those of requests.
    pub request: FieldRules,
    /// Those of responses.
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
    /// The name of a route with this host and this path, as the file has them.
    pub fn name_of(host: Option<&str>, path: &str) -> String {
        format!("{}{path}", host.unwrap_or("*"))
    }

    /// Its backend, unless it redirects.
    pub fn backend(&self) -> Option<&str> {
        match &self.action {
            RouteAction::Backend(name) => Some(name),
            RouteAction::Redirect(_) => None,
        }
    }
}

impl Redirect {
    /// All of them, in the order the documentation lists them.
    pub const ALL: [Redirect; 1] = [Redirect::Https];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Redirect::Https => "https",
        }
    }
}

impl fmt::Display for RouteAction {
    /// `backend api` or `redirect to https`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteAction::Backend(name) => write!(f, "backend {name}"),
            RouteAction::Redirect(to) => write!(f, "redirect to {}", to.name()),
        }
    }
}

impl HttpConfig {
    /// What becomes of a request without a route; `None`: it gets a 404. `backend` is the frontend's own.
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
    fn only_mode_http_has_its_settings() {
        for mode in Mode::ALL {
            let frontend = FrontendConfig::new("web", mode, Vec::new(), "site");
            assert_eq!(frontend.http.is_some(), mode.is_http(), "{}", mode.name());
        }
    }
}
