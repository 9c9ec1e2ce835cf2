//! Routes of a frontend in mode `http`, with their resolved backends.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Pool, RequestLimit, RouteLive, RouteLives};
use convey_http_core::{
    CompressionRules, FieldRules, ForwardedFields, PathPrefix, PathView, RequestHead, RouteTable,
};
use convey_model::{
    FrontendConfig, HeaderRules, HttpConfig, Redirect, RouteAction, RouteCompression, RouteConfig,
};

/// Name of the default route in logs and metrics. It is unique, because names of other routes
/// contain a slash.
const DEFAULT: &str = "default";

/// HTTP routes of a frontend.
#[derive(Debug)]
pub struct HttpFrontend {
    /// Routes by host and path.
    pub routes: RouteTable<Arc<HttpRoute>>,
    in_order: Vec<Arc<HttpRoute>>,
    /// Route of requests that match no other route; `None`: convey replies with status 404.
    pub default: Option<Arc<HttpRoute>>,
    /// Header fields with the client's address for servers, such as `Forwarded`.
    pub forwarded: ForwardedFields,
    /// Whether convey starts a trace for a request without one.
    pub begin_traces: bool,
    /// Rules for local replies that belong to no route.
    pub response: FieldRules,
    /// Rate limit for the requests of one source; `None`: no limit.
    pub limit: Option<RequestLimit>,
    /// Backends of all routes and of the default route, without duplicates. The list has no
    /// backends that serve files.
    pub(crate) pools: Vec<Arc<Pool>>,
}

/// Route of HTTP requests.
#[derive(Debug, Clone)]
pub struct HttpRoute {
    /// Name in logs and metrics, such as `api.example/v1`.
    pub name: Arc<str>,
    /// Path prefix that requests must have; `None`: the default route.
    pub prefix: Option<PathPrefix>,
    /// Forwarding or redirect.
    pub action: HttpAction,
    /// Replacement for the path prefix in requests to the server; `None`: the path stays as the
    /// client sent it.
    pub rewrite_path: Option<Box<[u8]>>,
    /// Host in requests to the server, in place of the client's host; `None`: the client's host.
    pub rewrite_host: Option<Box<[u8]>>,
    /// State of the route that outlives this snapshot.
    pub live: Arc<RouteLive>,
    /// Rules for request fields: the frontend's rules, followed by the route's.
    pub request: FieldRules,
    /// Rules for response fields: the frontend's rules, followed by the route's.
    pub response: FieldRules,
    /// Rate limit for the route's requests of one source, in addition to the limit of the frontend;
    /// `None`: no limit.
    pub limit: Option<RequestLimit>,
    /// Rules for compression of responses; `None`: responses are not compressed.
    pub compression: Option<Arc<CompressionRules>>,
    /// Index of the route in [`HttpFrontend::routes`].
    pub(crate) place: usize,
}

/// Scheme by which a client's request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientScheme {
    /// HTTP without TLS.
    Http,
    /// HTTPS to convey, or to a trusted proxy.
    Https,
}

/// Action of a route.
#[derive(Debug, Clone)]
pub enum HttpAction {
    /// Forward to a server of this backend, or serve one of its files.
    Forward(Arc<Pool>),
    /// Reply with a redirect.
    Redirect(Redirect),
}

impl HttpFrontend {
    /// Builds the routes of a frontend. `lives` has the counters of its routes, and `pool` finds a
    /// backend by name. `limit` gets the name of a route and returns the route's rate limit; with
    /// `None`, it returns the frontend's rate limit.
    pub fn new(
        frontend: &FrontendConfig,
        http: &HttpConfig,
        lives: &RouteLives,
        pool: impl Fn(&str) -> Arc<Pool>,
        limit: impl Fn(Option<&str>) -> Option<RequestLimit>,
    ) -> HttpFrontend {
        let headers = HeaderRules {
            request: http.headers.request.clone(),
            response: offers_of_http3(frontend).then(&http.headers.response),
        };
        let mut pools: HashMap<String, Arc<Pool>> = HashMap::new();
        let mut action = |action: &RouteAction| match action {
            RouteAction::Redirect(to) => HttpAction::Redirect(*to),
            RouteAction::Backend(name) => {
                HttpAction::Forward(pools.entry(name.clone()).or_insert_with(|| pool(name)).clone())
            }
        };
        let of_frontend = http.compression.clone().map(Arc::new);
        let default = http.default_action(frontend.backend.as_deref()).map(|default| {
            let name = Arc::from(DEFAULT);
            Arc::new(HttpRoute {
                live: lives.get(&name),
                name,
                prefix: None,
                action: action(&default),
                rewrite_path: None,
                rewrite_host: None,
                request: headers.request.clone(),
                response: headers.response.clone(),
                limit: None,
                compression: of_frontend.clone(),
                place: http.routes.len(),
            })
        });
        let (mut routes, mut in_order) = (RouteTable::new(http.path_view), Vec::new());
        for route in &http.routes {
            let limit = limit(Some(&route.name));
            let compression = match &route.compression {
                RouteCompression::OfFrontend => of_frontend.clone(),
                RouteCompression::Off => None,
                RouteCompression::Rules(rules) => Some(Arc::new(rules.clone())),
            };
            let to = HttpRoute::new(route, http.path_view, action(&route.action), &headers, lives);
            let to = HttpRoute { limit, compression, place: in_order.len(), ..to };
            // Cannot fail: the configuration has no two routes with the same host and path.
            let to = Arc::new(to);
            in_order.push(to.clone());
            let _ = routes.add(&route.host, route.path.clone(), to);
        }
        lives.retain(|name| name == DEFAULT || http.routes.iter().any(|route| route.name == name));
        // Callers of `pools` look for servers that are up; backends with files have no servers.
        let mut pools: Vec<Arc<Pool>> =
            pools.into_values().filter(|pool| pool.config.files.is_none()).collect();
        pools.sort_by(|a, b| a.config.name.cmp(&b.config.name));
        let subject = frontend.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let forwarded = ForwardedFields { forwarded: http.forwarded, subject, ..ForwardedFields::default() };
        let response = headers.response;
        HttpFrontend {
            routes,
            in_order,
            default,
            forwarded,
            begin_traces: http.begin_traces,
            response,
            limit: limit(None),
            pools,
        }
    }

    /// Route of a request with this scheme, host and path; `None`: convey replies with status 404.
    /// The host has the form of [`RequestHead::host`](convey_http_core::RequestHead::host).
    /// Requests that arrived over HTTPS skip redirects to HTTPS, which would send the client back
    /// to the same URL.
    pub fn route(&self, scheme: ClientScheme, host: &[u8], path: &[u8]) -> Option<&Arc<HttpRoute>> {
        let applies = |route: &Arc<HttpRoute>| match (&route.action, scheme) {
            (HttpAction::Redirect(Redirect::Https), ClientScheme::Https) => false,
            (HttpAction::Redirect(Redirect::Https), ClientScheme::Http) | (HttpAction::Forward(_), _) => true,
        };
        let found = self.routes.find_where(host, path, applies).map(|found| found.to);
        found.or(self.default.as_ref().filter(|route| applies(route)))
    }

    /// All routes, with the default route last.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<HttpRoute>> {
        self.in_order.iter().chain(&self.default)
    }

    /// Header rules for a local reply to a request that arrived by this scheme. `request` is `None`
    /// if convey could not read the head of the request.
    pub fn response_to(&self, request: Option<(ClientScheme, &RequestHead)>) -> &FieldRules {
        let route = request.and_then(|(scheme, head)| self.route(scheme, head.host(), head.path()));
        route.map_or(&self.response, |route| &route.response)
    }
}

/// Lifetime of an `Alt-Svc` offer, in seconds: one day.
const OFFER_LIFETIME: u32 = 86_400;

/// Header rule that offers HTTP/3 at the same ports (`Alt-Svc`, RFC 7838). The operator's rules are
/// applied after it.
fn offers_of_http3(frontend: &FrontendConfig) -> FieldRules {
    let mut rules = FieldRules::default();
    let ports: BTreeSet<u16> = frontend.http3_endpoints().map(|at| at.addr.port()).collect();
    if ports.is_empty() {
        return rules;
    }
    let offers = ports.iter().map(|port| format!("h3=\":{port}\"; ma={OFFER_LIFETIME}"));
    let set = rules.set("Alt-Svc", &offers.collect::<Vec<_>>().join(", "));
    debug_assert!(set.is_ok(), "{set:?}");
    rules
}

impl HttpRoute {
    fn new(
        route: &RouteConfig,
        view: PathView,
        action: HttpAction,
        of_frontend: &HeaderRules,
        lives: &RouteLives,
    ) -> HttpRoute {
        let bytes = |text: &Option<String>| text.as_ref().map(|text| text.as_bytes().into());
        let name = Arc::from(&*route.name);
        HttpRoute {
            live: lives.get(&name),
            name,
            prefix: Some(route.path.in_view(view)),
            action,
            rewrite_path: bytes(&route.rewrite_path),
            rewrite_host: bytes(&route.rewrite_host),
            request: of_frontend.request.then(&route.headers.request),
            response: of_frontend.response.then(&route.headers.response),
            limit: None,
            compression: None,
            place: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use bytes::BytesMut;
    use convey_http_core::{HeadLimits, HeadReader, HostPattern};
    use convey_model::Mode;

    fn route(host: Option<&str>, path: &str, action: RouteAction) -> RouteConfig {
        RouteConfig {
            name: RouteConfig::name_of(host, path),
            host: host.map_or(HostPattern::Any, |host| HostPattern::parse(host).unwrap()),
            path: PathPrefix::parse(path).unwrap(),
            action,
            rewrite_path: Some("/new".into()),
            rewrite_host: None,
            headers: HeaderRules::default(),
            rate: None,
            compression: RouteCompression::OfFrontend,
        }
    }

    fn frontend(backend: Option<&str>) -> FrontendConfig {
        let frontend = FrontendConfig::new("web", Mode::Http, Vec::new(), "site");
        FrontendConfig { backend: backend.map(str::to_owned), ..frontend }
    }

    /// Name and target of a request's route.
    fn found(http: &HttpFrontend, host: &str, path: &str) -> Option<(String, String)> {
        let route = http.route(ClientScheme::Http, host.as_bytes(), path.as_bytes())?;
        assert_eq!(route.prefix.is_none(), *route.name == *DEFAULT);
        let to = match &route.action {
            HttpAction::Forward(pool) => pool.config.name.clone(),
            HttpAction::Redirect(to) => to.name().to_owned(),
        };
        Some((route.name.to_string(), to))
    }

    #[test]
    fn a_request_takes_its_route_or_the_default_one() {
        let to = |name: &str| RouteAction::Backend(name.to_owned());
        let mut config = HttpConfig {
            routes: vec![
                route(Some("api.example"), "/v1", to("api")),
                route(None, "/old", RouteAction::Redirect(Redirect::Https)),
            ],
            ..HttpConfig::default()
        };
        config.headers.request.set("X-A", "1").unwrap();
        config.routes[0].headers.request.set("X-B", "2").unwrap();
        let pool = |name: &str| fixture::pool(name, Vec::new());
        let of = |name: &str, to: &str| Some((name.to_owned(), to.to_owned()));
        let lives = RouteLives::new(1);
        let http = HttpFrontend::new(&frontend(Some("site")), &config, &lives, pool, |_| None);
        assert_eq!(found(&http, "api.example", "/v1/a"), of("api.example/v1", "api"));
        assert_eq!(found(&http, "api.example", "/old"), of("*/old", "https"));
        assert_eq!(found(&http, "api.example", "/v2"), of("default", "site"));
        let names: Vec<&str> = http.pools.iter().map(|pool| &*pool.config.name).collect();
        assert_eq!(names, ["api", "site"]);
        let route = http.route(ClientScheme::Http, b"api.example", b"/v1").unwrap();
        assert_eq!(route.request.to_string(), "set X-A, set X-B");
        assert_eq!(route.rewrite_path.as_deref(), Some(&b"/new"[..]));

        // Counters of a route survive a reload; counters of a removed route are dropped.
        let names =
            |http: &HttpFrontend| http.routes().map(|route| route.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&http), ["api.example/v1", "*/old", "default"]);
        config.routes.pop();
        let again = HttpFrontend::new(&frontend(Some("site")), &config, &lives, pool, |_| None);
        let kept = again.route(ClientScheme::Http, b"api.example", b"/v1").unwrap();
        assert!(Arc::ptr_eq(&kept.live, &route.live));
        assert_eq!(
            (names(&again), format!("{lives:?}")),
            (
                vec!["api.example/v1".to_owned(), "default".to_owned()],
                "RouteLives { routes: 2, .. }".to_owned()
            )
        );

        assert_eq!(
            found(&HttpFrontend::new(&frontend(None), &config, &lives, pool, |_| None), "other", "/v2"),
            None
        );
        config.redirect = Some(Redirect::Https);
        assert_eq!(
            found(&HttpFrontend::new(&frontend(None), &config, &lives, pool, |_| None), "other", "/v2"),
            of("default", "https")
        );
    }

    #[test]
    fn local_reply_over_https_ignores_fields_of_skipped_redirect() {
        let mut config = HttpConfig {
            routes: vec![
                route(None, "/a", RouteAction::Redirect(Redirect::Https)),
                route(None, "/", RouteAction::Backend("site".into())),
            ],
            ..HttpConfig::default()
        };
        config.routes[0].headers.response.set("X-Redirect", "1").unwrap();
        config.routes[1].headers.response.set("X-Site", "1").unwrap();
        let pool = |name: &str| fixture::pool(name, Vec::new());
        let http = HttpFrontend::new(&frontend(None), &config, &RouteLives::new(1), pool, |_| None);
        let mut bytes = BytesMut::from("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = HeadReader::default().request(&mut bytes, &HeadLimits::default()).unwrap().unwrap();
        let fields = |scheme| http.response_to(Some((scheme, &head))).to_string();
        assert_eq!(fields(ClientScheme::Http), "set X-Redirect");
        assert_eq!(fields(ClientScheme::Https), "set X-Site");
    }

    #[test]
    fn default_redirect_to_https_is_no_route_over_https() {
        let config = HttpConfig { redirect: Some(Redirect::Https), ..HttpConfig::default() };
        let pool = |name: &str| fixture::pool(name, Vec::new());
        let http = HttpFrontend::new(&frontend(None), &config, &RouteLives::new(1), pool, |_| None);
        assert!(http.route(ClientScheme::Http, b"a", b"/").is_some());
        assert!(http.route(ClientScheme::Https, b"a", b"/").is_none());
    }
}
