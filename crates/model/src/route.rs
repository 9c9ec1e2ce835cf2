//! Routes of mode `http`: the requests that they match, and their actions.

use std::fmt;
use std::sync::Arc;

use super::{Access, HeaderRules, Maintenance, OwnTimeouts, Prefix, RequestRate, TotalRate};
use bytes::Bytes;
use convey_http_core::{
    CompressionRules, CorsRules, FieldRules, HostPattern, PathPattern, PathPrefix, PathRewrite, Redirect,
    RetryRules, ReverseRewrite, ReversedFields, RouteConditions,
};

/// Route of requests: its matches, and the action for the requests that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteConfig {
    /// Name in logs, metrics and commands. By default host and path as in the configuration, such as
    /// `api.example/v1`; `*` matches any host.
    pub name: String,
    /// Hosts that the route matches; empty: any host, and requests without one.
    pub hosts: Vec<HostPattern>,
    /// Paths that the route matches.
    pub path: PathPattern,
    /// Further conditions on requests.
    pub conditions: RouteConditions,
    /// Networks, one of which the client is in; empty: any client.
    pub sources: Vec<Prefix>,
    /// Action for matching requests.
    pub action: RouteAction,
    /// Replacement of the part of the path that `path` matches; `None`: the path stays.
    pub rewrite_path: Option<PathRewrite>,
    /// Host in the request to the server; `None`: the client's host.
    pub rewrite_host: Option<String>,
    /// Fields of responses that are translated back, if the route rewrites paths or the host.
    pub reversed: ReversedFields,
    /// Header changes, applied after those of the frontend.
    pub headers: HeaderRules,
    /// Request rate limit per source of this route, in addition to the frontend's; `None`: no
    /// limit.
    pub rate: Option<RequestRate>,
    /// Request rate limit of all clients of this route together; `None`: no limit.
    pub total: Option<TotalRate>,
    /// Compression of responses.
    pub compression: RouteCompression,
    /// Limits of its own.
    pub limits: RouteLimits,
    /// Rules for pages of other origins; `None`: those of the frontend.
    pub cors: Option<CorsRules>,
    /// Rules for retries; `None`: the frontend's rules apply.
    pub retry: Option<RetryRules>,
    /// Maintenance that an operator has set; always `None` in a file.
    pub maintenance: Option<Arc<Maintenance>>,
}

/// Limits of a route, in place of those of the frontend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteLimits {
    /// Timeouts.
    pub timeouts: OwnTimeouts,
    /// Limit for bodies of requests, in bytes; `None`: that of the frontend.
    pub body: Option<u64>,
    /// Clients that are admitted, in addition to the frontend's lists.
    pub access: Access,
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
    /// Forward to servers of these backends, in proportion to their weights.
    Split(Vec<(String, u32)>),
    /// Redirect the client.
    Redirect(Redirect),
    /// Reply with a fixed response.
    Respond(FixedReply),
}

/// A response that is the same for each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedReply {
    /// Status, 200 to 599.
    pub status: u16,
    /// Body.
    pub body: Bytes,
    /// Fields in addition to the usual ones.
    pub fields: FieldRules,
}

impl FixedReply {
    /// Size limit of a body, in bytes.
    pub const MAX_BODY: usize = 64 * 1024;
}

impl RouteConfig {
    /// Returns a route of all requests for a host pattern and all paths below a path, without
    /// further settings. `None`: any host. A text that is no pattern counts as any host, or as all
    /// paths.
    pub fn new(host: Option<&str>, path: &str, action: RouteAction) -> RouteConfig {
        RouteConfig {
            name: RouteConfig::name_of(host, path),
            hosts: host.into_iter().filter_map(|host| HostPattern::parse(host).ok()).collect(),
            path: PathPrefix::parse(path).map_or_else(|_| PathPattern::any(), PathPattern::Prefix),
            conditions: RouteConditions::default(),
            sources: Vec::new(),
            action,
            rewrite_path: None,
            rewrite_host: None,
            reversed: ReversedFields::default(),
            headers: HeaderRules::default(),
            rate: None,
            total: None,
            compression: RouteCompression::OfFrontend,
            limits: RouteLimits::default(),
            cors: None,
            retry: None,
            maintenance: None,
        }
    }

    /// Name of a route with this host and this path, as in the configuration.
    pub fn name_of(host: Option<&str>, path: &str) -> String {
        format!("{}{path}", host.unwrap_or("*"))
    }

    /// Translation of responses; `None`: responses stay as they are.
    pub fn reverse(&self) -> Option<ReverseRewrite> {
        ReverseRewrite::new(self.reversed, self.rewrite_path.as_ref(), self.rewrite_host.is_some())
    }

    /// Backends of the route; none if it answers by itself.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        self.action.backends()
    }
}

impl RouteAction {
    /// Maximum weight of a backend among the backends of a route.
    pub const MAX_WEIGHT: u32 = 1_000_000;

    /// Backends that requests go to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let (one, several) = match self {
            RouteAction::Backend(name) => (Some(&**name), &[][..]),
            RouteAction::Split(all) => (None, &all[..]),
            RouteAction::Redirect(_) | RouteAction::Respond(_) => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().map(|(name, _)| &**name))
    }

    /// Whether requests go to a backend, and are not answered by convey itself.
    pub fn forwards(&self) -> bool {
        matches!(self, RouteAction::Backend(_) | RouteAction::Split(_))
    }
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

impl fmt::Display for RouteAction {
    /// Formats as `backend api`, `backends v1=90, v2=10`, `redirect to https` or `status 200`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteAction::Backend(name) => write!(f, "backend {name}"),
            RouteAction::Split(all) => {
                let all: Vec<String> = all.iter().map(|(name, weight)| format!("{name}={weight}")).collect();
                write!(f, "backends {}", all.join(", "))
            }
            RouteAction::Redirect(to) => write!(f, "redirect to {to}"),
            RouteAction::Respond(reply) => write!(f, "status {}", reply.status),
        }
    }
}
