//! `sni` and `alpn` of a route: the TLS connections that match it (proxy mode).

use std::collections::HashMap;
use std::net::IpAddr;

use toml::de::DeValue;

use super::routes::{self, ParsedRoute, Written, host_pattern};
use super::{ParsedFrontend, REQUIRED};
use crate::diff::{change, pair};
use crate::keys::OnlyIn;
use crate::problem::{Place, Placed, Report};
use crate::reader::{TomlTable, join};
use crate::values::{found, not_allowed};
use convey_http_core::HostPattern;
use convey_model::{Mode, Protocol, SniRouteConfig};

/// Maximum length of a protocol name in bytes: its length field has one byte (RFC 7301, section
/// 3.1).
const MAX_PROTOCOL: usize = 255;

/// Server names and protocols of connections that match a route.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedSni {
    /// Places of the keys that are set.
    pub(crate) keys: Vec<Place>,
    hosts: Vec<Placed<Written<HostPattern>>>,
    alpn: Vec<Placed<String>>,
    /// Whether the values of both keys are valid.
    is_right: bool,
}

impl ParsedSni {
    /// Reads `sni` and `alpn` from the table of a route.
    pub(super) fn read(table: &mut TomlTable<'_>) -> ParsedSni {
        let keys = table.places_of(routes::DOC.docs, OnlyIn::Proxy);
        let [is_by_host, is_by_protocol] = ["sni", "alpn"].map(|key| table.has(key));
        let (hosts, alpn) = (table.at_least_one("sni", name), table.at_least_one("alpn", protocol));
        let is_right = hosts.is_empty() != is_by_host && alpn.is_empty() != is_by_protocol;
        ParsedSni { keys, hosts, alpn, is_right }
    }

    /// Routes for each pair of a name and a protocol. The place of a route is the place of the
    /// name, or of the protocol if there is no name.
    pub(crate) fn routes<'a>(
        &'a self,
        backend: &'a str,
    ) -> impl Iterator<Item = (&'a Place, SniRouteConfig)> + use<'a> {
        let hosts = if self.is_right { optional(&self.hosts) } else { Vec::new() };
        hosts.into_iter().flat_map(move |host| {
            optional(&self.alpn).into_iter().filter_map(move |alpn| {
                let place = host.map(|host| &host.place).or(alpn.map(|alpn| &alpn.place))?;
                let text = host.map(|host| &*host.value.text);
                let alpn = alpn.map(|alpn| alpn.value.clone());
                let route = SniRouteConfig {
                    name: SniRouteConfig::name_of(text, alpn.as_deref()),
                    host: host.map_or(HostPattern::Any, |host| host.value.pattern.clone()),
                    alpn,
                    backend: backend.to_owned(),
                };
                Some((place, route))
            })
        })
    }
}

/// Each item, or one `None` if there are no items.
fn optional<T>(all: &[T]) -> Vec<Option<&T>> {
    if all.is_empty() { vec![None] } else { all.iter().map(Some).collect() }
}

/// Reports route keys of another mode, routes in modes that have no routes, and routes that no
/// connection can match.
pub(crate) fn check(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
    match mode {
        Mode::Http => frontend.http.routes.iter().for_each(|route| of_requests(route, report)),
        Mode::Proxy => of_connections(frontend, report),
        Mode::Passthrough | Mode::Dsr => {
            let name = mode.name();
            let message = format!("needs mode = \"http\" or \"proxy\"; the frontend is in {name} mode");
            frontend.http.routes_at.iter().for_each(|place| report.error(place, &*message));
        }
    }
}

/// Whether the frontend must have `backend` in this mode.
pub(crate) fn needs_backend(frontend: &ParsedFrontend, mode: Mode) -> bool {
    match mode {
        Mode::Http => false,
        Mode::Proxy => frontend.http.routes.is_empty(),
        Mode::Passthrough | Mode::Dsr => true,
    }
}

fn of_requests(route: &ParsedRoute, report: &Report<'_>) {
    for place in &route.sni.keys {
        report.error(place, "needs mode = \"proxy\"; in http mode routes match host and path");
    }
}

fn of_connections(frontend: &ParsedFrontend, report: &Report<'_>) {
    let Some(routes_at) = &frontend.http.routes_at else { return };
    if let Some(protocol) = frontend.keys.protocol.as_ref().filter(|protocol| protocol.value == Protocol::Udp)
    {
        let line = report.line(&protocol.place, routes_at);
        let message = format!("need protocol = \"tcp\"; the frontend has \"udp\" ({line})");
        report.error(routes_at, message);
    }
    if frontend.http.routes.is_empty() && frontend.keys.backend.is_none() {
        let place = Place { key: join(&frontend.place.key, "backend"), ..frontend.place.clone() };
        report.missing(&place, REQUIRED);
    }
    for route in &frontend.http.routes {
        for place in &route.http_keys {
            let message = "needs mode = \"http\"; in proxy mode routes match sni and alpn";
            report.error(place, message);
        }
        // A misspelt key may be `sni` or `alpn`; then only the misspelling is reported.
        let says_nothing = route.sni.keys.is_empty() && route.http_keys.is_empty();
        if says_nothing && route.matches().is_some() {
            let rest = match &frontend.keys.backend {
                Some(Placed { value, .. }) => format!("connections without a route go to backend {value:?}"),
                None => "for connections without a route, set the frontend's backend".to_owned(),
            };
            report.missing(&route.place, format!("a route needs sni or alpn, or both; {rest}"));
        }
    }
    unreachable(&frontend.http.routes, report);
}

/// Reports two routes for the same connections.
fn unreachable(routes: &[ParsedRoute], report: &Report<'_>) {
    let mut first: HashMap<(HostPattern, Option<String>), &Place> = HashMap::new();
    for (place, route) in routes.iter().flat_map(ParsedRoute::sni_routes) {
        match first.get(&(route.host.clone(), route.alpn.clone())) {
            Some(other) => {
                let line = report.line(other, place);
                report.error(place, format!("is unreachable: {line} has the same sni and alpn"));
            }
            None => _ = first.insert((route.host, route.alpn), place),
        }
    }
}

/// Routes that were added or removed, or that have another backend now, for the log of a reload.
pub(super) fn changes(old: &[SniRouteConfig], new: &[SniRouteConfig]) -> Vec<String> {
    let changes = pair(old, new, |a, b| a.name == b.name).into_iter().filter_map(|routes| match routes {
        (None, Some(after)) => Some(format!("+ route {} to backend {}", after.name, after.backend)),
        (Some(before), None) => Some(format!("- route {}", before.name)),
        (Some(before), Some(after)) => {
            change(&format!("route {} backend", before.name), &before.backend, &after.backend)
        }
        (None, None) => None,
    });
    changes.collect()
}

fn name(value: &DeValue<'_>) -> Result<Written<HostPattern>, String> {
    let text = value.as_str().unwrap_or_default();
    if text == "*" {
        return Err("found \"*\"; for connections without a route, set the frontend's backend".to_owned());
    }
    if text.parse::<IpAddr>().is_ok() || text.starts_with('[') {
        let why = "clients send only host names as SNI (RFC 6066)";
        return Err(format!("found {}, an address; {why}", found(value)));
    }
    host_pattern(value)
}

/// Parses the name of a protocol in TLS (ALPN); also used for `tls.alpn` of a frontend.
pub(super) fn protocol(value: &DeValue<'_>) -> Result<String, String> {
    let allowed = "the name of a protocol as clients offer it, such as h2, http/1.1 or acme-tls/1";
    let is_name = |text: &&str| (1..=MAX_PROTOCOL).contains(&text.len()) && !text.contains(char::is_control);
    match value.as_str().filter(is_name) {
        Some("http/2" | "http2") => Err(format!("found {}; clients offer HTTP/2 as \"h2\"", found(value))),
        Some(text) => Ok(text.to_owned()),
        None => Err(not_allowed(value, allowed)),
    }
}
