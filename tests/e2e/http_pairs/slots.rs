//! Streams whose clients read nothing, and the servers' slots that they leave to others.

use std::thread;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback};
use futures_util::future::join_all;
use http::Request;
use tokio::time::timeout;

use super::case::Version;
use super::client::Failure;
use super::pages::{AT_ONCE, LONG, LONG_LEN, MIDDLE, Pages, SHORT, TOGETHER};
use super::streams::{Connection, Reading, Sending, StreamClients};
use super::{addresses, runtime, setup};
use crate::http2::server::EchoServer;
use crate::http3::authority;

/// Limits the time for which a client may take nothing of a response before its stream is reset:
/// up to two periods of `send`.
const SEND_TIMEOUT: &str = "send = 2\nconnect = 60";

const PATIENCE: Duration = Duration::from_secs(30);

/// Streams that are not read.
type Unread = (Connection, Vec<(Sending, Reading)>);

/// Window that leaves no room for a body. A window of HTTP/3 is for the head, too.
fn closed_window(version: Version) -> Option<u32> {
    Some(if version == Version::Http2 { 0 } else { 64 })
}

async fn ask_and_read_nothing(clients: &StreamClients, streams: usize, path: &str) -> Unread {
    let connection = clients.connect().await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..streams {
        unread.push(connection.begin(Request::builder(), path, true).await.unwrap());
    }
    (connection, unread)
}

pub(super) fn unread_short_responses_leave_all_slots_at_once() {
    all_slots_are_left(SHORT);
}

pub(super) fn unread_long_responses_leave_all_slots_after_the_timeout() {
    all_slots_are_left(LONG);
}

/// As many streams as the server has slots read nothing of a response. Then all slots are for
/// others.
fn all_slots_are_left(path: &str) {
    thread::scope(|scope| {
        for (client, server) in pairs() {
            scope.spawn(move || all_slots_are_left_between(client, server, path));
        }
    });
}

fn all_slots_are_left_between(client: Version, server: Version, path: &str) {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let setup = setup(&lab, server).timeouts(SEND_TIMEOUT);
    let slots = format!("max_connections = {AT_ONCE}");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), &slots));
    runtime().block_on(async {
        Pages::start(lab.server(1), server);
        let to = addresses(&lab);
        let clients = StreamClients::new(client, to, &authority, closed_window(client));
        let unread = ask_and_read_nothing(&clients, AT_ONCE, path).await;
        until(|| balancer.stat("/backends/pool/requests/responses/2xx") == AT_ONCE).await;
        if path == LONG {
            until(|| balancer.stat("/backends/pool/current_connections") == 0).await;
        }
        let others = StreamClients::new(Version::Http2, to, &authority, None).from(lab.ip(98));
        // No page comes before all slots are taken.
        let pages = get_at_once(&others, TOGETHER).await;
        let pages = pages.unwrap_or_else(|failure| panic!("{client:?} to {server:?}: {failure}"));
        assert!(pages.iter().all(|page| *page == (200, 8)), "{client:?} to {server:?}: {pages:?}");
        drop(unread);
    });
}

/// The server allows one stream at a time on a connection, and a worker opens up to 32 of these. A
/// stream that stayed open until its client has read the response would need a connection of its
/// own.
pub(super) fn unread_responses_need_one_stream_to_a_server() {
    thread::scope(|scope| {
        for client in [Version::Http2, Version::Http3] {
            scope.spawn(move || unread_responses_need_one_stream(client));
        }
    });
}

fn unread_responses_need_one_stream(client: Version) {
    const UNREAD: usize = 40;
    let lab = Loopback::new();
    let authority = authority(&lab);
    let setup = setup(&lab, Version::Http2).timeouts(SEND_TIMEOUT).server("a", lab.server(1), "");
    let mut allows_one = h2::server::Builder::new();
    allows_one.max_concurrent_streams(1);
    let server = EchoServer::with(lab.server(1), allows_one);
    let balancer = BalancerProcess::start(&lab, &setup);
    runtime().block_on(async {
        let to = addresses(&lab);
        let clients = StreamClients::new(client, to, &authority, closed_window(client));
        let connection = clients.connect().await.unwrap();
        let mut unread = Vec::new();
        for n in 1..=UNREAD {
            let post = Request::builder().method("POST");
            let (mut sending, reading) = connection.begin(post, "/", false).await.unwrap();
            sending.send(vec![b'x'; 100].into()).await.unwrap();
            sending.finish().await.unwrap();
            unread.push((sending, reading));
            until(|| balancer.stat("/backends/pool/requests/responses/2xx") == n).await;
            until(|| balancer.stat("/backends/pool/current_connections") == 0).await;
        }
        assert_eq!(server.connections(), 1, "{client:?}");
        let others = StreamClients::new(Version::Http2, to, &authority, None).from(lab.ip(98));
        let page = others.connect().await.unwrap().get("/").await.unwrap();
        assert_eq!(page, (200, Vec::new()), "{client:?}");
        drop(unread);
    });
}

/// Waits for a condition.
async fn until(is_met: impl Fn() -> bool) {
    let met = async {
        while !is_met() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, met).await.expect("the condition is met");
}

/// Requests a page as often as the server has slots, on one connection. Returns statuses and
/// lengths of the pages.
async fn get_at_once(clients: &StreamClients, path: &str) -> Result<Vec<(u16, usize)>, Failure> {
    let connection = clients.connect().await?;
    let pages = join_all((0..AT_ONCE).map(|_| connection.get(path)));
    let pages = timeout(PATIENCE, pages).await?;
    pages.into_iter().map(|page| page.map(|(status, body)| (status, body.len()))).collect()
}

fn pairs() -> Vec<(Version, Version)> {
    let clients = [Version::Http2, Version::Http3].into_iter();
    clients.flat_map(|client| [Version::Http1, Version::Http2].map(|server| (client, server))).collect()
}

/// Connections with as many unread streams as convey accepts. Longer pages would fill the memory of
/// the kernel for TCP, which clients and servers of this test share with convey.
pub(super) fn thousands_of_unread_streams_leave_servers_to_others() {
    const CONNECTIONS: usize = 48;
    const STREAMS: usize = 100;
    for (client, server) in pairs() {
        let lab = Loopback::new();
        let authority = authority(&lab);
        let setup = setup(&lab, server).timeouts("idle = 60").server("a", lab.server(1), "");
        let balancer = BalancerProcess::start(&lab, &setup);
        runtime().block_on(async {
            Pages::start(lab.server(1), server);
            let to = addresses(&lab);
            let clients = StreamClients::new(client, to, &authority, closed_window(client));
            let asked = (0..CONNECTIONS).map(|_| ask_and_read_nothing(&clients, STREAMS, MIDDLE));
            let unread = join_all(asked).await;
            let requests = || {
                let of = |name| balancer.stat(&format!("/frontends/{name}/requests/total")).as_u64();
                of("web").unwrap() + of("secure").unwrap()
            };
            until(|| requests() == (CONNECTIONS * STREAMS) as u64).await;
            for version in [Version::Http2, Version::Http3] {
                let others = StreamClients::new(version, to, &authority, None).from(lab.ip(98));
                for (path, len) in [(SHORT, 2), (TOGETHER, 8), (LONG, LONG_LEN)] {
                    let pages = get_at_once(&others, path).await;
                    let pages = pages.unwrap_or_else(|failure| {
                        panic!("{client:?} to {server:?}: {version:?} {path}: {failure}")
                    });
                    let are_whole = pages.iter().all(|page| *page == (200, len));
                    assert!(are_whole, "{client:?} to {server:?}: {version:?} {path} {pages:?}");
                }
            }
            drop(unread);
        });
    }
}
