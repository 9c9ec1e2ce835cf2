//! Servers of HTTP/2 that accept few streams on a connection.

use std::time::Duration;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, Setup};
use http::Request;

use super::client::{Call, Client, read};
use super::server::EchoServer;
use super::{block_on, setup};

/// Connections of a worker to a server over HTTP/2.
const MOST: usize = 32;

/// As many calls as connections are allowed, to a server that accepts one stream on each. All of
/// them are in progress.
async fn calls(client: &Client, server: &EchoServer, more: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    for _ in 0..MOST + more {
        let request = Request::post("http://svc.example/").body(()).unwrap();
        calls.push(client.begin(request, false).await);
    }
    while server.connections() < MOST {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    calls
}

async fn end(mut calls: Vec<Call>) {
    for (_, stream) in &mut calls {
        stream.send_data(Bytes::new(), true).unwrap();
    }
    for (response, _) in calls {
        assert_eq!(read(response.await.unwrap()).await.status, 200);
    }
}

/// A frontend whose client may take all streams of its server.
fn trusting(lab: &Loopback) -> Setup {
    setup(lab, "h2").frontend("mode = \"http\"\ntrusted_clients = \"127.0.0.1\"")
}

/// A server that takes one stream on a connection.
pub(super) fn narrow_server(lab: &Loopback) -> EchoServer {
    EchoServer::with(lab.server(1), h2::server::Builder::new().max_concurrent_streams(1).clone())
}

pub(super) fn http2_connections_of_a_worker_are_limited_and_streams_wait() {
    let lab = Loopback::new();
    let server = narrow_server(&lab);
    let setup = trusting(&lab).health("kind = \"none\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        end(calls(&client, &server, 8).await).await;
    });
    assert_eq!((server.connections(), server.seen().len()), (MOST, MOST + 8));
}

pub(super) fn request_that_waits_in_vain_for_a_stream_reaches_no_server() {
    let lab = Loopback::new();
    let server = narrow_server(&lab);
    // Long enough for a busy machine to open all connections, and for `/left` to be seen waiting.
    let setup = trusting(&lab).health("kind = \"none\"").timeouts("connect = 4");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let calls = calls(&client, &server, 0).await;
        assert_eq!(client.get("http://svc.example/late").await.status, 503);
        let left = Request::post("http://svc.example/left").body(()).unwrap();
        let call = client.begin(left, true).await;
        while balancer.stat("/frontends/web/requests/total") != MOST + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(call);
        // Ends on the same connection, so convey processes it later.
        end(calls).await;
    });
    assert_eq!(server.seen().len(), MOST);
    balancer.wait_for_stat("/frontends/web/requests/local_replies/queue_timeout", 1);
}
