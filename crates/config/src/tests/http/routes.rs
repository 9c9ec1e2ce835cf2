//! Invalid routes and header rules.

use super::*;

#[test]
fn a_wrong_route_is_told_with_its_place() {
    const AT: &str = "config.toml:5:";
    let route = |keys: &str| of_frontend(&format!("routes = [{{ {keys} }}]"));
    for (keys, diagnostics) in [
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
            "20: frontends.web.routes.host: a route must not contain a port: the frontend determines it, found \"a:80\"",
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
            "20: frontends.web.routes.path: a path must not contain a query, a space, a segment `.` or `..`, or an invalid `%` escape, found \"/a?b\"",
        ),
        (
            "path = '/a', backend = 'apu'",
            "36: frontends.web.routes.backend: no backend \"apu\"; did you mean `api`? (backends: api, site)",
        ),
        (
            "path = '/a'",
            "11: frontends.web.routes.backend: required, but missing: a route needs backend or redirect",
        ),
        (
            "path = '/a', redirect = 'http'",
            "37: frontends.web.routes.redirect: found \"http\"; allowed: https; did you mean `https`?",
        ),
        (
            "path = '/a', backend = 'api', redirect = 'https'",
            "54: frontends.web.routes.redirect: frontends.web.routes.backend is also set (line 5); keep one of them",
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
        assert_eq!(route(keys), [format!("{AT}{diagnostics}")], "{keys}");
    }
    let array = "found a table; allowed: an array of tables, each written as [[frontends.web.routes]]";
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
    let diagnostics = "is unreachable: the route in line 5 matches every request";
    assert_eq!(of_frontend(all), [format!("config.toml:4:11: frontends.web.backend: {diagnostics}")]);
    let redirect = FRONTEND.replace("backend = 'site'", "redirect = 'https'") + all + BACKENDS;
    assert_eq!(errors(&redirect), [format!("config.toml:4:12: frontends.web.redirect: {diagnostics}")]);
    let alone = FRONTEND.replace("backend = 'site'\n", "") + all + BACKENDS;
    assert_eq!(config(&alone).frontends[0].backend, None);
}

#[test]
fn a_header_is_checked_and_its_value_is_not_told() {
    let headers = |rules: &str| of_frontend(&format!("headers = {{ {rules} }}"));
    for (rules, diagnostics) in [
        (
            "request = { set = { 'X A' = 'b' } }",
            "33: frontends.web.headers.request.set.\"X A\": the name of a header consists of letters, digits and hyphens, found \"X A\"",
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
            "40: frontends.web.headers.response.set.X-A: the value of a header must not contain control characters, or begin or end with a space",
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
        assert_eq!(headers(rules), [format!("config.toml:5:{diagnostics}")], "{rules}");
    }
}

#[test]
fn a_server_of_a_route_may_lead_back() {
    let text = FULL.replace("10.0.0.2:80", "127.0.0.1:80");
    assert_eq!(
        errors(&text),
        [
            "config.toml:26:12: backends.api.servers.a.addr: 127.0.0.1:80 would send connections back to frontend \"web\", which listens on 0.0.0.0:80"
        ]
    );
}
