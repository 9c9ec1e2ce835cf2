//! Text of `convey check` about the requests of a frontend.

use super::super::limits::requests;
use crate::diff::list;
use convey_http_core::{FieldRules, PathView};
use convey_model::{FrontendConfig, HeaderRules, HttpConfig, HttpLimits, RouteCompression, RouteConfig};

/// Settings of a frontend for requests.
pub(crate) fn describe(frontend: &FrontendConfig, http: &HttpConfig) -> String {
    let believed = match &frontend.trusted_proxies[..] {
        [] => String::new(),
        trusted => format!(", X-Forwarded-* trusted from {}", list(trusted)),
    };
    let forwarded = if http.forwarded { ", Forwarded is sent" } else { "" };
    let traces = if http.begin_traces { ", traces are begun" } else { "" };
    let pages = http.error_pages.statuses().map(|status| status.to_string()).collect::<Vec<_>>();
    let pages = if pages.is_empty() { String::new() } else { format!("; error pages: {}", pages.join(", ")) };
    let compressed =
        http.compression.as_ref().map_or(String::new(), |rules| format!("; compression: {rules}"));
    let (headers, limits) = (headers(&http.headers), http_limits(&http.limits));
    let paths = if http.path_view == PathView::AsSent { ", paths are matched as sent" } else { "" };
    format!("{believed}{forwarded}{traces}{paths}{headers}{limits}{pages}{compressed}")
}

/// Row of a route.
pub(crate) fn route_row(route: &RouteConfig) -> [String; 4] {
    let path = route.rewrite_path.as_ref().map(|path| format!(", path becomes {path}"));
    let host = route.rewrite_host.as_ref().map(|host| format!(", host becomes {host}"));
    let rewrites: String = path.into_iter().chain(host).collect();
    let rate = route.rate.map_or(String::new(), |rate| format!("; a source has {}", requests(rate)));
    let compression = match &route.compression {
        RouteCompression::OfFrontend => String::new(),
        own => format!("; compression: {own}"),
    };
    let to = format!("-> {}{rewrites}{}{rate}{compression}", route.action, headers(&route.headers));
    [format!("  route {}", route.name), String::new(), String::new(), to]
}

/// Names of changed headers; empty if there are none.
fn headers(rules: &HeaderRules) -> String {
    let of = |what: &str, rules: &FieldRules| match rules.is_empty() {
        true => String::new(),
        false => format!("; {what} headers: {rules}"),
    };
    of("request", &rules.request) + &of("response", &rules.response)
}

/// Request limits other than the defaults.
fn http_limits(limits: &HttpLimits) -> String {
    let all = limits.named().into_iter().zip(HttpLimits::default().named());
    let set = all.filter(|(one, usual)| one != usual).map(|((name, value), _)| format!("{name} {value}"));
    let set: Vec<String> = set.collect();
    if set.is_empty() { String::new() } else { format!("; http: {}", set.join(", ")) }
}
