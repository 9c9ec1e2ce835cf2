//! Text of `convey check` about the requests of a frontend.

use super::super::limits::requests;
use super::HttpKeys;
use crate::diff::list;
use crate::tables::timeouts::describe_own;
use crate::tables::total_rate;
use convey_http_core::{ClientAddress, FieldRules, NamedCondition, ReversedFields, RouteConditions};
use convey_model::{
    ErrorPages, FrontendConfig, HeaderRules, HttpConfig, RouteCompression, RouteConfig, RouteLimits,
};

/// Text of `convey check` about the request settings of a frontend.
pub(crate) fn describe(frontend: &FrontendConfig, http: &HttpConfig) -> String {
    let trusted = &frontend.trusted_proxies;
    let believed = match &http.client_address {
        _ if trusted.is_empty() => String::new(),
        ClientAddress::XForwardedFor => format!(", X-Forwarded-* trusted from {trusted}"),
        other => format!(", X-Forwarded-* trusted from {trusted}, client_address {other}"),
    };
    believed + &HttpKeys::describe(http, &[frontend.mode])
}

/// Text about the statuses with error pages; empty if there are none.
pub(super) fn pages(pages: &ErrorPages) -> String {
    let statuses = pages.statuses().map(|status| status.to_string()).collect::<Vec<_>>();
    if statuses.is_empty() { String::new() } else { format!("; error pages: {}", statuses.join(", ")) }
}

/// Row of `convey check` about a route.
pub(crate) fn route_row(route: &RouteConfig) -> [String; 4] {
    let path = route.rewrite_path.as_ref().map(|path| format!(", path becomes {path}"));
    let host = route.rewrite_host.as_ref().map(|host| format!(", host becomes {host}"));
    let reversed = reversed(route);
    let rewrites: String = path.into_iter().chain(host).chain(reversed).collect();
    let rate = route.rate.map_or(String::new(), |rate| format!("; per source {}", requests(rate)));
    let rate = rate + &total_rate::describe(route.total);
    let compression = match &route.compression {
        RouteCompression::OfFrontend => String::new(),
        own => format!("; compression: {own}"),
    };
    let matches = conditions(route);
    let cors = route.cors.as_ref().map_or(String::new(), |rules| format!("; CORS {rules}"));
    let retry = route.retry.as_ref().map_or(String::new(), |rules| format!("; retry: {rules}"));
    let limits = limits(&route.limits) + &cors + &retry;
    let to = format!(
        "{matches}-> {}{rewrites}{}{rate}{compression}{limits}",
        route.action,
        headers(&route.headers)
    );
    [format!("  route {}", route.name), String::new(), String::new(), to]
}

/// Text about the translation of responses, if the route has another one than usual.
fn reversed(route: &RouteConfig) -> Option<String> {
    let rewrites = route.rewrite_path.is_some() || route.rewrite_host.is_some();
    let ReversedFields { locations, cookies } = route.reversed;
    let text = match (locations, cookies) {
        (true, false) => return None,
        (true, true) => "; Location and cookies are translated back",
        (false, true) => "; cookies are translated back, Location is not",
        (false, false) => "; Location is not translated back",
    };
    rewrites.then(|| text.to_owned())
}

/// Text about the limits of a route; empty if it has none of its own.
fn limits(limits: &RouteLimits) -> String {
    let RouteLimits { timeouts, body, access } = limits;
    let access = if access.is_open() { String::new() } else { format!("; access: {access}") };
    let body = body.map_or(String::new(), |body| format!("; at most {body} bytes of a body"));
    format!("{}{body}{access}", describe_own("; timeouts ", timeouts))
}

/// Text about the conditions of a route that its name does not have: `GET, header X-Canary `.
fn conditions(route: &RouteConfig) -> String {
    let RouteConditions { methods, takes_preflight: _, headers, query, cookies, source_len: _ } =
        &route.conditions;
    let named = |kind: &str, all: &[NamedCondition]| {
        all.iter().map(|condition| format!("{kind} {condition}")).collect::<Vec<_>>()
    };
    let hosts = route.hosts.iter().skip(1).map(|host| host.to_string());
    let mut all: Vec<String> = Vec::new();
    let is_named_otherwise = !route.name.contains('/');
    if is_named_otherwise {
        all.push(format!(
            "{}{}",
            route.hosts.first().map_or("*".to_owned(), ToString::to_string),
            route.path
        ));
    }
    all.extend(hosts);
    all.extend((!methods.is_empty()).then(|| methods.join(" or ")));
    all.extend(named("header", headers));
    all.extend(named("query", query));
    all.extend(named("cookie", cookies));
    all.extend((!route.sources.is_empty()).then(|| format!("from {}", list(&route.sources))));
    if all.is_empty() { String::new() } else { format!("[{}] ", all.join(", ")) }
}

/// Text with the names of changed headers; empty if there are none.
pub(super) fn headers(rules: &HeaderRules) -> String {
    let of = |what: &str, rules: &FieldRules| match rules.is_empty() {
        true => String::new(),
        false => format!("; {what} headers: {rules}"),
    };
    of("request", &rules.request) + &of("response", &rules.response)
}
