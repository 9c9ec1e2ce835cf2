//! Finds the route of a URL: for a request (mode `http`), or for a TLS connection to the URL's
//! host. Pure.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use convey_http_core::{CorsRules, HttpMethod, RequestFacts, RequestHead, UrlScheme};
use convey_model::{HttpOverlayValue, HttpTarget, TotalRate, TotalRequests};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, HttpAction, HttpRoute, Pool, RequestLimit, Snapshot, SplitBackend};

use super::question::AskedPlace;
use super::{End, ExplainSources, Unanswerable, sni};

/// Request by its URL. It is parsed in the same way as requests on the data path.
#[derive(Debug, Clone)]
pub struct AskedRequest {
    head: Arc<RequestHead>,
    scheme: UrlScheme,
    /// Lines of headers beside `Host`.
    headers: Vec<String>,
}

/// Route of a request, and its outcome.
pub(super) struct AskedRoute {
    pub(super) message: String,
    /// Head of the request; `None`: the question is about a TLS connection.
    pub(super) head: Option<Arc<RequestHead>>,
    /// Outcome if the request ends at the route. `None` if a server of the backend gets it.
    pub(super) end: Option<End>,
    /// Limit for the body of the request, in bytes.
    pub(super) max_body: Option<u64>,
    /// Limits on request rates per source that apply to the route.
    pub(super) limits: Vec<AskedLimit>,
    /// Limits on request rates of all clients together that apply to the route.
    pub(super) totals: Vec<AskedTotal>,
}

/// Outcome of a request for its route.
struct Outcome {
    message: String,
    /// Backend that the request goes to.
    pool: Option<Arc<Pool>>,
    /// Outcome if the request ends at the route.
    end: Option<End>,
}

/// Limit on the request rate of a source.
pub(super) struct AskedLimit {
    /// Object that the limit belongs to, such as `route api.example/v1`.
    pub(super) of: String,
    pub(super) limit: RequestLimit,
}

/// Limit on the request rate of all clients together.
pub(super) struct AskedTotal {
    /// Object that the limit belongs to, such as `backend app`.
    pub(super) of: String,
    pub(super) rate: TotalRate,
    pub(super) counted: Arc<TotalRequests>,
    /// Reason for the reply to a request above the limit.
    pub(super) reason: Counter,
}

/// Compares two requests by their text.
impl PartialEq for AskedRequest {
    fn eq(&self, other: &AskedRequest) -> bool {
        self.to_string() == other.to_string()
            && self.method() == other.method()
            && self.headers == other.headers
    }
}

impl Eq for AskedRequest {}

impl AskedRequest {
    /// Returns this request with another method than `GET`, and with these headers, each as
    /// `NAME: VALUE`.
    ///
    /// # Errors
    /// convey would refuse such a request.
    pub fn with(self, method: Option<&str>, headers: Vec<String>) -> Result<AskedRequest, String> {
        let method = method.unwrap_or("GET");
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let [host, target] = [self.head.host(), self.head.path_and_query()].map(String::from_utf8_lossy);
        let text = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n");
        let head = RequestHead::of_text(&text).map_err(|malformed| {
            let label = malformed.label();
            format!("method and headers: found {method:?} and {headers:?}; convey refuses such a request ({label})")
        })?;
        Ok(AskedRequest { head: Arc::new(head), headers, ..self })
    }

    /// Head of the request.
    pub(super) fn head(&self) -> &RequestHead {
        &self.head
    }

    /// Method of the request.
    pub fn method(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.head.method_token())
    }

    /// Headers beside `Host`, each as `NAME: VALUE`.
    pub fn headers(&self) -> &[String] {
        &self.headers
    }
}

impl FromStr for AskedRequest {
    type Err = String;

    /// Parses `http://HOST/PATH` or `https://HOST/PATH`. The default scheme is http.
    fn from_str(text: &str) -> Result<AskedRequest, String> {
        let expected =
            || format!("URL: found {text:?}, expected a URL such as http://api.example.com/v1/items");
        let (scheme, rest) = match text.strip_prefix("https://") {
            Some(rest) => (UrlScheme::Https, rest),
            None => (UrlScheme::Http, text.strip_prefix("http://").unwrap_or(text)),
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = if path.is_empty() { "/" } else { path };
        let read = RequestHead::of_text(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        match read {
            // If the scheme is not supported, the host ends with the scheme's colon.
            Ok(head) if !host.is_empty() && !host.ends_with(':') => {
                Ok(AskedRequest { head: Arc::new(head), scheme, headers: Vec::new() })
            }
            Ok(_) => Err(expected()),
            Err(malformed) => {
                Err(format!("{}; convey refuses such a request ({})", expected(), malformed.label()))
            }
        }
    }
}

impl fmt::Display for AskedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [host, path] = [self.head.host(), self.head.path_and_query()].map(String::from_utf8_lossy);
        let scheme = match self.scheme {
            UrlScheme::Http => "http",
            UrlScheme::Https => "https",
        };
        write!(f, "{scheme}://{host}{path}")
    }
}

impl AskedPlace {
    /// Sets the route and the backend to the route and backend of this request, if there is a
    /// request.
    pub(super) fn for_request(self, sources: ExplainSources<'_>) -> Result<AskedPlace, Unanswerable> {
        let Some(AskedRequest { head, scheme, .. }) = sources.request else { return Ok(self) };
        let config = &self.frontend.config;
        if let Some(routes) = &self.frontend.sni {
            let (asked, pool) = sni::of_host(routes, &String::from_utf8_lossy(head.host()));
            return Ok(self.with_route(asked, pool));
        }
        let Some(http) = &self.frontend.http else {
            let (name, mode) = (&config.name, config.mode.name());
            return Err(Unanswerable::Unclear(format!(
                "frontend {name} has no routes, and its mode {mode} does not read requests: leave out the URL"
            )));
        };
        let [host, path] = [head.host(), head.path()].map(String::from_utf8_lossy);
        let scheme = self.scheme(head, *scheme);
        let by = match scheme {
            UrlScheme::Http => "",
            UrlScheme::Https => " over https",
        };
        let of = match head.method() {
            HttpMethod::Get => format!("a request for {host}{path}{by}"),
            _ => format!("a {} request for {host}{path}{by}", String::from_utf8_lossy(head.method_token())),
        };
        let route = http.route(&RequestFacts::new(head, self.field_trust(), scheme, self.client_addr()));
        let Outcome { message, pool, end } =
            self.outcome(&of, head, route.map(|route| &**route), sources.snapshot);
        let route = route.filter(|_| end.is_none()).map(|route| &**route);
        let (limits, totals) = (self.limits(route), self.totals(route, pool.as_deref()));
        let max_body = route.and_then(|route| route.limits.body).or(config.http_limits().body);
        let head = Some(Arc::clone(head));
        Ok(self.with_route(AskedRoute { message, head, end, max_body, limits, totals }, pool))
    }

    /// Scheme with which a request for a URL arrives at the frontend. At a frontend with TLS, all
    /// requests are https. At a frontend without TLS, a request can be https only if a trusted proxy
    /// sends it. Such a proxy names the scheme in the request, or else it is that of the URL.
    fn scheme(&self, head: &RequestHead, of_url: UrlScheme) -> UrlScheme {
        let (config, trust) = (&self.frontend.config, self.field_trust());
        let is_named = trust.field(head, "X-Forwarded-Proto").is_some();
        match (config.tls.is_some() || is_named, config.trusted_proxies.is_empty()) {
            (true, _) => trust.scheme(head, config.tls.is_some()),
            (false, false) => of_url,
            (false, true) => UrlScheme::Http,
        }
    }

    /// Outcome of a request for its route. `of` names the request.
    fn outcome(
        &self,
        of: &str,
        head: &RequestHead,
        route: Option<&HttpRoute>,
        snapshot: &Snapshot,
    ) -> Outcome {
        let takes = route.map_or("has no route".to_owned(), |route| format!("takes route {}", route.name));
        let cors = match route {
            Some(route) => route.cors.as_ref().filter(|_| route.limits.access.admits(self.client.ip)),
            None => self.frontend.http.as_ref().and_then(|http| http.cors.as_ref()),
        };
        let outcome = match cors.is_some() && CorsRules::is_preflight(head) {
            true => Outcome {
                message: format!("{of} {takes}, and convey answers this CORS preflight with status 204"),
                pool: None,
                end: Some(End::PREFLIGHT),
            },
            false => self.outcome_without_maintenance(of, route, snapshot),
        };
        let is_over = matches!(outcome.end, Some(End::DENIED_BY_ROUTE | End::PREFLIGHT));
        let maintained = self.maintained(route, outcome.pool.as_deref());
        let Some(what) = maintained.filter(|_| !is_over) else { return outcome };
        Outcome { message: format!("{of} {takes}, and {what}"), pool: None, end: Some(End::MAINTENANCE) }
    }

    fn outcome_without_maintenance(
        &self,
        of: &str,
        route: Option<&HttpRoute>,
        snapshot: &Snapshot,
    ) -> Outcome {
        let ends = |message, end| Outcome { message, pool: None, end: Some(end) };
        let Some(route) = route else {
            return ends(format!("{of} has no route, and gets a 404"), End::NO_ROUTE);
        };
        let name = &route.name;
        if !route.limits.access.admits(self.client.ip) {
            let message = format!("{of} takes route {name}, whose access denies {}", self.client.ip);
            return ends(message, End::DENIED_BY_ROUTE);
        }
        match &route.action {
            HttpAction::Redirect(to) => {
                ends(format!("{of} takes route {name}, and is redirected to {to}"), End::REDIRECT)
            }
            HttpAction::Respond(reply) => {
                let status = reply.status;
                ends(
                    format!("{of} takes route {name}, and convey answers with status {status}"),
                    End::RESPOND,
                )
            }
            HttpAction::Forward(pool) => {
                let (to, retry) = (&pool.config.name, retry_of(route));
                let message = format!("{of} takes route {name} to backend {to}{retry}");
                Outcome { message, pool: Some(pool.clone()), end: None }
            }
            HttpAction::Split(all) => {
                let target = HttpTarget::route(&self.frontend.config.name, name);
                let (words, pool) = split(all, &target, snapshot, self.client.ip);
                let retry = retry_of(route);
                let message = format!("{of} takes route {name} to one of its backends: {words}{retry}");
                Outcome { message, pool, end: None }
            }
        }
    }

    /// Text about the maintenance that the client's requests meet, in the order of the data path;
    /// `None`: there is none.
    pub(super) fn maintained(&self, route: Option<&HttpRoute>, pool: Option<&Pool>) -> Option<String> {
        let of_frontend = self.frontend.http.as_ref().and_then(|http| http.maintenance.as_ref());
        let of_frontend = of_frontend.map(|found| (format!("frontend {}", self.frontend.config.name), found));
        let of_route =
            route.and_then(|route| Some((format!("route {}", route.name), route.maintenance.as_ref()?)));
        let of_backend = pool.and_then(|pool| {
            Some((format!("backend {}", pool.config.name), pool.config.maintenance.as_ref()?))
        });
        let mut all = of_route.into_iter().chain(of_frontend).chain(of_backend);
        let (target, found) = all.find(|(_, found)| found.applies_to(self.client.ip))?;
        Some(format!("{target} is in maintenance: convey answers with status {} (overlay)", found.status))
    }

    /// Sets the route to `asked`, and the backend to `pool` if there is one.
    fn with_route(self, asked: AskedRoute, pool: Option<Arc<Pool>>) -> AskedPlace {
        let Frontend { config, pool: own, tls, sources, live, .. } = &*self.frontend;
        let frontend = Arc::new(Frontend {
            config: config.clone(),
            pool: pool.unwrap_or_else(|| own.clone()),
            http: None,
            tls: tls.clone(),
            sni: None,
            challenges: None,
            sources: sources.clone(),
            live: live.clone(),
        });
        AskedPlace { frontend, asked: Some(asked), ..self }
    }

    /// Limits on request rates that apply to this route, in the order in which the data path checks
    /// them. Requests that get no server do not count toward the limits.
    fn limits(&self, route: Option<&HttpRoute>) -> Vec<AskedLimit> {
        let Some(route) = route else { return Vec::new() };
        let of_route =
            route.limit.clone().map(|limit| AskedLimit { of: format!("route {}", route.name), limit });
        let of_frontend = self.frontend.http.as_ref().and_then(|http| http.limit.clone());
        let of_frontend = of_frontend
            .map(|limit| AskedLimit { of: format!("frontend {}", self.frontend.config.name), limit });
        of_route.into_iter().chain(of_frontend).collect()
    }

    /// Limits on request rates of all clients together that apply to this route and its backend, in
    /// the order in which the data path checks them.
    fn totals(&self, route: Option<&HttpRoute>, pool: Option<&Pool>) -> Vec<AskedTotal> {
        let (Some(route), Some(pool)) = (route, pool) else { return Vec::new() };
        let Frontend { config, live, .. } = &*self.frontend;
        let of_frontend = config.http.as_ref().and_then(|http| http.total);
        let (of_total, of_backend) = (Counter::AnsweredTotalRateLimit, Counter::AnsweredBackendRateLimit);
        [
            asked_total(format!("route {}", route.name), route.total, &route.live.requests, of_total),
            asked_total(format!("frontend {}", config.name), of_frontend, &live.requests, of_total),
            asked_total(
                format!("backend {}", pool.config.name),
                pool.config.total,
                &pool.live.requests,
                of_backend,
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Text about the rules for retries of a route; empty: it has none.
fn retry_of(route: &HttpRoute) -> String {
    route.retry.as_ref().map_or(String::new(), |rules| format!("; retry: {rules}"))
}

/// Limit of all clients together, if there is one.
fn asked_total(
    of: String,
    rate: Option<TotalRate>,
    counted: &Arc<TotalRequests>,
    reason: Counter,
) -> Option<AskedTotal> {
    Some(AskedTotal { of, rate: rate?, counted: counted.clone(), reason })
}

/// Text about the shares of a route's backends, and the backend with the largest one. Shares by a
/// weight that an operator has set are marked. The backend serves the client, if one does; otherwise
/// it is in maintenance, if one is.
fn split(
    all: &[SplitBackend],
    route: &HttpTarget,
    snapshot: &Snapshot,
    client: IpAddr,
) -> (String, Option<Arc<Pool>>) {
    let overlay = snapshot
        .http_overlays
        .iter()
        .find(|overlay| overlay.target == *route && matches!(overlay.value, HttpOverlayValue::Weights(_)));
    let is_set = |backend: &SplitBackend| match overlay.map(|overlay| &overlay.value) {
        Some(HttpOverlayValue::Weights(set)) => set.get(&backend.pool.config.name) == Some(&backend.weight),
        Some(HttpOverlayValue::Maintenance(_)) | None => false,
    };
    let is_maintained = |backend: &SplitBackend| {
        backend.pool.config.maintenance.as_ref().is_some_and(|found| found.applies_to(client))
    };
    let total: u64 = all.iter().map(|backend| u64::from(backend.weight)).sum();
    let share = |backend: &SplitBackend| {
        let percent = 100.0 * f64::from(backend.weight) / total.max(1) as f64;
        let (name, weight) = (&backend.pool.config.name, backend.weight);
        let mark = if is_set(backend) { format!(" (weight {weight}, overlay)") } else { String::new() };
        let note = if is_maintained(backend) { " (in maintenance)" } else { "" };
        format!("{percent:.1} % to {name}{mark}{note}")
    };
    let shares: Vec<String> = all.iter().map(share).collect();
    let serves = |backend: &SplitBackend| {
        (backend.pool.config.files.is_some() || backend.pool.eligible() > 0) && !is_maintained(backend)
    };
    let most_of = |is_chosen: &dyn Fn(&SplitBackend) -> bool| {
        let chosen = all.iter().filter(|backend| backend.weight > 0 && is_chosen(backend));
        chosen.max_by_key(|backend| backend.weight)
    };
    let most = most_of(&serves).or_else(|| most_of(&is_maintained)).or_else(|| most_of(&|_| true));
    let name = most.map_or("", |backend| &backend.pool.config.name);
    (format!("{}; what follows is for backend {name}", shares.join(", ")), most.map(|most| most.pool.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_its_method_and_headers() {
        let url: AskedRequest = "http://a.example/v1".parse().unwrap();
        let asked =
            url.clone().with(Some("POST"), vec!["X-Canary: always".into(), "Cookie: a=1".into()]).unwrap();
        assert_eq!((&*asked.method(), asked.head.field("x-canary")), ("POST", Some(&b"always"[..])));
        assert_ne!(asked, url);
        for (method, header) in [("PO ST", "A: b"), ("GET", "no header"), ("GET", "A: b\r\n\r\nGET /")] {
            let told = url.clone().with(Some(method), vec![header.into()]).unwrap_err();
            assert!(told.starts_with("method and headers: found"), "{told}");
        }
    }

    #[test]
    fn a_url_is_read_as_the_data_path_reads_requests() {
        for (text, host, path) in [
            ("http://api.example/v1/a?b=c", "api.example", "/v1/a"),
            ("api.example:8080", "api.example:8080", "/"),
            ("https://a/", "a", "/"),
        ] {
            let asked: AskedRequest = text.parse().unwrap();
            assert_eq!(asked.to_string().parse::<AskedRequest>().unwrap(), asked);
            assert_eq!(asked.to_string().starts_with("https://"), text.starts_with("https://"));
            let head = &asked.head;
            assert_eq!((head.host(), head.path()), (host.as_bytes(), path.as_bytes()), "{text}");
        }
        for wrong in ["", "/v1", "http://", "http://a/b c", "http://a b/", "http://a/../b", "ftp://a/b"] {
            let told = wrong.parse::<AskedRequest>().unwrap_err();
            assert!(told.starts_with("URL: found"), "{told}");
        }
    }
}
