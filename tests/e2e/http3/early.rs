//! Early data: requests of returning clients, before their handshake is over.

use std::net::SocketAddr;

use convey_testkit::{BalancerProcess, Loopback, TestHttpServer, tests, wait_for};
use http::Request;

use super::client::{Client, Clients, read, uri};
use super::{authority, site, with};
use crate::http2::block_on;

tests!("http3_early":
    returning_client_sends_early_data_and_the_server_sees_the_field,
    unsafe_methods_wait_for_the_handshake,
    early_data_is_refused_unless_configured,
    a_ticket_is_good_for_one_early_request,
    early_request_from_a_forged_address_reaches_no_server,
);

/// A returning client, once it has a session ticket.
async fn return_early(clients: &Clients, to: SocketAddr) -> (Client, quinn::ZeroRttAccepted) {
    let client = clients.connect(to).await;
    assert_eq!(client.get("/first").await.status, 200);
    // Tickets come with, or behind, the first answer.
    loop {
        match clients.connect_early(to).await {
            Some(early) => return early,
            None => assert_eq!(client.get("/first").await.status, 200),
        }
    }
}

fn returning_client_sends_early_data_and_the_server_sees_the_field() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, "early_data = true"));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let (client, accepted) = return_early(&clients, lab.vip()).await;
        assert_eq!(client.get("/early").await.status, 200);
        assert!(accepted.await);
        assert_eq!(client.get("/later").await.status, 200);
    });
    let seen = |path: &str| server.seen().into_iter().find(|seen| seen.line.contains(path)).unwrap();
    assert_eq!(seen("/first").field("early-data"), None);
    assert_eq!(seen("/later").field("early-data"), None);
    assert_eq!(seen("/early").line, "GET /early HTTP/1.1");
    balancer.wait_for_stat("/frontends/web/tls/resumed", 1);
}

fn unsafe_methods_wait_for_the_handshake() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &site(&lab, "early_data = true"));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let (client, accepted) = return_early(&clients, lab.vip()).await;
        let answer = client.fetch(Request::post(uri("/buy")), b"one", None).await;
        assert_eq!(answer.text(), "a POST /buy 3");
        assert!(accepted.await);
    });
    let seen = server.seen().into_iter().find(|seen| seen.line.contains("/buy")).unwrap();
    assert_eq!(seen.field("early-data"), None);
}

fn early_data_is_refused_unless_configured() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        for _ in 0..10 {
            assert_eq!(client.get("/").await.status, 200);
        }
        assert!(clients.connect_early(lab.vip()).await.is_none());
        assert_eq!(clients.connect(lab.vip()).await.get("/").await.status, 200);
    });
    wait_for("requests", || (balancer.stat("/frontends/web/requests/total") == 11).then_some(()));
}

/// A replay of the recorded first packets has no effect: the session is in no store any more.
fn a_ticket_is_good_for_one_early_request() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &site(&lab, "early_data = true"));
    block_on(async {
        let clients = Clients::trusting(&authority);
        // The recorder keeps the clients' packets on the way.
        let recorder = super::recorder::Recorder::before(lab.vip()).await;
        let (early, accepted) = return_early(&clients, recorder.addr()).await;
        recorder.forget();
        let mut call = early.begin(Request::get(uri("/once")).body(()).unwrap()).await.unwrap();
        call.finish().await.unwrap();
        assert_eq!(read(&mut call).await.unwrap().status, 200);
        assert!(accepted.await);
        early.connection.close(0x100_u32.into(), b"");
        recorder.replay().await;
        // Requests of the replay would have arrived before this one.
        assert_eq!(clients.connect(lab.vip()).await.get("/last").await.status, 200);
    });
    let once = server.seen().iter().filter(|seen| seen.line.contains("/once")).count();
    assert_eq!(once, 1);
}

/// The sender of forged datagrams cannot read the answers.
fn early_request_from_a_forged_address_reaches_no_server() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let forged = lab.ip(99);
    let lines = format!("trusted_proxies = [\"{forged}\"]");
    let setup = with(&lab, &lines, "early_data = true\nhandshake_timeout = 1").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let on_the_way = super::recorder::Recorder::at(forged, lab.vip()).await;
        on_the_way.be_mute();
        let (early, _accepted) = loop {
            assert_eq!(client.get("/first").await.status, 200);
            if let Some(early) = clients.connect_early(on_the_way.addr()).await {
                break early;
            }
        };
        let request = Request::get(uri("/forged")).header("x-forwarded-for", "6.6.6.6").body(()).unwrap();
        let mut call = early.begin(request).await.unwrap();
        call.finish().await.unwrap();
        while balancer.stat("/frontends/web/ended/tls_handshake_timeout") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(client.get("/last").await.status, 200);
    });
    assert!(server.seen().iter().all(|seen| !seen.line.contains("/forged")));
}
