//! Clients of HTTP/2 whose windows are closed, and what they leave to others.

use std::io::{Read, Write};
use std::net::TcpStream;

use convey_testkit::{BalancerProcess, Loopback, TcpServer, TestHttpServer, connect, connect_from, wait_for};

use super::client::Client;
use super::server::EchoServer;
use super::unread::{self, frame};
use super::{block_on, setup};
use crate::shares::limited;

const STREAMS: u32 = 20;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Asks for a page on each stream, none of which takes a byte of a body.
fn ask_with_closed_windows(lab: &Loopback) -> TcpStream {
    let mut closed = connect(lab.vip());
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let head = [&[0x82, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let requests = (0..STREAMS).flat_map(|n| frame(1, 5, 2 * n + 1, &head));
    let all = [PREFACE, &settings].concat();
    closed.write_all(&all.into_iter().chain(requests).collect::<Vec<u8>>()).unwrap();
    closed
}

pub(super) fn closed_windows_hold_no_slot_of_a_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").server("a", lab.server(1), "max_connections = 2");
    let balancer = BalancerProcess::start(&lab, &setup);
    let closed = ask_with_closed_windows(&lab);
    // None of them waits for the client.
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
    let closed = ask_with_closed_windows(&lab);
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", STREAMS as usize);
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    block_on(async {
        let other = Client::connect(lab.vip()).await;
        assert_eq!(other.get("http://a.example/other").await.status, 200);
    });
    drop(closed);
}

pub(super) fn streams_of_http2_servers_count_in_the_share_of_their_client() {
    let lab = Loopback::new();
    // It holds each stream until the body has come.
    let _server = EchoServer::start(lab.server(1));
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("1000:1000"));
    let head = [&[0x83, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let uploads = (0..100).flat_map(|n| frame(1, 4, 2 * n + 1, &head));
    let all: Vec<u8> = [PREFACE, &frame(4, 0, 0, &[])].concat().into_iter().chain(uploads).collect();
    let greedy: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut client = connect_from(lab.ip(99), lab.vip()).unwrap();
            client.write_all(&all).unwrap();
            client
        })
        .collect();
    wait_for("refused streams", || {
        (balancer.stat("/frontends/web/drops/client_limit").as_u64()? > 10).then_some(())
    });
    block_on(async {
        let other = Client::connect(lab.vip()).await;
        assert_eq!(other.get("http://a.example/").await.status, 200);
    });
    drop(greedy);
}

pub(super) fn streams_of_one_client_leave_connections_to_servers_for_others() {
    let lab = Loopback::new();
    // It answers to short heads alone, and holds the rest.
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        let mut head = [0; 4096];
        let len = stream.read(&mut head)?;
        if head[..len].starts_with(b"GET /quick") {
            return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    });
    let setup = setup(&lab, "h1").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("1000:1000"));
    let greedy: Vec<TcpStream> = (0..10)
        .map(|_| {
            let mut client = connect_from(lab.ip(99), lab.vip()).unwrap();
            unread::ask(&mut client);
            client
        })
        .collect();
    wait_for("refused streams", || {
        (balancer.stat("/frontends/web/drops/client_limit").as_u64()? > 10).then_some(())
    });
    block_on(async {
        for _ in 0..20 {
            let other = Client::connect(lab.vip()).await;
            assert_eq!(other.get("http://a.example/quick").await.status, 200);
        }
    });
    drop(greedy);
}
