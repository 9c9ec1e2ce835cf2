//! Limits for clients in mode http, and convey's responses beyond them.

use std::io::Write;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TestHttpServer, connect_from, tests, wait_for};

use super::curl::curl;
use super::http::HTTP;
use super::http::client::{Client, Response};

tests!("http_limits":
    source_beyond_its_request_rate_gets_429_on_any_connection,
    request_limit_of_a_route_applies_to_http2 [Need::CURL],
    a_body_that_is_too_long_is_refused_whatever_its_framing [Need::CURL],
    oversized_upload_gets_413_before_its_end [Need::CURL],
    a_body_that_trickles_is_given_up,
    a_connection_ends_after_so_many_requests_and_after_a_time_without,
    idle_connection_stays_for_the_whole_keep_alive_timeout,
    a_head_may_be_as_long_as_the_file_says [Need::CURL],
    error_pages_are_used_for_local_replies_and_followed_when_saved [Need::CURL],
);

/// The frontend with these lines more, in front of one server.
fn one(lab: &Loopback, lines: &str) -> Setup {
    Setup::new(lab).frontend(&format!("{HTTP}\n{lines}")).server("a", lab.server(1), "")
}

fn client_from(source: IpAddr, lab: &Loopback) -> Client {
    Client(connect_from(source, lab.vip()).unwrap())
}

/// The version and the status that curl gets for a path by HTTP/2.
fn status_of(lab: &Loopback, path: &str, arguments: &[&str]) -> String {
    let url = format!("http://{}{path}", lab.vip());
    let usual = ["--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", &url];
    curl(&[&usual, arguments].concat())
}

fn source_beyond_its_request_rate_gets_429_on_any_connection() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let limits = |rate| format!("limits = {{ requests_per_source = {rate}, request_burst = 4 }}");
    let trusted = format!("trusted_clients = \"{}\"\n{}", lab.ip(9), limits(1));
    let balancer = BalancerProcess::start(&lab, &one(&lab, &trusted));
    let statuses = |host: u8| {
        let mut clients = [(); 2].map(|()| client_from(lab.ip(host), &lab));
        let responses: Vec<Response> = (0..8).map(|n| clients[n % 2].get("a", "/")).collect();
        assert!(responses.iter().all(|response| {
            (response.status == 429) == response.head.contains("\r\nRetry-After: 1\r\n")
        }));
        responses.iter().filter(|response| response.status == 429).count()
    };
    // A second may pass meanwhile.
    let refused = statuses(5);
    assert!((3..=4).contains(&refused), "{refused}");
    assert!((3..=4).contains(&statuses(6)), "another source has as much");
    assert_eq!(statuses(9), 0, "it is trusted");
    let answered = balancer.stat("/frontends/web/requests/local_replies/rate_limit").as_u64().unwrap();
    assert_eq!(answered + server.seen().len() as u64, 24);
    // The connection stays open, and the limits keep their counts across a reload.
    let mut client = client_from(lab.ip(5), &lab);
    wait_for("a free request", || (client.get("a", "/").status == 200).then_some(()));
    balancer.save(&one(&lab, &limits(2)));
    balancer.wait_for_log("limits.requests_per_source 1 -> 2");
    assert!((0..4).any(|_| client.get("a", "/").status == 429));
}

fn request_limit_of_a_route_applies_to_http2() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let route = "limits.ipv4_prefix = 24\n[[frontends.web.routes]]\npath = \"/login\"\nbackend = \"pool\"\n\
        requests_per_source = 1\nrequest_burst = 2";
    let balancer = BalancerProcess::start(&lab, &one(&lab, route));
    let refused = |path: &str| {
        let answers: Vec<String> = (0..6).map(|_| status_of(&lab, path, &[])).collect();
        assert!(answers.iter().all(|answer| answer == "2 200" || answer == "2 429"), "{answers:?}");
        answers.iter().filter(|answer| *answer == "2 429").count()
    };
    assert_eq!(refused("/free"), 0);
    let refused = refused("/login");
    assert!((1..=4).contains(&refused), "{refused}");
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/rate_limit"), refused);
    let of_the_same_network = || client_from(lab.ip(7), &lab).get("a", "/login").status;
    assert!((0..4).any(|_| of_the_same_network() == 429));
}

fn a_body_that_is_too_long_is_refused_whatever_its_framing() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &one(&lab, "http.max_body_size = 1000"));
    let (fits, long) = ("x".repeat(1_000), "x".repeat(1_001));
    for (framing, is_told) in [("Content-Length:", true), ("Transfer-Encoding: chunked", false)] {
        for (body, status) in [(&fits, 200), (&long, 413)] {
            let mut client = Client::new(lab.vip());
            let request = match is_told {
                true => format!("{framing} {}\r\n\r\n{body}", body.len()),
                false => format!("{framing}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
            };
            let response = client.send(&format!("PUT / HTTP/1.1\r\nHost: a\r\n{request}"));
            assert_eq!(response.status, status, "{framing}: {response:?}");
            let is_ours = response.head.contains("\r\nServer: convey\r\n");
            assert!(
                !is_ours || (status == 413 && response.body.contains("body_too_long") && client.is_closed())
            );
            let data = format!("@{}", file(&lab, body));
            let by_http2 = ["--data-binary", &data, "-H", if is_told { "X: 1" } else { "Content-Length:" }];
            assert_eq!(status_of(&lab, "/", &by_http2), format!("2 {status}"), "{framing}");
        }
    }
    assert!(server.seen().iter().all(|seen| seen.body.len() == 1_000));
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/malformed"), 4);
}

/// More than all buffers on the way hold.
fn oversized_upload_gets_413_before_its_end() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &one(&lab, "http.max_body_size = 100_000"));
    let (path, url) = (file(&lab, &"x".repeat(12 << 20)), format!("http://{}/", lab.vip()));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for framing in ["X: 1", "Expect:", "Transfer-Encoding: chunked", "Content-Length:"] {
            // In HTTP/1.1, a request with neither field has no body.
            if (version, framing) == ("--http1.1", "Content-Length:") {
                continue;
            }
            for _ in 0..3 {
                let status = ["-o", "/dev/null", "-w", "%{http_code}", "-H", framing, "-T", &path, &url];
                assert_eq!(curl(&[&[version], &status[..]].concat()), "413", "{version} {framing}");
            }
        }
    }
}

/// The path of a file that has this text.
fn file(lab: &Loopback, text: &str) -> String {
    let path = lab.directory().join("body");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn a_body_that_trickles_is_given_up() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &one(&lab, "http.min_body_rate = 100"));
    let mut client = Client::new(lab.vip());
    let mut sender = client.0.try_clone().unwrap();
    let sending = thread::spawn(move || {
        sender.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").unwrap();
        let mut sent = 0;
        while sender.write_all(b"x").is_ok() {
            sent += 1;
            thread::sleep(Duration::from_millis(300));
        }
        sent
    });
    assert_eq!(client.read().status, 408);
    drop(client);
    let sent = sending.join().unwrap();
    assert!((10..1_000).contains(&sent), "it had its time of grace, and no more: {sent} bytes");
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/request_timeout"), 1);
    assert_eq!(balancer.stat("/backends/pool/servers/a/current_connections"), 0, "its slot is free");
}

fn a_connection_ends_after_so_many_requests_and_after_a_time_without() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let limits = "http = { max_requests = 3, keep_alive_timeout = 0.5 }";
    let _balancer = BalancerProcess::start(&lab, &one(&lab, limits));
    let mut client = Client::new(lab.vip());
    let heads = [(); 3].map(|()| client.get("a", "/").head);
    let closes = heads.map(|head| head.contains("\r\nConnection: close\r\n"));
    assert_eq!(closes, [false, false, true]);
    assert!(client.is_closed());
    let mut client = Client::new(lab.vip());
    client.get("a", "/");
    // The client's own patience is less than the default.
    assert!(client.is_closed());
}

fn idle_connection_stays_for_the_whole_keep_alive_timeout() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let keep_alive = Duration::from_secs(11);
    let _balancer = BalancerProcess::start(&lab, &one(&lab, "http = { keep_alive_timeout = 11 }"));
    let mut client = Client::new(lab.vip());
    client.0.set_read_timeout(Some(3 * keep_alive)).unwrap();
    client.get("a", "/");
    let answered = Instant::now();
    assert!(client.is_closed());
    assert!(answered.elapsed() >= keep_alive, "{:?}", answered.elapsed());
}

fn a_head_may_be_as_long_as_the_file_says() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let limits = "http = { max_head_size = 2000, max_head_fields = 10, head_timeout = 1 }";
    let balancer = BalancerProcess::start(&lab, &one(&lab, limits));
    let (long, many) = (format!("X: {}\r\n", "x".repeat(2_000)), "X: 1\r\n".repeat(10));
    for fields in [long, many] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(Client::new(lab.vip()).send(&request).status, 431);
    }
    let fields: Vec<String> = (0..10).map(|n| format!("X-{n}: 1")).collect();
    let fields: Vec<&str> = fields.iter().flat_map(|field| ["-H", field]).collect();
    assert_eq!(status_of(&lab, "/", &fields), "2 431");
    assert_eq!(status_of(&lab, "/", &fields[..10]), "2 200");
    let long = format!("X: {}", "x".repeat(20_000));
    assert_eq!(status_of(&lab, "/", &["-H", &long]), "2 431");
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 4);
    let mut slow = Client::new(lab.vip());
    slow.0.write_all(b"GET").unwrap();
    assert_eq!(slow.read().status, 408);
}

fn error_pages_are_used_for_local_replies_and_followed_when_saved() {
    let lab = Loopback::new();
    let page = |text: &str| std::fs::write(lab.directory().join("503.html"), text).unwrap();
    page("<p>Back soon</p>");
    let setup = one(&lab, "error_pages = { 503 = \"503.html\" }");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = Client::new(lab.vip());
    let output = client.get("a", "/");
    assert_eq!((output.status, &*output.body), (503, "<p>Back soon</p>"));
    assert!(
        output.head.contains("\r\nServer: convey\r\nContent-Type: text/html; charset=utf-8\r\n"),
        "{}",
        output.head
    );
    page("<p>At noon</p>");
    balancer.wait_for_log("error_pages.503: content changed");
    assert_eq!(client.get("a", "/").body, "<p>At noon</p>");
    let url = format!("http://{}/", lab.vip());
    assert_eq!(curl(&["--http2-prior-knowledge", &url]), "<p>At noon</p>");
    // A server's own error response stays unchanged.
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
    });
    wait_for("the server", || (client.get("a", "/").body == "busy").then_some(()));
}
