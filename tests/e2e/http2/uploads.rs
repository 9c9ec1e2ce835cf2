//! Uploads that a server of HTTP/2 does not read.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::thread;

use convey_testkit::{BalancerProcess, Loopback, connect_from, wait_for};

use super::server::{EchoServer, UNREAD};
use super::setup;

/// Enough connections for all workers to have some.
const GREEDY: usize = 24;

/// Two of them use up the window of a connection.
const UPLOAD: usize = 30_000;

/// Begins uploads of one client that the server does not read, and waits until they have arrived.
fn begin_unread(
    lab: &Loopback,
    from: IpAddr,
    balancer: &BalancerProcess,
    server: &EchoServer,
) -> Vec<TcpStream> {
    let (seen, rx) = (server.seen().len(), balancer.stat("/backends/pool/bytes_rx").as_u64().unwrap());
    let begun = (0..GREEDY).map(|_| {
        let mut client = connect_from(from, lab.vip()).unwrap();
        let fields = format!("Host: a\r\nX-Forwarded-For: 203.0.113.1\r\nContent-Length: {}", 2 * UPLOAD);
        let head = format!("POST {UNREAD} HTTP/1.1\r\n{fields}\r\n\r\n");
        client.write_all(&[head.as_bytes(), &[b'x'; UPLOAD]].concat()).unwrap();
        client
    });
    let greedy: Vec<_> = begun.collect();
    wait_for("all uploads at convey", || {
        let bytes = balancer.stat("/backends/pool/bytes_rx").as_u64()?;
        let has_all = server.seen().len() == seen + GREEDY;
        (has_all && bytes >= rx + (GREEDY * UPLOAD / 2) as u64).then_some(())
    });
    greedy
}

/// Body length of this response, which ends with its connection.
fn echoed(mut client: TcpStream) -> usize {
    let mut response = Vec::new();
    client.read_to_end(&mut response).unwrap();
    response.iter().filter(|byte| **byte == b'X').count()
}

/// Streams of all clients share a connection to the server, and its window.
pub(super) fn unread_uploads_to_an_http2_server_stall_no_other_client() {
    let lab = Loopback::new();
    let server = EchoServer::start(lab.server(1));
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let greedy = begin_unread(&lab, lab.ip(99), &balancer, &server);
    let body = "X".repeat(20_000);
    for _ in 0..12 {
        let mut other = connect_from(lab.ip(98), lab.vip()).unwrap();
        let fields = format!("Host: a\r\nConnection: close\r\nContent-Length: {}", body.len());
        write!(other, "POST / HTTP/1.1\r\n{fields}\r\n\r\n{body}").unwrap();
        assert_eq!(echoed(other), body.len());
    }
    drop(greedy);
}

/// Clients are distinguished by their addresses, or by a header of a trusted proxy.
pub(super) fn unread_uploads_to_an_http2_server_stall_no_open_upload_of_others() {
    let lab = Loopback::new();
    let server = EchoServer::start(lab.server(1));
    let proxies = format!("mode = \"http\"\ntrusted_proxies = \"{}\"", lab.ip(97));
    let setup = setup(&lab, "h2").frontend(&proxies).health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let body = vec![b'X'; 300_000];
    let (first, rest) = body.split_at(1_000);
    for (greedy, client) in [(99, 98), (97, 97)] {
        let seen = server.seen().len();
        let mut other = connect_from(lab.ip(client), lab.vip()).unwrap();
        let fields = "Host: a\r\nX-Forwarded-For: 203.0.113.2\r\nConnection: close";
        let head = format!("POST / HTTP/1.1\r\n{fields}\r\nContent-Length: {}\r\n\r\n", body.len());
        other.write_all(&[head.as_bytes(), first].concat()).unwrap();
        wait_for("the open upload at the server", || (server.seen().len() > seen).then_some(()));
        let greedy = begin_unread(&lab, lab.ip(greedy), &balancer, &server);
        let reader = other.try_clone().unwrap();
        let echoed = thread::spawn(move || echoed(reader));
        other.write_all(rest).unwrap();
        assert_eq!(echoed.join().unwrap(), body.len());
        drop(greedy);
    }
}

/// Bodies of all of these fit into one window.
pub(super) fn small_uploads_of_many_clients_share_connections_to_an_http2_server() {
    let lab = Loopback::new();
    let server = EchoServer::start(lab.server(1));
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let body = "x".repeat(300);
    let clients = (100..200).map(|n| {
        let mut client = connect_from(lab.ip(n), lab.vip()).unwrap();
        let fields = format!("Host: a\r\nContent-Length: {}", body.len());
        write!(client, "POST {UNREAD} HTTP/1.1\r\n{fields}\r\n\r\n{body}").unwrap();
        client
    });
    let clients: Vec<_> = clients.collect();
    wait_for("all uploads at the server", || (server.seen().len() == clients.len()).then_some(()));
    let workers = thread::available_parallelism().unwrap().get();
    assert!(server.connections() <= workers, "{} connections", server.connections());
}
