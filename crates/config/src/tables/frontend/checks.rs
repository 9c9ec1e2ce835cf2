//! Checks of a frontend that need only the file.

use super::routes::one_of;
use super::{ParsedFrontend, sni};
use crate::file::value;
use crate::keys::OnlyIn;
use crate::problem::{Place, Placed, Report};
use convey_http_core::{HostPattern, RouteTable};
use convey_model::{Mode, Protocol};

/// Reports errors and warnings about a frontend in this mode.
pub(crate) fn check(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
    for needed in frontend.keys.ready_needs.iter().filter(|needed| !frontend.uses(&needed.value)) {
        let (name, needed_name) = (&frontend.name, &needed.value);
        report.error(&needed.place, format!("frontend {name} does not use backend {needed_name}"));
    }
    proxies(frontend, mode, report);
    requests(frontend, mode, report);
    sni::check(frontend, mode, report);
}

/// Checks that a frontend with PROXY headers has `trusted_proxies`. In mode http, convey also
/// trusts the request headers in which these proxies describe clients.
fn proxies(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
    let accept = frontend.keys.accept_proxy.as_ref().filter(|accept| accept.value);
    match (accept, frontend.trusted_proxies.place()) {
        (Some(accept), None) => {
            let message = "needs trusted_proxies, such as [\"10.0.0.5\"]: a host that may send PROXY headers can pretend to be \
                           any client";
            report.error(&accept.place, message);
        }
        (None, Some(place)) if !mode.is_http() => {
            report.warning(place, "has no effect without accept_proxy = true")
        }
        // Without accept_proxy, access applies to the connections of the proxies.
        (None, _) if !frontend.http.has_named_clients() => {}
        _ => denied_proxies(frontend, report),
    }
}

/// Warns about trusted proxies that `access` denies. convey admits these proxies, because `access`
/// applies to the clients that they name.
fn denied_proxies(frontend: &ParsedFrontend, report: &Report<'_>) {
    if let Some((place, denied)) = frontend.trusted_proxies.denied_by(&frontend.access) {
        let message = format!(
            "access denies {denied}, but convey admits trusted proxies from there: access applies to the clients whose \
             addresses the proxies report"
        );
        report.warning(place, message);
    }
}

/// Reports keys of mode `http` in another mode. In mode `http`, reports a protocol that has no
/// requests, and routes that no request can reach.
pub(super) fn requests(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
    if !mode.is_http() {
        let keys = frontend.keys.of_some_modes().into_iter();
        let keys = keys.filter_map(|(place, only)| (only == OnlyIn::Http).then_some(place));
        for place in keys.chain(&frontend.http.places).chain(frontend.limits.requests.places()) {
            report.error(place, format!("needs mode = \"http\"; the frontend is in {} mode", mode.name()));
        }
        return;
    }
    if let Some(protocol) = frontend.keys.protocol.as_ref().filter(|protocol| protocol.value == Protocol::Udp)
    {
        report.error(&protocol.place, "found \"udp\"; allowed in http mode: tcp");
    }
    client_address(frontend, report);
    one_of(frontend.keys.backend.as_ref(), frontend.http.keys.redirect.as_ref(), report);
    unreachable(frontend, report);
}

/// Warns about a `client_address` without proxies that would name clients.
fn client_address(frontend: &ParsedFrontend, report: &Report<'_>) {
    let chosen = frontend.http.keys.client_address.as_ref();
    if let Some(Placed { place, .. }) = chosen.filter(|chosen| chosen.value.is_named_by_proxies())
        && frontend.trusted_proxies.is_empty()
    {
        report.warning(place, "has no effect without trusted_proxies");
    }
}

/// Reports two routes for the same requests, and a default that is unreachable because a route
/// matches all requests.
fn unreachable(frontend: &ParsedFrontend, report: &Report<'_>) {
    let mut first: RouteTable<&Place> =
        RouteTable::new(value(&frontend.http.keys.path_view).unwrap_or_default());
    let mut for_all = None;
    for route in &frontend.http.routes {
        let Some((host, path)) = route.pattern() else { continue };
        // A redirect to HTTPS does not apply to requests that arrived over HTTPS.
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
    let backend = frontend.keys.backend.as_ref().map(|backend| &backend.place);
    let rest = backend.or(frontend.http.keys.redirect.as_ref().map(|Placed { place, .. }| place));
    if let (Some(rest), Some(route)) = (rest, for_all) {
        let line = report.line(route, rest);
        report.error(rest, format!("is unreachable: the route in {line} matches every request"));
    }
}
