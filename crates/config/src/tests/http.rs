//! Settings of mode http in files.

mod backends;
mod files;
mod limits;
mod responses;
mod routes;

use super::super::files::ReadFiles;
use super::super::{Config, HostNetwork, describe, load_with_lists, parse, validate_mode};
use super::modes::diagnostics;
use super::{errors, warnings};
use convey_http_core::{
    CompressionRules, ContentCoding, HeadLimits, HostPattern, PathPattern, PathPrefix, Redirect,
};
use convey_model::{
    CheckedRequests, ErrorPages, GrpcCheck, HttpVersion, Mode, ProbeKind, RequestRate, RouteAction,
    RouteCompression, RouteConfig, TotalRate,
};

/// Lines 1 to 4 of a file; further lines of the frontend may follow.
pub(super) const FRONTEND: &str =
    "[frontends.web]\nlisten_addr = '10.0.0.1:80'\nmode = 'http'\nbackend = 'site'\n";

pub(super) const BACKENDS: &str =
    "[backends.api.servers.a]\naddr = '10.0.0.2:80'\n[backends.site.servers.a]\naddr = '10.0.0.3:80'\n";

/// File with all settings of mode http.
const FULL: &str = r#"
    [frontends.web]
    listen_addr = "0.0.0.0:80"
    mode = "http"
    backend = "site"
    trusted_proxies = ["10.0.0.0/8"]
    forwarded = true
    [frontends.web.headers]
    request = { set = { X-A = "b" }, add = { X-B = "c" }, remove = ["X-C"] }
    response = { remove = "Server" }
    [[frontends.web.routes]]
    host = "api.localhost"
    path = "/v1"
    backend = "api"
    rewrite_path = "/"
    rewrite_host = "internal.example:8080"
    [frontends.web.routes.headers.request.set]
    X-A = "d"
    [[frontends.web.routes]]
    host = "*.example.com"
    redirect = "https"
    [[frontends.web.routes]]
    path = "/static/"
    backend = "site"
    [backends.api.servers.a]
    addr = "10.0.0.2:80"
    [backends.site]
    send_proxy = "v2"
    servers.a.addr = "10.0.0.3:80"
"#;

pub(super) fn config(text: &str) -> Config {
    parse("config.toml", text).expect("valid").config
}

/// Errors of a frontend with these additional lines.
pub(super) fn of_frontend(lines: &str) -> Vec<String> {
    errors(&format!("{FRONTEND}{lines}\n{BACKENDS}"))
}

#[test]
fn a_frontend_has_routes_redirects_and_headers() {
    assert_eq!(warnings(FULL), [""; 0]);
    let config = config(FULL);
    let frontend = &config.frontends[0];
    assert_eq!((frontend.mode, frontend.backend.as_deref()), (Mode::Http, Some("site")));
    assert_eq!(frontend.backends().collect::<Vec<_>>(), ["site", "api"]);
    let http = frontend.http.as_ref().unwrap();
    assert!(http.forwarded && http.redirect.is_none());
    assert_eq!(http.headers.request.to_string(), "set X-A, add X-B, remove x-c");
    assert_eq!(http.headers.response.to_string(), "remove server");
    let [api, glob, all] = &http.routes[..] else { panic!("{:?}", http.routes) };
    assert_eq!([&glob.name, &all.name, &api.name], ["*.example.com/", "*/static/", "api.localhost/v1"]);
    let RouteConfig { hosts, path, action, rewrite_path, rewrite_host, headers, rate, .. } = api.clone();
    assert_eq!(hosts, [HostPattern::parse("api.localhost").unwrap()]);
    assert_eq!(path, PathPattern::Prefix(PathPrefix::parse("/v1").unwrap()));
    assert_eq!(action, RouteAction::Backend("api".into()));
    assert_eq!(rewrite_path.unwrap().to_string(), "/");
    assert_eq!(rewrite_host.as_deref(), Some("internal.example:8080"));
    assert_eq!(headers.request.to_string(), "set X-A");
    assert_eq!(rate, None);
    assert_eq!(glob.action, RouteAction::Redirect(Redirect::to_https()));
    assert!(glob.path.is_any() && all.hosts.is_empty());
}

#[test]
fn routes_are_described_below_their_frontend() {
    let expected = "\
frontend web              http tcp  0.0.0.0:80  -> backend site, X-Forwarded-* trusted from 10.0.0.0/8, sends Forwarded; request headers: set X-A, add X-B, remove x-c; response headers: remove server
  route api.localhost/v1                        -> backend api, path becomes /, host becomes internal.example:8080; request headers: set X-A
  route *.example.com/                          -> redirect to https
  route */static/                               -> backend site
backend api (round_robin; tcp check every 2s, timeout 1s, rise 2, fall 3; on_down keep)
";
    let text = describe(&config(FULL));
    assert!(text.starts_with(expected), "{text}");
    let rest = |lines: &str| {
        let text = FRONTEND.replace("backend = 'site'\n", lines) + BACKENDS;
        let text = describe(&config(&text));
        text.lines().next().unwrap().rsplit_once("-> ").unwrap().1.to_owned()
    };
    assert_eq!(rest("redirect = 'https'\n"), "redirect to https");
    let text = describe(&config(&FULL.replace("backend = \"site\"\n    trusted", "trusted")));
    assert!(text.starts_with("frontend web              http tcp  0.0.0.0:80  -> 404,"), "{text}");
}

#[test]
fn the_mode_may_be_that_of_the_file() {
    let text = format!("mode = 'http'\n{FRONTEND}{BACKENDS}").replace("mode = 'http'\nbackend", "backend");
    assert!(config(&text).frontends[0].http.is_some());
    // A frontend without a mode has the mode of the command line.
    let routed = text.replace("backend = 'site'", "routes = [{ path = '/a', backend = 'site' }]");
    let loaded = parse("config.toml", &routed).expect("valid").with_default_mode(Mode::Proxy);
    let network =
        HostNetwork { interfaces: &[], own: &Default::default(), hop_to: &|_| None, refusal: &|_| None };
    let problems = validate_mode(&loaded, &network).expect_err("proxy mode sees no paths");
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "config.toml:4:20: frontends.web.routes.path: needs mode = \"http\"; in proxy mode routes match sni and alpn",
        ]
    );
}

#[test]
fn http_keys_are_refused_in_proxy_mode() {
    let keys = "forwarded = false\nredirect = 'https'\nheaders = {}\nhttp = {}\nerror_pages = {}";
    let text = format!("{FRONTEND}{keys}\n{BACKENDS}").replace("mode = 'http'\n", "");
    let needs = "needs mode = \"http\"; the frontend is in proxy mode";
    assert_eq!(
        errors(&text),
        [
            format!("config.toml:4:13: frontends.web.forwarded: {needs}"),
            format!("config.toml:5:12: frontends.web.redirect: {needs}"),
            format!("config.toml:6:11: frontends.web.headers: {needs}"),
            format!("config.toml:7:8: frontends.web.http: {needs}"),
            format!("config.toml:8:15: frontends.web.error_pages: {needs}"),
        ]
    );
}

#[test]
fn a_frontend_says_what_becomes_of_requests() {
    let without = |more: &str| FRONTEND.replace("backend = 'site'\n", more) + BACKENDS;
    assert_eq!(
        errors(&without("")),
        [
            "config.toml:1:1: frontends.web.backend: required, but missing: there are neither routes nor redirect"
        ]
    );
    let more = "redirect = 'https'\nbackend = 'site'\n";
    assert_eq!(
        errors(&without(more)),
        [
            "config.toml:4:12: frontends.web.redirect: frontends.web.backend is also set (line 5); keep one of them"
        ]
    );
    assert_eq!(
        of_frontend("protocol = 'udp'"),
        ["config.toml:5:12: frontends.web.protocol: found \"udp\"; allowed in http mode: tcp"]
    );
}

#[test]
fn a_reload_says_what_changes_of_requests() {
    let reload = |before: &str, after: &str| {
        let diff = parse("config.toml", after).expect("valid").reload(&config(before)).1;
        assert_eq!(diff.needs_restart, [""; 0]);
        diff.changes
    };
    let edited = |from: &str, to: &str| {
        assert!(FULL.contains(from), "{from}");
        reload(FULL, &FULL.replacen(from, to, 1))
    };
    for (from, to, diagnostics) in [
        ("backend = \"api\"", "backend = \"site\"", "route api.localhost/v1 backend api -> backend site"),
        ("rewrite_path = \"/\"", "", "route api.localhost/v1 rewrite_path / -> none"),
        (
            "rewrite_path = \"/\"",
            "rewrite_path = \"/\"\n    rewrite_location = false",
            "route api.localhost/v1 rewrite_location true -> false",
        ),
        (
            "rewrite_path = \"/\"",
            "rewrite_path = \"/\"\n    rewrite_cookies = true",
            "route api.localhost/v1 rewrite_cookies false -> true",
        ),
        ("internal.example:8080", "b", "route api.localhost/v1 rewrite_host internal.example:8080 -> b"),
        ("\"/v1\"", "\"/v2\"", "- route api.localhost/v1, + route api.localhost/v2 to backend api"),
        ("X-A = \"d\"", "X-A = \"e\"", "route api.localhost/v1 request headers: values changed"),
        ("X-A = \"b\"", "X-A = \"e\"", "request headers: values changed"),
        ("remove = \"Server\"", "", "response headers (remove server) -> none"),
        ("forwarded = true", "", "forwarded true -> false"),
        ("forwarded = true", "forwarded = true\n    begin_traces = true", "begin_traces false -> true"),
        ("forwarded = true", "forwarded = true\n    normalize = false", "normalize true -> false"),
        (
            "forwarded = true",
            "forwarded = true\n    compression = true",
            "compression off -> zstd, br, gzip from 1024 bytes",
        ),
        (
            "rewrite_path = \"/\"",
            "rewrite_path = \"/\"\n    compression = false",
            "route api.localhost/v1 compression as the frontend -> off",
        ),
        (
            "    backend = \"site\"\n    trusted",
            "    redirect = \"https\"\n    trusted",
            "backend site -> none, redirect none -> https",
        ),
    ] {
        assert_eq!(edited(from, to), [format!("frontend web: {diagnostics}")], "{from}");
    }
    let proxy = format!("{FRONTEND}{BACKENDS}").replace("mode = 'http'\n", "");
    let http = format!("{FRONTEND}{BACKENDS}")
        .replace("backend = 'site'", "routes = [{ path = '/a', backend = 'site' }]");
    assert_eq!(
        reload(&proxy, &http),
        ["frontend web: mode proxy -> http, backend site -> none, + route */a to backend site"]
    );
    let none = "[frontends.other]\nlisten_addr = '10.0.0.1:81'\nbackend = 'api'\n".to_owned() + BACKENDS;
    assert_eq!(
        reload(&none, &(none.clone() + &http.replace(BACKENDS, ""))),
        ["frontend web: added (http, 10.0.0.1:80 -> backend site)"]
    );
}
