//! Clients of HTTP/2 that request much data and read nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, TcpServer, TestHttpServer, connect};

use super::frames::frame;
use super::setup;
use crate::http::client::Client;

const CONNECTIONS: usize = 8;

/// Maximum number of streams that convey accepts on a connection.
const STREAMS: u32 = 100;

/// Maximum memory of such a connection, in bytes.
const MOST: u64 = 12 << 20;

/// Requests a body on each stream, with the largest windows that HTTP/2 allows.
pub(super) fn fetch(stream: &mut TcpStream) {
    let window = 0x7fff_ffff_u32;
    let settings = frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    let of_connection = frame(8, 0, 0, &(window - 65_535).to_be_bytes());
    let head = [&[0x82, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let requests = (0..STREAMS).flat_map(|n| frame(1, 5, 2 * n + 1, &head));
    let all = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &of_connection].concat();
    stream.write_all(&all.into_iter().chain(requests).collect::<Vec<u8>>()).unwrap();
}

pub(super) fn a_client_that_reads_nothing_of_a_hundred_streams_holds_little_memory() {
    let lab = Loopback::new();
    let _large = TcpServer::start(lab.server(1), |mut stream| {
        let _ = stream.read(&mut [0; 4096])?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 << 20)?;
        let part = vec![b'x'; 1 << 20];
        (0..64).try_for_each(|_| stream.write_all(&part))
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    let before = balancer.memory();
    let clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = connect(lab.vip());
            fetch(&mut client);
            client
        })
        .collect();
    balancer.wait_for_stat("/frontends/web/requests/total", CONNECTIONS * STREAMS as usize);
    // Waits until nothing more is sent: all windows are open, and all buffers full.
    let sent = || balancer.stat("/backends/pool/bytes_tx");
    let mut last = sent();
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = sent();
        if std::mem::replace(&mut last, now.clone()) == now {
            break;
        }
    }
    let each = balancer.memory().saturating_sub(before) / CONNECTIONS as u64;
    assert!(each < MOST, "{each} bytes for each connection");
    drop(clients);
    balancer.wait_for_stat("/current_connections", 0);
}

pub(super) fn client_that_reads_no_answers_to_its_pings_holds_little_memory() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    let before = balancer.memory();
    // PING, and SETTINGS with one window and another.
    let settings = |window: u32| frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    for flood in [frame(6, 0, 0, &[0; 8]).repeat(1_000), [settings(1), settings(2)].concat().repeat(500)] {
        let mut client = connect(lab.vip());
        client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        fetch(&mut client);
        let written = (0..10_000).take_while(|_| client.write_all(&flood).is_ok()).count();
        assert!(written < 10_000, "convey reads what it cannot answer");
        let held = balancer.memory().saturating_sub(before);
        assert!(held < MOST, "{held} bytes");
        assert_eq!(Client::new(lab.vip()).get("a", "/").status, 200);
    }
}
