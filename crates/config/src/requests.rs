//! Checks of what frontends in mode `http` do with requests. Pure.

use super::file::{ParsedBackend, ParsedFrontend, one_of};
use super::problem::{Place, Placed, Report};
use convey_http_core::{HeadLimits, HostPattern, RouteTable};
use convey_model::{Algorithm, BackendConfig, CheckedRequests, FrontendConfig, HttpVersion, Mode, Protocol};

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

/// The same of a backend that these frontends use.
pub(super) fn check_backend(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    algorithm(backend, used, report);
    protocol(backend, used, report);
    hash(backend, used, report);
    files(backend, used, report);
}

/// Only mode `http` speaks to servers itself. A PROXY header is about one client, and all clients share a connection of HTTP/2.
fn protocol(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(Placed { value, place }) = &backend.protocol else { return };
    if let Some((frontend, mode)) = used.iter().find(|(_, mode)| !mode.is_http()) {
        let (name, mode) = (&frontend.name, mode.name());
        report.error(place, format!("is for mode http; frontend {name:?} is in {mode} mode"));
    }
    if *value != HttpVersion::H1
        && let Some(send) = &backend.send_proxy
    {
        let line = report.line(&send.place, place);
        let name = value.name();
        let message = format!(
            "{name:?} has clients share connections, and send_proxy ({line}) tells of one client at the beginning of each; keep one of them"
        );
        report.error(place, message);
    }
}

/// How a check of the backend's servers speaks and judges; `None`: not as requests do, because no
/// frontend or a frontend of another mode uses the backend.
pub(super) fn checked(backend: &BackendConfig, frontends: &[FrontendConfig]) -> Option<CheckedRequests> {
    let mut response_head: Option<HeadLimits> = None;
    for frontend in frontends.iter().filter(|frontend| frontend.backends().any(|name| name == backend.name)) {
        if !frontend.mode.is_http() {
            return None;
        }
        let HeadLimits { bytes, fields } = frontend.http_limits().response_head;
        let most = response_head.get_or_insert(HeadLimits { bytes, fields });
        *most = HeadLimits { bytes: most.bytes.max(bytes), fields: most.fields.max(fields) };
    }
    response_head.map(|response_head| CheckedRequests { version: backend.protocol, response_head })
}

/// Only mode `http` is asked for files.
fn files(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(Placed { place, .. }) = &backend.files else { return };
    if let Some((frontend, mode)) = used.iter().find(|(_, mode)| !mode.is_http()) {
        let (name, mode) = (&frontend.name, mode.name());
        report.error(place, format!("is for mode http; frontend {name:?} is in {mode} mode"));
    }
}

/// Only mode `http` sees what requests say.
fn hash(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(Placed { value, place }) = &backend.hash else { return };
    let of_other_mode = used.iter().find(|(_, mode)| !mode.is_http());
    if let (Some(field), Some((frontend, mode))) = (value.request(), of_other_mode) {
        let (name, mode) = (&frontend.name, mode.name());
        let message = format!(
            "found \"{field}\", which only mode http sees; frontend {name:?} is in {mode} mode: allowed are source, tuple, quic_cid"
        );
        report.error(place, message);
    }
}

/// Only mode `http` sees how long answers take.
fn algorithm(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(Placed { value: Algorithm::Ewma, place }) = &backend.algorithm else { return };
    if let Some((frontend, mode)) = used.iter().find(|(_, mode)| !mode.is_http()) {
        let (name, mode) = (&frontend.name, mode.name());
        let message = format!(
            "\"ewma\" goes by the time of answers, which only mode http sees; frontend {name:?} is in {mode} mode"
        );
        report.error(place, message);
    }
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
