//! Text of `convey check` about the requests of a frontend.

use super::super::limits::requests;
use super::HttpKeys;
use convey_http_core::{ClientAddress, FieldRules};
use convey_model::{ErrorPages, FrontendConfig, HeaderRules, HttpConfig, RouteCompression, RouteConfig};

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
    let rewrites: String = path.into_iter().chain(host).collect();
    let rate = route.rate.map_or(String::new(), |rate| format!("; per source {}", requests(rate)));
    let compression = match &route.compression {
        RouteCompression::OfFrontend => String::new(),
        own => format!("; compression: {own}"),
    };
    let to = format!("-> {}{rewrites}{}{rate}{compression}", route.action, headers(&route.headers));
    [format!("  route {}", route.name), String::new(), String::new(), to]
}

/// Text with the names of changed headers; empty if there are none.
pub(super) fn headers(rules: &HeaderRules) -> String {
    let of = |what: &str, rules: &FieldRules| match rules.is_empty() {
        true => String::new(),
        false => format!("; {what} headers: {rules}"),
    };
    of("request", &rules.request) + &of("response", &rules.response)
}
