//! Observability of routes: metrics, times, traces.

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TestHttpServer, connect_from, tests, wait_for};

use super::curl::curl;
use super::http::client::Client;
use super::operator::{command_output, run_command};

tests!("routes_seen":
    route_metrics_survive_a_reload [Need::CURL],
    a_trace_is_passed_on_or_begun_and_the_log_names_it [Need::CURL],
    explain_says_which_route_and_server_a_request_gets [Need::CURL],
    explain_says_how_many_requests_a_source_may_send_now,
    the_next_request_obeys_who_adds_and_removes_servers [Need::CURL],
);

fn route_metrics_survive_a_reload() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let routes = "mode = \"http\"\nroutes = [{ path = \"/api\", backend = \"pool\" }, { path = \"/old\", redirect = \"https\" }]";
    let setup = Setup::new(&lab).frontend(routes).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let url = |path: &str| format!("http://{}{path}", lab.vip());
    let fetch = |paths: &[&str]| paths.iter().for_each(|path| _ = curl(&[&url(path)]));
    fetch(&["/api", "/api/x", "/old", "/"]);
    let metric = |line: &str| {
        let (_, page) = balancer.page("/metrics");
        let value = page.lines().find_map(|one| one.strip_prefix(line)?.trim().parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("no {line} in\n{page}"))
    };
    let responses = |route: &str, code: &str| {
        let of = format!("frontend=\"web\",route=\"{route}\",code=\"{code}\"");
        metric(&format!("convey_route_http_responses_total{{{of}}}"))
    };
    assert_eq!([responses("*/api", "2xx"), responses("default", "2xx")], [2.0, 1.0]);
    assert_eq!([responses("*/old", "3xx"), responses("*/old", "2xx")], [1.0, 0.0]);
    let times = |route: &str| {
        let of = format!("frontend=\"web\",route=\"{route}\"");
        metric(&format!("convey_route_http_request_duration_seconds_count{{{of}}}"))
    };
    assert_eq!(times("*/api"), 2.0);
    let server = "convey_server_http_response_duration_seconds_count{backend=\"pool\",server=\"a\"}";
    assert_eq!(metric(server), 3.0);
    assert_eq!(metric("convey_frontend_http_request_duration_seconds_count{frontend=\"web\"}"), 4.0);
    assert_eq!(balancer.stat("/frontends/web/routes/1/requests/local_replies/redirect"), 1);
    assert_eq!(balancer.stat("/frontends/web/requests/recent/responses/2xx"), 3);
    assert_eq!(balancer.stat("/frontends/web/routes/0/requests/recent/total"), 2);
    balancer.save(&setup.and("[timeouts]\nidle = 77\n"));
    balancer.wait_for_log("reloaded");
    fetch(&["/api"]);
    assert_eq!([responses("*/api", "2xx"), times("*/api")], [3.0; 2]);
}

fn a_trace_is_passed_on_or_begun_and_the_log_names_it() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let setup =
        Setup::new(&lab).frontend("mode = \"http\"\nbegin_traces = true").server("a", lab.server(1), "");
    let log = "[access_log]\noutput = \"stderr\"\nformat = \"{target} {http_version} {trace_id}\"\n";
    let balancer = BalancerProcess::start(&lab, &setup.and(log));
    let url = |path: &str| format!("http://{}{path}", lab.vip());
    curl(&["-H", &format!("traceparent: {PARENT}"), &url("/given")]);
    curl(&["--http2-prior-knowledge", &url("/begun")]);
    curl(&["-H", "traceparent: 00-none", &url("/wrong")]);
    let seen = server.seen();
    let parent = |n: usize| seen[n].field("traceparent").unwrap().to_owned();
    assert_eq!(parent(0), PARENT);
    for n in [1, 2] {
        assert!(
            parent(n).starts_with("00-") && parent(n).ends_with("-01") && parent(n).len() == PARENT.len()
        );
    }
    assert_ne!(parent(1), parent(2));
    balancer.wait_for_log("/given 1.1 4bf92f3577b34da6a3ce929d0e0e4736");
    balancer.wait_for_log(&format!("/begun 2 {}", &parent(1)[3..35]));
}

fn the_next_request_obeys_who_adds_and_removes_servers() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let setup = Setup::http(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let socket = balancer.control_socket().display().to_string();
    let api = |method: &str, body: &str| {
        let url = "http://convey/v1/backends/pool/servers/b";
        let fields = ["-H", "Content-Type: application/json", "--unix-socket", &socket, "-o", "/dev/null"];
        curl(&[&fields[..], &["-w", "%{http_code}", "-X", method, "-d", body, url]].concat())
    };
    let urls: Vec<String> = (0..4).map(|n| format!("http://{}/{n}", lab.vip())).collect();
    // All requests use one connection.
    let reached = || {
        let bodies = urls.iter().map(|url| &**url).collect::<Vec<_>>();
        let text = curl(&[&["-w", "\n"][..], &bodies].concat());
        text.lines().map(|line| line[..1].to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(reached(), ["a".to_owned()].into());
    let server = format!("{{\"addr\": \"{}\"}}", lab.server(2));
    assert_eq!([api("PUT", &server), api("PUT", &server)], ["201", "200"]);
    assert_eq!(reached(), ["a".to_owned(), "b".to_owned()].into());
    assert_eq!(api("DELETE", ""), "200");
    assert_eq!(reached(), ["a".to_owned()].into());
}

fn explain_says_which_route_and_server_a_request_gets() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("b", lab.server(2));
    let routes = "mode = \"http\"\nroutes = [{ path = \"/api\", backend = \"api\" }, { path = \"/old\", redirect = \"https\" }]";
    let api =
        format!("[backends.api]\nhealth_check.kind = \"none\"\nservers.b.addr = \"{}\"\n", lab.server(2));
    let setup = Setup::new(&lab).frontend(routes).server("a", lab.server(1), "").and(&api);
    let balancer = BalancerProcess::start(&lab, &setup);
    let said = |url: &str| command_output(&balancer, &format!("explain 127.0.0.1 web {url}"));
    let api = said("http://shop.example/api/v1?q");
    assert!(
        api.contains("gets api/b")
            && api.contains("a request for shop.example/api/v1 takes route */api to backend api"),
        "{api}"
    );
    assert!(curl(&[&format!("http://{}/api/v1", lab.vip())]).starts_with("b "), "and so it is");
    let old = said("shop.example/old");
    assert!(
        old.contains("gets an answer from convey itself: redirect")
            && old.contains("takes route */old, and is redirected to https"),
        "{old}"
    );
    let wrong = run_command(&balancer, "explain 127.0.0.1 web http://a/../b");
    assert!(wrong.code == Some(2) && wrong.stderr.contains("convey refuses such a request"), "{wrong:?}");
}

fn explain_says_how_many_requests_a_source_may_send_now() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let routes = "mode = \"http\"\nlimits = { requests_per_source = 1000, request_burst = 50 }\n\
         routes = [{ path = \"/login\", backend = \"pool\", requests_per_source = 1, request_burst = 2 }]";
    let balancer =
        BalancerProcess::start(&lab, &Setup::new(&lab).frontend(routes).server("a", lab.server(1), ""));
    let fetch = |path: &str| run_command(&balancer, &format!("explain {} web http://a{path}", lab.ip(5)));
    let now = "requests are allowed immediately, further ones at";
    let of_route = |left: u32| format!("{}: {left} {now} 1 per second (limit of route */login)", lab.ip(5));
    let of_frontend = format!("{}: 50 {now} 1000 per second (limit of frontend web)", lab.ip(5));
    let before = fetch("/login");
    assert_eq!(before.code, Some(0), "{before:?}");
    assert!(before.stdout.contains(&of_route(2)) && before.stdout.contains(&of_frontend), "{before:?}");
    let elsewhere = fetch("/");
    assert!(
        elsewhere.stdout.contains(&of_frontend) && !elsewhere.stdout.contains("*/login"),
        "{elsewhere:?}"
    );

    let mut client = Client(connect_from(lab.ip(5), lab.vip()).unwrap());
    wait_for("a request to be refused, and explained to be", || {
        let is_refused = client.get("a", "/login").status == 429;
        let after = fetch("/login");
        let is_said = after.code == Some(3)
            && after.stdout.contains("is refused: rate_limit")
            && after.stdout.contains(&of_route(0));
        (is_refused && is_said).then_some(())
    });
}
