//! Clients of HTTP/2 with closed windows, and the resources that they leave to others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, TcpServer, TestHttpServer, connect, connect_from, wait_for, whole_lines,
};
use http::Request;

use super::super::http::client::Client as Http1Client;
use super::client::Client;
use super::few_streams::narrow_server;
use super::frames::{PREFACE, frame};
use super::server::{ENDLESS, EchoServer};
use super::unread;
use super::{block_on, setup};
use crate::access_log::{log, path};
use crate::shares::limited;

const STREAMS: u32 = 20;

/// Requests a page on each of so many streams, whose windows have no room for a body.
fn request_with_closed_windows(lab: &Loopback, streams: u32) -> TcpStream {
    let mut closed = connect(lab.vip());
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let head = [&[0x82, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let requests = (0..streams).flat_map(|n| frame(1, 5, 2 * n + 1, &head));
    let all = [PREFACE, &settings].concat();
    closed.write_all(&all.into_iter().chain(requests).collect::<Vec<u8>>()).unwrap();
    closed
}

pub(super) fn closed_windows_hold_no_slot_of_a_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").server("a", lab.server(1), "max_connections = 2");
    let balancer = BalancerProcess::start(&lab, &setup);
    let closed = request_with_closed_windows(&lab, STREAMS);
    // No response waits for the client.
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", STREAMS as usize);
    block_on(async {
        let other = Client::connect(lab.vip()).await;
        assert_eq!(other.get(&format!("http://{}/", lab.vip())).await.status, 200);
    });
    drop(closed);
}

pub(super) fn closed_windows_hold_no_server_of_longer_responses() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let body = if request.line.starts_with("GET /other ") { 2 } else { 50_000 };
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n{}", "x".repeat(body))
    });
    let setup = setup(&lab, "h1").server("a", lab.server(1), "max_connections = 2");
    let balancer = BalancerProcess::start(&lab, &setup);
    let closed = request_with_closed_windows(&lab, STREAMS);
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", STREAMS as usize);
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    block_on(async {
        let other = Client::connect(lab.vip()).await;
        assert_eq!(other.get("http://a.example/other").await.status, 200);
    });
    drop(closed);
}

/// Connections from one address, on each of which `asks` requests more streams than convey accepts
/// from the address.
fn greedy_clients(
    lab: &Loopback,
    balancer: &BalancerProcess,
    asks: impl Fn(&mut TcpStream),
) -> Vec<TcpStream> {
    let greedy = (0..10).map(|_| {
        let mut client = connect_from(lab.ip(99), lab.vip()).unwrap();
        asks(&mut client);
        client
    });
    let greedy = greedy.collect();
    wait_for("refused streams", || {
        (balancer.stat("/frontends/web/drops/client_limit").as_u64()? > 10).then_some(())
    });
    greedy
}

pub(super) fn streams_of_http2_servers_count_in_the_share_of_their_client() {
    let lab = Loopback::new();
    // The server holds each stream until the body is complete.
    let _server = EchoServer::start(lab.server(1));
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("1000:1000"));
    let head = [&[0x83, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let uploads = (0..100).flat_map(|n| frame(1, 4, 2 * n + 1, &head));
    let all: Vec<u8> = [PREFACE, &frame(4, 0, 0, &[])].concat().into_iter().chain(uploads).collect();
    let greedy = greedy_clients(&lab, &balancer, |client| client.write_all(&all).unwrap());
    block_on(async {
        let other = Client::connect(lab.vip()).await;
        assert_eq!(other.get("http://a.example/").await.status, 200);
    });
    drop(greedy);
}

/// A server that answers requests for `/quick`, and delays all others.
fn quick_server(lab: &Loopback) -> TcpServer {
    TcpServer::start(lab.server(1), |mut stream| {
        let mut head = [0; 4096];
        let len = stream.read(&mut head)?;
        if head[..len].starts_with(b"GET /quick") {
            return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    })
}

pub(super) fn streams_of_one_client_leave_connections_to_servers_for_others() {
    let lab = Loopback::new();
    let _server = quick_server(&lab);
    let setup = setup(&lab, "h1").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("1000:1000"));
    let greedy = greedy_clients(&lab, &balancer, unread::fetch);
    block_on(async {
        for _ in 0..20 {
            let other = Client::connect(lab.vip()).await;
            assert_eq!(other.get("http://a.example/quick").await.status, 200);
        }
    });
    drop(greedy);
}

pub(super) fn client_that_reads_byte_by_byte_holds_no_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {0}\r\n\r\n{1}", 1 << 20, "x".repeat(1 << 20))
    });
    let setup = setup(&lab, "h1").timeouts("idle = 4").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut closed = request_with_closed_windows(&lab, 1);
    balancer.wait_for_stat("/backends/pool/current_connections", 1);
    let takes_a_byte = frame(8, 0, 1, &1_u32.to_be_bytes());
    wait_for("a reset of the stream", || {
        closed.write_all(&takes_a_byte).unwrap();
        // Slower than 500 bytes a second, including frame headers.
        thread::sleep(Duration::from_millis(100));
        (balancer.stat("/frontends/web/drops/client_too_slow") == 1).then_some(())
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

pub(super) fn unread_whole_response_ends_as_that_of_a_slow_client() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").timeouts("send = 1").server("a", lab.server(1), "");
    let balancer =
        BalancerProcess::start(&lab, &setup.and(&log(&lab, "format = '{status} {termination} {reason}'")));
    let _closed = request_with_closed_windows(&lab, 1);
    balancer.wait_for_stat("/frontends/web/drops/client_too_slow", 1);
    let line = wait_for("the line of the request", || {
        Some(whole_lines(&path(&lab))).filter(|text| !text.is_empty())
    });
    assert_eq!(line, "200 timeout client_too_slow\n");
}

/// The client's streams read nothing, and answers to its pings keep the connection busy.
pub(super) fn stream_that_takes_nothing_of_a_busy_connection_holds_no_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {0}\r\n\r\n{1}", 1 << 20, "x".repeat(1 << 20))
    });
    let setup = setup(&lab, "h1").timeouts("idle = 1").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut busy = request_with_closed_windows(&lab, 2);
    let mut answers = busy.try_clone().unwrap();
    thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    balancer.wait_for_stat("/backends/pool/current_connections", 2);
    let mut ping = || {
        busy.write_all(&frame(6, 0, 0, b"busy now")).unwrap();
        thread::sleep(Duration::from_millis(5));
    };
    // Ten periods of up to two seconds.
    (0..1_000).for_each(|_| ping());
    wait_for("resets of the streams", || {
        ping();
        (balancer.stat("/frontends/web/drops/client_too_slow") == 2).then_some(())
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// The server accepts the upload, and has responded long before its end.
pub(super) fn upload_does_not_hold_the_server_of_an_unread_response() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        let mut upload = stream.try_clone()?;
        thread::spawn(move || std::io::copy(&mut upload, &mut std::io::sink()));
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40)?;
        while stream.write_all(&[b'x'; 65_536]).is_ok() {}
        Ok(())
    });
    let setup = setup(&lab, "h1").timeouts("idle = 2").health("kind = \"none\"");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let mut client = connect(lab.vip());
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
    client.write_all(head.as_bytes()).unwrap();
    balancer.wait_for_stat("/backends/pool/current_connections", 1);
    wait_for("a reset of the client", || {
        let _ = client.write_all(&[b'x'; 100]);
        thread::sleep(Duration::from_millis(20));
        (balancer.stat("/frontends/web/ended/client_too_slow") == 1).then_some(())
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// A connection with a POST request on its first stream, whose head has these additional fields.
fn begin_post(lab: &Loopback, fields: &[u8]) -> TcpStream {
    let mut client = connect(lab.vip());
    let head = [&[0x83, 0x86, 0x84, 0x41, 1][..], b"a", fields].concat();
    client.write_all(&[PREFACE, &frame(4, 0, 0, &[]), &frame(1, 4, 1, &head)].concat()).unwrap();
    client
}

pub(super) fn client_that_sends_its_upload_byte_by_byte_holds_no_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").timeouts("idle = 4").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut http1 = connect(lab.vip());
    http1.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").unwrap();
    let mut http2 = begin_post(&lab, &[&[0x0f, 0x0d, 6][..], b"100000"].concat());
    balancer.wait_for_stat("/backends/pool/current_connections", 2);
    wait_for("answers to both", || {
        // A connection with an answer accepts no more bytes.
        let _ = (http1.write_all(b"x"), http2.write_all(&frame(0, 0, 1, b"x")));
        thread::sleep(Duration::from_millis(100));
        (balancer.stat("/frontends/web/requests/local_replies/request_timeout") == 2).then_some(())
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    let mut answer = [0; 12];
    http1.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
}

/// Checks that another client's request waits for a slot, and gets it while a greedy client keeps
/// sending these bytes.
fn gets_a_slot(lab: &Loopback, balancer: &BalancerProcess, greedy: &mut TcpStream, bytes: &[u8]) {
    let vip = lab.vip();
    let other = thread::spawn(move || Http1Client::new(vip).send("GET /other HTTP/1.1\r\nHost: a\r\n\r\n"));
    balancer.wait_for_stat("/backends/pool/waiting_connections", 1);
    wait_for("a slot", || {
        let _ = greedy.write_all(bytes);
        thread::sleep(Duration::from_millis(100));
        other.is_finished().then_some(())
    });
    assert_eq!(other.join().unwrap().status, 200);
}

pub(super) fn slow_streams_of_a_connection_leave_slots_to_waiting_requests() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let body = if request.line.starts_with("GET /other ") { 2 } else { 1 << 20 };
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n{}", "x".repeat(body))
    });
    let setup = setup(&lab, "h1").timeouts("idle = 4\nconnect = 60");
    let setup = setup.server("a", lab.server(1), "max_connections = 4");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut greedy = request_with_closed_windows(&lab, 4);
    balancer.wait_for_stat("/backends/pool/current_connections", 4);
    // The connection takes at most 640 bytes a second: enough alone, and too few for four servers.
    let takes = |n: u32| frame(8, 0, 2 * n + 1, &7_u32.to_be_bytes());
    gets_a_slot(&lab, &balancer, &mut greedy, &(0..4).flat_map(takes).collect::<Vec<u8>>());
}

pub(super) fn slow_body_of_unknown_length_leaves_its_slot_to_a_waiting_request() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").timeouts("idle = 4\nconnect = 60");
    let setup = setup.server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut greedy = begin_post(&lab, &[]);
    balancer.wait_for_stat("/backends/pool/current_connections", 1);
    gets_a_slot(&lab, &balancer, &mut greedy, &frame(0, 0, 1, b"x"));
    balancer.wait_for_stat("/frontends/web/requests/local_replies/request_timeout", 1);
}

/// convey in front of server `a`, which trusts the proxy at address 99.
fn trusting(lab: &Loopback) -> BalancerProcess {
    let proxies = format!("mode = \"http\"\ntrusted_proxies = \"{}\"", lab.ip(99));
    let setup = setup(lab, "h1").frontend(&proxies).health("kind = \"none\"").server("a", lab.server(1), "");
    BalancerProcess::start_with(lab, &setup, limited("1000:1000"))
}

/// Connection of the trusted proxy with a request of this client.
fn request_by_proxy(lab: &Loopback, path: &str, client: &str) -> TcpStream {
    let mut proxy = connect_from(lab.ip(99), lab.vip()).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n");
    proxy.write_all(request.as_bytes()).unwrap();
    proxy
}

/// Connections of a trusted proxy count for no client.
pub(super) fn client_that_a_trusted_proxy_names_has_a_share() {
    let lab = Loopback::new();
    let _server = quick_server(&lab);
    let balancer = trusting(&lab);
    let fetch = |path: &str, client: &str| request_by_proxy(&lab, path, client);
    let mut greedy = Vec::new();
    wait_for("a refused request", || {
        assert!(greedy.len() < 400, "nothing was refused");
        greedy.push(fetch("/slow", "203.0.113.5"));
        (balancer.stat("/frontends/web/drops/client_limit").as_u64()? > 0).then_some(())
    });
    for n in 6..16 {
        let mut answer = [0; 12];
        fetch("/quick", &format!("203.0.113.{n}")).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
}

/// Each response fits into buffers of the kernel, so that no server is held for it.
pub(super) fn unread_response_counts_for_the_client_that_a_trusted_proxy_names() {
    const BODY: usize = 200_000;
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let body = if request.line.starts_with("GET /quick ") { 2 } else { BODY };
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n{}", "x".repeat(body))
    });
    let balancer = trusting(&lab);
    let fetch = |path: &str, client: &str| request_by_proxy(&lab, path, client);
    let status = |proxy: &mut TcpStream| {
        let mut answer = [0; 12];
        proxy.read_exact(&mut answer).unwrap();
        String::from_utf8(answer[9..].to_vec()).unwrap()
    };
    let mut greedy = Vec::new();
    wait_for("a refused request", || {
        assert!(greedy.len() < 450, "nothing was refused");
        greedy.push(fetch("/long", "203.0.113.5"));
        assert!(greedy.last_mut().is_some_and(|proxy| ["200", "503"].contains(&&*status(proxy))));
        (balancer.stat("/frontends/web/drops/client_limit").as_u64()? > 0).then_some(())
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    for n in 6..16 {
        assert_eq!(status(&mut fetch("/quick", &format!("203.0.113.{n}"))), "200");
    }
    // Connections of the proxy stay, but the client has its responses.
    for proxy in &mut greedy[..100] {
        proxy.read_exact(&mut vec![0; BODY]).unwrap();
    }
    wait_for("room for the client", || (status(&mut fetch("/quick", "203.0.113.5")) == "200").then_some(()));
}

pub(super) fn streams_of_one_client_leave_an_http2_server_room_for_others() {
    let lab = Loopback::new();
    // One client gets 28 or 29 of 32 streams.
    let _server = narrow_server(&lab);
    let setup = setup(&lab, "h2").health("kind = \"none\"").timeouts("connect = 1");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let head = [&[0x83, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let uploads = (0..40).flat_map(|n| frame(1, 4, 2 * n + 1, &head));
    let all: Vec<u8> = [PREFACE, &frame(4, 0, 0, &[])].concat().into_iter().chain(uploads).collect();
    let mut greedy = connect_from(lab.ip(99), lab.vip()).unwrap();
    greedy.write_all(&all).unwrap();
    wait_for("refused streams", || {
        (balancer.stat("/frontends/web/drops/client_limit").as_u64()? > 10).then_some(())
    });
    block_on(async {
        // Some of these connections belong to the worker that serves the greedy client.
        for _ in 0..10 {
            let other = Client::connect(lab.vip()).await;
            assert_eq!(other.get("http://a.example/").await.status, 200);
        }
    });
    balancer.wait_for_stat("/frontends/web/requests/local_replies/queue_timeout", 11);
}

/// Streams of all clients share a connection to the server.
pub(super) fn unread_responses_of_an_http2_server_stall_no_other_client() {
    let lab = Loopback::new();
    let _server = EchoServer::start(lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    let post = || Request::post("http://a.example/").body(()).unwrap();
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let mut unread = Vec::new();
        for _ in 0..12 {
            let (response, mut stream) = client.begin(post(), false).await;
            stream.send_data(vec![b'x'; 400_000].into(), true).unwrap();
            unread.push((response.await.unwrap(), stream));
        }
        for _ in 0..20 {
            let other = Client::connect(lab.vip()).await;
            assert_eq!(other.post(post(), "hello", None).await.body, "hello");
        }
    });
}

/// What the client has not accepted counts in the stream's window, wherever it waits.
pub(super) fn unread_response_of_an_http2_server_takes_one_window_of_memory() {
    let lab = Loopback::new();
    let server = EchoServer::start(lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    let mut closed = connect(lab.vip());
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let path = [&[0x44, ENDLESS.len() as u8], ENDLESS.as_bytes()].concat();
    let head = [&[0x82, 0x86][..], &path, &[0x41, 1], b"a"].concat();
    closed.write_all(&[PREFACE, &settings, &frame(1, 5, 1, &head)].concat()).unwrap();
    wait_for("a full window", || (server.endless() >= 64 * 1024).then_some(()));
    block_on(async {
        let other = Client::connect(lab.vip()).await;
        let post = Request::post("http://a.example/").body(()).unwrap();
        assert_eq!(other.post(post, "hello", None).await.body, "hello");
    });
    assert_eq!(server.endless(), 64 * 1024);
}
