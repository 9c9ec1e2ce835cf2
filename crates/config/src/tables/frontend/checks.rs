//! Checks of a frontend that need only the file.

use std::collections::HashMap;

use super::routes::ParsedRoute;
use super::{ParsedFrontend, path_checks, sni};
use crate::file::value;
use crate::keys::OnlyIn;
use crate::problem::{Place, Placed, Report};
use convey_http_core::{FieldTrust, HostPattern, RouteTable};
use convey_model::{Mode, Prefix, Protocol};

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
    untrusted_headers(frontend, report);
    if let (Some(backend), Some(redirect)) = (&frontend.keys.backend, &frontend.http.redirect) {
        let line = report.line(&backend.place, &redirect.place);
        let message = format!("{} is also set ({line}); keep one of them", backend.place.key);
        report.error(&redirect.place, message);
    }
    same_names(frontend, report);
    unreachable(frontend, report);
    path_checks::check(frontend, report);
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

/// Warns about a condition on a header that only trusted proxies may send, at a frontend without
/// them.
fn untrusted_headers(frontend: &ParsedFrontend, report: &Report<'_>) {
    if !frontend.trusted_proxies.is_empty() {
        return;
    }
    let chosen = frontend.http.keys.client_address.as_ref();
    let own_field = chosen.and_then(|chosen| chosen.value.own_field());
    let trust = FieldTrust { own_field, ..FieldTrust::default() };
    for (place, headers) in frontend.http.routes.iter().filter_map(|route| route.matches()?.headers()) {
        if let Some(header) = headers.iter().find(|header| trust.needs_trust(&header.name)) {
            let message = format!(
                "has {}, which counts only from trusted_proxies, and the frontend has none: the header counts as absent",
                header.name
            );
            report.warning(place, message);
        }
    }
}

/// Reports two routes with the same name.
fn same_names(frontend: &ParsedFrontend, report: &Report<'_>) {
    let mut first: HashMap<&str, &Place> = HashMap::new();
    for Placed { value, place } in frontend.http.routes.iter().filter_map(ParsedRoute::own_name) {
        match first.get(&**value) {
            Some(other) => {
                let line = report.line(other, place);
                report
                    .error(place, format!("found {value:?}, which is also the name of the route in {line}"));
            }
            None => _ = first.insert(value, place),
        }
    }
}

/// Reports a route whose requests another one takes, and a default that is unreachable because a
/// route matches all requests.
fn unreachable(frontend: &ParsedFrontend, report: &Report<'_>) {
    let mut table: RouteTable<&ParsedRoute> =
        RouteTable::new(value(&frontend.http.keys.path_view).unwrap_or_default());
    let mut for_all = None;
    for route in &frontend.http.routes {
        let Some(matches) = route.matches() else { continue };
        let hosts = if matches.hosts().is_empty() { vec![HostPattern::Any] } else { matches.hosts() };
        for host in hosts {
            table.add(&host, &matches.path(), matches.conditions().clone(), route);
        }
        if matches.match_all() && takes_all(route, frontend) {
            for_all = Some(&route.place);
        }
    }
    let mut told: Vec<&Place> = Vec::new();
    let mut pairs = table.unreachable(|first, later| covers(first, later, frontend));
    pairs.sort_by_key(|(_, later)| later.place.at);
    for (first, later) in pairs {
        if !told.contains(&&later.place) {
            let line = report.line(&first.place, &later.place);
            let message = match later.matches().is_some_and(|matches| matches.conditions().is_empty()) {
                true => format!("is unreachable: {line} has the same host and path"),
                false => {
                    format!("is unreachable: {line} has the same host and path, and takes all its requests")
                }
            };
            report.error(&later.place, message);
            told.push(&later.place);
        }
    }
    let backend = frontend.keys.backend.as_ref().map(|backend| &backend.place);
    let rest = backend.or(frontend.http.redirect.as_ref().map(|redirect| &redirect.place));
    if let (Some(rest), Some(route)) = (rest, for_all) {
        let line = report.line(route, rest);
        report.error(rest, format!("is unreachable: the route in {line} matches every request"));
    }
}

/// Whether the first one of two routes with the same host and path takes all clients of the later
/// one.
fn covers(first: &ParsedRoute, later: &ParsedRoute, frontend: &ParsedFrontend) -> bool {
    let [Some(mine), Some(theirs)] = [first, later].map(ParsedRoute::matches) else { return false };
    let includes =
        |wide: &Prefix, narrow: &Prefix| wide.len() <= narrow.len() && wide.contains(narrow.first());
    let is_from_mine = |narrow: &Prefix| mine.sources().iter().any(|wide| includes(wide, narrow));
    let sources = mine.sources().is_empty()
        || !theirs.sources().is_empty() && theirs.sources().iter().all(is_from_mine);
    sources && takes_all(first, frontend)
}

/// Whether a route takes all requests that match it. A redirect does not apply to requests for the
/// URL that it leads to.
fn takes_all(route: &ParsedRoute, frontend: &ParsedFrontend) -> bool {
    let may_be_https = frontend.tls.is_some() || !frontend.trusted_proxies.is_empty();
    route.action.redirect().is_none_or(|redirect| redirect.is_to_https() && !may_be_https)
}
