//! `[[frontends.NAME.routes]]`: routes of requests (mode http) or of TLS connections (mode proxy).

use toml::de::DeValue;

use super::compression::ParsedCompression;
use super::headers;
use super::limits::ParsedRate;
use super::sni::ParsedSni;
use crate::keys::OnlyIn;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{choice, found, http_host, not_allowed, string};
use convey_http_core::{HostPattern, PathPrefix};
use convey_model::{HeaderRules, Redirect, RouteAction, RouteCompression, RouteConfig, SniRouteConfig};

/// `[[frontends.NAME.routes]]` in the reference. The table has no list of keys and fields, because
/// two keys set the action, the route's name is derived from two other keys, and in mode proxy one
/// table may be several routes.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[[frontends.NAME.routes]]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "host",
            only_in: Some(OnlyIn::Http),
            kind: r#"a host, or a glob such as `"*.example.com"`: all names below it. Without a port"#,
            default: "any host",
            sample: r#"#host = "api.example.com"               # or "*.example.com"; by default any host"#,
            example: "'b.example'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "path",
            only_in: Some(OnlyIn::Http),
            kind: r#"a path: it and all paths below. `"/v1"` is for `/v1` and `/v1/a`, not for `/v10`"#,
            default: r#"`"/"`"#,
            sample: r#"#path = "/v1"                           # this path and all below it; by default "/""#,
            example: "'/b'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "backend",
            kind: "name of a backend. A route has this key or `redirect`",
            default: "none",
            sample: r#"#backend = "web""#,
            example: "'web'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "redirect",
            only_in: Some(OnlyIn::Http),
            kind: r#"`"https"`: convey redirects to HTTPS (status 308)"#,
            default: "none",
            sample: r##"#redirect = "https"                     # in place of a backend"##,
            example: "'https'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "sni",
            only_in: Some(OnlyIn::Proxy),
            kind: r#"a host, a glob such as `"*.example.com"`, or several, proxy: the server name that the client asks for"#,
            default: "any name, or none",
            sample: r##"#sni = "api.example.com"                # the server name (SNI), "*.example.com", or a list; by default any name or none"##,
            example: "'b.example'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "alpn",
            only_in: Some(OnlyIn::Proxy),
            kind: r#"a protocol such as `"h2"`, or several, proxy: the client offers one of them. A route in mode proxy has `sni` or `alpn`, or both"#,
            default: "any protocol, or none",
            sample: r##"#alpn = "h2"                            # example; a protocol that the client has to offer (ALPN), or a list of alternatives"##,
            example: "'h2'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "requests_per_source",
            only_in: Some(OnlyIn::Http),
            kind: "1 to 1000000 requests of one source a second, of this route. Beside the limit of the frontend",
            default: "no limit",
            sample: "#requests_per_source = 50               # example; a second; further requests get a 429",
            example: "7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "request_burst",
            only_in: Some(OnlyIn::Http),
            kind: "1 to 1000000 requests of one source at once after a pause, of this route",
            default: "as many as `requests_per_source`",
            sample: "#request_burst = 100                    # example; at once after a pause. By default as requests_per_source",
            example: "7\nrequests_per_source = 7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "rewrite_path",
            only_in: Some(OnlyIn::Http),
            kind: "a path that replaces `path` in the request to the server",
            default: "as the client sent it",
            sample: r#"#rewrite_path = "/"                     # example; servers see it in place of the path above"#,
            example: "'/b'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "rewrite_host",
            only_in: Some(OnlyIn::Http),
            kind: "a host, perhaps with a port: servers get it as `Host`",
            default: "as the client sent it",
            sample: r#"#rewrite_host = "api.internal"          # example; the Host that servers see"#,
            example: "'b.internal'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "headers",
            only_in: Some(OnlyIn::Http),
            kind: "table, as `[frontends.NAME.headers]`: applied after it",
            default: "none",
            sample: r#"#headers = { request = { remove = ["Cookie"] } }"#,
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "compression",
            only_in: Some(OnlyIn::Http),
            kind: "`true`, `false` or a table, as of the frontend, in place of it. `true` is the frontend's table if it has one",
            default: "as the frontend",
            sample: "#compression = false                    # example; by default as the frontend",
            example: "false",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Warning about keys that change requests to servers, in a route with a redirect.
const WITH_REDIRECT: &str = "has no effect with redirect";

/// Parsed `[[frontends.NAME.routes]]`.
#[derive(Debug, Clone)]
pub(crate) struct ParsedRoute {
    pub(crate) place: Place,
    /// Places of the keys that have an effect only in mode `http`.
    pub(crate) http_keys: Vec<Place>,
    /// TLS connections that match the route (proxy mode).
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

/// A parsed pattern, with its text in the file.
#[derive(Debug, Clone)]
pub(super) struct Written<T> {
    pub(super) text: String,
    pub(super) pattern: T,
}

impl ParsedRoute {
    /// Reads `[[frontends.NAME.routes]]`.
    pub(super) fn read(mut table: TomlTable<'_>, report: &Report<'_>) -> ParsedRoute {
        if !table.has("redirect") {
            table.require("backend", "required, but missing: a route needs backend or redirect");
        }
        let (host, path) = (table.optional("host", host_pattern), table.optional("path", path_prefix));
        let is_right = |key: &str, is_read: bool| is_read || !table.has(key);
        let has_pattern = is_right("host", host.is_some()) && is_right("path", path.is_some());
        let mut route = ParsedRoute {
            place: table.place.clone(),
            http_keys: table.places_of(DOC.docs, OnlyIn::Http),
            sni: ParsedSni::read(&mut table),
            host: host.map(|host| host.value),
            path: path.map(|path| path.value),
            has_pattern,
            backend: table.optional("backend", string),
            redirect: table.optional("redirect", choice(&Redirect::ALL, Redirect::name)),
            rewrite_path: rewritten(&mut table, "rewrite_path", rewrite_path, report),
            rewrite_host: rewritten(&mut table, "rewrite_host", http_host, report),
            headers: headers::read(table.table("headers"), report),
            rate: ParsedRate::read(&mut table, report),
            compression: ParsedCompression::read(&mut table, report),
        };
        if table.has("redirect") {
            route.rate.places().for_each(|place| report.warning(place, WITH_REDIRECT));
            let place = table.place_of("compression");
            place.iter().for_each(|place| report.warning(place, WITH_REDIRECT));
        }
        // The pattern is invalid if an unknown key may be a misspelt `host` or `path`, or if keys
        // of proxy mode are set, which are errors in mode http.
        route.has_pattern &= !table.has_unknown() && route.sni.keys.is_empty();
        table.finish();
        one_of(route.backend.as_ref(), route.redirect.as_ref(), report);
        route
    }

    /// Routes of TLS connections, each with its place in the file (proxy mode).
    pub(crate) fn sni_routes(&self) -> impl Iterator<Item = (&Place, SniRouteConfig)> {
        self.backend.iter().flat_map(|backend| self.sni.routes(&backend.value))
    }

    /// Host and path of the requests that match the route; `None` if one of them is wrong, which is
    /// reported.
    pub(crate) fn pattern(&self) -> Option<(HostPattern, PathPrefix)> {
        let host = self.host.as_ref().map_or(HostPattern::Any, |host| host.pattern.clone());
        let path = match &self.path {
            Some(path) => path.pattern.clone(),
            None => PathPrefix::parse("/").ok()?,
        };
        self.has_pattern.then_some((host, path))
    }

    /// Whether the route limits the request rate of each source.
    pub(super) fn limits_sources(&self) -> bool {
        self.rate.is_set() && self.redirect.is_none()
    }

    /// Whether the route redirects requests.
    pub(crate) fn is_redirect(&self) -> bool {
        self.redirect.is_some()
    }

    /// Model of the route. `is_compressed`: whether the frontend has compression rules. `None` if
    /// the pattern is invalid, or the route has neither a backend nor a redirect.
    pub(super) fn model(&self, is_compressed: bool) -> Option<RouteConfig> {
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
        let message = format!("{} is also set ({line}); keep one of them", backend.place.key);
        report.error(&redirect.place, message);
    }
}

/// Reads a key that rewrites requests to servers. Warns if the route has `redirect`, which sends no
/// request to a server.
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
