//! Uploads that a server of HTTP/2 does not read.

use std::io::{Read, Write};

use convey_testkit::{BalancerProcess, Loopback, connect_from, wait_for};

use super::server::{EchoServer, UNREAD};
use super::setup;

/// So many that each worker has some.
const GREEDY: usize = 24;

/// Two of them use up the window of a connection.
const UPLOAD: usize = 30_000;

/// Streams of all clients share a connection to the server, and its window.
pub(super) fn unread_uploads_to_an_http2_server_stall_no_other_client() {
    let lab = Loopback::new();
    let server = EchoServer::start(lab.server(1));
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let begun = (0..GREEDY).map(|_| {
        let mut client = connect_from(lab.ip(99), lab.vip()).unwrap();
        let head = format!("POST {UNREAD} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 2 * UPLOAD);
        client.write_all(&[head.as_bytes(), &[b'x'; UPLOAD]].concat()).unwrap();
        client
    });
    let greedy: Vec<_> = begun.collect();
    wait_for("all uploads at convey", || {
        let bytes = balancer.stat("/backends/pool/bytes_rx").as_u64()?;
        (server.seen().len() == GREEDY && bytes >= (GREEDY * UPLOAD / 2) as u64).then_some(())
    });
    let body = "X".repeat(20_000);
    for _ in 0..12 {
        let mut other = connect_from(lab.ip(98), lab.vip()).unwrap();
        let fields = format!("Host: a\r\nConnection: close\r\nContent-Length: {}", body.len());
        write!(other, "POST / HTTP/1.1\r\n{fields}\r\n\r\n{body}").unwrap();
        let mut response = Vec::new();
        other.read_to_end(&mut response).unwrap();
        assert_eq!(response.iter().filter(|byte| **byte == b'X').count(), body.len());
    }
    drop(greedy);
}
