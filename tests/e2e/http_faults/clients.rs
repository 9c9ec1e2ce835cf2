//! Clients that fail, and servers of HTTP/2 that refuse.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, TestHttpServer, connect, reset, wait_for};
use http::{Request, Response};

use super::super::health::BlackHole;
use super::super::http::HTTP;
use super::super::http::client::{Client, read_head};
use super::super::http2::block_on;
use super::super::http2::client::Client as Http2Client;
use super::outcome::{Outcome, Version, fetch};

fn balancer(lab: &Loopback, timeouts: &str) -> BalancerProcess {
    BalancerProcess::start(
        lab,
        &Setup::new(lab).frontend(HTTP).timeouts(timeouts).server("a", lab.server(1), ""),
    )
}

/// The server's first connection accepts no stream and ends in order; it serves on all others.
pub(super) fn a_server_of_http2_that_has_done_nothing_is_asked_anew() {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let lab = Loopback::new();
    let listener = TcpListener::bind(lab.server(1)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let is_first = CONNECTIONS.fetch_add(1, Ordering::Relaxed) == 0;
            thread::spawn(move || if is_first { refuse(stream) } else { serve_http2(stream) });
        }
    });
    let setup = Setup::new(&lab).frontend(HTTP).backend("protocol = \"h2\"");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let got = Client::new(lab.vip()).send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(got.status, 200, "{}", got.head);
    assert_eq!(CONNECTIONS.load(Ordering::Relaxed), 2);
    // A client of HTTP/1.0 need not send `Host`.
    assert_eq!(Client::new(lab.vip()).send("GET / HTTP/1.0\r\n\r\n").status, 200);
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/server_reset"), 0);
}

/// Refuses all streams, after the first request.
fn refuse(mut stream: std::net::TcpStream) -> io::Result<()> {
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])?;
    sleep(Duration::from_millis(200));
    // GOAWAY with 0 as the last processed stream, and NO_ERROR.
    stream.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

fn serve_http2(stream: std::net::TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let response = Response::builder().header("content-length", 0).body(()).unwrap();
            respond.send_response(response, true).map_err(io::Error::other)?;
        }
        Ok(())
    })
}

/// The client disconnects after half a body, in each of the ways.
pub(super) fn a_client_that_is_gone_takes_no_blame_to_the_server() {
    let lab = Loopback::new();
    let (gone, server_sees) = std::sync::mpsc::channel();
    let _server = TcpServer::start(lab.server(1), move |mut stream| {
        read_head(&mut stream)?;
        let _ = io::copy(&mut stream, &mut io::sink());
        gone.send(()).map_err(io::Error::other)
    });
    let setup = Setup::http(&lab);
    let setup = setup.backend("outlier_detection = { consecutive_failures = 1 }");
    let balancer = BalancerProcess::start(&lab, &setup.server("b", lab.server(1), ""));
    let half = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf";
    let patience = Duration::from_secs(10);
    for resets in [false, true] {
        let mut client = connect(lab.vip());
        client.write_all(half).unwrap();
        wait_for("the server", || (balancer.stat("/backends/pool/current_connections") == 1).then_some(()));
        if resets {
            reset(client)
        } else {
            drop(client)
        }
        server_sees.recv_timeout(patience).unwrap();
    }
    block_on(async {
        let client = Http2Client::connect(lab.vip()).await;
        let (_response, mut stream) = client.begin(Request::put("http://a/").body(()).unwrap(), false).await;
        stream.send_data(Bytes::from_static(b"half"), false).unwrap();
        while balancer.stat("/backends/pool/current_connections") != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stream.send_reset(h2::Reason::CANCEL);
        tokio::task::spawn_blocking(move || server_sees.recv_timeout(patience)).await.unwrap().unwrap();
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    for name in ["a", "b"] {
        assert!(balancer.stat(&format!("/backends/pool/servers/{name}/ejected")).is_null());
    }
    balancer.wait_for_stat("/frontends/web/ended/client_reset", 2);
}

pub(super) fn slow_upload_is_served_and_a_stalled_one_gets_408() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = balancer(&lab, "idle = 1");
    let mut client = Client::new(lab.vip());
    write!(client.0, "PUT /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..10 {
        sleep(Duration::from_millis(300));
        client.0.write_all(b"1\r\nx\r\n").unwrap();
    }
    client.0.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(client.read().body, "a PUT /slow 10");
    assert_eq!(client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").status, 408);
    assert!(client.is_closed());
    block_on(async {
        let client = Http2Client::connect(lab.vip()).await;
        let (response, mut stream) = client.begin(Request::put("http://a/").body(()).unwrap(), false).await;
        stream.send_data(Bytes::from_static(b"half"), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 408);
        // The connection stays open.
        assert_eq!(client.get("http://a/next").await.body, "a GET /next 0");
    });
    balancer.wait_for_stat("/frontends/web/requests/local_replies/request_timeout", 2);
}

pub(super) fn first_byte_and_head_have_separate_timeouts() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let frontend = format!("{HTTP}\nlimits.first_byte_timeout = 1\nhttp.head_timeout = 30");
    let setup = Setup::new(&lab).frontend(&frontend).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let (mut slow, mut silent) = (Client::new(lab.vip()), Client::new(lab.vip()));
    slow.0.write_all(b"G").unwrap();
    assert!(silent.is_closed());
    // The coarse clock may be a second late.
    sleep(Duration::from_secs(2));
    assert_eq!(slow.send("ET /slow HTTP/1.1\r\nHost: a\r\n\r\n").body, "a GET /slow 0");
    balancer.wait_for_stat("/frontends/web/ended/first_byte_timeout", 1);
}

pub(super) fn bytes_behind_a_request_body_are_not_a_request() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let balancer = balancer(&lab, "");
    let mut client = Client::new(lab.vip());
    let response =
        client.send("PUT /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody behind it\r\n\r\n");
    assert_eq!(response.body, "a PUT /1 4");
    assert_eq!(client.read().status, 400);
    assert!(client.is_closed());
    block_on(async {
        let client = Http2Client::connect(lab.vip()).await;
        let request = Request::put("http://a/2").header("content-length", 4).body(()).unwrap();
        let (response, mut stream) = client.begin(request, false).await;
        stream.send_data(Bytes::from_static(b"body behind it"), true).unwrap();
        assert_eq!(response.await.unwrap_err().reason(), Some(h2::Reason::PROTOCOL_ERROR));
        assert_eq!(client.get("http://a/3").await.body, "a GET /3 0");
    });
    // An invalid chunk: no server has the whole request.
    let chunked = "PUT /4 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n-1\r\n";
    assert_eq!(Client::new(lab.vip()).send(chunked).status, 400);
    let seen: Vec<String> = server.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(seen, ["PUT /1 HTTP/1.1", "GET /3 HTTP/1.1"]);
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

pub(super) fn a_client_that_never_reads_is_not_waited_for_long() {
    let lab = Loopback::new();
    let (gone, server_sees) = std::sync::mpsc::channel();
    let _server = TcpServer::start(lab.server(1), move |mut stream| {
        let head = read_head(&mut stream)?;
        if head.starts_with("GET / ") {
            return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40)?;
        while stream.write_all(&[b'x'; 65_536]).is_ok() {}
        gone.send(()).map_err(io::Error::other)
    });
    let balancer = balancer(&lab, "idle = 1");
    let mut client = connect(lab.vip());
    client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    server_sees.recv_timeout(Duration::from_secs(10)).unwrap();
    let end = loop {
        match client.read(&mut [0; 65_536]) {
            Ok(n) => assert!(n > 0, "it ended in order"),
            Err(error) => break error,
        }
    };
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    block_on(async {
        let client = Http2Client::connect(lab.vip()).await;
        let (response, _stream) = client.begin(Request::get("http://a/large").body(()).unwrap(), true).await;
        let mut body = response.await.unwrap().into_body();
        // Its other streams go on.
        assert_eq!(client.get("http://a/").await.body, "ok");
        tokio::task::spawn_blocking(move || server_sees.recv_timeout(Duration::from_secs(10)))
            .await
            .unwrap()
            .unwrap();
        let error = loop {
            match body.data().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(error.is_reset(), "{error}");
        assert_eq!(client.get("http://a/").await.body, "ok");
    });
    balancer.wait_for_stat("/frontends/web/drops/client_too_slow", 1);
    assert_eq!(fetch(lab.vip(), Version::Http1, "GET"), Outcome::Body("ok".into()));
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// The server does not answer the connects of convey. Two requests have its slots.
pub(super) fn client_that_leaves_during_a_connect_frees_its_slot() {
    for protocol in ["h1", "h2"] {
        let lab = Loopback::new();
        let _server = BlackHole::open(lab.server(1));
        let setup = Setup::new(&lab).frontend(HTTP).timeouts("connect = 60").health("kind = \"none\"");
        let setup = setup.backend(&format!("protocol = \"{protocol}\""));
        let setup = setup.server("a", lab.server(1), "max_connections = 2");
        let balancer = BalancerProcess::start(&lab, &setup);
        let waiting = "/backends/pool/waiting_connections";
        let total = "/frontends/web/requests/total";
        let ended = "/frontends/web/requests/early_ends/connect";
        let get = || {
            let mut client = connect(lab.vip());
            client.write_all(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client
        };
        block_on(async {
            let client = Http2Client::connect(lab.vip()).await;
            let late = || Request::get("http://a/late").body(()).unwrap();
            let (_, mut first) = client.begin(late(), true).await;
            let (_, mut second) = client.begin(late(), true).await;
            let stat_is = async |path: &'static str, wanted: u64| {
                while balancer.stat(path) != wanted {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            stat_is(total, 2).await;
            let third = get();
            stat_is(waiting, 1).await;
            second.send_reset(h2::Reason::CANCEL);
            stat_is(ended, 1).await;
            stat_is(waiting, 0).await;
            // Over HTTP/2, the third request may wait for the connection of the first.
            first.send_reset(h2::Reason::CANCEL);
            reset(third);
            stat_is(ended, 3).await;
        });
        if protocol == "h1" {
            let mut half = connect(lab.vip());
            half.write_all(b"PUT /late HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
            balancer.wait_for_stat(total, 4);
            let _others = [get(), get()];
            balancer.wait_for_stat(waiting, 1);
            drop(half);
            balancer.wait_for_stat(waiting, 0);
        }
    }
}

/// The only slot is taken. Waiting clients disconnect, in each of the ways.
pub(super) fn client_that_disconnects_while_waiting_leaves_the_queue() {
    let lab = Loopback::new();
    let (answers, may_answer) = std::sync::mpsc::channel::<()>();
    let may_answer = Mutex::new(may_answer);
    let server = TestHttpServer::start(lab.server(1), move |request, stream| {
        if request.line.starts_with("GET /slow ") {
            may_answer.lock().unwrap().recv().map_err(io::Error::other)?;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let setup = Setup::new(&lab).frontend(HTTP).timeouts("connect = 60");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), "max_connections = 1"));
    let waiting = "/backends/pool/waiting_connections";
    let mut first = Client::new(lab.vip());
    first.0.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    balancer.wait_for_stat("/backends/pool/current_connections", 1);

    for resets in [false, true] {
        let mut client = connect(lab.vip());
        client.write_all(b"PUT /late HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
        balancer.wait_for_stat(waiting, 1);
        if resets {
            reset(client)
        } else {
            drop(client)
        }
        balancer.wait_for_stat(waiting, 0);
    }
    block_on(async {
        let wait_for_waiting = async |n: u64| {
            while balancer.stat(waiting) != n {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let client = Http2Client::connect(lab.vip()).await;
        let (_response, mut stream) =
            client.begin(Request::put("http://a/late").body(()).unwrap(), false).await;
        stream.send_data(Bytes::from_static(b"half"), false).unwrap();
        wait_for_waiting(1).await;
        stream.send_reset(h2::Reason::CANCEL);
        wait_for_waiting(0).await;
        // This client closes its whole connection.
        let _response = client.begin(Request::get("http://a/late").body(()).unwrap(), true).await;
        wait_for_waiting(1).await;
    });
    balancer.wait_for_stat(waiting, 0);
    balancer.wait_for_stat("/frontends/web/ended/client_reset", 2);

    let mut next = Client::new(lab.vip());
    next.0.write_all(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    balancer.wait_for_stat(waiting, 1);
    answers.send(()).unwrap();
    assert_eq!([first.read().status, next.read().status], [200; 2]);
    let seen: Vec<String> = server.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(seen, ["GET /slow HTTP/1.1", "GET /next HTTP/1.1"]);
}
