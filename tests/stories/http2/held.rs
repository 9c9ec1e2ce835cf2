//! Clients of HTTP/2 whose windows are closed, and what they leave to others.

use std::io::{Read, Write};
use std::net::TcpStream;

use convey_testkit::{BalancerProcess, Loopback, TcpServer, TestHttpServer, connect, connect_from, wait_for};

use super::client::Client;
use super::unread::{self, frame};
use super::{block_on, setup};
use crate::shares::limited;

const STREAMS: u32 = 20;

pub(super) fn closed_windows_hold_no_slot_of_a_server() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").server("a", lab.server(1), "max_connections = 2");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut closed = connect(lab.vip());
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let head = [&[0x82, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let requests = (0..STREAMS).flat_map(|n| frame(1, 5, 2 * n + 1, &head));
    let all = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat();
    closed.write_all(&all.into_iter().chain(requests).collect::<Vec<u8>>()).unwrap();
    // None of them waits for the client.
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", STREAMS as usize);
    block_on(async {
        let other = Client::connect(lab.vip()).await;
        assert_eq!(other.get(&format!("http://{}/", lab.vip())).await.status, 200);
    });
    drop(closed);
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
