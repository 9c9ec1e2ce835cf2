//! Mode http: each request is balanced separately.

mod bodies;
pub(crate) mod client;
mod slow_servers;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TcpServer, TestHttpServer, connect, fetch, tests, wait_for,
};
use rustix::process::Signal;

use bodies::{
    an_answer_before_the_body_is_whole_arrives_and_ends_the_connection,
    bodies_arrive_whole_whatever_their_framing, expect_100_continue_is_answered_by_the_server,
    large_bodies_take_no_memory_and_wait_for_who_reads_slowly,
};
use client::Client;
use slow_servers::{
    ewma_gives_slow_servers_few_requests_and_failing_ones_fewer,
    statuses_of_5xx_eject_a_server_and_those_of_4xx_never,
};

tests!("http":
    requests_of_one_connection_go_to_all_servers_and_keep_their_connections,
    requests_are_routed_by_host_and_path_with_client_fields,
    bodies_arrive_whole_whatever_their_framing,
    a_request_that_could_be_read_in_two_ways_reaches_no_server,
    servers_die_one_after_the_other_and_no_request_fails,
    server_faults_get_a_local_reply_with_a_reason,
    a_client_that_changes_the_protocol_talks_to_its_server,
    an_event_of_a_stream_is_at_the_client_at_once,
    each_request_is_a_line_of_the_access_log_and_is_counted,
    a_reload_changes_routes_between_two_requests_of_a_connection,
    requests_that_come_at_once_are_answered_in_order,
    a_client_that_sends_its_head_slowly_is_told_so,
    a_convey_that_stops_ends_connections_between_two_requests_and_no_request,
    ewma_gives_slow_servers_few_requests_and_failing_ones_fewer,
    statuses_of_5xx_eject_a_server_and_those_of_4xx_never,
    expect_100_continue_is_answered_by_the_server,
    an_answer_before_the_body_is_whole_arrives_and_ends_the_connection,
    large_bodies_take_no_memory_and_wait_for_who_reads_slowly,
);

pub(crate) const HTTP: &str = "mode = \"http\"";

fn three(lab: &Loopback) -> Setup {
    let servers = [("a", 1), ("b", 2), ("c", 3)];
    let setup = Setup::new(lab).frontend(HTTP);
    servers.into_iter().fold(setup, |setup, (name, n)| setup.server(name, lab.server(n), ""))
}

fn requests_of_one_connection_go_to_all_servers_and_keep_their_connections() {
    let lab = Loopback::new();
    let servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let balancer = BalancerProcess::start(&lab, &three(&lab));
    let mut client = Client::new(lab.vip());
    let mut reached = BTreeSet::new();
    for n in 0..60 {
        let response = client.get("site.example", &format!("/{n}"));
        assert_eq!(response.status, 200);
        let (server, rest) = response.body.split_once(' ').unwrap();
        assert_eq!(rest, format!("GET /{n} 0"));
        reached.insert(server.to_owned());
    }
    assert_eq!(reached.len(), 3);
    assert_eq!(["a", "b", "c"].map(|name| balancer.given_to(name)), [20; 3]);
    // One connection to each server, reused for all requests.
    assert_eq!(servers.each_ref().map(TestHttpServer::connections), [1; 3]);
}

fn requests_are_routed_by_host_and_path_with_client_fields() {
    let lab = Loopback::new();
    let [site, api, glob] =
        [("site", 1), ("api", 2), ("glob", 3)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let mut more = String::new();
    for (name, n) in [("api", 2), ("glob", 3)] {
        more += &format!("[backends.{name}]\nhealth_check.kind = \"none\"\n");
        more += &format!("[backends.{name}.servers.{name}]\naddr = \"{}\"\n", lab.server(n));
    }
    let routes = r#"
        mode = "http"
        headers = { response = { set = { X-Served-By = "convey" } } }
        [[frontends.web.routes]]
        host = "api.example"
        path = "/v1"
        backend = "api"
        rewrite_path = "/"
        headers = { request = { set = { X-Api = "1" }, remove = ["Cookie"] } }
        [[frontends.web.routes]]
        host = "*.example"
        backend = "glob"
        [[frontends.web.routes]]
        host = "old.example"
        redirect = "https"
    "#;
    let setup = Setup::new(&lab).frontend(routes).server("site", lab.server(1), "").and(&more);
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut client = Client::new(lab.vip());
    let body = |client: &mut Client, host, path| client.get(host, path).body;
    assert_eq!(body(&mut client, "api.example:80", "/v1/items?q=1"), "api GET /items?q=1 0");
    assert_eq!(body(&mut client, "api.example", "/v1"), "api GET / 0");
    assert_eq!(body(&mut client, "api.example", "/v10"), "glob GET /v10 0");
    assert_eq!(body(&mut client, "API.example", "/%76%31/x"), "api GET /x 0");
    assert_eq!(body(&mut client, "elsewhere", "/v1"), "site GET /v1 0");
    let moved = client.get("old.example", "/a?b");
    assert_eq!(moved.status, 308);
    assert!(moved.head.contains("\r\nLocation: https://old.example/a?b\r\n"), "{}", moved.head);
    let served = client.send(
        "GET /v1/me HTTP/1.1\r\nHost: api.example\r\nCookie: a=b\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n",
    );
    assert!(served.head.contains("\r\nX-Served-By: convey\r\n"), "{}", served.head);
    let seen = api.seen().pop().unwrap();
    let us = connect(lab.vip()).local_addr().unwrap().ip().to_string();
    assert_eq!(seen.field("x-forwarded-for"), Some(&*us), "what a client says of itself is not believed");
    assert_eq!(seen.field("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.field("x-forwarded-host"), Some("api.example"));
    assert_eq!([seen.field("x-api"), seen.field("cookie"), seen.field("x-hop")], [Some("1"), None, None]);
    assert_eq!(site.seen().len() + glob.seen().len(), 2);
}

fn a_request_that_could_be_read_in_two_ways_reaches_no_server() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let shapes = [
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
            400,
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\n\n", 400),
        ("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 405),
        ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
    ];
    for (request, status) in shapes {
        let mut client = Client::new(lab.vip());
        let response = client.send(request);
        assert_eq!(response.status, status, "{request:?}");
        assert!(response.head.contains("\r\nServer: convey\r\n") && client.is_closed(), "{request:?}");
    }
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(17_000));
    assert_eq!(Client::new(lab.vip()).send(&long).status, 431);
    assert_eq!(server.seen(), []);
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/malformed"), shapes.len() + 1);
}

fn servers_die_one_after_the_other_and_no_request_fails() {
    let lab = Loopback::new();
    let names = [("a", 1), ("b", 2), ("c", 3)];
    let mut servers = names.map(|(name, n)| Some(closing(name, lab.server(n))));
    let _balancer = BalancerProcess::start(&lab, &three(&lab));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let vip = lab.vip();
            thread::spawn(move || {
                let mut client = Client::new(vip);
                let failed = (0..400).filter(|n| client.get("a", &format!("/{n}")).status != 200).count();
                assert_eq!(failed, 0);
            })
        })
        .collect();
    for (place, (name, n)) in servers.iter_mut().zip(names) {
        // The listener is closed, and the connections end within the next request.
        *place = None;
        thread::sleep(Duration::from_millis(20));
        *place = Some(closing(name, lab.server(n)));
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
}

/// A server that closes each connection after a few requests without notice, as at a restart.
fn closing(name: &'static str, addr: SocketAddr) -> TcpServer {
    TcpServer::start(addr, move |mut stream| {
        for _ in 0..7 {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len())?;
        }
        Ok(())
    })
}

fn server_faults_get_a_local_reply_with_a_reason() {
    let answers: [(&str, u16, &str); 5] = [
        ("HTTP/1.1 200 OK\nContent-Length: 0\n\n", 502, "server_fault"),
        ("garbage\r\n\r\n", 502, "server_fault"),
        ("", 502, "server_reset"),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", 502, "server_fault"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 502, "server_fault"),
    ];
    for (answer, status, reason) in answers {
        let lab = Loopback::new();
        let _server = TestHttpServer::start(lab.server(1), move |_, stream| {
            stream.write_all(answer.as_bytes())?;
            Err(std::io::ErrorKind::Other.into())
        });
        let setup = Setup::http(&lab);
        let balancer = BalancerProcess::start(&lab, &setup);
        let mut client = Client::new(lab.vip());
        let response = client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(response.status, status, "{answer:?}: {}", response.head);
        assert!(response.head.contains("\r\nServer: convey\r\n"));
        assert_eq!(
            balancer.stat(&format!("/frontends/web/requests/local_replies/{reason}")),
            1,
            "{answer:?}"
        );
        assert_eq!(balancer.stat("/frontends/web/requests/early_ends/response_head"), 1, "{answer:?}");
        // The client is not at fault: its connection stays open.
        assert_eq!(client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").status, status);
    }
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    assert_eq!(fetch(lab.vip(), "/").unwrap().0, 503, "nobody listens");
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/connect_failed"), 1);
    assert_eq!(balancer.stat("/frontends/web/requests/early_ends/connect"), 1);
}

fn a_client_that_changes_the_protocol_talks_to_its_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        assert_eq!(request.field("upgrade"), Some("echo"));
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, stream)?;
        Err(std::io::ErrorKind::Other.into())
    });
    let _balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let mut client = Client::new(lab.vip());
    let changed =
        client.send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(changed.status, 101, "{}", changed.head);
    for text in ["hello", "GET / HTTP/1.1\r\n\r\n", "\0\n\r"] {
        client.0.write_all(text.as_bytes()).unwrap();
        let mut back = vec![0; text.len()];
        client.0.read_exact(&mut back).unwrap();
        assert_eq!(back, text.as_bytes());
    }
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(client.is_closed(), "each side closes when the other has");
}

fn an_event_of_a_stream_is_at_the_client_at_once() {
    let lab = Loopback::new();
    let (events, next) = std::sync::mpsc::channel::<()>();
    let next = std::sync::Mutex::new(next);
    let _server = TestHttpServer::start(lab.server(1), move |_, stream| {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        while next.lock().unwrap().recv().is_ok() {
            stream.write_all(b"8\r\ndata: x\n\r\n")?;
        }
        stream.write_all(b"0\r\n\r\n")
    });
    let _balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let mut client = Client::new(lab.vip());
    let head = client.get("a", "/events").head;
    assert!(head.contains("text/event-stream"), "{head}");
    for _ in 0..5 {
        // The server sends the next part only once the client has this one.
        events.send(()).unwrap();
        let mut event = [0; 13];
        client.0.read_exact(&mut event).unwrap();
        assert_eq!(&event, b"8\r\ndata: x\n\r\n");
    }
    drop(events);
    let mut end = [0; 5];
    client.0.read_exact(&mut end).unwrap();
    assert_eq!(&end, b"0\r\n\r\n");
}

fn each_request_is_a_line_of_the_access_log_and_is_counted() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let file = lab.directory().join("access.log");
    let log = format!("[access_log]\noutput = {:?}\nformat = \"json\"\n", file.display().to_string());
    let setup = Setup::http(&lab).and(&log);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = Client::new(lab.vip());
    client.get("shop.example", "/cart?id=7");
    client.send("POST /x HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nabc");
    let refused = Client::new(lab.vip()).send("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(refused.status, 400);
    let lines = || std::fs::read_to_string(&file).unwrap_or_default();
    wait_for("three lines", || (lines().lines().count() == 3).then_some(()));
    let lines: Vec<serde_json::Value> =
        lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Two workers may write at once: their lines have no order.
    let targets = [Some("/cart?id=7"), Some("/x"), None];
    let of = |n: usize, field: &str| {
        lines.iter().find(|line| line["target"].as_str() == targets[n]).unwrap()[field].clone()
    };
    assert_eq!([of(0, "method"), of(0, "host"), of(0, "target")], ["GET", "shop.example", "/cart?id=7"]);
    assert_eq!([of(0, "answered_by"), of(0, "server"), of(0, "route")], ["server", "pool/a", "default"]);
    assert_eq!([of(0, "status"), of(1, "status"), of(2, "status")], [200, 200, 400]);
    assert_eq!([of(0, "bytes_rx"), of(1, "bytes_rx")], [0, 3], "bodies");
    assert_eq!([of(2, "answered_by"), of(2, "reason"), of(2, "phase")], ["convey", "host", "request_head"]);
    assert!(of(0, "phase").is_null());
    let count = |pointer: &str| balancer.stat(&format!("/frontends/web/{pointer}")).as_u64().unwrap();
    assert_eq!([count("requests/total"), count("total_connections")], [3, 2]);
    assert_eq!([count("requests/responses/2xx"), count("requests/responses/4xx")], [2, 1]);
    assert_eq!(balancer.stat("/backends/pool/servers/a/requests/total"), 2);
    assert_eq!([count("requests/early_ends/request_head"), count("requests/early_ends/route")], [1, 0]);
    let metrics = balancer.page("/metrics").1;
    for line in [
        r#"convey_frontend_http_responses_total{frontend="web",code="2xx"} 2"#,
        r#"convey_frontend_http_early_ends_total{frontend="web",phase="request_head"} 1"#,
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

fn a_reload_changes_routes_between_two_requests_of_a_connection() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let setup = |n| Setup::new(&lab).frontend(HTTP).server("only", lab.server(n), "");
    let balancer = BalancerProcess::start(&lab, &setup(1));
    let mut client = Client::new(lab.vip());
    assert_eq!(client.get("x", "/1").body, "a GET /1 0");
    balancer.save(&setup(2));
    wait_for("the reload", || (client.get("x", "/2").body == "b GET /2 0").then_some(()));
}

fn requests_that_come_at_once_are_answered_in_order() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let _balancer = BalancerProcess::start(&lab, &three(&lab));
    let mut client = Client::new(lab.vip());
    // More than convey reads ahead.
    let many: String = (0..1_000).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    let mut sender = client.0.try_clone().unwrap();
    let sending = thread::spawn(move || sender.write_all(many.as_bytes()).unwrap());
    for n in 0..1_000 {
        let body = client.read().body;
        assert!(body.ends_with(&format!(" GET /{n} 0")), "{n}: {body}");
    }
    sending.join().unwrap();
}

fn a_client_that_sends_its_head_slowly_is_told_so() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let mut client = Client::new(lab.vip());
    let mut sender = client.0.try_clone().unwrap();
    let sending = thread::spawn(move || {
        // The request never ends, and convey does not wait for its end.
        while sender.write_all(b"X").is_ok() {
            thread::sleep(Duration::from_millis(300));
        }
    });
    let response = client.read();
    assert_eq!(response.status, 408, "{}", response.head);
    assert!(client.is_closed() && server.seen().is_empty());
    drop(client);
    sending.join().unwrap();
}

fn a_convey_that_stops_ends_connections_between_two_requests_and_no_request() {
    let lab = Loopback::new();
    let (answers, next) = std::sync::mpsc::channel::<()>();
    let next = std::sync::Mutex::new(next);
    let server = TestHttpServer::start(lab.server(1), move |_, stream| {
        next.lock().unwrap().recv().map_err(std::io::Error::other)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let mut balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let [mut idle, mut busy] = [(); 2].map(|()| Client::new(lab.vip()));
    answers.send(()).unwrap();
    assert_eq!(idle.get("a", "/1").body, "ok");
    busy.0.write_all(b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_for("the request to run", || (server.seen().len() == 2).then_some(()));
    balancer.signal(Signal::TERM);
    assert!(idle.is_closed(), "its client sends nothing");
    answers.send(()).unwrap();
    let response = busy.read();
    assert_eq!(response.body, "ok");
    assert_eq!(balancer.wait(), 0, "it does not wait for the drain timeout");
}
