//! Routes of a frontend in mode `http`, with their resolved backends.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Pool, RequestLimit, RouteLive, RouteLives};
use convey_http_core::{
    CompressionRules, CorsRules, FieldRules, ForwardedFields, HostPattern, PathRewrite, Redirect,
    RequestFacts, RetryRules, ReverseRewrite, RouteTable, Variable,
};
use convey_model::{
    FixedReply, FrontendConfig, HeaderRules, HttpConfig, Maintenance, Prefix, RouteAction, RouteCompression,
    RouteConfig, RouteLimits, TotalRate,
};

/// Name of the default route in logs and metrics. The configuration refuses it for other routes.
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
    /// Rules for pages of other origins, for requests that belong to no route.
    pub cors: Option<Arc<CorsRules>>,
    /// Maintenance of all requests of the frontend.
    pub maintenance: Option<Arc<Maintenance>>,
    /// Rate limit for the requests of one source; `None`: no limit.
    pub limit: Option<RequestLimit>,
    /// Whether a header or a redirect has the id of the request.
    pub uses_request_ids: bool,
    /// Backends of all routes and of the default route, without duplicates. The list has no
    /// backends that serve files.
    pub(crate) pools: Vec<Arc<Pool>>,
}

/// Route of HTTP requests.
#[derive(Debug, Clone)]
pub struct HttpRoute {
    /// Name in logs and metrics, such as `api.example/v1`.
    pub name: Arc<str>,
    /// Networks, one of which the client is in; empty: any client.
    pub sources: Vec<Prefix>,
    /// Maintenance of the route.
    pub maintenance: Option<Arc<Maintenance>>,
    /// What happens to a request.
    pub action: HttpAction,
    /// Change of the path in requests to the server; `None`: the path stays as the client sent it.
    pub rewrite: Option<PathRewrite>,
    /// Host in requests to the server, in place of the client's host; `None`: the client's host.
    pub rewrite_host: Option<Box<[u8]>>,
    /// Translation of responses back to the client's paths and host; `None`: responses stay.
    pub reverse: Option<ReverseRewrite>,
    /// State of the route that outlives this snapshot.
    pub live: Arc<RouteLive>,
    /// Rules for request fields: the frontend's rules, followed by the route's.
    pub request: FieldRules,
    /// Rules for response fields: the frontend's rules, followed by the route's.
    pub response: FieldRules,
    /// Limits of its own.
    pub limits: RouteLimits,
    /// Rules for pages of other origins.
    pub cors: Option<Arc<CorsRules>>,
    /// Rules for retries; `None`: connects and resets are retried within the usual bounds.
    pub retry: Option<Arc<RetryRules>>,
    /// Whether header rules differ from request to request.
    pub has_dynamic_rules: bool,
    /// Rate limit for the route's requests of one source, in addition to the limit of the frontend;
    /// `None`: no limit.
    pub limit: Option<RequestLimit>,
    /// Rate limit for the route's requests of all clients together; `None`: no limit.
    pub total: Option<TotalRate>,
    /// Rules for compression of responses; `None`: responses are not compressed.
    pub compression: Option<Arc<CompressionRules>>,
    /// Index of the route in [`HttpFrontend::routes`].
    pub(crate) place: usize,
}

/// Action of a route.
#[derive(Debug, Clone)]
pub enum HttpAction {
    /// Forward to a server of this backend, or serve one of its files.
    Forward(Arc<Pool>),
    /// Forward to one of these backends.
    Split(Arc<[SplitBackend]>),
    /// Reply with a redirect.
    Redirect(Arc<Redirect>),
    /// Reply with a fixed response.
    Respond(Arc<FixedReply>),
}

/// Backend that gets a share of a route's requests.
#[derive(Debug, Clone)]
pub struct SplitBackend {
    /// The backend.
    pub pool: Arc<Pool>,
    /// Its share among the weights of the route; 0: no requests.
    pub weight: u32,
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
        let mut pool_of = |name: &String| pools.entry(name.clone()).or_insert_with(|| pool(name)).clone();
        let mut action = |action: &RouteAction| match action {
            RouteAction::Redirect(to) => HttpAction::Redirect(Arc::new(to.clone())),
            RouteAction::Respond(reply) => HttpAction::Respond(Arc::new(reply.clone())),
            RouteAction::Backend(name) => HttpAction::Forward(pool_of(name)),
            RouteAction::Split(all) => HttpAction::Split(
                all.iter()
                    .map(|(name, weight)| SplitBackend { pool: pool_of(name), weight: *weight })
                    .collect(),
            ),
        };
        let own_cookies = affinity_cookies(frontend, &pool);
        let of_frontend = http.compression.as_ref().map(|rules| with_own_cookies(rules, &own_cookies));
        let cors = http.cors.clone().map(Arc::new);
        let retry = http.retry.clone().map(Arc::new);
        let default = http.default_action(frontend.backend.as_deref()).map(|default| {
            let compression = of_frontend.clone();
            let all =
                RouteConfig { name: DEFAULT.to_owned(), ..RouteConfig::new(None, "/", default.clone()) };
            let route = HttpRoute::new(&all, action(&default), &headers, lives);
            let (maintenance, cors) = (http.default_maintenance.clone(), cors.clone());
            let place = http.routes.len();
            Arc::new(HttpRoute { compression, cors, retry: retry.clone(), maintenance, place, ..route })
        });
        let (mut routes, mut in_order) = (RouteTable::new(http.path_view), Vec::new());
        for route in &http.routes {
            let limit = limit(Some(&route.name));
            let compression = compression_of(&route.compression, &of_frontend, &own_cookies);
            let to = HttpRoute::new(route, action(&route.action), &headers, lives);
            let (cors, retry) = (to.cors.clone().or(cors.clone()), to.retry.clone().or(retry.clone()));
            let to = Arc::new(HttpRoute { limit, compression, cors, retry, place: in_order.len(), ..to });
            in_order.push(to.clone());
            for host in hosts_of(route) {
                routes.add(host, &route.path, route.conditions.clone(), to.clone());
            }
        }
        lives.retain(|name| name == DEFAULT || http.routes.iter().any(|route| route.name == name));
        let subject = frontend.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let forwarded = ForwardedFields { forwarded: http.forwarded, subject, ..ForwardedFields::default() };
        let response = headers.response;
        let uses_request_ids = response.uses(&Variable::RequestId)
            || in_order.iter().chain(&default).any(|route| route.uses_request_ids());
        HttpFrontend {
            uses_request_ids,
            routes,
            in_order,
            default,
            forwarded,
            begin_traces: http.begin_traces,
            response,
            cors,
            maintenance: http.maintenance.clone(),
            limit: limit(None),
            pools: with_servers(pools.into_values()),
        }
    }

    /// Route of a request; `None`: convey replies with status 404. A redirect does not apply to
    /// requests for the URL that it leads to.
    pub fn route(&self, facts: &RequestFacts<'_>) -> Option<&Arc<HttpRoute>> {
        let applies = |route: &Arc<HttpRoute>| route.applies_to(facts);
        let found = self.routes.find(facts.head, facts.trust, applies);
        found.or(self.default.as_ref().filter(|route| applies(route)))
    }

    /// All routes, with the default route last.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<HttpRoute>> {
        self.in_order.iter().chain(&self.default)
    }

    /// Header rules for a local reply, and rules for pages of other origins. `request` is `None` if
    /// convey could not read the head of the request.
    pub fn response_to(&self, request: Option<&RequestFacts<'_>>) -> (&FieldRules, Option<&CorsRules>) {
        let route = request.and_then(|facts| self.route(facts));
        match (route, request) {
            (Some(route), _) => (&route.response, route.cors.as_deref()),
            (None, Some(_)) => (&self.response, self.cors.as_deref()),
            (None, None) => (&self.response, None),
        }
    }
}

/// Backends by name, without those that serve files: callers of `pools` look for servers that are up.
fn with_servers(pools: impl Iterator<Item = Arc<Pool>>) -> Vec<Arc<Pool>> {
    let mut pools: Vec<Arc<Pool>> = pools.filter(|pool| pool.config.files.is_none()).collect();
    pools.sort_by(|a, b| a.config.name.cmp(&b.config.name));
    pools
}

/// Names of the affinity cookies of all backends of a frontend.
fn affinity_cookies(frontend: &FrontendConfig, pool: impl Fn(&str) -> Arc<Pool>) -> Vec<Box<str>> {
    let cookie = |name| Some(pool(name).config.affinity.as_ref()?.cookie.clone());
    frontend.backends().filter_map(cookie).collect()
}

fn with_own_cookies(rules: &CompressionRules, own_cookies: &[Box<str>]) -> Arc<CompressionRules> {
    Arc::new(CompressionRules { own_cookies: own_cookies.to_vec(), ..rules.clone() })
}

/// Hosts of the requests that a route matches.
fn hosts_of(route: &RouteConfig) -> &[HostPattern] {
    if route.hosts.is_empty() { &[HostPattern::Any] } else { &route.hosts }
}

fn compression_of(
    route: &RouteCompression,
    of_frontend: &Option<Arc<CompressionRules>>,
    own_cookies: &[Box<str>],
) -> Option<Arc<CompressionRules>> {
    match route {
        RouteCompression::OfFrontend => of_frontend.clone(),
        RouteCompression::Off => None,
        RouteCompression::Rules(rules) => Some(with_own_cookies(rules, own_cookies)),
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
        action: HttpAction,
        of_frontend: &HeaderRules,
        lives: &RouteLives,
    ) -> HttpRoute {
        let name = Arc::from(&*route.name);
        let request = of_frontend.request.then(&route.headers.request);
        let response = of_frontend.response.then(&route.headers.response);
        HttpRoute {
            limits: route.limits.clone(),
            cors: route.cors.clone().map(Arc::new),
            retry: route.retry.clone().map(Arc::new),
            has_dynamic_rules: request.depend_on_request() || response.depend_on_request(),
            live: lives.get(&name),
            name,
            sources: route.sources.clone(),
            maintenance: route.maintenance.clone(),
            action,
            reverse: route.reverse(),
            rewrite: route.rewrite_path.clone(),
            rewrite_host: route.rewrite_host.as_ref().map(|host| host.as_bytes().into()),
            request,
            response,
            limit: None,
            total: route.total,
            compression: None,
            place: 0,
        }
    }

    fn uses_request_ids(&self) -> bool {
        let id = &Variable::RequestId;
        let redirect = match &self.action {
            HttpAction::Redirect(to) => to.uses(id),
            HttpAction::Forward(_) | HttpAction::Split(_) | HttpAction::Respond(_) => false,
        };
        redirect || self.request.uses(id) || self.response.uses(id)
    }

    /// Whether the client is in the route's networks, and no redirect would lead back to the same
    /// URL.
    fn applies_to(&self, facts: &RequestFacts<'_>) -> bool {
        let is_from = |network: &Prefix| network.contains(facts.client.ip());
        let is_loop = || match &self.action {
            HttpAction::Redirect(to) => to.loops(facts.head, facts.scheme, facts),
            HttpAction::Forward(_) | HttpAction::Split(_) | HttpAction::Respond(_) => false,
        };
        (self.sources.is_empty() || self.sources.iter().any(is_from)) && !is_loop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use convey_http_core::{PathView, UrlScheme};
    use convey_model::{AffinityConfig, BackendConfig, Mode};

    fn route(host: Option<&str>, path: &str, action: RouteAction) -> RouteConfig {
        let route = RouteConfig::new(host, path, action);
        let rewrite = PathRewrite::new(&route.path, PathView::Normalized, "/new").unwrap();
        RouteConfig { rewrite_path: Some(rewrite), ..route }
    }

    fn frontend(backend: Option<&str>) -> FrontendConfig {
        let frontend = FrontendConfig::new("web", Mode::Http, Vec::new(), "site");
        FrontendConfig { backend: backend.map(str::to_owned), ..frontend }
    }

    /// Name and target of a request's route.
    fn found(http: &HttpFrontend, host: &str, path: &str) -> Option<(String, String)> {
        let head = fixture::head(host, path);
        let route = http.route(&fixture::facts(&head))?;
        let to = match &route.action {
            HttpAction::Forward(pool) => pool.config.name.clone(),
            HttpAction::Redirect(to) => to.to_string(),
            other => panic!("{other:?}"),
        };
        Some((route.name.to_string(), to))
    }

    #[test]
    fn a_request_takes_its_route_or_the_default_one() {
        let to = |name: &str| RouteAction::Backend(name.to_owned());
        let mut config = HttpConfig {
            routes: vec![
                route(Some("api.example"), "/v1", to("api")),
                route(None, "/old", RouteAction::Redirect(Redirect::to_https())),
            ],
            ..HttpConfig::default()
        };
        config.headers.request.set("X-A", "1").unwrap();
        config.routes[0].headers.request.set("X-B", "2").unwrap();
        let pool = |name: &str| fixture::pool(name, Vec::new());
        let of = |name: &str, to: &str| Some((name.to_owned(), to.to_owned()));
        let (lives, v1) = (RouteLives::new(1), fixture::head("api.example", "/v1"));
        let http = HttpFrontend::new(&frontend(Some("site")), &config, &lives, pool, |_| None);
        assert_eq!(found(&http, "api.example", "/v1/a"), of("api.example/v1", "api"));
        assert_eq!(found(&http, "api.example", "/old"), of("*/old", "https"));
        assert_eq!(found(&http, "api.example", "/v2"), of("default", "site"));
        let names: Vec<&str> = http.pools.iter().map(|pool| &*pool.config.name).collect();
        assert_eq!(names, ["api", "site"]);
        let route = http.route(&fixture::facts(&v1)).unwrap();
        assert_eq!(route.request.to_string(), "set X-A, set X-B");
        assert_eq!(route.rewrite.as_ref().unwrap().to_string(), "/new");

        // Counters of a route survive a reload; counters of a removed route are dropped.
        let names =
            |http: &HttpFrontend| http.routes().map(|route| route.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&http), ["api.example/v1", "*/old", "default"]);
        config.routes.pop();
        let again = HttpFrontend::new(&frontend(Some("site")), &config, &lives, pool, |_| None);
        let kept = again.route(&fixture::facts(&v1)).unwrap();
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
        config.redirect = Some(Redirect::to_https());
        assert_eq!(
            found(&HttpFrontend::new(&frontend(None), &config, &lives, pool, |_| None), "other", "/v2"),
            of("default", "https")
        );
    }

    #[test]
    fn compression_rules_know_the_affinity_cookies_of_the_frontend() {
        let own = CompressionRules { min_size: 7, ..CompressionRules::default() };
        let of_route = RouteConfig {
            compression: RouteCompression::Rules(own),
            ..RouteConfig::new(None, "/api", RouteAction::Backend("api".into()))
        };
        let config = HttpConfig {
            compression: Some(CompressionRules::default()),
            routes: vec![of_route],
            ..HttpConfig::default()
        };
        let frontend = FrontendConfig { http: Some(Box::new(config.clone())), ..frontend(Some("site")) };
        let pool = |name: &str| {
            let affinity = (name == "site").then(|| Arc::new(AffinityConfig::new("server")));
            fixture::pool_of(BackendConfig { affinity, ..fixture::backend(name, Vec::new()) })
        };
        let http = HttpFrontend::new(&frontend, &config, &RouteLives::new(1), pool, |_| None);
        let own_cookies = |route: &Arc<HttpRoute>| route.compression.as_ref().unwrap().own_cookies.clone();
        let all: Vec<_> = http.routes().map(own_cookies).collect();
        assert_eq!(all, [["server".into()], ["server".into()]]);
    }

    #[test]
    fn local_reply_over_https_ignores_fields_of_skipped_redirect() {
        let mut config = HttpConfig {
            routes: vec![
                route(None, "/a", RouteAction::Redirect(Redirect::to_https())),
                route(None, "/", RouteAction::Backend("site".into())),
            ],
            ..HttpConfig::default()
        };
        config.routes[0].headers.response.set("X-Redirect", "1").unwrap();
        config.routes[1].headers.response.set("X-Site", "1").unwrap();
        let pool = |name: &str| fixture::pool(name, Vec::new());
        let http = HttpFrontend::new(&frontend(None), &config, &RouteLives::new(1), pool, |_| None);
        let head = fixture::head("a", "/a");
        let facts = fixture::facts(&head);
        let fields = |scheme| http.response_to(Some(&RequestFacts { scheme, ..facts })).0.to_string();
        assert_eq!(fields(UrlScheme::Http), "set X-Redirect");
        assert_eq!(fields(UrlScheme::Https), "set X-Site");
    }

    #[test]
    fn default_redirect_to_https_is_no_route_over_https() {
        let config = HttpConfig { redirect: Some(Redirect::to_https()), ..HttpConfig::default() };
        let pool = |name: &str| fixture::pool(name, Vec::new());
        let http = HttpFrontend::new(&frontend(None), &config, &RouteLives::new(1), pool, |_| None);
        let head = fixture::head("a", "/");
        let facts = fixture::facts(&head);
        assert!(http.route(&facts).is_some());
        assert!(http.route(&RequestFacts { scheme: UrlScheme::Https, ..facts }).is_none());
    }
}
