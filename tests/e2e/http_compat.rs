//! Mode http: old clients, large and late responses, and frontends that change under open
//! connections.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use convey_testkit::{BalancerProcess, Loopback, Setup, TestHttpServer, connect, reset, tests, wait_for};

use super::http::HTTP;
use super::http::client::{Client, read_head};
use super::http2::client::Client as Http2Client;

tests!("http_compat":
    client_of_http_1_0_gets_chunked_answers_over_kept_server_connections,
    large_response_heads_and_trailers_arrive_up_to_their_limits,
    server_has_as_long_for_its_answer_as_timeouts_response_says,
    redirect_to_https_ends_behind_a_proxy_that_ends_tls,
    client_that_half_closes_waits_for_a_slot_and_is_served,
    connection_ends_behind_its_next_response_once_its_frontend_changed,
);

fn one(lab: &Loopback, lines: &str) -> Setup {
    Setup::new(lab).frontend(&format!("{HTTP}\n{lines}")).server("a", lab.server(1), "")
}

/// Whole response to a request on its own connection.
fn answer_to(lab: &Loopback, request: &str) -> String {
    let mut stream = connect(lab.vip());
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn client_of_http_1_0_gets_chunked_answers_over_kept_server_connections() {
    let lab = Loopback::new();
    let server = TestHttpServer::start(lab.server(1), |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")?;
        stream.write_all(b"1;x=y\r\nc\r\n0\r\nX-Trailer: 1\r\n\r\n")
    });
    let _balancer = BalancerProcess::start(&lab, &one(&lab, ""));
    for request in
        ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\nConnection: keep-alive\r\nHost: a.example\r\n\r\n"]
    {
        for _ in 0..5 {
            assert_eq!(answer_to(&lab, request), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc");
        }
    }
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.line == "GET / HTTP/1.1"), "{seen:?}");
    let hosts = [seen[0].field("host"), seen[9].field("host")];
    assert_eq!(hosts, [Some(&*lab.server(1).to_string()), Some("a.example")]);
    assert!(server.connections() < seen.len(), "each worker keeps one");
}

fn large_response_heads_and_trailers_arrive_up_to_their_limits() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let path = request.line.split(' ').nth(1).unwrap_or_default();
        let n: usize = path.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or_default();
        match path {
            path if path.starts_with("/cookies") => {
                let cookies = "Set-Cookie: a=b\r\n".repeat(n);
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{cookies}\r\n")
            }
            path if path.starts_with("/long") => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: {}\r\n\r\n", "x".repeat(n))
            }
            _ => {
                let trailers = "X-Trailer: 0123456789\r\n".repeat(n);
                write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{trailers}\r\n")
            }
        }
    });
    let balancer = BalancerProcess::start(&lab, &one(&lab, ""));
    let status = |path: &str| Client::new(lab.vip()).get("a", path).status;
    assert_eq!([status("/cookies120"), status("/cookies255"), status("/cookies256")], [200, 200, 502]);
    assert_eq!([status("/long20000"), status("/long65000"), status("/long65535")], [200, 200, 502]);
    let trailers = |n: usize| {
        let request = format!("GET /trailers{n} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        answer_to(&lab, &request).matches("X-Trailer").count()
    };
    assert_eq!([trailers(100), trailers(256)], [100, 256]);
    balancer.save(&one(&lab, "http = { max_response_head_size = 2000, max_response_head_fields = 1000 }"));
    balancer.wait_for_log("max_response_head_fields 256 -> 1000");
    assert_eq!([status("/cookies100"), status("/cookies120"), status("/long2000")], [200, 502, 502]);
    balancer.save(&one(&lab, "http = { max_response_head_fields = 1000 }"));
    balancer.wait_for_log("max_response_head_size 2000 -> 65535");
    assert_eq!([status("/cookies999"), status("/cookies1000")], [200, 502]);
}

fn server_has_as_long_for_its_answer_as_timeouts_response_says() {
    let lab = Loopback::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let _server = TestHttpServer::start(lab.server(1), move |request, stream| {
        if request.line.starts_with("GET /late") {
            wait_for("the end", || over.load(Ordering::Relaxed).then_some(()));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let balancer = BalancerProcess::start(&lab, &one(&lab, "timeouts.response = 0.2"));
    let mut client = Client::new(lab.vip());
    assert_eq!(client.get("a", "/").status, 200);
    let late = client.get("a", "/late");
    assert_eq!(late.status, 504, "{late:?}");
    balancer.wait_for_stat("/frontends/web/requests/local_replies/server_timeout", 1);
    is_over.store(true, Ordering::Relaxed);
}

fn redirect_to_https_ends_behind_a_proxy_that_ends_tls() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let routes = "[[frontends.web.routes]]\npath = \"/\"\nredirect = \"https\"";
    let proxies = "trusted_proxies = \"127.0.0.0/8\"";
    let _balancer = BalancerProcess::start(&lab, &one(&lab, &format!("{proxies}\n{routes}")));
    let mut client = Client::new(lab.vip());
    let mut status = |scheme: &str| {
        let field =
            if scheme.is_empty() { String::new() } else { format!("X-Forwarded-Proto: {scheme}\r\n") };
        client.send(&format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n")).status
    };
    assert_eq!(["", "http", "https", "HTTPS, http"].map(&mut status), [308, 308, 200, 200]);
    let answer = answer_to(&lab, "GET /x HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 ") && !answer.contains("Location"), "{answer}");
}

fn client_that_half_closes_waits_for_a_slot_and_is_served() {
    let lab = Loopback::new();
    let is_free = Arc::new(AtomicBool::new(false));
    let free = is_free.clone();
    let server = TestHttpServer::start(lab.server(1), move |_, stream| {
        wait_for("the slot to be free", || free.load(Ordering::Relaxed).then_some(()));
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let setup = Setup::new(&lab).frontend(HTTP).server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let fetch = || {
        let mut stream = connect(lab.vip());
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream
    };
    let mut first = fetch();
    wait_for("the first request", || (server.seen().len() == 1).then_some(()));
    let mut waiting = [fetch(), fetch(), connect(lab.vip())];
    // After a body that convey has not read completely.
    let body = "x".repeat(100_000);
    waiting[2].write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").unwrap();
    waiting[2].write_all(body.as_bytes()).unwrap();
    waiting[0].shutdown(Shutdown::Write).unwrap();
    waiting[2].shutdown(Shutdown::Write).unwrap();
    let gone = fetch();
    balancer.wait_for_stat("/frontends/web/requests/total", 5);
    reset(gone);
    balancer.wait_for_stat("/frontends/web/ended/client_reset", 1);
    is_free.store(true, Ordering::Relaxed);
    for stream in std::iter::once(&mut first).chain(&mut waiting) {
        assert!(read_head(stream).unwrap().starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(server.seen().len(), 4);
}

fn connection_ends_behind_its_next_response_once_its_frontend_changed() {
    let changes: [fn(&Loopback) -> Setup; 3] = [
        |lab| Setup::new(lab).frontend("mode = \"proxy\"").server("a", lab.server(1), ""),
        |lab| one(lab, "").listen(&[lab.second_vip()]),
        |lab| super::tls::https(lab, ""),
    ];
    for (n, changed) in changes.into_iter().enumerate() {
        let lab = Loopback::new();
        super::tls::authority(&lab);
        let server = TestHttpServer::named("a", lab.server(1));
        let balancer = BalancerProcess::start(&lab, &one(&lab, ""));
        let mut client = Client::new(lab.vip());
        assert!(!client.get("a", "/").head.contains("Connection"));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let by_http2 = runtime.block_on(async {
            let client = Http2Client::connect(lab.vip()).await;
            assert_eq!(client.get("http://a/").await.status, 200);
            client
        });
        balancer.save(&changed(&lab));
        let mut asked = 2;
        let response = wait_for("the last response", || {
            asked += 1;
            Some(client.get("a", "/")).filter(|response| response.head.contains("\r\nConnection: close\r\n"))
        });
        assert_eq!(response.status, 200, "{n}: {response:?}");
        assert!(client.is_closed(), "{n}");
        runtime.block_on(async {
            assert_eq!(by_http2.get("http://a/").await.status, 200, "{n}");
            by_http2.ended().await.unwrap();
        });
        assert_eq!(server.seen().len(), asked + 1, "{n}: a server has answered each");
    }
}
