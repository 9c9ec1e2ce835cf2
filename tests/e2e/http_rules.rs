//! Mode http: matches of routes, and their actions.

use std::collections::BTreeMap;

use convey_testkit::{BalancerProcess, Loopback, Setup, TestHttpServer, tests};

use crate::http::HTTP;
use crate::http::client::{Client, Response};

tests!("http_rules":
    request_takes_the_route_whose_conditions_it_meets,
    split_route_gives_each_backend_its_share_within_three_sigma,
    split_route_skips_a_backend_whose_servers_are_down,
    redirect_has_the_parts_of_rule_and_request_and_never_loops,
    fixed_response_has_its_status_fields_and_body_for_all_methods,
    server_gets_the_path_that_groups_of_the_expression_make,
    headers_have_values_of_the_request_in_both_directions,
    request_id_is_random_and_that_of_a_trusted_proxy_stays,
    route_has_limits_of_its_own,
    page_of_an_allowed_origin_reads_responses_and_learns_methods,
    page_of_an_allowed_origin_sees_the_status_without_a_route,
);

/// Backends v1 and v2, each with one server of its name.
fn backends(lab: &Loopback) -> String {
    let backend = |name: &str, n| {
        format!(
            "[backends.{name}]\nhealth_check = {{ interval = 0.1, rise = 1, fall = 1 }}\n[backends.{name}.servers.{name}]\naddr = \"{}\"\n",
            lab.server(n)
        )
    };
    backend("v1", 1) + &backend("v2", 2)
}

fn routed(lab: &Loopback, routes: &str) -> Setup {
    Setup::new(lab)
        .frontend(&format!("{HTTP}\n{routes}"))
        .server("site", lab.server(3), "")
        .and(&backends(lab))
}

fn servers(lab: &Loopback) -> [TestHttpServer; 3] {
    [("v1", 1), ("v2", 2), ("site", 3)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)))
}

fn location(response: &Response) -> Option<&str> {
    response.head.lines().find_map(|line| line.strip_prefix("Location: "))
}

fn request_takes_the_route_whose_conditions_it_meets() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let routes = r#"
        trusted_proxies = ["127.0.0.0/8"]
        [[frontends.web.routes]]
        path = "/api"
        backend = "v1"
        [[frontends.web.routes]]
        path = "/api"
        headers_match = { X-Canary = "always" }
        backend = "v2"
        [[frontends.web.routes]]
        path = "/api"
        method = ["PUT", "DELETE"]
        source = "192.0.2.0/24"
        backend = "v2"
        [[frontends.web.routes]]
        host = ["a.example", "b.example"]
        query_match = { v = "2" }
        cookies_match = { beta = { regex = "^[12]$" } }
        backend = "v2"
    "#;
    let _balancer = BalancerProcess::start(&lab, &routed(&lab, routes));
    let mut client = Client::new(lab.vip());
    let cases = [
        ("GET /api/x", "", "v1"),
        ("GET /api/x", "X-Canary: always\r\n", "v2"),
        ("GET /api/x", "X-Canary: never\r\n", "v1"),
        ("PUT /api/x", "", "v1"),
        ("PUT /api/x", "X-Forwarded-For: 192.0.2.7\r\n", "v2"),
        ("PUT /api/x", "X-Forwarded-For: 198.51.100.7\r\n", "v1"),
        ("GET /?v=2", "Cookie: a=1; beta=2\r\n", "v2"),
        ("GET /?v=2", "Cookie: a=1; beta=3\r\n", "site"),
        ("GET /?v=3", "Cookie: beta=2\r\n", "site"),
    ];
    for (start, fields, expected) in cases {
        let length = if start.starts_with("PUT") { "Content-Length: 0\r\n" } else { "" };
        let response = client.send(&format!("{start} HTTP/1.1\r\nHost: b.example\r\n{fields}{length}\r\n"));
        assert_eq!(response.body.split(' ').next(), Some(expected), "{start} {fields:?}");
    }
}

fn split_route_gives_each_backend_its_share_within_three_sigma() {
    const REQUESTS: u32 = 10_000;
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let routes = "routes = [{ path = '/s', backends = { v1 = 90, v2 = 10 } }]";
    let setup = routed(&lab, routes);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = Client::new(lab.vip());
    let mut reached: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..REQUESTS {
        let response = client.get("a", "/s");
        assert_eq!(response.status, 200);
        *reached.entry(response.body.split(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    // The number of requests for v2 has the mean n p and the deviation sqrt(n p (1 - p)): 1000 and 30.
    let v2 = reached["v2"];
    assert!((910..=1090).contains(&v2), "{reached:?}");
    assert_eq!(reached.values().sum::<u32>(), REQUESTS);
    drop(balancer);
}

fn split_route_skips_a_backend_whose_servers_are_down() {
    let lab = Loopback::new();
    let [v1, _v2, _site] = servers(&lab);
    let routes = "routes = [{ path = '/s', backends = { v1 = 90, v2 = 10 } }]";
    let balancer = BalancerProcess::start(&lab, &routed(&lab, routes));
    drop(v1);
    balancer.wait_for_stat("/backends/v1/servers/v1/up", false);
    let mut client = Client::new(lab.vip());
    for _ in 0..50 {
        assert!(client.get("a", "/s").body.starts_with("v2 "));
    }
}

fn redirect_has_the_parts_of_rule_and_request_and_never_loops() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let routes = r#"
        trusted_proxies = ["127.0.0.0/8"]
        [[frontends.web.routes]]
        redirect = { scheme = "https", host = "www.example.com", status = 301 }
        [[frontends.web.routes]]
        path = "/old"
        redirect = { rewrite_path = "/new", status = 307 }
        [[frontends.web.routes]]
        path_regex = '^/u/(\w+)$'
        redirect = { path = "/users?from={path}" }
    "#;
    let _balancer = BalancerProcess::start(&lab, &routed(&lab, routes));
    let mut client = Client::new(lab.vip());
    let mut get = |host: &str, path: &str, scheme: &str| {
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Proto: {scheme}\r\n\r\n"))
    };
    let cases = [
        ("example.com", "/a?b", "http", 301, "https://www.example.com/a?b"),
        ("www.example.com", "/a?b", "http", 301, "https://www.example.com/a?b"),
        ("example.com:8080", "/old/x?y", "http", 307, "http://example.com:8080/new/x?y"),
        ("a", "/u/me?x", "https", 302, "https://a/users?from=/u/me"),
    ];
    for (host, path, scheme, status, to) in cases {
        let response = get(host, path, scheme);
        assert_eq!((response.status, location(&response)), (status, Some(to)), "{host} {path}");
    }
    // A trusted proxy ends TLS: a request for the redirect's own URL takes the next route.
    assert!(get("www.example.com", "/a?b", "https").body.starts_with("site "));
}

fn fixed_response_has_its_status_fields_and_body_for_all_methods() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let routes = r#"
        headers = { response = { set = { X-All = "1" } } }
        [[frontends.web.routes]]
        path_exact = "/robots.txt"
        respond = { body = "User-agent: *\n", headers = { Content-Type = "text/robots" } }
        [[frontends.web.routes]]
        path = "/gone"
        respond = { status = 410 }
    "#;
    let balancer = BalancerProcess::start(&lab, &routed(&lab, routes));
    let mut client = Client::new(lab.vip());
    let robots = client.get("a", "/robots.txt");
    assert_eq!((robots.status, &*robots.body), (200, "User-agent: *\n"));
    assert!(robots.head.contains("\r\nContent-Type: text/robots\r\n"), "{}", robots.head);
    assert!(robots.head.contains("\r\nX-All: 1\r\n"), "{}", robots.head);
    assert!(client.get("a", "/robots.txt/x").body.starts_with("site "));
    let gone = client.send("POST /gone/a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!((gone.status, &*gone.body), (410, ""));
    let (_, metrics) = balancer.page("/metrics");
    assert!(metrics.contains("reason=\"respond\"} 2"), "{metrics}");
}

fn server_gets_the_path_that_groups_of_the_expression_make() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let routes = r#"
        [[frontends.web.routes]]
        path_regex = '^/v(\d+)/(.*)$'
        rewrite_path = "/api/$2/$1"
        backend = "v1"
    "#;
    let _balancer = BalancerProcess::start(&lab, &routed(&lab, routes));
    let mut client = Client::new(lab.vip());
    assert_eq!(client.get("a", "/v12/items?q=1").body, "v1 GET /api/items/12?q=1 0");
    assert_eq!(client.get("a", "/w12/items?q=1").body, "site GET /w12/items?q=1 0");
}

fn headers_have_values_of_the_request_in_both_directions() {
    let lab = Loopback::new();
    let [v1, ..] = servers(&lab);
    let routes = r#"
        [frontends.web.headers]
        request.set = { X-Real-IP = "{client_ip}", X-Url = "{scheme}://{host}{target}", X-Sni = "{sni}" }
        response.set = { X-Route = "{route}", X-Echo = "{header:X-Ask}", Report-To = '{"group":"a"}' }
        [[frontends.web.routes]]
        name = "api"
        path = "/api"
        backend = "v1"
        [[frontends.web.routes]]
        path = "/gone"
        respond = { status = 410 }
    "#;
    let _balancer = BalancerProcess::start(&lab, &routed(&lab, routes));
    let mut client = Client::new(lab.vip());
    let ask = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: a:80\r\nX-Ask: b\r\nX-Real-Ip: 1\r\nX_Sni: 1\r\n\r\n")
    };
    let response = client.send(&ask("/api/x?y"));
    let us = client.0.local_addr().unwrap().ip().to_string();
    let seen = v1.seen().pop().unwrap();
    assert_eq!(seen.field("x-real-ip"), Some(&*us));
    assert_eq!(seen.field("x-url"), Some("http://a/api/x?y"));
    assert_eq!((seen.field("x-sni"), seen.field("x_sni")), (None, None), "an empty value is left out");
    let has = |response: &Response, line: &str| response.head.contains(&format!("\r\n{line}\r\n"));
    for line in ["X-Route: api", "X-Echo: b", "Report-To: {\"group\":\"a\"}"] {
        assert!(has(&response, line), "{}", response.head);
    }
    let local = client.send(&ask("/gone"));
    assert!(has(&local, "X-Echo: b") && has(&local, "X-Route: */gone"), "{}", local.head);
}

fn request_id_is_random_and_that_of_a_trusted_proxy_stays() {
    let lab = Loopback::new();
    let [v1, ..] = servers(&lab);
    let routes = |more: &str| {
        format!(
            "{more}\nroutes = [{{ path = '/api', backend = 'v1' }}]\n[frontends.web.headers]\n\
             request.set = {{ X-Request-ID = '{{request_id}}' }}\nresponse.set = {{ X-Request-ID = '{{request_id}}' }}"
        )
    };
    let balancer = BalancerProcess::start(&lab, &routed(&lab, &routes("")));
    let mut client = Client::new(lab.vip());
    let mut ids = || {
        let response = client.send("GET /api HTTP/1.1\r\nHost: a\r\nX-Request-ID: forged\r\n\r\n");
        let seen = v1.seen().pop().unwrap().field("x-request-id").unwrap().to_owned();
        let lines = response.head.lines();
        let told = lines.filter_map(|line| line.strip_prefix("X-Request-ID: ")).collect::<Vec<_>>();
        assert_eq!(told, [&*seen], "the client learns the id that the server got");
        seen
    };
    let (first, second) = (ids(), ids());
    assert!(first.len() == 32 && first.bytes().all(|byte| byte.is_ascii_hexdigit()) && first != second);
    balancer.save(&routed(&lab, &routes("trusted_proxies = ['127.0.0.0/8']")));
    balancer.wait_for_log("trusted_proxies none -> 127.0.0.0/8");
    assert_eq!(ids(), "forged");
}

fn route_has_limits_of_its_own() {
    let lab = Loopback::new();
    let [_v1, ..] = servers(&lab);
    let silent = std::net::TcpListener::bind(lab.server(4)).unwrap();
    let routes = format!(
        r#"
        http = {{ max_body_size = 10 }}
        timeouts = {{ response = 60 }}
        [[frontends.web.routes]]
        path = "/upload"
        backend = "v1"
        max_body_size = 20
        [[frontends.web.routes]]
        path = "/admin"
        backend = "v1"
        access = {{ allow = ["192.0.2.0/24"] }}
        [[frontends.web.routes]]
        path = "/slow"
        backend = "silent"
        timeouts = {{ response = 0.2 }}
        [backends.silent]
        health_check.kind = "none"
        servers.silent.addr = "{}"
        "#,
        silent.local_addr().unwrap()
    );
    let setup = Setup::new(&lab).frontend(HTTP).server("site", lab.server(3), "").and(&backends(&lab));
    let setup = setup.to_string().replacen(HTTP, &format!("{HTTP}\n{routes}"), 1);
    let _balancer = BalancerProcess::start(&lab, &setup);
    let status = |method: &str, path: &str, body: &str| {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        Client::new(lab.vip()).send(&format!("{head}{body}")).status
    };
    assert_eq!(status("POST", "/upload", &"x".repeat(15)), 200);
    assert_eq!(status("POST", "/upload", &"x".repeat(25)), 413);
    assert_eq!(status("POST", "/", &"x".repeat(15)), 413);
    assert_eq!(status("GET", "/admin", ""), 403);
    assert_eq!(status("GET", "/slow", ""), 504);
}

fn page_of_an_allowed_origin_reads_responses_and_learns_methods() {
    let lab = Loopback::new();
    let [v1, ..] = servers(&lab);
    let routes = r#"
        [[frontends.web.routes]]
        path = "/api"
        method = ["GET", "PUT"]
        backend = "v1"
        cors = { origins = ["https://app.example"], methods = ["GET", "PUT"], credentials = true }
        [[frontends.web.routes]]
        path = "/api/gone"
        respond = { status = 410 }
        cors = { origins = ["https://app.example"] }
    "#;
    let _balancer = BalancerProcess::start(&lab, &routed(&lab, routes));
    let mut client = Client::new(lab.vip());
    let mut ask = |method: &str, path: &str, origin: &str| {
        let preflight = "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a\r\n";
        let preflight = if method == "OPTIONS" { preflight } else { "" };
        client.send(&format!("{method} {path} HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\n{preflight}\r\n"))
    };
    let field = |response: &Response, name: &str| {
        let line =
            response.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
        line.unwrap_or_default()
    };
    let allowed = ask("OPTIONS", "/api/x", "https://app.example");
    assert_eq!((allowed.status, v1.seen().len()), (204, 0), "no server gets it");
    assert!(!allowed.head.contains("Content-"), "a 204 has no content: {}", allowed.head);
    assert_eq!(field(&allowed, "Access-Control-Allow-Origin"), "https://app.example");
    assert_eq!(field(&allowed, "Access-Control-Allow-Methods"), "GET, PUT");
    assert_eq!(field(&allowed, "Access-Control-Allow-Headers"), "x-a");
    assert_eq!(allowed.head.matches("Access-Control-Allow-Origin").count(), 1, "{}", allowed.head);
    assert_eq!(field(&ask("OPTIONS", "/api/x", "https://evil.example"), "Access-Control-Allow-Origin"), "");
    let response = ask("GET", "/api/x", "https://app.example");
    assert!(response.body.starts_with("v1 "));
    assert_eq!(field(&response, "Access-Control-Allow-Credentials"), "true");
    assert_eq!(field(&response, "Vary"), "Origin");
    let local = ask("GET", "/api/gone", "https://app.example");
    assert_eq!((local.status, &*field(&local, "Access-Control-Allow-Origin")), (410, "https://app.example"));
    assert_eq!(field(&ask("GET", "/other", "https://app.example"), "Access-Control-Allow-Origin"), "");
}

fn page_of_an_allowed_origin_sees_the_status_without_a_route() {
    let lab = Loopback::new();
    let [v1, ..] = servers(&lab);
    let routes = r#"
        cors = { origins = ["https://app.example"], methods = ["GET", "PUT"] }
        [[frontends.web.routes]]
        path = "/api"
        method = "GET"
        backend = "v1"
    "#;
    let config = routed(&lab, routes).to_string().replace("backend = \"pool\"\n", "");
    let _balancer = BalancerProcess::start(&lab, &config);
    let mut client = Client::new(lab.vip());
    let mut ask = |method: &str, path: &str, origin: &str| {
        let preflight = if method == "OPTIONS" { "Access-Control-Request-Method: PUT\r\n" } else { "" };
        let fields = format!("Host: a\r\nOrigin: {origin}\r\nContent-Length: 0\r\n{preflight}");
        let response = client.send(&format!("{method} {path} HTTP/1.1\r\n{fields}\r\n"));
        let allowed = response.head.contains("Access-Control-Allow-Origin: https://app.example\r\n");
        (response.status, allowed)
    };
    for path in ["/missing", "/api/x"] {
        assert_eq!(ask("OPTIONS", path, "https://app.example"), (204, true), "{path}");
        assert_eq!(ask("PUT", path, "https://app.example"), (404, true), "{path}");
        assert_eq!(ask("PUT", path, "https://evil.example"), (404, false), "{path}");
    }
    assert_eq!(ask("GET", "/api/x", "https://app.example"), (200, true));
    assert_eq!(v1.seen().len(), 1);
}
