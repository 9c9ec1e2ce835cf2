//! Routes by TLS server name.

use super::super::{Config, describe, parse};
use super::errors;
use convey_http_core::HostPattern;

const FRONTEND: &str = "[frontends.tls]\nlisten_addr = '10.0.0.1:443'\nbackend = 'site'\n";

const BACKENDS: &str =
    "[backends.api.servers.a]\naddr = '10.0.0.2:443'\n[backends.site.servers.a]\naddr = '10.0.0.3:443'\n";

fn routed(routes: &str) -> String {
    format!("{FRONTEND}{routes}\n{BACKENDS}")
}

/// Errors of a file whose line 4 is a route with this text.
fn of_route(route: &str) -> Vec<String> {
    errors(&routed(&format!("routes = [{{ {route} }}]")))
}

fn config(text: &str) -> Config {
    parse("config.toml", text).expect("valid").config
}

#[test]
fn a_frontend_routes_by_name_and_protocol() {
    let text = routed(
        "[[frontends.tls.routes]]\nsni = ['Api.example', '*.api.example']\nalpn = ['h2', 'http/1.1']\nbackend = 'api'\n\
         [[frontends.tls.routes]]\nsni = 'api.example.'\nbackend = 'api'\n\
         [[frontends.tls.routes]]\nalpn = 'acme-tls/1'\nbackend = 'api'",
    );
    let config = config(&text);
    let frontend = &config.frontends[0];
    let names: Vec<&str> = frontend.sni_routes.iter().map(|route| &*route.name).collect();
    let expected = [
        "*+acme-tls/1",
        "*.api.example+h2",
        "*.api.example+http/1.1",
        "Api.example+h2",
        "Api.example+http/1.1",
        "api.example.",
    ];
    assert_eq!(names, expected);
    assert_eq!(frontend.sni_routes[0].host, HostPattern::Any);
    assert_eq!(frontend.sni_routes[3].host, HostPattern::parse("api.example").unwrap());
    assert_eq!(frontend.backends().collect::<Vec<_>>(), ["site", "api"]);
    let described = describe(&config);
    assert!(described.contains("route *+acme-tls/1") && described.contains("-> backend api"), "{described}");
}

#[test]
fn a_frontend_with_routes_needs_no_backend_of_its_own() {
    let route = "routes = [{ sni = 'a', backend = 'api' }, { sni = 'b', backend = 'site' }]";
    let text = routed(route).replace("backend = 'site'\nroutes", "routes");
    assert_eq!(config(&text).frontends[0].backend, None);
    assert!(describe(&config(&text)).contains("-> refused"));
    for without in ["", "routes = []\n"] {
        let text = text.replace(&format!("{route}\n"), without);
        assert_eq!(errors(&text), ["config.toml:1:1: frontends.tls.backend: required, but missing"]);
    }
}

#[test]
fn routes_that_cannot_be_say_why() {
    let at = |column: u32, rest: &str| [format!("config.toml:4:{column}: frontends.tls.routes{rest}")];
    let other_mode = "needs mode = \"http\"; in proxy mode routes match sni and alpn";
    assert_eq!(of_route("host = 'a', backend = 'api'"), at(20, &format!(".host: {other_mode}")));
    assert_eq!(of_route("sni = 'a', backend = 'api', path = '/'"), at(48, &format!(".path: {other_mode}")));
    assert_eq!(
        of_route("backend = 'api'"),
        at(11, ": a route needs sni or alpn, or both; connections without a route go to backend \"site\"")
    );
    assert_eq!(
        of_route("sni = '*', backend = 'api'"),
        at(19, ".sni: found \"*\"; for connections without a route, set the frontend's backend")
    );
    assert_eq!(
        of_route("sni = '10.0.0.1', backend = 'api'"),
        at(19, ".sni: found \"10.0.0.1\", an address; clients send only host names as SNI (RFC 6066)")
    );
    assert_eq!(
        of_route("sni = 'a.*.b', backend = 'api'"),
        at(19, ".sni: `*` matches only the first label, as in \"*.example.com\", found \"a.*.b\"")
    );
    assert_eq!(
        of_route("sni = [], backend = 'api'"),
        at(19, ".sni: the list is empty: remove the key, or name at least one value")
    );
    assert_eq!(
        of_route("alpn = 'http/2', backend = 'api'"),
        at(20, ".alpn: found \"http/2\"; clients offer HTTP/2 as \"h2\"")
    );
    assert_eq!(
        of_route("alpn = '', backend = 'api'"),
        at(
            20,
            ".alpn: found \"\"; allowed: the name of a protocol as clients offer it, such as h2, http/1.1 or acme-tls/1"
        )
    );
    assert_eq!(
        of_route("sni = 'a', backend = 'apu'"),
        at(34, ".backend: no backend \"apu\"; did you mean `api`? (backends: api, site)")
    );
    assert_eq!(
        of_route("snj = 'a', backend = 'api'")[0].split(" (allowed").next(),
        Some("config.toml:4:13: frontends.tls.routes.snj: unknown key; did you mean `sni`?")
    );
}

#[test]
fn two_routes_for_the_same_connections_are_an_error() {
    let text = routed(
        "[[frontends.tls.routes]]\nsni = 'a.example'\nalpn = 'h2'\nbackend = 'api'\n\
         [[frontends.tls.routes]]\nsni = ['b', 'A.Example.']\nalpn = ['x', 'h2']\nbackend = 'site'\n",
    );
    let why = "is unreachable: line 5 has the same sni and alpn";
    assert_eq!(errors(&text), [format!("config.toml:9:13: frontends.tls.routes.sni: {why}")]);
}

#[test]
fn other_modes_and_udp_have_no_such_routes() {
    let route = "routes = [{ sni = 'a', backend = 'api' }]";
    let http = routed(&format!("mode = 'http'\n{route}"));
    let needs = "needs mode = \"proxy\"; in http mode routes match host and path";
    assert_eq!(errors(&http), [format!("config.toml:5:19: frontends.tls.routes.sni: {needs}")]);
    let needs = "needs mode = \"http\" or \"proxy\"; the frontend is in dsr mode";
    let dsr = routed(&format!("mode = 'dsr'\n{route}"));
    assert_eq!(errors(&dsr), [format!("config.toml:5:10: frontends.tls.routes: {needs}")]);
    let udp = routed(&format!("protocol = 'udp'\n{route}"));
    let why = "need protocol = \"tcp\"; the frontend has \"udp\" (line 4)";
    assert_eq!(errors(&udp), [format!("config.toml:5:10: frontends.tls.routes: {why}")]);
}

#[test]
fn a_reload_tells_of_the_routes_that_change() {
    let before = routed("routes = [{ sni = 'a', backend = 'api' }, { sni = 'b', backend = 'api' }]");
    let after = routed("routes = [{ sni = 'b', backend = 'site' }, { alpn = 'h2', backend = 'api' }]");
    let changes = parse("config.toml", &after).unwrap().reload(&config(&before)).1.changes;
    let expected = "frontend tls: - route a, route b backend api -> site, + route *+h2 to backend api";
    assert_eq!(changes, [expected]);
}
