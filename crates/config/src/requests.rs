//! Checks of what frontends in mode `http` do with requests. Pure.

use super::file::{ParsedFrontend, one_of};
use super::problem::{Place, Placed, Report};
use convey_http_core::{HostPattern, RouteTable};
use convey_model::{Mode, Protocol};

/// Reports the keys of mode `http` in another mode. In this mode: a protocol without requests, and what no request could reach.
pub(super) fn check(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
    if !mode.is_http() {
        for place in frontend.http.keys.iter().chain(frontend.limits.requests.places()) {
            report.error(place, format!("needs mode = \"http\"; the frontend is in {} mode", mode.name()));
        }
        return;
    }
    if let Some(protocol) = frontend.protocol.as_ref().filter(|protocol| protocol.value == Protocol::Udp) {
        report.error(&protocol.place, "found \"udp\"; in http mode allowed: tcp");
    }
    one_of(frontend.backend.as_ref(), frontend.http.redirect.as_ref(), report);
    unreachable(frontend, report);
}

/// Two routes for the same requests, and a route for every request beside what the frontend has for the rest.
fn unreachable(frontend: &ParsedFrontend, report: &Report<'_>) {
    let mut first: RouteTable<&Place> = RouteTable::new(frontend.http.path_view);
    let mut for_all = None;
    for route in &frontend.http.routes {
        let Some((host, path)) = route.pattern() else { continue };
        // Requests that came by HTTPS pass a redirect to HTTPS.
        let may_be_https = frontend.tls.is_some() || !frontend.trusted_proxies.is_empty();
        let takes_all = host == HostPattern::Any && path.is_empty() && !(may_be_https && route.is_redirect());
        match first.add(&host, path, &route.place) {
            Ok(()) if takes_all => for_all = Some(&route.place),
            Ok(()) => {}
            Err(other) => {
                let line = report.line(other, &route.place);
                report.error(&route.place, format!("is unreachable: {line} has the same host and path"));
            }
        }
    }
    let backend = frontend.backend.as_ref().map(|backend| &backend.place);
    let rest = backend.or(frontend.http.redirect.as_ref().map(|Placed { place, .. }| place));
    if let (Some(rest), Some(route)) = (rest, for_all) {
        let line = report.line(route, rest);
        report.error(rest, format!("is unreachable: the route in {line} takes every request"));
    }
}
