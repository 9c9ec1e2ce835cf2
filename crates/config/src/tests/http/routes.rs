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
            "11: frontends.web.routes.backend: required, but missing: a route needs backend, backends, redirect or respond",
        ),
        (
            "path = '/a', redirect = 'http'",
            "37: frontends.web.routes.redirect: found \"http\"; allowed: \"https\", or a table such as { host = \"www.example.com\", status = 301 }",
        ),
        (
            "path = '/a', backend = 'api', redirect = 'https'",
            "54: frontends.web.routes.redirect: backend is also set (line 5); keep one of them",
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
            "13: frontends.web.routes.pat: unknown key; did you mean `path`? (allowed here: access, alpn, backend, backends, compression, cookies_match, cors, headers, headers_match, host, max_body_size, method, name, path, path_exact, path_regex, query_match, redirect, request_burst, requests_per_second, requests_per_second_burst, requests_per_source, respond, retry, rewrite_cookies, rewrite_host, rewrite_location, rewrite_path, sni, source, timeouts)",
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
    let expected =
        "config.toml:5:61: frontends.web.routes.rewrite_path: has no effect with redirect or respond";
    assert!(warnings(&odd).contains(&expected.to_owned()), "{:?}", warnings(&odd));
    let idle = format!(
        "{FRONTEND}routes = [{{ path = '/a', backend = 'api', rewrite_cookies = true }}]\n{BACKENDS}"
    );
    let expected = "config.toml:5:61: frontends.web.routes.rewrite_cookies: has no effect without rewrite_path or rewrite_host";
    assert!(warnings(&idle).contains(&expected.to_owned()), "{:?}", warnings(&idle));
}

#[test]
fn redirect_to_a_path_below_its_own_needs_another_route_there() {
    let grow = "{ path = '/grow', redirect = { rewrite_path = '/grow/more' } }";
    let endless = "is a redirect without end, because /grow/more is below /grow, and is redirected again; use path_exact, or add a route for /grow/more";
    let told = of_frontend(&format!("routes = [{grow}]"));
    let expected = format!("config.toml:5:57: frontends.web.routes.redirect.rewrite_path: {endless}");
    assert_eq!(told, [expected]);
    for wrong in [
        "{ redirect = { rewrite_path = '/new' } }, { path = '/other', backend = 'api' }",
        "{ path = '/a', redirect = { rewrite_path = '/%61//b', status = 301 } }",
        "{ path = '/a', redirect = { rewrite_path = '/a/b' } }, { path = '/a/bc', backend = 'api' }",
    ] {
        let told = of_frontend(&format!("routes = [{wrong}]"));
        assert!(told.len() == 1 && told[0].contains("is a redirect without end"), "{wrong}: {told:?}");
    }
    for right in [
        &*format!("{grow}, {{ path = '/grow/more', backend = 'api' }}"),
        "{ path = '/a', redirect = { rewrite_path = '/a/b' } }, { path_regex = '^/a/b/', backend = 'api' }",
        "{ path = '/a', redirect = { rewrite_path = '/ab' } }",
        "{ path = '/a', redirect = { rewrite_path = '/a/' } }",
        "{ path_exact = '/a', redirect = { rewrite_path = '/a/b' } }",
        "{ path = '/a', redirect = { host = 'b.example', rewrite_path = '/a/b' } }",
        "{ path = '/a/b', redirect = { rewrite_path = '/a' } }",
    ] {
        warnings(&format!("{FRONTEND}routes = [{right}]\n{BACKENDS}"));
    }
    let default = FRONTEND.replace("backend = 'site'", "redirect = { rewrite_path = '/new' }");
    let routes = "[[frontends.web.routes]]\npath = '/api'\nbackend = 'api'\n\
                  [[frontends.web.routes]]\npath = '/site'\nbackend = 'site'\n";
    let told = errors(&(default + routes + BACKENDS));
    assert!(told.len() == 1 && told[0].contains("/new is below /,"), "{told:?}");
}

#[test]
fn path_that_no_request_has_is_warned_about() {
    let warned = |keys: &str| {
        warnings(&format!("{FRONTEND}routes = [{{ {keys}, backend = 'api' }}]\n{BACKENDS}"))
            .into_iter()
            .filter(|warning| warning.contains("frontends.web.routes.") && !warning.contains("unused"))
            .collect::<Vec<_>>()
    };
    let cases = [
        (
            "path_regex = '^admin'",
            "path_regex: matches no path, because a path begins with `/`: write ^/admin",
        ),
        ("path_regex = '^/caf%c3%A9'", "path_regex: has %c3, which no path has: a path_regex sees it as %C3"),
        ("path_regex = '^/%40fs'", "path_regex: has %40, which no path has: a path_regex sees it as @"),
        ("path_regex = '^/a%2Fb'", "path_regex: has %2F, which no path has: a path_regex sees it as /"),
        (
            "path_regex = '//'",
            "path_regex: has //, which no path has: slashes in a row count as one; use /, or set normalize = false",
        ),
        (
            r"path_regex = '^/a\//b'",
            "path_regex: has //, which no path has: slashes in a row count as one; use /, or set normalize = false",
        ),
        ("path_regex = '^/é'", "path_regex: has é, which no path has: a path_regex sees it as %C3%A9"),
        (
            "path = '/a', rewrite_path = '/$1'",
            "rewrite_path: $1 is plain text here: only a path_regex has groups",
        ),
    ];
    for (keys, expected) in cases {
        let found = warned(keys);
        assert!(found.len() == 1 && found[0].ends_with(expected), "{keys}: {found:?}");
    }
    for keys in [
        "path_regex = '^/admin'",
        "path_regex = 'admin'",
        "path_regex = '^a|^/b'",
        "path_regex = '^a?/b'",
        "path_regex = '^/%C3%A9%25'",
        "path_regex = '(?i)^/%c3%a9'",
        "path_regex = '^/(a)', rewrite_path = '/$1'",
        "path = '/a', rewrite_path = '/$'",
        "path_regex = '^/a//?b'",
        "path_regex = '^/a//*b'",
    ] {
        assert_eq!(warned(keys), [""; 0], "{keys}");
    }
}

#[test]
fn path_glob_that_matches_no_path_is_warned_about() {
    let warned = |glob: &str| {
        let rule = format!("headers.response.when = [{{ path_glob = '{glob}', set = {{ X-A = 'b' }} }}]");
        let all = warnings(&format!("{FRONTEND}{rule}\n{BACKENDS}"));
        all.into_iter().filter(|warning| warning.contains("path_glob: ")).collect::<Vec<_>>()
    };
    for (glob, expected) in [
        ("/é/*", r#"has "é", which no path has: a path_glob sees it as %C3%A9"#),
        ("/sp ace/*", r#"has " ", which no path has: a path_glob sees it as %20"#),
        ("/%40fs/*", r#"has "%40", which no path has: a path_glob sees it as @"#),
        ("/a/%c3%A9", r#"has "%c3", which no path has: a path_glob sees it as %C3"#),
        ("http://x/*", "matches no path, because convey merges slashes in a row: write `/`"),
        ("/a/../*", "matches no path, because convey resolves the segments `.` and `..`"),
        ("*.{css,js}", "has {css,js}, which is plain text in a glob: write a list of several globs"),
    ] {
        let found = warned(glob);
        assert!(found.len() == 1 && found[0].ends_with(expected), "{glob}: {found:?}");
    }
    for glob in ["*.css", "/assets/**", "assets/**", "/%C3%A9/*", "/%20/*", "/v[0-9]/?.js", "*.min.*", "**"] {
        assert_eq!(warned(glob), [""; 0], "{glob}");
    }
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
fn wrong_match_or_action_is_reported_with_its_place() {
    const AT: &str = "config.toml:5:";
    let route = |keys: &str| of_frontend(&format!("routes = [{{ {keys} }}]"));
    for (keys, diagnostics) in [
        (
            "path = '/a', path_regex = '^/b', backend = 'api'",
            "39: frontends.web.routes.path_regex: path is also set; keep one of them",
        ),
        (
            "path_regex = '^/(', backend = 'api'",
            "26: frontends.web.routes.path_regex: found \"^/(\": unclosed group; allowed: a regular expression, such as \"^/v(\\\\d+)/\"",
        ),
        (
            "method = 'get', backend = 'api'",
            "22: frontends.web.routes.method: found \"get\"; methods are case-sensitive: did you mean \"GET\"?",
        ),
        (
            "headers_match = { 'X A' = 'b' }, backend = 'api'",
            "31: frontends.web.routes.headers_match.\"X A\": found \"X A\", which cannot be the name of a header",
        ),
        (
            "query_match = { v = { presnt = true } }, backend = 'api'",
            "33: frontends.web.routes.query_match.v: found presnt = true; allowed: a text, { regex = \"...\" }, { present = true } or { present = false }",
        ),
        (
            "headers_match = { X-A = 'b ' }, backend = 'api'",
            "37: frontends.web.routes.headers_match.X-A: found \"b \", which never matches: blanks around the value of a header do not count",
        ),
        (
            "cookies_match = { a = 'b;c' }, backend = 'api'",
            "35: frontends.web.routes.cookies_match.a: found \"b;c\", which never matches: the value of a cookie ends at `;`",
        ),
        (
            "cookies_match = { a = 'b ' }, backend = 'api'",
            "35: frontends.web.routes.cookies_match.a: found \"b \", which never matches: blanks behind the value of a cookie do not count",
        ),
        (
            "headers_match = { X-A = \"b\\n\" }, backend = 'api'",
            "37: frontends.web.routes.headers_match.X-A: found \"b\\n\", which never matches: a header has no line ends and no zero bytes",
        ),
        (
            "source = '10.0.0.1/8', backend = 'api'",
            "22: frontends.web.routes.source: found \"10.0.0.1/8\"; allowed: a network, such as 10.0.0.0/8 (all bits after the prefix are zero), or an address; did you mean \"10.0.0.0/8\"?",
        ),
        (
            "name = 'a/b', backend = 'api'",
            "20: frontends.web.routes.name: found \"a/b\"; allowed: up to 64 letters, digits, `-`, `_` and `.`",
        ),
        (
            "path = '/a', backends = { api = 0, site = 0 }",
            "37: frontends.web.routes.backends: a weight must be above 0, or no backend gets requests",
        ),
        (
            "path = '/a', backends = { api = 1, sit = 1 }",
            "48: frontends.web.routes.backends.sit: no backend \"sit\"; did you mean `site`? (backends: api, site)",
        ),
        (
            "path = '/a', redirect = { status = 301 }",
            "37: frontends.web.routes.redirect: a redirect needs scheme, host, port, path or rewrite_path, or it leads to the same URL",
        ),
        (
            "path = '/a', redirect = { host = 'b', status = 304 }",
            "60: frontends.web.routes.redirect.status: found 304; allowed: one of 301, 302, 303, 307, 308",
        ),
        (
            "path = '/a', redirect = { host = 'b:81' }",
            "46: frontends.web.routes.redirect.host: found \"b:81\"; set the port with port = ...",
        ),
        (
            "path_regex = '^/(a)', redirect = { rewrite_path = '/$2' }",
            "63: frontends.web.routes.redirect.rewrite_path: $2 is a group that path_regex does not have; it has 1",
        ),
        (
            "path = '/a', redirect = { path = '/{uri}' }",
            "46: frontends.web.routes.redirect.path: there is no variable {uri}; there are client_ip, client_port, frontend, host, http_version, listen_ip, listen_port, method, path, query, request_id, route, scheme, sni, target, tls_cipher, tls_client, tls_version, trace_id, header:NAME",
        ),
        (
            "path = '/a', respond = { status = 204, body = 'x' }",
            "59: frontends.web.routes.respond.body: a response with status 204 has no body",
        ),
        (
            "path = '/a', respond = { status = 100 }",
            "47: frontends.web.routes.respond.status: found 100; allowed: an integer from 200 to 599",
        ),
    ] {
        assert_eq!(route(keys), [format!("{AT}{diagnostics}")], "{keys}");
    }
    let twice = "routes = [{ name = 'a', path = '/a', backend = 'api' }, { name = 'a', backend = 'api', path = '/b' }]";
    assert_eq!(
        of_frontend(twice),
        [
            "config.toml:5:66: frontends.web.routes.name: found \"a\", which is also the name of the route in line 5"
        ]
    );
}

#[test]
fn route_that_another_one_covers_is_reported_with_both_lines() {
    let lines = |routes: &[&str]| {
        routes.iter().map(|keys| format!("[[frontends.web.routes]]\n{keys}\n")).collect::<String>()
    };
    let routes = |routes: &[&str]| of_frontend(&lines(routes));
    let routes_or_none = |routes: &[&str]| warnings(&format!("{FRONTEND}{}{BACKENDS}", lines(routes)));
    let api = "path = '/a'\nbackend = 'api'";
    let canary = "path = '/a'\nheaders_match = { X-A = '1' }\nbackend = 'site'";
    let none: [&str; 0] = [];
    assert_eq!(routes_or_none(&[api, canary]), none, "more conditions go first");
    assert_eq!(
        routes(&[
            "path = '/a'\nmethod = ['GET', 'POST']\nbackend = 'api'",
            "path = '/a'\nmethod = 'GET'\nbackend = 'api'"
        ]),
        [
            "config.toml:9:1: frontends.web.routes: is unreachable: line 5 has the same host and path, and takes all its requests"
        ]
    );
    let hosts =
        ["host = ['a.example', 'b.example']\nbackend = 'api'", "host = 'b.example'\nbackend = 'site'"];
    assert_eq!(
        routes(&hosts),
        ["config.toml:8:1: frontends.web.routes: is unreachable: line 5 has the same host and path"]
    );
    let wide = "path = '/a'\nsource = '10.0.0.0/8'\nbackend = 'api'";
    let narrow = "path = '/a'\nsource = '10.1.0.0/16'\nbackend = 'site'";
    assert_eq!(routes_or_none(&[wide, narrow, api]), none, "the longer network goes first");
    assert_eq!(routes(&[wide, wide]).len(), 1);
    let www = "redirect = { host = 'www.example.com' }";
    assert_eq!(routes(&[www, "backend = 'api'"]).len(), 1, "only the frontend's backend is unreachable");
}

#[test]
fn route_has_matches_and_shares_in_the_check() {
    let route = "[[frontends.web.routes]]\nname = 'checkout'\nhost = ['a.example', '*.b.example']\n\
                 path_regex = '^/v(\\d+)/'\nmethod = ['GET', 'HEAD']\nquery_match = { v = '2' }\n\
                 headers_match = { X-C = 'x', X-D = { present = false }, X-R = { regex = 'a|b' } }\n\
                 cookies_match = { beta = { present = true } }\nsource = '10.0.0.0/8'\n\
                 rewrite_path = '/$1/'\nbackends = { api = 90, site = 10 }\n\
                 [[frontends.web.routes]]\npath_exact = '/robots.txt'\n\
                 respond = { body = 'User-agent: *', headers = { Content-Type = 'text/plain' } }\n\
                 [[frontends.web.routes]]\nhost = 'c.example'\n\
                 redirect = { scheme = 'https', host = 'www.{host}', status = 301 }\n\
                 [[frontends.web.routes]]\nhost = 'c.example'\nmethod = 'POST'\nbackend = 'api'\n";
    let config = config(&format!("{FRONTEND}{route}{BACKENDS}"));
    let text = describe(&config);
    let lines: Vec<&str> = text.lines().skip(1).take(4).map(str::trim).collect();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        lines.iter().map(|line| words(line)).collect::<Vec<_>>(),
        [
            "route checkout [a.example~ ^/v(\\d+)/, *.b.example, GET or HEAD, header X-C = x, header no X-D, header X-R ~ a|b, query v = 2, \
             cookie beta, from 10.0.0.0/8] -> backends api=90, site=10, path becomes /$1/",
            "route */robots.txt -> status 200",
            "route c.example/ -> redirect to https://www.{host}{target} (301)",
            "route c.example/#2 [POST] -> backend api",
        ]
    );
    let frontend = &config.frontends[0];
    assert_eq!(frontend.backends().collect::<Vec<_>>(), ["site", "api"]);
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
        (
            "response = { when = [{ set = { X-A = 'b' } }] }",
            "34: frontends.web.headers.response.when: status or path_glob is required: without them, use headers.response itself",
        ),
        (
            "response = { when = [{ status = '6xx', remove = 'X-A' }] }",
            "45: frontends.web.headers.response.when.status: found \"6xx\"; allowed: a status such as 404, a class such as \"5xx\", or a range such as \"400-499\"",
        ),
        (
            "response = { when = [{ path_glob = 'a[', remove = 'X-A' }] }",
            "48: frontends.web.headers.response.when.path_glob: invalid range pattern, found \"a[\"; allowed: a glob, such as *.css or /assets/**",
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

#[test]
fn host_that_a_route_has_twice_is_an_error() {
    let text = format!("{FRONTEND}routes = [{{ host = ['a', 'b', 'A'], backend = 'api' }}]\n{BACKENDS}");
    assert_eq!(
        errors(&text),
        [
            "config.toml:5:31: frontends.web.routes.host: \"A\" is the same host as \"a\" in this list; remove one of them"
        ]
    );
}

#[test]
fn condition_on_a_header_of_proxies_without_proxies_is_a_warning() {
    let warned = |lines: &str, name: &str| {
        let route =
            format!("routes = [{{ path = '/a', headers_match = {{ {name} = 'b' }}, backend = 'api' }}]");
        warnings(&format!("{FRONTEND}{lines}\n{route}\n{BACKENDS}"))
    };
    let message = |name: &str| {
        format!(
            "config.toml:6:42: frontends.web.routes.headers_match: has {name}, which counts only from trusted_proxies, and \
             the frontend has none: the header counts as absent"
        )
    };
    assert_eq!(warned("", "X-Forwarded-Proto"), [message("X-Forwarded-Proto")]);
    assert_eq!(warned("", "x_forwarded_for"), [message("x_forwarded_for")]);
    assert_eq!(warned("", "X-Real-IP"), [""; 0]);
    assert_eq!(warned("trusted_proxies = ['10.0.0.5']", "X-Forwarded-Proto"), [""; 0]);
}

#[test]
fn empty_list_is_an_error_where_it_would_match_nothing() {
    const NOTHING: &str = "the list is empty: remove the key, or name at least one value";
    let route = |keys: &str| format!("routes = [{{ path = '/a', backend = 'api', {keys} }}]");
    let cases = [
        (route("host = []"), Some(NOTHING)),
        (route("method = []"), Some(NOTHING)),
        (route("source = []"), Some(NOTHING)),
        (route("access = { allow = [] }"), Some("allow has no network, so convey would refuse every client")),
        (route("access = { deny = [] }"), None),
        ("access = { allow = [] }".into(), Some("allow has no network, so convey would refuse every client")),
        ("access = { deny = [] }".into(), None),
        ("headers = { response = { when = [{ status = [], set = { X-A = 'b' } }] } }".into(), Some(NOTHING)),
        (
            "headers = { response = { when = [{ path_glob = [], set = { X-A = 'b' } }] } }".into(),
            Some(NOTHING),
        ),
        ("headers = { response = { remove = [] } }".into(), None),
        ("cors = { origins = [] }".into(), Some(NOTHING)),
        ("cors = { origins = '*', methods = [] }".into(), Some(NOTHING)),
        ("cors = { origins = '*', headers = [] }".into(), Some(NOTHING)),
        ("cors = { origins = '*', expose = [] }".into(), None),
        ("compression = { types = [] }".into(), Some(NOTHING)),
        ("compression = { encodings = [] }".into(), Some(NOTHING)),
        ("trusted_proxies = []".into(), None),
    ];
    for (lines, expected) in cases {
        match expected {
            Some(expected) => {
                let found = of_frontend(&lines);
                assert!(found.len() == 1 && found[0].ends_with(expected), "{lines}: {found:?}");
            }
            None => drop(warnings(&format!("{FRONTEND}{lines}\n{BACKENDS}"))),
        }
    }
}

#[test]
fn wrong_rules_for_retries_are_reported_with_their_place() {
    const AT: &str = "config.toml:5:";
    let of = |keys: &str| {
        of_frontend(&format!("routes = [{{ host = 'a', backend = 'api', retry = {{ {keys} }} }}]"))
    };
    const WORDS: &str =
        "\"connect\", \"reset\", \"timeout\", or a status: 401, 403, 404, 408, 425, 429, or 500 to 599";
    for (keys, expected) in [
        ("on = ['conect']", format!("58: frontends.web.routes.retry.on: found \"conect\"; allowed: {WORDS}")),
        ("on = ['503', '200']", format!("65: frontends.web.routes.retry.on: found \"200\"; allowed: {WORDS}")),
        ("on = [600]", format!("58: frontends.web.routes.retry.on: found 600; allowed: {WORDS}")),
        (
            "on = []",
            "57: frontends.web.routes.retry.on: the list is empty: remove the key, or name at least one value"
                .to_owned(),
        ),
        (
            "attempts = 0",
            "63: frontends.web.routes.retry.attempts: found 0; allowed: an integer from 1 to 16".to_owned(),
        ),
        (
            "on = 'timeout', per_try_timeout = 9 }, timeouts = { request = 5",
            "86: frontends.web.routes.retry.per_try_timeout: 9s is more than timeouts.request, 5s: no attempt gets it"
                .to_owned(),
        ),
    ] {
        assert_eq!(of(keys), [format!("{AT}{expected}")], "{keys}");
    }
    let of_frontend = "timeouts.request = 1\nretry = { on = 'timeout', per_try_timeout = 2 }";
    let told = errors(&format!("{FRONTEND}{of_frontend}\n{BACKENDS}"));
    let expected =
        "frontends.web.retry.per_try_timeout: 2s is more than timeouts.request, 1s: no attempt gets it";
    assert!(told.len() == 1 && told[0].ends_with(expected), "{told:?}");
}

#[test]
fn rules_for_retries_without_effect_cause_warnings() {
    let warned = |keys: &str| {
        let all = warnings(&format!("{FRONTEND}routes = [{{ host = 'a', {keys} }}]\n{BACKENDS}")).into_iter();
        all.filter(|warning| warning.contains("retry")).collect::<Vec<_>>()
    };
    let told = |keys: &str, expected: &str| {
        let found = warned(keys);
        assert!(found.len() == 1 && found[0].ends_with(expected), "{keys}: {found:?}");
    };
    told(
        "backend = 'api', retry = { per_try_timeout = 2 }",
        "ends slow attempts without a retry: add \"timeout\" to on",
    );
    told("backend = 'api', retry = { on = [503, '503'] }", "503 is already listed");
    told("redirect = 'https', retry = { on = 503 }", "has no effect with redirect or respond");
    assert_eq!(
        warned("backend = 'api', retry = { on = ['timeout', 429, 503], per_try_timeout = 2 }"),
        [""; 0]
    );
}
