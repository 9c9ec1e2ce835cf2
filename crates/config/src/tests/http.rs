//! Settings of mode http in files.

use super::super::files::ReadFiles;
use super::super::{Config, HostNetwork, describe, load_with_lists, parse, validate_mode};
use super::modes::told;
use super::{errors, warnings};
use convey_http_core::{CompressionRules, ContentCoding, HeadLimits, HostPattern, PathPrefix};
use convey_model::{
    CheckedRequests, ErrorPages, HttpVersion, Mode, Redirect, RequestRate, RouteAction, RouteCompression,
    RouteConfig,
};

/// Lines 1 to 5 of a file; further lines of the frontend may follow.
pub(super) const FRONTEND: &str =
    "[frontends.web]\nlisten_addr = '10.0.0.1:80'\nmode = 'http'\nbackend = 'site'\n";

pub(super) const BACKENDS: &str =
    "[backends.api.servers.a]\naddr = '10.0.0.2:80'\n[backends.site.servers.a]\naddr = '10.0.0.3:80'\n";

/// File with all settings.
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
    let [glob, all, api] = &http.routes[..] else { panic!("{:?}", http.routes) };
    assert_eq!([&glob.name, &all.name, &api.name], ["*.example.com/", "*/static/", "api.localhost/v1"]);
    let RouteConfig { host, path, action, rewrite_path, rewrite_host, headers, rate, .. } = api.clone();
    assert_eq!(host, HostPattern::parse("api.localhost").unwrap());
    assert_eq!(path, PathPrefix::parse("/v1").unwrap());
    assert_eq!(action, RouteAction::Backend("api".into()));
    assert_eq!(rewrite_path.as_deref(), Some("/"));
    assert_eq!(rewrite_host.as_deref(), Some("internal.example:8080"));
    assert_eq!(headers.request.to_string(), "set X-A");
    assert_eq!(rate, None);
    assert_eq!(glob.action, RouteAction::Redirect(Redirect::Https));
    assert!(glob.path.is_empty() && all.host == HostPattern::Any);
}

#[test]
fn routes_are_described_below_their_frontend() {
    let expected = "\
frontend web              http tcp  0.0.0.0:80  -> backend site, X-Forwarded-* trusted from 10.0.0.0/8, Forwarded is sent; request headers: set X-A, add X-B, remove x-c; response headers: remove server
  route *.example.com/                          -> redirect to https
  route */static/                               -> backend site
  route api.localhost/v1                        -> backend api, path becomes /, host becomes internal.example:8080; request headers: set X-A
backend api (round_robin; tcp check every 2s, timeout 1s, rise 2, fall 3; on down keep)
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
    // A frontend without a mode has that of the command line.
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
            "config.toml:4:12: frontends.web.redirect: frontends.web.backend is set too (line 5); keep one of them"
        ]
    );
    assert_eq!(
        of_frontend("protocol = 'udp'"),
        ["config.toml:5:12: frontends.web.protocol: found \"udp\"; in http mode allowed: tcp"]
    );
}

#[test]
fn health_check_speaks_and_judges_as_requests_of_its_frontends() {
    let of = |mode: &str, other: &str| {
        let other =
            other.replace("FRONTEND", "[frontends.other]\nlisten_addr = '127.0.0.1:81'\nbackend = 'site'\n");
        format!(
            "{}[frontends.web.http]\nmax_response_head_fields = 10\n{other}[backends.site]\nprotocol = 'h2'\n\
             health_check.kind = 'http'\nservers.a.addr = '10.0.0.9:80'\n",
            FRONTEND.replace("10.0.0.1:80", "127.0.0.1:80").replace("mode = 'http'", mode)
        )
    };
    let requests = |text: &str| config(text).backends[0].health_check.requests;
    let expected = |bytes, fields| {
        Some(CheckedRequests { version: HttpVersion::H2, response_head: HeadLimits { bytes, fields } })
    };
    assert_eq!(requests(&of("mode = 'http'", "")), expected(65_535, 10));
    let other = "FRONTENDmode = 'http'\n[frontends.other.http]\nmax_response_head_size = 2000\nmax_response_head_fields = 20\n";
    assert_eq!(requests(&of("mode = 'http'", other)), expected(65_535, 20));
    let mixed = of("mode = 'http'", "FRONTENDmode = 'proxy'\n").replace("protocol = 'h2'\n", "");
    assert_eq!(requests(&mixed), None);
}

#[test]
fn backend_sets_protocol_and_request_hash_in_mode_http() {
    let of = |lines: &str| format!("{FRONTEND}[backends.site]\n{lines}\nservers.a.addr = '10.0.0.9:80'\n");
    let backend = &config(&of("protocol = 'h2'\nalgorithm = 'ring'\nhash = 'cookie:sid'")).backends[0];
    assert_eq!((backend.protocol, &*backend.hash_name()), (HttpVersion::H2, "cookie:sid"));
    let proxied = of("protocol = 'auto'\nalgorithm = 'ring'\nhash = 'header:X-User'");
    let proxied = proxied.replace("mode = 'http'\n", "").replace("10.0.0.1:80", "127.0.0.1:80");
    assert_eq!(
        told(&proxied, Mode::Proxy).unwrap_err(),
        [
            "config.toml:5:12: backends.site.protocol: is for mode http; frontend \"web\" is in proxy mode",
            "config.toml:7:8: backends.site.hash: found \"header:X-User\", which only mode http sees; frontend \"web\" is in \
             proxy mode: allowed are source, tuple, quic_cid",
        ]
    );
    let told_of =
        |lines: &str| told(&of(lines).replace("10.0.0.1:80", "127.0.0.1:80"), Mode::Http).unwrap_err();
    assert_eq!(
        told_of("protocol = 'h2'\nsend_proxy = 'v1'"),
        [
            "config.toml:6:12: backends.site.protocol: \"h2\" lets clients share connections, but send_proxy (line 7) names \
             one client at the start of each; keep one of them",
        ]
    );
    assert_eq!(
        errors(&of("hash = 'cookie:'")),
        [
            "config.toml:6:8: backends.site.hash: found \"cookie:\"; allowed: source, tuple, quic_cid, header:NAME, cookie:NAME"
        ]
    );
}

#[test]
fn a_wrong_route_is_told_with_its_place() {
    const AT: &str = "config.toml:5:";
    let route = |keys: &str| of_frontend(&format!("routes = [{{ {keys} }}]"));
    for (keys, told) in [
        (
            "host = 'a b', backend = 'api'",
            "20: frontends.web.routes.host: expected a host name, an address, or a glob like \"*.example.com\", found \"a b\"",
        ),
        (
            "host = 'a.*', backend = 'api'",
            "20: frontends.web.routes.host: `*` matches only the first label, as in \"*.example.com\", found \"a.*\"",
        ),
        (
            "host = 'a:80', backend = 'api'",
            "20: frontends.web.routes.host: a route has no port: its frontend listens on one, found \"a:80\"",
        ),
        (
            "host = 7, backend = 'api'",
            "20: frontends.web.routes.host: found 7; allowed: a host, such as www.example.com, or a glob, such as *.example.com",
        ),
        (
            "path = 'v1', backend = 'api'",
            "20: frontends.web.routes.path: a path begins with `/`, found \"v1\"",
        ),
        (
            "path = 7, backend = 'api'",
            "20: frontends.web.routes.path: found 7; allowed: a path that begins with `/`, such as /v1",
        ),
        (
            "path = '/a?b', backend = 'api'",
            "20: frontends.web.routes.path: a path has no query, no space, no `.` or `..` segment and no broken `%`, found \"/a?b\"",
        ),
        (
            "path = '/a', backend = 'apu'",
            "36: frontends.web.routes.backend: no backend \"apu\"; did you mean `api`? (backends: api, site)",
        ),
        (
            "path = '/a'",
            "11: frontends.web.routes.backend: required, but missing: a route has backend or redirect",
        ),
        (
            "path = '/a', redirect = 'http'",
            "37: frontends.web.routes.redirect: found \"http\"; allowed: https; did you mean `https`?",
        ),
        (
            "path = '/a', backend = 'api', redirect = 'https'",
            "54: frontends.web.routes.redirect: frontends.web.routes.backend is set too (line 5); keep one of them",
        ),
        (
            "path = '/a', backend = 'api', rewrite_path = 'b'",
            "58: frontends.web.routes.rewrite_path: a path begins with `/`, found \"b\"",
        ),
        (
            "path = '/a', backend = 'api', rewrite_host = ''",
            "58: frontends.web.routes.rewrite_host: found \"\"; allowed: a host, such as www.example.org or app.internal:8080",
        ),
        (
            "pat = '/a', backend = 'api'",
            "13: frontends.web.routes.pat: unknown key; did you mean `path`? (allowed here: alpn, backend, compression, headers, host, path, redirect, request_burst, requests_per_source, rewrite_host, rewrite_path, sni)",
        ),
    ] {
        assert_eq!(route(keys), [format!("{AT}{told}")], "{keys}");
    }
    let array = "found a table; allowed: an array of tables, each of them [[frontends.web.routes]]";
    assert_eq!(
        of_frontend("routes = { path = '/a', backend = 'api' }"),
        [format!("{AT}10: frontends.web.routes: {array}")]
    );
    assert_eq!(
        of_frontend("routes = ['/a']"),
        [format!("{AT}11: frontends.web.routes: found \"/a\"; allowed: a table")]
    );
    let odd = format!(
        "{FRONTEND}routes = [{{ path = '/a', redirect = 'https', rewrite_path = '/b' }}]\n{BACKENDS}"
    );
    let expected = "config.toml:5:61: frontends.web.routes.rewrite_path: has no effect with redirect";
    assert!(warnings(&odd).contains(&expected.to_owned()), "{:?}", warnings(&odd));
}

#[test]
fn a_route_that_no_request_could_take_is_refused() {
    let routes = "[[frontends.web.routes]]\nhost = 'a.example'\npath = '/v1/'\nbackend = 'api'\n\
                  [[frontends.web.routes]]\nhost = 'A.Example.'\npath = '/%761'\nbackend = 'site'\n";
    assert_eq!(
        of_frontend(routes),
        ["config.toml:9:1: frontends.web.routes: is unreachable: line 5 has the same host and path"]
    );
    let all = "[[frontends.web.routes]]\nbackend = 'api'\n";
    let told = "is unreachable: the route in line 5 takes every request";
    assert_eq!(of_frontend(all), [format!("config.toml:4:11: frontends.web.backend: {told}")]);
    let redirect = FRONTEND.replace("backend = 'site'", "redirect = 'https'") + all + BACKENDS;
    assert_eq!(errors(&redirect), [format!("config.toml:4:12: frontends.web.redirect: {told}")]);
    let alone = FRONTEND.replace("backend = 'site'\n", "") + all + BACKENDS;
    assert_eq!(config(&alone).frontends[0].backend, None);
}

#[test]
fn a_header_is_checked_and_its_value_is_not_told() {
    let headers = |rules: &str| of_frontend(&format!("headers = {{ {rules} }}"));
    for (rules, told) in [
        (
            "request = { set = { 'X A' = 'b' } }",
            "33: frontends.web.headers.request.set.\"X A\": a header's name has letters, digits and hyphens, found \"X A\"",
        ),
        (
            "request = { add = { Host = 'b' } }",
            "33: frontends.web.headers.request.add.Host: convey sets this header itself, found \"Host\"",
        ),
        (
            "request = { set = { X-Forwarded-For = 'b' } }",
            "33: frontends.web.headers.request.set.X-Forwarded-For: convey sets this header itself, found \"X-Forwarded-For\"",
        ),
        (
            "response = { set = { X-A = ' b' } }",
            "40: frontends.web.headers.response.set.X-A: a header's value has no control characters, and no spaces around it",
        ),
        (
            "response = { remove = ['X-A', 'Connection'] }",
            "43: frontends.web.headers.response.remove: convey sets this header itself, found \"Connection\"",
        ),
        (
            "response = { add = { X-A = 1 } }",
            "40: frontends.web.headers.response.add.X-A: found 1; allowed: a string",
        ),
        (
            "request = { sets = { X-A = 'b' } }",
            "25: frontends.web.headers.request.sets: unknown key; did you mean `set`? (allowed here: add, keep_underscores, remove, set)",
        ),
    ] {
        assert_eq!(headers(rules), [format!("config.toml:5:{told}")], "{rules}");
    }
}

#[test]
fn a_server_of_a_route_may_lead_back() {
    let text = FULL.replace("10.0.0.2:80", "127.0.0.1:80");
    assert_eq!(
        errors(&text),
        [
            "config.toml:26:12: backends.api.servers.a.addr: 127.0.0.1:80 is frontend \"web\" itself, which listens on 0.0.0.0:80"
        ]
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
    for (from, to, told) in [
        ("backend = \"api\"", "backend = \"site\"", "route api.localhost/v1 backend api -> backend site"),
        ("rewrite_path = \"/\"", "", "route api.localhost/v1 rewrite_path / -> none"),
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
        assert_eq!(edited(from, to), [format!("frontend web: {told}")], "{from}");
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

#[test]
fn request_rates_are_set_for_frontend_and_route() {
    let limited = |of_frontend: &str, of_route: &str| {
        let routes = format!("routes = [{{ path = '/a', backend = 'api'{of_route} }}]\n");
        format!("{FRONTEND}{routes}{of_frontend}{BACKENDS}")
    };
    let limits = "limits = { requests_per_source = 20, request_burst = 50, ipv4_prefix = 24 }\n";
    let text = limited(limits, ", requests_per_source = 5");
    assert_eq!(warnings(&text), [""; 0]);
    let (before, after) = (config(&limited("", "")), config(&text));
    let http = after.frontends[0].http.as_ref().unwrap();
    let number = std::num::NonZeroU32::new;
    let of = |rate, burst: u32| Some(RequestRate { per_source: number(rate).unwrap(), burst: number(burst) });
    assert_eq!((http.rate, http.routes[0].rate), (of(20, 50), of(5, 0)));
    assert_eq!(
        parse("config.toml", &text).unwrap().reload(&before).1.changes,
        ["frontend web: limits.ipv4_prefix 32 -> 24, route */a requests_per_source none -> 5, \
          limits.requests_per_source none -> 20, limits.request_burst automatic -> 50"]
    );
    let shown = describe(&after);
    assert!(shown.contains("-> backend site; a source has 20 requests a second\n"), "{shown}");
    assert!(shown.contains("-> backend api; a source has 5 requests a second\n"), "{shown}");
    let only_of_route = limited("limits.ipv4_prefix = 24\n", ", requests_per_source = 5");
    assert_eq!(warnings(&only_of_route), [""; 0]);
}

#[test]
fn a_limit_of_requests_without_effect_is_named() {
    let lines = "routes = [{ redirect = 'https', path = '/a', requests_per_source = 5 }]\n\
        limits = { request_burst = 5, ipv6_prefix = 48 }\n";
    let told = warnings(&format!("{FRONTEND}{lines}{BACKENDS}"));
    assert_eq!(
        told,
        [
            "config.toml:5:68: frontends.web.routes.requests_per_source: has no effect with redirect",
            "config.toml:6:28: frontends.web.limits.request_burst: has no effect without requests_per_source",
            "config.toml:6:45: frontends.web.limits.ipv6_prefix: has no effect without connections_per_source or rate_per_source",
            "config.toml:7:11: backends.api: no frontend uses this backend",
        ]
    );
    let proxied =
        format!("{FRONTEND}limits.requests_per_source = 5\n{BACKENDS}").replace("mode = 'http'\n", "");
    assert_eq!(
        errors(&proxied),
        [
            "config.toml:4:30: frontends.web.limits.requests_per_source: needs mode = \"http\"; the frontend is in proxy mode"
        ]
    );
}

#[test]
fn a_frontend_limits_what_a_request_and_its_connection_may_take() {
    let limited = |keys: &str| {
        format!("{FRONTEND}http = {{ {keys} }}\nroutes = [{{ path = '/a', backend = 'api' }}]\n{BACKENDS}")
    };
    let keys = "max_head_size = 65535, max_head_fields = 256, max_response_head_size = 2000, max_response_head_fields = 1000, head_timeout = 0.5, max_body_size = 1, min_body_rate = 9, \
        keep_alive_timeout = '5m', max_requests = 1, max_streams = 1000";
    let (before, after) = (config(&limited("")), config(&limited(keys)));
    assert_eq!(before.frontends[0].http_limits(), Default::default());
    let shown = "max_head_size 65535, max_head_fields 256, max_response_head_size 2000, max_response_head_fields 1000, head_timeout 500ms, max_body_size 1, min_body_rate 9, \
        keep_alive_timeout 300s, max_requests 1, max_streams 1000";
    assert!(describe(&after).contains(&format!("-> backend site; http: {shown}\n")), "{}", describe(&after));
    assert_eq!(
        parse("config.toml", &limited(keys)).unwrap().reload(&before).1.changes,
        [
            "frontend web: http.max_head_size 16384 -> 65535, http.max_head_fields 100 -> 256, http.max_response_head_size 65535 -> 2000, http.max_response_head_fields 256 -> 1000, http.head_timeout 10s -> 500ms, \
          http.max_body_size none -> 1, http.min_body_rate none -> 9, http.keep_alive_timeout 60s -> 300s, \
          http.max_requests 10000 -> 1, http.max_streams 100 -> 1000"
        ]
    );
    for (key, allowed) in [
        ("max_head_size = 1023", "an integer from 1024 to 65535"),
        ("max_head_fields = 257", "an integer from 1 to 256"),
        ("max_response_head_size = 65536", "an integer from 1024 to 65535"),
        ("max_response_head_fields = 1001", "an integer from 1 to 1000"),
        ("max_body_size = 0", "an integer from 1 to 9223372036854775807"),
        ("max_streams = 1001", "an integer from 1 to 1000"),
    ] {
        let told = errors(&limited(key));
        assert!(told.len() == 1 && told[0].ends_with(&format!("allowed: {allowed}")), "{told:?}");
    }
}

#[test]
fn error_pages_are_read_with_the_file_that_names_them() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("503.html"), "<p>Back soon</p>").unwrap();
    std::fs::write(at("long.txt"), vec![b'x'; ErrorPages::MAX_SIZE + 1]).unwrap();
    let write = |pages: &str| {
        let more = "routes = [{ path = '/a', backend = 'api' }]\n";
        std::fs::write(at("config.toml"), format!("{FRONTEND}error_pages = {{ {pages} }}\n{more}{BACKENDS}"))
            .unwrap();
    };
    let mut lists = ReadFiles::default();
    write("503 = '503.html', 502 = '503.html'");
    let before = load_with_lists(&at("config.toml"), &mut lists, None).unwrap().config;
    let page = before.frontends[0].error_page(503).unwrap();
    assert_eq!((&*page.body, page.path.clone()), (&b"<p>Back soon</p>"[..], at("503.html")));
    assert_eq!(lists.named.len(), 1, "it is watched, and read once");
    assert!(describe(&before).contains("-> backend site; error pages: 502, 503\n"), "{}", describe(&before));
    std::fs::write(at("503.html"), "<p>Back</p>").unwrap();
    write("503 = '503.html'");
    let after = load_with_lists(&at("config.toml"), &mut lists, None).unwrap();
    assert_eq!(
        after.reload(&before).1.changes,
        [format!(
            "frontend web: error_pages.502 {} -> none, error_pages.503: content changed",
            at("503.html").display()
        )]
    );
    write("200 = '503.html', 502 = 'long.txt', 503 = 'gone.html'");
    let told = load_with_lists(&at("config.toml"), &mut lists, None).unwrap_err().to_string();
    for expected in [
        "5:17: frontends.web.error_pages.200: convey sends no response with status \"200\"; allowed: 400, 403,"
            .to_owned(),
        format!(
            "5:41: frontends.web.error_pages.502: {} has 65537 bytes; an error page has 65536 at most",
            at("long.txt").display()
        ),
        format!(
            "5:59: frontends.web.error_pages.503: cannot read {}: No such file",
            at("gone.html").display()
        ),
    ] {
        assert!(told.contains(&expected), "{expected}\n{told}");
    }
}

#[test]
fn a_backend_has_servers_or_serves_files() {
    let of = |lines: &str| format!("{FRONTEND}[backends.site]\n{lines}\n");
    let all = "files = 'www/'\ntimeouts.idle = 9\n[backends.site.file_options]\nindex = ['index.html', 'index.txt']\n\
               listing = true\ndot_files = true\nprecompressed = false\nnot_found = '/404.html'\n\
               cache_control = [{ match = '*.css', value = 'max-age=60' }]";
    let config = config(&of(all));
    let files = config.backends[0].files.as_ref().unwrap();
    assert_eq!(
        (files.root.to_str(), &*files.index),
        (Some("www"), &["index.html".to_owned(), "index.txt".into()][..])
    );
    assert_eq!(
        (files.not_found.as_deref(), files.cache_control_of("a/b.css")),
        (Some("404.html"), Some("max-age=60"))
    );
    let line = "backend site (files www, index index.html or index.txt, listed, with dot files, precompressed forms \
                ignored, 404 is 404.html, 1 rule for caches; idle 9s)";
    assert!(describe(&config).contains(line), "{}", describe(&config));
    let at = "config.toml:";
    for (lines, expected) in [
        ("files = ''", "6:9: backends.site.files: found \"\"; allowed: a directory, such as /srv/www"),
        (
            "files = '/a'\nalgorithm = 'ring'",
            "7:13: backends.site.algorithm: is for servers, and this backend has files (line 6); keep one of them",
        ),
        (
            "files = '/a'\nservers.a.addr = '10.0.0.2:80'",
            "7:18: backends.site.servers.a.addr: backends.site.files is set too (line 6): a backend serves files or has servers",
        ),
        (
            "file_options.listing = true\nservers.a.addr = '10.0.0.2:80'",
            "6:1: backends.site.file_options: needs files, such as files = \"/srv/www\"",
        ),
        (
            "files = '/a'\nfile_options.not_found = '../404.html'",
            "7:26: backends.site.file_options.not_found: found \"../404.html\"; allowed: a file of the root, such as /404.html",
        ),
        (
            "files = '/a'\nfile_options.cache_control = [{ match = '[', value = 'no-store' }]",
            "7:41: backends.site.file_options.cache_control.match: found \"[\"; allowed: a glob, such as *.css or assets/**: \
             invalid range pattern",
        ),
    ] {
        assert_eq!(errors(&of(lines)), [format!("{at}{expected}")], "{lines}");
    }
    let proxied = of("files = '/a'").replace("mode = 'http'\n", "").replace("10.0.0.1:80", "127.0.0.1:80");
    assert_eq!(
        told(&proxied, Mode::Proxy).unwrap_err(),
        ["config.toml:5:9: backends.site.files: is for mode http; frontend \"web\" is in proxy mode"]
    );
}

#[test]
fn unreadable_files_root_is_reported_at_load() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("www")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let told_of = |root: &str| {
        std::fs::write(at("config.toml"), format!("{FRONTEND}[backends.site]\nfiles = '{root}'\n")).unwrap();
        load_with_lists(&at("config.toml"), &mut ReadFiles::default(), None)
            .map(|loaded| loaded.config)
            .map_err(|error| error.to_string())
    };
    assert_eq!(told_of("www").unwrap().backends[0].files.as_ref().unwrap().root, at("www"));
    for (root, why) in [("none", "No such file or directory"), ("file", "Not a directory")] {
        let told = told_of(root).unwrap_err();
        let expected = format!(":6:9: backends.site.files: cannot serve {}: {why}", at(root).display());
        assert!(told.contains(&expected), "{told}");
    }
}

#[test]
fn compression_is_a_switch_or_a_table() {
    let compression = |lines: &str| {
        let text = format!("{FRONTEND}{lines}\n{BACKENDS}");
        config(&text).frontends[0].http.clone().unwrap().compression
    };
    assert_eq!(compression(""), None);
    assert_eq!(compression("compression = false"), None);
    assert_eq!(compression("compression = true"), Some(CompressionRules::default()));
    assert_eq!(compression("[frontends.web.compression]"), Some(CompressionRules::default()));
    let table = "compression = { types = ['text/HTML', '*+json'], min_size = 0, encodings = ['gzip', 'zstd'], \
                 with_credentials = true }";
    let rules = compression(table).unwrap();
    assert_eq!(rules.encodings, [ContentCoding::Gzip, ContentCoding::Zstd]);
    assert_eq!(rules.to_string(), "gzip, zstd from 0 bytes of text/html, *+json, with credentials");
    let text = describe(&config(&format!("{FRONTEND}{table}\n{BACKENDS}")));
    assert!(text.lines().next().unwrap().ends_with(&format!("; compression: {rules}")), "{text}");
    for (lines, expected) in [
        (
            "compression = 'on'",
            "5:15: frontends.web.compression: found \"on\"; allowed: true, false, or a table, such as { min_size = 512 }",
        ),
        (
            "compression = { types = 'html' }",
            "5:25: frontends.web.compression.types: found \"html\"; allowed: a media type, such as text/html, text/* or *+json",
        ),
        (
            "compression = { types = [] }",
            "5:25: frontends.web.compression.types: found an empty array; allowed: one value or an array of them",
        ),
        (
            "compression = { encodings = 'deflate' }",
            "5:29: frontends.web.compression.encodings: found \"deflate\"; allowed: zstd, br, gzip",
        ),
        (
            "compression = { encodings = ['br', 'br'] }",
            "5:36: frontends.web.compression.encodings: has \"br\" twice",
        ),
        (
            "compression = { min_size = -1 }",
            "5:28: frontends.web.compression.min_size: found -1; allowed: an integer from 0 to 4294967295",
        ),
        (
            "compression = { minsize = 1 }",
            "5:17: frontends.web.compression.minsize: unknown key; did you mean `min_size`? (allowed here: encodings, min_size, types, with_credentials)",
        ),
    ] {
        assert_eq!(of_frontend(lines), [format!("config.toml:{expected}")], "{lines}");
    }
    let proxy = format!("{FRONTEND}compression = true\n{BACKENDS}").replace("mode = 'http'\n", "");
    let said = errors(&proxy);
    assert!(said.len() == 1 && said[0].contains("frontends.web.compression: "), "{said:?}");
}

#[test]
fn route_inherits_compression_unless_it_sets_its_own() {
    let of_route = |frontend: &str, route: &str| {
        let routes = format!("{frontend}\n[[frontends.web.routes]]\npath = '/a'\nbackend = 'api'\n{route}");
        let config = config(&format!("{FRONTEND}{routes}\n{BACKENDS}"));
        (config.frontends[0].http.as_ref().unwrap().routes[0].compression.clone(), describe(&config))
    };
    let own = CompressionRules { min_size: 7, ..CompressionRules::default() };
    let table = "compression = { min_size = 7 }";
    for (frontend, route, expected) in [
        ("", "", RouteCompression::OfFrontend),
        (table, "", RouteCompression::OfFrontend),
        (table, "compression = true", RouteCompression::OfFrontend),
        (table, "compression = false", RouteCompression::Off),
        ("", "compression = true", RouteCompression::Rules(CompressionRules::default())),
        ("compression = true", table, RouteCompression::Rules(own)),
    ] {
        let (compression, described) = of_route(frontend, route);
        let shown = format!("-> backend api; compression: {compression}");
        assert_eq!(described.contains(&shown), compression != RouteCompression::OfFrontend, "{described}");
        assert_eq!(compression, expected, "{frontend} / {route}");
    }
    let redirect = "[[frontends.web.routes]]\npath = '/a'\nredirect = 'https'\ncompression = true";
    let told = warnings(&format!("{FRONTEND}{redirect}\n{BACKENDS}"));
    let expected = "config.toml:8:15: frontends.web.routes.compression: has no effect with redirect";
    assert_eq!(told[0], expected, "{told:?}");
}
