//! `[[frontends.NAME.routes]]`: routes of requests (mode http) or of TLS connections (mode proxy).

mod actions;
mod docs;
mod matches;

use std::time::Duration;

use toml::de::DeValue;

pub(crate) use self::actions::ParsedRedirect;
pub(crate) use self::docs::{DOC, REDIRECT, RESPOND};

use self::actions::ParsedAction;
use self::matches::ParsedMatches;
use super::compression::ParsedCompression;
use super::headers;
use super::limits::ParsedRate;
use super::retry::ParsedRetry;
use super::sni::ParsedSni;
use super::{access, cors};
use crate::keys::OnlyIn;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::values::{MILLISECOND, boolean, found, http_host, integer, not_allowed, seconds};
use convey_http_core::{
    CorsRules, HostPattern, PathPattern, PathPrefix, PathRewrite, PathView, ReversedFields,
};
use convey_model::{HeaderRules, OwnTimeouts, RouteCompression, RouteConfig, RouteLimits, SniRouteConfig};

/// Warning about keys that change requests to servers, in a route that convey answers by itself.
const ANSWERED: &str = "has no effect with redirect or respond";

/// Parsed `[[frontends.NAME.routes]]`.
#[derive(Debug, Clone)]
pub(crate) struct ParsedRoute {
    pub(crate) place: Place,
    /// Places of the keys that have an effect only in mode `http`.
    pub(crate) http_keys: Vec<Place>,
    /// TLS connections that match the route (proxy mode).
    pub(crate) sni: ParsedSni,
    matches: ParsedMatches,
    pub(crate) action: ParsedAction,
    rewrite_path: Option<String>,
    rewrite_host: Option<String>,
    reversed: ReversedFields,
    headers: HeaderRules,
    rate: ParsedRate,
    compression: Option<ParsedCompression>,
    limits: RouteLimits,
    cors: Option<CorsRules>,
    pub(super) retry: Option<ParsedRetry>,
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
        if !["backends", "redirect", "respond"].iter().any(|key| table.has(key)) {
            table.require(
                "backend",
                "required, but missing: a route needs backend, backends, redirect or respond",
            );
        }
        let matches = ParsedMatches::read(&mut table, report);
        let mut route = ParsedRoute {
            place: table.place.clone(),
            http_keys: table.places_of(DOC.docs, OnlyIn::Http),
            sni: ParsedSni::read(&mut table),
            action: ParsedAction::read(&mut table, report),
            rewrite_path: rewritten_path(&mut table, &matches.path(), report),
            rewrite_host: rewritten(&mut table, "rewrite_host", http_host, report),
            reversed: read_reversed(&mut table, report),
            headers: headers::read(table.table("headers"), report),
            rate: ParsedRate::read(&mut table, report),
            compression: ParsedCompression::read(&mut table, report),
            limits: read_limits(&mut table, report),
            cors: cors::read(&mut table, report),
            retry: ParsedRetry::read(&mut table, report),
            matches,
        };
        if route.action.is_local() {
            let others = ["compression", "retry"].map(|key| table.place_of(key));
            let places = route.rate.places().chain(others.iter().flatten());
            places.for_each(|place| report.warning(place, ANSWERED));
        }
        route.action.check(&route.matches.path(), report);
        // The pattern is invalid if an unknown key may be a misspelt `host` or `path`, or if keys
        // of proxy mode are set, which are errors in mode http.
        route.matches.is_valid &= !table.has_unknown() && route.sni.keys.is_empty();
        table.finish();
        route
    }

    /// Routes of TLS connections, each with its place in the file (proxy mode).
    pub(crate) fn sni_routes(&self) -> impl Iterator<Item = (&Place, SniRouteConfig)> {
        self.action.backends.first().into_iter().flat_map(|backend| self.sni.routes(&backend.value))
    }

    /// Requests that match the route; `None` if a key about them is wrong, which is reported.
    pub(crate) fn matches(&self) -> Option<&ParsedMatches> {
        self.matches.is_valid.then_some(&self.matches)
    }

    /// Hosts of the requests that match the route.
    pub(super) fn hosts(&self) -> Vec<HostPattern> {
        let hosts = self.matches.hosts();
        if hosts.is_empty() { vec![HostPattern::Any] } else { hosts }
    }

    /// Path of the requests that match the route.
    pub(super) fn path(&self) -> PathPattern {
        self.matches.path()
    }

    /// Place of the path, if the route has one.
    pub(super) fn place_of_path(&self) -> Option<&Place> {
        self.matches.place_of_path()
    }

    /// Place of the route's name, if the route has one of its own.
    pub(crate) fn own_name(&self) -> Option<&Placed<String>> {
        self.matches.name.as_ref()
    }

    /// Name of the route without `name`: its host and its path.
    pub(crate) fn default_name(&self) -> String {
        RouteConfig::name_of(self.matches.host_text(), self.matches.path_text())
    }

    /// Whether the route limits the request rate of each source.
    pub(super) fn limits_sources(&self) -> bool {
        self.rate.is_set() && !self.action.is_local()
    }

    /// Time that the route allows for a whole request; `None`: the route has no such key.
    pub(super) fn request_time(&self) -> Option<Duration> {
        self.limits.timeouts.request
    }

    /// Model of the route with this name. `is_compressed`: whether the frontend has compression
    /// rules; `has_cors`: whether it has rules for pages of other origins. `None` if the matches are
    /// invalid, or the route has no action.
    pub(super) fn model(
        &self,
        name: String,
        view: PathView,
        (is_compressed, has_cors): (bool, bool),
    ) -> Option<RouteConfig> {
        let matches = self.matches()?;
        let mut conditions = matches.conditions().clone();
        let answers_preflight = has_cors || self.cors.is_some();
        conditions.takes_preflight = answers_preflight && !conditions.methods.is_empty();
        let path = matches.path();
        let rewrite = self.rewrite_path.as_ref().and_then(|to| PathRewrite::new(&path, view, to).ok());
        Some(RouteConfig {
            name,
            hosts: matches.hosts(),
            action: self.action.model(&path, view)?,
            path,
            conditions,
            sources: matches.sources().to_vec(),
            rewrite_path: rewrite,
            rewrite_host: self.rewrite_host.clone(),
            reversed: self.reversed,
            headers: self.headers.clone(),
            rate: self.rate.model(),
            total: self.rate.total(),
            compression: match &self.compression {
                Some(own) => own.of_route(is_compressed),
                None => RouteCompression::OfFrontend,
            },
            limits: self.limits.clone(),
            cors: self.cors.clone(),
            retry: self.retry.as_ref().map(|retry| retry.rules.clone()),
            maintenance: None,
        })
    }
}

/// Reads `timeouts`, `access` and `max_body_size`.
fn read_limits(table: &mut TomlTable<'_>, report: &Report<'_>) -> RouteLimits {
    let mut times = table.table("timeouts");
    let mut time = |key| times.optional(key, seconds(MILLISECOND)).map(|time| time.value);
    let timeouts = OwnTimeouts {
        connect: time("connect"),
        idle: time("idle"),
        response: time("response"),
        request: time("request"),
        send: time("send"),
        ..OwnTimeouts::default()
    };
    times.finish();
    let body = table.optional("max_body_size", integer(1..=i64::MAX as u64)).map(|size| size.value);
    RouteLimits { timeouts, body, access: access::read(table.table("access"), report) }
}

/// Names of routes: their own ones, or host and path. Of several routes with the same host and path
/// the second one ends with `#2`, and so on.
pub(super) fn names(routes: &[ParsedRoute]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for route in routes {
        let name = match route.own_name() {
            Some(name) => name.value.clone(),
            None => route.default_name(),
        };
        let numbered = (2..).map(|number| format!("{name}#{number}"));
        let free = [name.clone()].into_iter().chain(numbered).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

/// Reads `rewrite_location` and `rewrite_cookies`. Warns if the route rewrites no requests.
fn read_reversed(table: &mut TomlTable<'_>, report: &Report<'_>) -> ReversedFields {
    let rewrites = table.has("rewrite_path") || table.has("rewrite_host");
    let mut read = |key, default| {
        let Some(found) = table.optional(key, boolean) else { return default };
        if !rewrites {
            report.warning(&found.place, "has no effect without rewrite_path or rewrite_host");
        }
        found.value
    };
    let ReversedFields { locations, cookies } = ReversedFields::default();
    ReversedFields {
        locations: read("rewrite_location", locations),
        cookies: read("rewrite_cookies", cookies),
    }
}

/// Reads `rewrite_path`. Reports groups that the path's regular expression does not have.
fn rewritten_path(table: &mut TomlTable<'_>, path: &PathPattern, report: &Report<'_>) -> Option<String> {
    let place = table.place_of("rewrite_path");
    let text = rewritten(table, "rewrite_path", rewrite_path, report)?;
    if let Some(place) = place {
        check_groups(&text, path, &place, report);
    }
    Some(text)
}

/// Reports groups of a rewrite that the path's regular expression does not have.
fn check_groups(text: &str, path: &PathPattern, place: &Place, report: &Report<'_>) {
    if let Err(fault) = PathRewrite::new(path, PathView::default(), text) {
        report.error(place, fault.to_string());
    }
    let is_group = |pair: &[u8]| matches!(pair, [b'$', b'0'..=b'9']);
    let group =
        text.as_bytes().windows(2).position(is_group).filter(|_| !matches!(path, PathPattern::Regex(_)));
    if let Some(at) = group {
        report.warning(
            place,
            format!("{} is plain text here: only a path_regex has groups", &text[at..at + 2]),
        );
    }
}

/// Reads a key that rewrites requests to servers. Warns if the route sends no request to a server.
fn rewritten(
    table: &mut TomlTable<'_>,
    key: &'static str,
    parse: impl Fn(&DeValue<'_>) -> Result<String, String>,
    report: &Report<'_>,
) -> Option<String> {
    let found = table.optional(key, parse)?;
    if table.has("redirect") || table.has("respond") {
        report.warning(&found.place, ANSWERED);
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

fn rewrite_path(value: &DeValue<'_>) -> Result<String, String> {
    const ALLOWED: &str = "a path that begins with `/`, such as /v1";
    let Some(text) = value.as_str() else { return Err(not_allowed(value, ALLOWED)) };
    match PathPrefix::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(fault) => Err(format!("{fault}, found {}", found(value))),
    }
}
