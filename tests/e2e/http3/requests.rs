//! Requests of HTTP/3 clients, and their responses.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use convey_testkit::{BalancerProcess, Loopback, Need, PATIENCE, TcpServer, TestHttpServer, tests, wait_for};
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, Request};
use quinn::{TransportConfig, VarInt};
use tokio::time::timeout;

use super::client::{Clients, read, uri};
use super::{authority, site, unchecked_site, with};
use crate::curl::curl;
use crate::http::client::read_head;
use crate::http_faults::one_end::deaf_server;
use crate::http2::block_on;
use crate::http2::server::EchoServer;

tests!("http3_requests":
    streams_are_requests_and_servers_see_who_asks,
    returning_client_resumes_its_session_and_is_counted,
    bodies_of_all_lengths_arrive_in_both_directions,
    a_call_of_grpc_streams_both_ways_and_ends_with_its_status,
    clients_over_tcp_are_told_of_it [Need::CURL],
    a_response_that_breaks_off_is_reset_and_never_looks_whole,
    data_before_a_pause_reaches_a_client_whose_window_opens_late,
    reset_of_a_request_alone_frees_a_server_that_reads_nothing,
    files_are_served_over_it,
    answers_are_compressed_over_it_too,
);

fn streams_are_requests_and_servers_see_who_asks() {
    let lab = Loopback::new();
    let clients = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let log = lab.directory().join("access.log");
    let access = format!("[access_log]\noutput = \"{}\"\nformat = \"json\"\n", log.display());
    let balancer = BalancerProcess::start(&lab, &site(&lab, "").and(&access));
    block_on(async {
        let clients = Clients::trusting(&clients);
        let client = clients.connect(lab.vip()).await;
        let asked = (0..60).map(|n| {
            let client = &client;
            async move { client.get(&format!("/{n}?q")).await }
        });
        for (n, answer) in join_all(asked).await.into_iter().enumerate() {
            assert_eq!((answer.status, answer.text()), (200, &*format!("a GET /{n}?q 0")));
        }
        let request = Request::post(uri("/p")).header("cookie", "a=1").header("cookie", "b=2");
        let answer = client.fetch(request, b"twelve bytes", None).await;
        assert_eq!(answer.text(), "a POST /p 12");
        let answer = client.fetch(Request::head(uri("/h")), b"", None).await;
        assert_eq!(
            (answer.status, answer.text(), &answer.fields["content-length"]),
            (200, "", &HeaderValue::from_static("11"))
        );
        // A request that HTTP/1.1 cannot express reaches no server.
        assert_eq!(client.get("/a/../b").await.status, 400);
    });
    let seen = server.seen();
    let post = seen.iter().find(|seen| seen.line.starts_with("POST")).unwrap();
    assert_eq!((post.field("host"), post.field("cookie")), (Some("site.example"), Some("a=1; b=2")));
    assert_eq!(
        (post.field("x-forwarded-for"), post.field("x-forwarded-proto")),
        (Some("127.0.0.1"), Some("https"))
    );
    assert!(
        seen.iter()
            .filter(|seen| seen.line.starts_with("GET"))
            .all(|seen| seen.field("transfer-encoding").is_none())
    );
    balancer.wait_for_stat("/frontends/web/requests/total", 63);
    balancer.wait_for_stat("/frontends/web/total_connections", 1);
    balancer.wait_for_stat("/frontends/web/tls/handshakes", 1);
    let line = wait_for("a line in the log", || {
        let lines = std::fs::read_to_string(&log).ok()?;
        lines.lines().find(|line| line.contains("/p\"")).map(str::to_owned)
    });
    for message in [
        r#""http_version":"3""#,
        r#""tls_version":"TLSv1.3""#,
        r#""tls_cipher":"TLS13_AES_"#,
        r#""sni":"site.example""#,
    ] {
        assert!(line.contains(message), "{message} in {line}");
    }
}

fn returning_client_resumes_its_session_and_is_counted() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        for _ in 0..5 {
            let client = clients.connect(lab.vip()).await;
            assert_eq!(client.get("/").await.status, 200);
            // Tickets come with, or behind, the first answer.
            assert_eq!(client.get("/").await.status, 200);
        }
    });
    balancer.wait_for_stat("/frontends/web/tls/handshakes", 1);
    balancer.wait_for_stat("/frontends/web/tls/resumed", 4);
}

fn bodies_of_all_lengths_arrive_in_both_directions() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        // The target selects the framing of the response.
        if request.line.contains("chunked") {
            write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            for part in request.body.chunks(5_000) {
                write!(stream, "{:x}\r\n", part.len())?;
                stream.write_all(part)?;
                stream.write_all(b"\r\n")?;
            }
            return stream.write_all(b"0\r\n\r\n");
        }
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len())?;
        stream.write_all(&request.body)
    });
    let _balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        for len in [0, 1, 100, 16_384, 16_385, 70_000, 3_000_000] {
            let body: Vec<u8> = (0..len).map(|n: usize| (n % 251) as u8).collect();
            for target in ["/length", "/chunked"] {
                let length = Request::post(uri(target)).header("content-length", len);
                for request in [length, Request::post(uri(target))] {
                    let answer = client.fetch(request, &body, None).await;
                    assert!(
                        answer.status == 200 && answer.body == body,
                        "{len} {target}: {}",
                        answer.body.len()
                    );
                }
            }
        }
    });
}

fn a_call_of_grpc_streams_both_ways_and_ends_with_its_status() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = EchoServer::start(lab.server(1));
    let setup = with(&lab, "", "").backend("protocol = \"h2\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let request = Request::post(uri("/pkg.Echo/Talk")).header("te", "trailers");
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let mut call = client.begin(request).await.unwrap();
        call.recv_response().await.unwrap();
        for word in ["one", "two", "three"] {
            // Each message is answered before the next one is sent.
            call.send_data(Bytes::from_static(word.as_bytes())).await.unwrap();
            let mut heard = call.recv_data().await.unwrap().unwrap();
            let heard = bytes::Buf::copy_to_bytes(&mut heard, word.len());
            assert_eq!(heard, word);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-last", HeaderValue::from_static("words"));
        call.send_trailers(trailers).await.unwrap();
        call.finish().await.unwrap();
        assert!(call.recv_data().await.unwrap().is_none());
        let trailers = call.recv_trailers().await.unwrap().unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-last"]),
            (&HeaderValue::from_static("0"), &HeaderValue::from_static("words"))
        );
    });
    assert_eq!(server.seen()[0].headers()["te"], "trailers");
}

fn clients_over_tcp_are_told_of_it() {
    let lab = Loopback::new();
    authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    let (at, port) = (lab.vip(), lab.vip().port());
    let asked = |version: &str| curl(&["-sk", version, "-D-", "-o", "/dev/null", &format!("https://{at}/")]);
    let offer = format!("alt-svc: h3=\":{port}\"; ma=86400");
    for version in ["--http1.1", "--http2"] {
        assert!(asked(version).to_lowercase().contains(&offer), "{version}");
    }
    // An operator may remove the field.
    balancer.save(&with(&lab, "[frontends.web.headers]\nresponse = { remove = [\"Alt-Svc\"] }", "").server(
        "a",
        lab.server(1),
        "",
    ));
    wait_for("no offer", || (!asked("--http2").to_lowercase().contains("alt-svc")).then_some(()));
}

fn a_response_that_breaks_off_is_reset_and_never_looks_whole() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        std::io::Read::read(&mut stream, &mut [0; 4096])?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    });
    let balancer = BalancerProcess::start(&lab, &unchecked_site(&lab));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let mut call = client.begin(Request::get(uri("/")).body(()).unwrap()).await.unwrap();
        call.finish().await.unwrap();
        let error = read(&mut call).await.unwrap_err();
        assert!(error.to_string().contains("H3_INTERNAL_ERROR"), "{error}");
        // The other streams of the connection go on.
        assert!(client.connection.close_reason().is_none());
    });
    balancer.wait_for_stat("/frontends/web/requests/total", 1);
}

/// The server sends three windows of data, as in a server-sent event, and then nothing.
fn data_before_a_pause_reaches_a_client_whose_window_opens_late() {
    const WINDOW: usize = 4_096;
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        read_head(&mut stream)?;
        let data = "x".repeat(3 * WINDOW);
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{data}\r\n",
            3 * WINDOW
        )?;
        // It ends with the connection.
        stream.read_to_end(&mut Vec::new()).map(drop)
    });
    let _balancer = BalancerProcess::start(&lab, &unchecked_site(&lab));
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(WINDOW as u32));
    block_on(async {
        let clients = Clients::with_transport(&authority, Arc::new(transport));
        let client = clients.connect(lab.vip()).await;
        let mut call = client.begin(Request::get(uri("/")).body(()).unwrap()).await.unwrap();
        call.finish().await.unwrap();
        assert_eq!(call.recv_response().await.unwrap().status(), 200);
        let mut received = 0;
        while received < 3 * WINDOW {
            let data = timeout(PATIENCE, call.recv_data()).await;
            let data = data.unwrap_or_else(|_| panic!("{received} bytes arrived")).unwrap();
            received += data.unwrap().remaining();
        }
    });
}

fn reset_of_a_request_alone_frees_a_server_that_reads_nothing() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = deaf_server(&lab);
    let balancer = BalancerProcess::start(&lab, &unchecked_site(&lab));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let mut call = client.begin(Request::put(uri("/")).body(()).unwrap()).await.unwrap();
        let part = Bytes::from(vec![b'x'; 65_536]);
        // Sends until all buffers on the way are full.
        while timeout(Duration::from_millis(500), call.send_data(part.clone())).await.is_ok() {}
        while balancer.stat("/backends/pool/current_connections") != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // There is no STOP_SENDING with it: the client still waits for the response.
        call.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED);
        while balancer.stat("/backends/pool/current_connections") != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(client.connection.close_reason().is_none());
    });
}

fn files_are_served_over_it() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let root = lab.directory().join("site");
    std::fs::create_dir(&root).unwrap();
    let large: Vec<u8> = (0..2_000_000_usize).map(|n| (n % 253) as u8).collect();
    std::fs::write(root.join("large"), &large).unwrap();
    std::fs::write(root.join("small.txt"), "small").unwrap();
    // Backends with files have no health checks.
    let setup = with(&lab, "", "").to_string();
    let (before, after) = setup.split_once("[backends.pool").unwrap();
    let after = after.split_once("[timeouts]").unwrap().1;
    let setup = format!("{before}[backends.pool]\nfiles = \"{}\"\n[timeouts]{after}", root.display());
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let small = client.get("/small.txt").await;
        assert_eq!((small.status, small.text()), (200, "small"));
        let whole = client.get("/large").await;
        assert!(whole.body == large);
        let part = client
            .fetch(Request::get(uri("/large")).header("range", "bytes=1000000-1000009"), b"", None)
            .await;
        assert_eq!((part.status, &part.body[..]), (206, &large[1_000_000..1_000_010]));
        assert_eq!(client.get("/nothing").await.status, 404);
        // A slow reader gets the whole file, too.
        let mut call = client.begin(Request::get(uri("/large")).body(()).unwrap()).await.unwrap();
        call.finish().await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(read(&mut call).await.unwrap().body == large);
    });
}

fn answers_are_compressed_over_it_too() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let text = "The quick brown fox. ".repeat(10_000);
    let output = text.clone();
    let _server = TestHttpServer::start(lab.server(1), move |_, stream| {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{output}",
            output.len()
        )
    });
    let setup = with(&lab, "compression = true", "").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        for encoding in ["zstd", "br", "gzip"] {
            let answer =
                client.fetch(Request::get(uri("/")).header("accept-encoding", encoding), b"", None).await;
            assert_eq!(
                (answer.status, &answer.fields["content-encoding"]),
                (200, &HeaderValue::from_static(encoding))
            );
            assert!(answer.body.len() < text.len() / 10, "{encoding}: {}", answer.body.len());
        }
        let plain = client.get("/").await;
        assert!(plain.text() == text && !plain.fields.contains_key("content-encoding"));
    });
}
