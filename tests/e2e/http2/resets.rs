//! Servers of HTTP/2 that reset streams, or end connections on which clients reset many.

use std::future::poll_fn;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, TcpServer};
use h2::Reason;
use h2::server::{self, SendResponse};
use http::{Request, Response};
use tokio::sync::mpsc;

use super::super::http::client::Client as Http1Client;
use super::client::{Client, read};
use super::frames::{END_HEADERS, END_STREAM, GOAWAY, HEADERS, send};
use super::malformed::raw_server;
use super::{block_on, setup};

/// Number of reset streams after which the server ends a connection, as the Rust library h2 does.
const STRICT: usize = 20;

/// Serves a connection. The server responds to `/` once the body of the request has ended, and to
/// no other path, except that it responds to `/early` before that. It ends the connection after
/// `STRICT` resets.
async fn serve_strictly(stream: TcpStream, seen: Arc<AtomicUsize>) {
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let mut connection = server::handshake(stream).await.unwrap();
    let (reset, mut resets) = mpsc::unbounded_channel();
    let mut count = 0;
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, mut respond))) = accepted else { return };
                let (is_held, is_early) = (request.uri().path() != "/", request.uri().path() == "/early");
                let (mut body, reset) = (request.into_body(), reset.clone());
                tokio::spawn(async move {
                    if is_early {
                        ok(&mut respond);
                    }
                    if is_held {
                        let _ = poll_fn(|cx| respond.poll_reset(cx)).await;
                        let _ = reset.send(());
                        return;
                    }
                    while let Some(Ok(_)) = body.data().await {}
                    ok(&mut respond);
                });
                seen.fetch_add(1, Ordering::Relaxed);
            }
            Some(()) = resets.recv() => {
                count += 1;
                if count == STRICT {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                }
            }
        }
    }
}

/// An error means that the other side has closed.
fn ok(respond: &mut SendResponse<Bytes>) {
    let _ = respond.send_response(Response::new(()), true);
}

/// Waits until the server has received this number of requests.
async fn reached(seen: &AtomicUsize, count: usize) {
    while seen.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) fn cut_requests_fail_no_other_request_of_their_server() {
    let lab = Loopback::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let _server = TcpServer::start(lab.server(1), move |stream| {
        block_on(serve_strictly(stream, count.clone()));
        Ok(())
    });
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        // convey must not repeat this request.
        let post = Request::post("http://a.example/").body(()).unwrap();
        let (response, mut upload) = client.begin(post, false).await;
        reached(&seen, 1).await;
        for n in 0..3 * STRICT {
            let held = Request::get("http://a.example/held").body(()).unwrap();
            let (_response, mut stream) = client.begin(held, true).await;
            reached(&seen, n + 2).await;
            stream.send_reset(Reason::CANCEL);
        }
        upload.send_data(Bytes::from_static(b"the end"), true).unwrap();
        assert_eq!(read(response.await.unwrap()).await.status, 200);
        assert_eq!(client.get("http://a.example/").await.status, 200);
    });
    balancer.wait_for_log(" of its streams were reset, 0 of them by the server");
}

/// convey resets an upload that is incomplete after its response.
pub(super) fn early_responses_to_uploads_fail_no_other_request_of_their_server() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), move |stream| {
        block_on(serve_strictly(stream, Arc::default()));
        Ok(())
    });
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let post = |path| Request::post(format!("http://a.example{path}")).body(()).unwrap();
        let (response, mut upload) = client.begin(post("/"), false).await;
        for _ in 0..3 * STRICT {
            let (early, _upload) = client.begin(post("/early"), false).await;
            assert_eq!(read(early.await.unwrap()).await.status, 200);
        }
        upload.send_data(Bytes::from_static(b"the end"), true).unwrap();
        assert_eq!(read(response.await.unwrap()).await.status, 200);
    });
}

pub(super) fn server_that_resets_all_streams_of_a_connection_gets_another() {
    let lab = Loopback::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let _server = TcpServer::start(lab.server(1), move |stream| {
        let is_first = connections.fetch_add(1, Ordering::Relaxed) == 0;
        block_on(async {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let mut connection = server::handshake(stream).await.unwrap();
            while let Some(Ok((_request, mut respond))) = connection.accept().await {
                match is_first {
                    true => respond.send_reset(Reason::ENHANCE_YOUR_CALM),
                    false => ok(&mut respond),
                }
            }
        });
        Ok(())
    });
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let mut failed = 0;
        while client.get("http://a.example/").await.status != 200 {
            failed += 1;
            assert!(failed <= 10);
        }
    });
    let line = balancer.wait_for_log("10 of its streams were reset, 10 of them by the server");
    let start = format!("server pool/a ({}): an HTTP/2 connection takes no further requests", lab.server(1));
    assert!(line.contains(&start), "{line}");
}

/// Another connection for each few refused streams would increase the load of the server.
pub(super) fn overloaded_server_that_refuses_streams_keeps_its_connection() {
    const REFUSED: usize = 50;
    let lab = Loopback::new();
    let [connections, requests] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let (opened, seen) = (connections.clone(), requests.clone());
    let _server = TcpServer::start(lab.server(1), move |stream| {
        opened.fetch_add(1, Ordering::Relaxed);
        block_on(async {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let mut connection = server::handshake(stream).await.unwrap();
            while let Some(Ok((_request, mut respond))) = connection.accept().await {
                match seen.fetch_add(1, Ordering::Relaxed) < REFUSED {
                    true => respond.send_reset(Reason::REFUSED_STREAM),
                    false => ok(&mut respond),
                }
            }
        });
        Ok(())
    });
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        while requests.load(Ordering::Relaxed) <= REFUSED {
            client.get("http://a.example/").await;
        }
        assert_eq!(client.get("http://a.example/").await.status, 200);
    });
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

/// The server closes its first connection with GOAWAY, before it has processed a request.
pub(super) fn unprocessed_request_is_retried_after_goaway_with_an_error() {
    let lab = Loopback::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let _server = raw_server(lab.server(1), connections.clone(), move |stream, id, _| {
        if count.load(Ordering::Relaxed) > 1 {
            return send(stream, (HEADERS, END_STREAM | END_HEADERS, id, b"\x88"));
        }
        let enhance_your_calm = [0, 0, 0, 0, 0, 0, 0, 11];
        send(stream, (GOAWAY, 0, 0, &enhance_your_calm));
        stream.shutdown(Shutdown::Both).unwrap();
    });
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    assert_eq!(Http1Client::new(lab.vip()).send(post).status, 200);
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}
