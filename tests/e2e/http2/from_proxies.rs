//! Connections of proxies, which carry requests of many clients.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, PATIENCE, TestHttpServer, connect, connect_from};
use futures_util::future::join_all;
use http::{Request, Response};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Barrier;

use super::block_on;
use super::client::{Client, read};
use super::frames::{
    DATA, GET, GOAWAY, HEADERS, POST, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, receive,
};
use super::setup;

/// Reads frames up to the first of this type for this stream. Returns its payload.
fn read_until(stream: &mut TcpStream, kind: u8, id: u32) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    loop {
        let (of_kind, _, of, payload) = receive(stream).unwrap();
        if (of_kind, of) == (kind, id) {
            return payload;
        }
    }
}

pub(super) fn requests_cancelled_at_once_leave_others_of_their_connection() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    let mut proxy = connect(lab.vip());
    let head = [&[0x82, 0x86, 0x84, 0x41, 1][..], b"a"].concat();
    let cancelled = (1..=90).flat_map(|n| {
        let id = 2 * n + 1;
        [frame(HEADERS, 5, id, &head), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    });
    let first = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, 5, 1, &head)].concat();
    proxy.write_all(&first.into_iter().chain(cancelled).collect::<Vec<u8>>()).unwrap();
    assert_eq!(read_until(&mut proxy, HEADERS, 1)[0], 0x88, "200");
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// convey in front of a server, and an unused connection of a proxy that it trusts.
fn connect_proxy(lab: &Loopback, http: &str) -> (BalancerProcess, TcpStream) {
    let proxies = format!("mode = \"http\"\ntrusted_proxies = \"{}\"\n{http}", lab.ip(99));
    let setup = setup(lab, "h1").frontend(&proxies).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(lab, &setup);
    let mut proxy = connect_from(lab.ip(99), lab.vip()).unwrap();
    proxy.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
    (balancer, proxy)
}

pub(super) fn many_requests_cancelled_at_once_leave_others_of_a_proxy() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let (balancer, mut proxy) = connect_proxy(&lab, "");
    let cancelled = (1..=1_000).flat_map(|n| {
        let id = 2 * n + 1;
        [frame(HEADERS, 5, id, GET), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    });
    proxy.write_all(&frame(HEADERS, 5, 1, GET).into_iter().chain(cancelled).collect::<Vec<u8>>()).unwrap();
    for id in [1, 2_003] {
        if id > 1 {
            proxy.write_all(&frame(HEADERS, 5, id, GET)).unwrap();
        }
        assert_eq!(read_until(&mut proxy, HEADERS, id)[0], 0x88, "200");
    }
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// Each stream names a client of its own. The servers respond once they have all requests. A worker
/// has room for 3,200 streams to each of them.
pub(super) fn thousands_of_clients_of_a_proxy_are_served_at_once() {
    const CONNECTIONS: usize = 40;
    const STREAMS: usize = 100;
    let lab = Loopback::new();
    let waiting = Arc::new(Barrier::new(CONNECTIONS * STREAMS));
    block_on(async {
        for n in [1, 2] {
            let listener = TcpListener::bind(lab.server(n)).await.unwrap();
            tokio::spawn(serve_together(listener, waiting.clone()));
        }
        let proxies = format!("mode = \"http\"\ntrusted_proxies = \"{}\"", lab.ip(99));
        let setup = setup(&lab, "h2").frontend(&proxies).health("kind = \"none\"");
        let setup = setup.server("a", lab.server(1), "").server("b", lab.server(2), "");
        let _balancer = BalancerProcess::start(&lab, &setup);
        let connections = (0..CONNECTIONS).map(async |n| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((lab.ip(99), 0).into()).unwrap();
            let client = Client::over(socket.connect(lab.vip()).await.unwrap()).await;
            let calls = (0..STREAMS).map(async |stream| {
                let named = format!("198.18.{n}.{stream}");
                let request = Request::get("http://a/").header("x-forwarded-for", &named).body(()).unwrap();
                let (response, _stream) = client.begin(request, true).await;
                assert_eq!(read(response.await.unwrap()).await.status, 200, "{named}");
            });
            join_all(calls).await;
        });
        join_all(connections).await;
    });
}

/// A server of HTTP/2 whose responses wait for all requests.
async fn serve_together(listener: TcpListener, waiting: Arc<Barrier>) {
    while let Ok((stream, _)) = listener.accept().await {
        let waiting = waiting.clone();
        tokio::spawn(async move {
            let mut connection: h2::server::Connection<_, Bytes> = h2::server::handshake(stream).await?;
            while let Some(accepted) = connection.accept().await {
                let ((_, mut respond), waiting) = (accepted?, waiting.clone());
                tokio::spawn(async move {
                    waiting.wait().await;
                    respond.send_response(Response::new(()), true)
                });
            }
            Ok::<_, h2::Error>(())
        });
    }
}

/// A GET with an invalid field name.
fn malformed(id: u32) -> Vec<u8> {
    frame(HEADERS, 5, id, &[GET, b"\0\x01X\x01y"].concat())
}

pub(super) fn many_malformed_requests_leave_others_of_a_proxy() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let (balancer, mut proxy) = connect_proxy(&lab, "");
    proxy.write_all(&frame(HEADERS, 4, 1, POST)).unwrap();
    proxy.write_all(&(1..=1_500).flat_map(|n| malformed(2 * n + 1)).collect::<Vec<u8>>()).unwrap();
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 1_500);
    proxy.write_all(&frame(DATA, 1, 1, b"abc")).unwrap();
    assert_eq!(read_until(&mut proxy, HEADERS, 1)[0], 0x88, "200");
}

pub(super) fn malformed_requests_count_as_requests_of_their_connection() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let (balancer, mut proxy) = connect_proxy(&lab, "http.max_requests = 10");
    proxy.write_all(&(0..10).flat_map(|n| malformed(2 * n + 1)).collect::<Vec<u8>>()).unwrap();
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 10);
    proxy.write_all(&frame(HEADERS, 5, 21, GET)).unwrap();
    let farewell = read_until(&mut proxy, GOAWAY, 0);
    assert_eq!(farewell[4..8], [0; 4], "in order");
    assert_eq!(read_until(&mut proxy, HEADERS, 21)[0], 0x88, "200");
}

pub(super) fn trusted_proxy_has_a_window_for_all_its_streams() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let proxies = format!("mode = \"http\"\ntrusted_proxies = \"{}\"", lab.ip(99));
    let setup = setup(&lab, "h1").frontend(&proxies).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    for (ip, window) in [(lab.ip(99), 100 * 64 * 1024), (lab.ip(98), 1024 * 1024)] {
        let mut stream = connect_from(ip, lab.vip()).unwrap();
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
        let added = read_until(&mut stream, WINDOW_UPDATE, 0);
        assert_eq!(u32::from_be_bytes(added.try_into().unwrap()), window - 65_535, "{ip}");
    }
}
