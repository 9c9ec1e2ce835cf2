//! Settings of a frontend in mode `http` for requests, and routes, which proxy mode has too.

mod changes;
mod describe;

use toml::de::DeValue;

pub(super) use self::changes::changes;
pub(super) use self::describe::{describe, route_row};

use super::compression::ParsedCompression;
use super::limits::ParsedRate;
use super::sni::ParsedSni;
use super::{error_pages, http_limits};
use crate::file::value;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc};
use crate::values::{boolean, choice, found, http_host, not_allowed, string};
use convey_http_core::{FieldFault, FieldRules, HostPattern, PathPrefix, PathView};
use convey_model::{
    ErrorPages, HeaderRules, HttpConfig, HttpLimits, Redirect, RequestRate, RouteAction, RouteCompression,
    RouteConfig, SniRouteConfig,
};

/// Keys of a frontend for mode `http` only.
const KEYS: [&str; 8] =
    ["begin_traces", "compression", "error_pages", "forwarded", "headers", "http", "normalize", "redirect"];

/// Keys of a route for mode `http` only.
const ROUTE_KEYS: [&str; 9] = [
    "compression",
    "headers",
    "host",
    "path",
    "redirect",
    "request_burst",
    "requests_per_source",
    "rewrite_host",
    "rewrite_path",
];

/// Request headers that describe clients to servers: convey sets them itself.
const OF_CLIENTS: [&str; 4] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// Warning about keys for servers' requests in a route with a redirect.
const WITH_REDIRECT: &str = "has no effect with redirect";

/// Keys of a frontend for mode http in the reference.
pub(super) const DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "redirect",
        kind: r##"`"https"`, http: convey redirects requests without a route to HTTPS (status 308). In place of `backend`"##,
        default: "none",
        sample: r##"#redirect = "https"                     # example; convey redirects requests without a route to HTTPS. Or backend = "web" for
                                        # such requests. With neither they get a 404"##,
        example: "'https'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "normalize",
        kind: "`false`, http: routes distinguish `//` from `/`, and an encoded slash (`%2F`, `%5C`) from a slash. Servers get the path as it was sent in any case",
        default: "`true`",
        sample: r##"#normalize = true                       # false: in routes // differs from /, and an encoded slash (%2F) from a slash. Servers
                                        # get the original path in any case"##,
        example: "false",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "begin_traces",
        kind: "`true`, http: a request without a valid `traceparent` (W3C Trace Context) gets one, so that a trace begins here. convey passes on a valid one",
        default: "`false`",
        sample: "#begin_traces = false                   # true: a request without the header traceparent begins a trace (W3C Trace Context)",
        example: "true",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "forwarded",
        kind: "`true`, http: servers also get `Forwarded` (RFC 7239). They always get `X-Forwarded-For`, `-Proto` and `-Host`",
        default: "`false`",
        sample: r##"#forwarded = false                      # true: servers also get the header Forwarded (RFC 7239), beside X-Forwarded-For,
                                        # -Proto and -Host. convey removes these headers from requests, unless the client is
                                        # in trusted_proxies"##,
        example: "true",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "compression",
        kind: "`true` or a table, http: answers are compressed. See [Compress answers](../guides/compression.md)",
        default: "`false`",
        sample: "",
        example: "true",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "headers",
        kind: "table, http",
        default: "see below",
        sample: "",
        example: "",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "http",
        kind: "table, http",
        default: "see below",
        sample: "",
        example: "",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "error_pages",
        kind: r##"table of statuses and files, http: `{ 503 = "503.html" }`. 64 KiB each; 400, 403, 404, 405, 408, 412, 413, 416, 417, 429, 431, 500, 502, 503, 504 or 505. See [Pages of your own](../guides/http.md#pages-of-your-own)"##,
        default: "none",
        sample: r##"#error_pages = {}                       # such as { 503 = "503.html" }: files in place of the line of text in convey's own
                                        # responses"##,
        example: "",
        ..KeyDoc::USUAL
    }),
];

/// Values of the keys in [`KEYS`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedHttp {
    /// Places of the keys that are set.
    pub(crate) keys: Vec<Place>,
    /// Place of `routes`, if it is set.
    pub(crate) routes_at: Option<Place>,
    pub(crate) routes: Vec<ParsedRoute>,
    pub(crate) redirect: Option<Placed<Redirect>>,
    pub(crate) path_view: PathView,
    headers: HeaderRules,
    forwarded: bool,
    begin_traces: bool,
    limits: HttpLimits,
    error_pages: ErrorPages,
    compression: Option<ParsedCompression>,
}

/// `[[frontends.NAME.routes]]`
#[derive(Debug, Clone)]
pub(crate) struct ParsedRoute {
    pub(crate) place: Place,
    /// Places of the keys for mode `http` only.
    pub(crate) http_keys: Vec<Place>,
    /// TLS connections of the route (proxy mode).
    pub(crate) sni: ParsedSni,
    host: Option<Written<HostPattern>>,
    path: Option<Written<PathPrefix>>,
    /// Whether host and path are valid.
    has_pattern: bool,
    pub(crate) backend: Option<Placed<String>>,
    redirect: Option<Placed<Redirect>>,
    rewrite_path: Option<String>,
    rewrite_host: Option<String>,
    headers: HeaderRules,
    rate: ParsedRate,
    compression: Option<ParsedCompression>,
}

/// A pattern, with its text in the file.
#[derive(Debug, Clone)]
pub(super) struct Written<T> {
    pub(super) text: String,
    pub(super) pattern: T,
}

impl ParsedHttp {
    /// Reads the keys from the table of a frontend.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedHttp {
        let keys = KEYS.iter().filter_map(|key| table.place_of(key)).collect();
        let routes_at = table.place_of("routes");
        let routes = table.list("routes").into_iter().map(|route| ParsedRoute::read(route, report));
        ParsedHttp {
            keys,
            routes_at,
            routes: routes.collect(),
            redirect: table.optional("redirect", choice(&Redirect::ALL, Redirect::name)),
            path_view: match table.or("normalize", true, boolean) {
                true => PathView::Normalized,
                false => PathView::AsSent,
            },
            headers: headers(table.table("headers"), report),
            forwarded: table.or("forwarded", false, boolean),
            begin_traces: table.or("begin_traces", false, boolean),
            limits: http_limits::read(table.table("http")),
            error_pages: error_pages::read(table.table("error_pages"), report),
            compression: ParsedCompression::read(table, report),
        }
    }

    /// Whether a route limits the request rate of sources.
    pub(super) fn limits_sources(&self) -> bool {
        self.routes.iter().any(|route| route.rate.is_set() && route.redirect.is_none())
    }

    /// Routes of TLS connections (proxy mode).
    pub(super) fn sni_routes(&self) -> Vec<SniRouteConfig> {
        let mut routes: Vec<SniRouteConfig> =
            self.routes.iter().flat_map(ParsedRoute::sni_routes).map(|(_, route)| route).collect();
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        routes
    }

    /// Model of the settings. `rate` is the request limit of the frontend.
    pub(super) fn model(&self, rate: Option<RequestRate>) -> HttpConfig {
        let compression = self.compression.as_ref().and_then(ParsedCompression::of_frontend);
        let has_rules = compression.is_some();
        let routes = self.routes.iter().filter_map(|route| route.model(has_rules));
        let mut routes: Vec<RouteConfig> = routes.collect();
        routes.sort_by(|a, b| a.name.cmp(&b.name));
        HttpConfig {
            routes,
            path_view: self.path_view,
            redirect: value(&self.redirect),
            headers: self.headers.clone(),
            forwarded: self.forwarded,
            begin_traces: self.begin_traces,
            rate,
            limits: self.limits,
            error_pages: self.error_pages.clone(),
            compression,
        }
    }
}

impl ParsedRoute {
    fn read(mut table: TomlTable<'_>, report: &Report<'_>) -> ParsedRoute {
        if !table.has("redirect") {
            table.require("backend", "required, but missing: a route has backend or redirect");
        }
        let (host, path) = (table.optional("host", host_pattern), table.optional("path", path_prefix));
        let is_right = |key: &str, is_read: bool| is_read || !table.has(key);
        let has_pattern = is_right("host", host.is_some()) && is_right("path", path.is_some());
        let mut route = ParsedRoute {
            place: table.place.clone(),
            http_keys: ROUTE_KEYS.iter().filter_map(|key| table.place_of(key)).collect(),
            sni: ParsedSni::read(&mut table),
            host: host.map(|host| host.value),
            path: path.map(|path| path.value),
            has_pattern,
            backend: table.optional("backend", string),
            redirect: table.optional("redirect", choice(&Redirect::ALL, Redirect::name)),
            rewrite_path: rewritten(&mut table, "rewrite_path", rewrite_path, report),
            rewrite_host: rewritten(&mut table, "rewrite_host", http_host, report),
            headers: headers(table.table("headers"), report),
            rate: ParsedRate::read(&mut table, report),
            compression: ParsedCompression::read(&mut table, report),
        };
        if table.has("redirect") {
            route.rate.places().for_each(|place| report.warning(place, WITH_REDIRECT));
            let place = table.place_of("compression");
            place.iter().for_each(|place| report.warning(place, WITH_REDIRECT));
        }
        // A misspelt key may be `host` or `path`. Keys of proxy mode are errors in mode http.
        route.has_pattern &= !table.has_unknown() && route.sni.keys.is_empty();
        table.finish();
        one_of(route.backend.as_ref(), route.redirect.as_ref(), report);
        route
    }

    /// TLS connections of the route, with their places in the file (proxy mode).
    pub(crate) fn sni_routes(&self) -> impl Iterator<Item = (&Place, SniRouteConfig)> {
        self.backend.iter().flat_map(|backend| self.sni.routes(&backend.value))
    }

    /// Requests of the route; `None` if the pattern is wrong, and reported.
    pub(crate) fn pattern(&self) -> Option<(HostPattern, PathPrefix)> {
        let host = self.host.as_ref().map_or(HostPattern::Any, |host| host.pattern.clone());
        let path = match &self.path {
            Some(path) => path.pattern.clone(),
            None => PathPrefix::parse("/").ok()?,
        };
        self.has_pattern.then_some((host, path))
    }

    /// Whether the route redirects requests.
    pub(crate) fn is_redirect(&self) -> bool {
        self.redirect.is_some()
    }

    /// Model of the route. `is_compressed`: the frontend has compression rules.
    fn model(&self, is_compressed: bool) -> Option<RouteConfig> {
        let (host, path) = self.pattern()?;
        let action = match (&self.backend, &self.redirect) {
            (Some(backend), _) => RouteAction::Backend(backend.value.clone()),
            (None, Some(to)) => RouteAction::Redirect(to.value),
            (None, None) => return None,
        };
        let host_text = self.host.as_ref().map(|host| &*host.text);
        Some(RouteConfig {
            name: RouteConfig::name_of(host_text, self.path.as_ref().map_or("/", |path| &path.text)),
            host,
            path,
            action,
            rewrite_path: self.rewrite_path.clone(),
            rewrite_host: self.rewrite_host.clone(),
            headers: self.headers.clone(),
            rate: self.rate.model(),
            compression: match &self.compression {
                Some(own) => own.of_route(is_compressed),
                None => RouteCompression::OfFrontend,
            },
        })
    }
}

/// Reports a route with both a backend and a redirect.
pub(crate) fn one_of(
    backend: Option<&Placed<String>>,
    redirect: Option<&Placed<Redirect>>,
    report: &Report<'_>,
) {
    if let (Some(backend), Some(redirect)) = (backend, redirect) {
        let line = report.line(&backend.place, &redirect.place);
        let message = format!("{} is set too ({line}); keep one of them", backend.place.key);
        report.error(&redirect.place, message);
    }
}

/// Reads a key for rewriting. With `redirect` there is a warning: only requests to servers are
/// rewritten.
fn rewritten(
    table: &mut TomlTable<'_>,
    key: &'static str,
    parse: impl Fn(&DeValue<'_>) -> Result<String, String>,
    report: &Report<'_>,
) -> Option<String> {
    let found = table.optional(key, parse)?;
    if table.has("redirect") {
        report.warning(&found.place, WITH_REDIRECT);
    }
    Some(found.value)
}

pub(super) fn host_pattern(value: &DeValue<'_>) -> Result<Written<HostPattern>, String> {
    const ALLOWED: &str = "a host, such as www.example.com, or a glob, such as *.example.com";
    let Some(text) = value.as_str() else { return Err(not_allowed(value, ALLOWED)) };
    match HostPattern::parse(text) {
        Ok(pattern) => Ok(Written { text: text.to_owned(), pattern }),
        Err(fault) => Err(format!("{fault}, found {}", found(value))),
    }
}

fn path_prefix(value: &DeValue<'_>) -> Result<Written<PathPrefix>, String> {
    const ALLOWED: &str = "a path that begins with `/`, such as /v1";
    let Some(text) = value.as_str() else { return Err(not_allowed(value, ALLOWED)) };
    match PathPrefix::parse(text) {
        Ok(pattern) => Ok(Written { text: text.to_owned(), pattern }),
        Err(fault) => Err(format!("{fault}, found {}", found(value))),
    }
}

fn rewrite_path(value: &DeValue<'_>) -> Result<String, String> {
    path_prefix(value).map(|path| path.text)
}

/// `headers` of a frontend or of a route.
fn headers(mut table: TomlTable<'_>, report: &Report<'_>) -> HeaderRules {
    let mut of_requests = table.table("request");
    let rules = match of_requests.or("keep_underscores", false, boolean) {
        true => FieldRules::default(),
        false => FieldRules::of_requests(),
    };
    let request = field_rules(of_requests, rules, &OF_CLIENTS, report);
    let response = field_rules(table.table("response"), FieldRules::default(), &[], report);
    table.finish();
    HeaderRules { request, response }
}

/// Finds text that looks like a variable of another load balancer or of the access log:
/// `{client_ip}`, `%[src]`, `$remote_addr`.
fn variable_in(value: &str) -> Option<&str> {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let name_len = |text: &str| text.bytes().take_while(|byte| is_name(*byte)).count();
    value.char_indices().find_map(|(at, begin)| {
        let rest = &value[at..];
        match begin {
            '{' => {
                let len = name_len(&rest[1..]);
                (len > 1 && rest[1 + len..].starts_with('}')).then(|| &rest[..len + 2])
            }
            '%' if rest.starts_with("%[") => rest.find(']').map(|end| &rest[..=end]),
            '$' => {
                let len = name_len(&rest[1..]);
                rest[1..=len].contains('_').then(|| &rest[..=len])
            }
            _ => None,
        }
    })
}

/// Reads `headers.request` or `headers.response` after the existing `rules`. Headers that are
/// `reserved` are errors.
fn field_rules(
    mut table: TomlTable<'_>,
    mut rules: FieldRules,
    reserved: &[&str],
    report: &Report<'_>,
) -> FieldRules {
    let is_ours = |name: &str| reserved.iter().any(|other| other.eq_ignore_ascii_case(name));
    let tell = |place: &Place, name: &str, fault: FieldFault| match fault {
        // The value may be a secret, so the message does not quote it.
        FieldFault::Value => report.error(place, fault.to_string()),
        FieldFault::Name | FieldFault::Reserved => report.error(place, format!("{fault}, found {name:?}")),
    };
    for (key, is_set) in [("set", true), ("add", false)] {
        for (name, value) in table.table(key).values(string) {
            let Some(value) = value else { continue };
            let outcome = match is_set {
                _ if is_ours(&name.value) => Err(FieldFault::Reserved),
                true => rules.set(&name.value, &value.value),
                false => rules.add(&name.value, &value.value),
            };
            if let Some(variable) = variable_in(&value.value) {
                let message = format!("`{variable}` is sent literally: values of headers have no variables");
                report.warning(&value.place, message);
            }
            if let Err(fault) = outcome {
                let place = if fault == FieldFault::Value { &value.place } else { &name.place };
                tell(place, &name.value, fault);
            }
        }
    }
    for Placed { value: name, place } in table.any_number("remove", string) {
        let outcome = if is_ours(&name) { Err(FieldFault::Reserved) } else { rules.remove(&name) };
        if let Err(fault) = outcome {
            tell(&place, &name, fault);
        }
    }
    table.finish();
    rules
}
