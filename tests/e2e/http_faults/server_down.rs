//! Servers that go down while they serve, where `on_down` is `reset`.

use std::io::{Read, Write};

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, TestHttpServer, connect, run};
use http::Request;

use super::super::http::HTTP;
use super::super::http::client::{Client, read_head};
use super::super::http2::block_on;
use super::super::http2::client::Client as Http2Client;
use super::super::http2::server::EchoServer;
use super::outcome::Version;

/// The test runs for all versions on both sides.
pub(super) fn a_response_of_a_server_that_goes_down_is_broken_off() {
    for protocol in ["h1", "h2"] {
        for version in [Version::Http1, Version::Http2] {
            let lab = Loopback::new();
            let (_old, _new) = (answer_by_half(&lab), EchoServer::start(lab.server(2)));
            let server = lab.server(if protocol == "h1" { 1 } else { 2 });
            let backend = format!("protocol = \"{protocol}\"\non_down = \"reset\"");
            let setup = Setup::new(&lab).frontend(HTTP).backend(&backend).server("a", server, "");
            let balancer = BalancerProcess::start(&lab, &setup);
            match version {
                Version::Http1 => is_cut_over_http1(&lab, &balancer),
                Version::Http2 => block_on(is_cut_over_http2(&lab, &balancer)),
            }
            balancer.wait_for_stat("/backends/pool/current_connections", 0);
        }
    }
}

fn answer_by_half(lab: &Loopback) -> TcpServer {
    TcpServer::start(lab.server(1), |mut stream| {
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")?;
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    })
}

fn is_cut_over_http1(lab: &Loopback, balancer: &BalancerProcess) {
    let mut client = connect(lab.vip());
    client
        .write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        .unwrap();
    let (mut came, mut byte) = (Vec::new(), [0]);
    while !came.ends_with(b"half") {
        client.read_exact(&mut byte).unwrap();
        came.push(byte[0]);
    }
    take_down(balancer);
    assert!(client.read_to_end(&mut came).is_err(), "{:?}", String::from_utf8_lossy(&came));
    balancer.wait_for_stat("/frontends/web/ended/server_gone", 1);
}

async fn is_cut_over_http2(lab: &Loopback, balancer: &BalancerProcess) {
    let client = Http2Client::connect(lab.vip()).await;
    let (response, mut stream) = client.begin(Request::put("http://a/").body(()).unwrap(), false).await;
    stream.send_data(Bytes::from_static(b"half"), false).unwrap();
    let mut body = response.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "half");
    take_down(balancer);
    let error = body.data().await.unwrap().unwrap_err();
    assert!(error.is_reset(), "{error}");
    // Its other streams go on.
    assert_eq!(client.get("http://a/").await.status, 503);
}

/// A request that may be repeated, and has no answer yet.
pub(super) fn pending_request_of_a_failed_server_is_served_by_another() {
    for version in [Version::Http1, Version::Http2] {
        let lab = Loopback::new();
        let (has_asked, asked) = std::sync::mpsc::channel();
        let _silent = TcpServer::start(lab.server(1), move |mut stream| {
            read_head(&mut stream)?;
            has_asked.send(()).map_err(std::io::Error::other)?;
            std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
        });
        let _other = TestHttpServer::named("other", lab.server(2));
        let setup = Setup::new(&lab).frontend(HTTP).backend("on_down = \"reset\"");
        let setup = setup.server("a", lab.server(1), "").server("b", lab.server(2), "backup = true");
        let balancer = BalancerProcess::start(&lab, &setup);
        let body = match version {
            Version::Http1 => {
                let mut client = Client::new(lab.vip());
                client.0.write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                asked.recv().unwrap();
                take_down(&balancer);
                client.read().body
            }
            Version::Http2 => block_on(async {
                let client = Http2Client::connect(lab.vip()).await;
                let get = async { client.get("http://a/1").await.body };
                let down = async {
                    tokio::task::spawn_blocking(move || asked.recv().unwrap()).await.unwrap();
                    take_down(&balancer);
                };
                futures_util::future::join(get, down).await.0
            }),
        };
        assert_eq!(body, "other GET /1 0", "{version:?}");
    }
}

/// Takes a server down by a command, which counts as a failed check.
fn take_down(balancer: &BalancerProcess) {
    let ran = run(balancer.command().args(["server", "maint", "pool/a"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
