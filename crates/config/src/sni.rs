//! Checks of routes by TLS server name, which proxy mode has. Pure.

use std::collections::HashMap;

use super::file::{ParsedFrontend, ParsedRoute, REQUIRED};
use super::problem::{Place, Placed, Report};
use super::reader::join;
use convey_http_core::HostPattern;
use convey_model::{Mode, Protocol};

/// Reports the keys of routes that another mode has, routes of modes without any, and what no connection could reach.
pub(super) fn check(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
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

/// Whether it has to have a backend of its own, whatever its routes say.
pub(super) fn needs_backend(frontend: &ParsedFrontend, mode: Mode) -> bool {
    match mode {
        Mode::Http => false,
        Mode::Proxy => frontend.http.routes.is_empty(),
        Mode::Passthrough | Mode::Dsr => true,
    }
}

fn of_requests(route: &ParsedRoute, report: &Report<'_>) {
    for place in &route.sni.keys {
        report.error(place, "needs mode = \"proxy\"; in http mode routes go by host and path");
    }
}

fn of_connections(frontend: &ParsedFrontend, report: &Report<'_>) {
    let Some(routes_at) = &frontend.http.routes_at else { return };
    if let Some(protocol) = frontend.protocol.as_ref().filter(|protocol| protocol.value == Protocol::Udp) {
        let line = report.line(&protocol.place, routes_at);
        let message = format!("go by the beginning of a TCP connection; protocol is \"udp\" ({line})");
        report.error(routes_at, message);
    }
    if frontend.http.routes.is_empty() && frontend.backend.is_none() {
        let place = Place { key: join(&frontend.place.key, "backend"), ..frontend.place.clone() };
        report.missing(&place, REQUIRED);
    }
    for route in &frontend.http.routes {
        for place in &route.http_keys {
            let message = "needs mode = \"http\"; in proxy mode routes go by sni and alpn";
            report.error(place, message);
        }
        // A misspelt key may be either.
        let says_nothing = route.sni.keys.is_empty() && route.http_keys.is_empty();
        if says_nothing && route.pattern().is_some() {
            let rest = match &frontend.backend {
                Some(Placed { value, .. }) => format!("connections of no route go to backend {value:?}"),
                None => "for connections of no route set the frontend's backend".to_owned(),
            };
            report.missing(&route.place, format!("a route has sni or alpn, or both; {rest}"));
        }
    }
    unreachable(&frontend.http.routes, report);
}

/// Two routes for the same connections.
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
