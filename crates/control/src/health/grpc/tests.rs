//! Checks of servers on the loopback.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::{Connection, SendResponse};
use http::{HeaderMap, HeaderValue, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::health::check_once;
use convey_model::{CheckedRequests, HealthCheck, HttpVersion, ProbeKind};

const SERVING: &[u8] = b"\0\0\0\0\x02\x08\x01";

/// How a server answers a call.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// Response with this content type, body and `grpc-status`.
    Full(&'static str, &'static [u8], &'static str),
    /// Response without trailers.
    NoTrailers(&'static [u8]),
    /// Head with this status alone, with a `grpc-status` and a message.
    HeadOnly(u16, &'static str, &'static str),
    /// Response with this number of further fields.
    Fields(usize),
    /// Reset of the stream. If the flag is set, the head and a message are sent before the reset.
    Reset(bool),
    GoAway,
    Silence,
}

fn check(grpc: GrpcCheck) -> HealthCheck {
    HealthCheck { timeout: Duration::from_secs(20), ..HealthCheck::new(ProbeKind::Grpc(grpc)) }
}

/// Server that passes each connection to `serve`.
async fn listen<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            serve(stream).await;
        }
    });
    (addr, task)
}

async fn outcome_of(addr: SocketAddr, check: &HealthCheck) -> Result<String, String> {
    check_once(addr, check).await.map_err(|why| why.to_string())
}

/// Outcome of a check of a server that answers in this way.
async fn outcome(answer: Answer, check: &HealthCheck) -> Result<String, String> {
    let (addr, task) = listen(move |stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_request, respond))) = connection.accept().await {
            reply(answer, respond, &mut connection);
        }
    })
    .await;
    let outcome = outcome_of(addr, check).await;
    task.abort();
    outcome
}

fn reply(answer: Answer, mut respond: SendResponse<Bytes>, connection: &mut Connection<TcpStream, Bytes>) {
    let head =
        |status: u16, kind: &'static str| Response::builder().status(status).header("content-type", kind);
    let grpc = head(200, "application/grpc").body(()).unwrap();
    match answer {
        Answer::Full(kind, body, status) => {
            let mut stream = respond.send_response(head(200, kind).body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from_static(body), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(status));
            stream.send_trailers(trailers).unwrap();
        }
        Answer::NoTrailers(body) => {
            let mut stream = respond.send_response(grpc, false).unwrap();
            stream.send_data(Bytes::from_static(body), true).unwrap();
        }
        Answer::HeadOnly(status, code, message) => {
            let head = head(status, "application/grpc").header("grpc-status", code);
            let head = head.header("grpc-message", message).body(()).unwrap();
            respond.send_response(head, true).unwrap();
        }
        Answer::Fields(fields) => {
            let head =
                (0..fields).fold(head(200, "application/grpc"), |head, n| head.header(format!("x-{n}"), "v"));
            respond.send_response(head.body(()).unwrap(), true).unwrap();
        }
        Answer::Reset(false) => respond.send_reset(Reason::INTERNAL_ERROR),
        Answer::Reset(true) => {
            let mut stream = respond.send_response(grpc, false).unwrap();
            stream.send_data(Bytes::from_static(SERVING), false).unwrap();
            stream.send_reset(Reason::INTERNAL_ERROR);
        }
        Answer::GoAway => connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM),
        Answer::Silence => std::mem::forget(respond),
    }
}

#[tokio::test]
async fn server_that_serves_passes_and_any_other_fails_with_a_reason() {
    const GRPC: &str = "application/grpc";
    const LONG: &[u8] = &[0; MAX_MESSAGE + 1];
    let check = check(GrpcCheck::default());
    let ok = "gRPC health status SERVING";
    for (answer, expected) in [
        (Answer::Full(GRPC, SERVING, "0"), Ok(ok)),
        (Answer::Full(GRPC, b"\0\0\0\0\x02\x08\x02", "0"), Err("gRPC health status NOT_SERVING")),
        (Answer::Full(GRPC, b"\0\0\0\0\0", "0"), Err("gRPC health status UNKNOWN, expected SERVING")),
        (Answer::Full(GRPC, SERVING, "5"), Err("gRPC status 5 (NOT_FOUND)")),
        (Answer::Full(GRPC, b"\0\0\0\0\x02OK", "0"), Err("a message that is no HealthCheckResponse")),
        (Answer::Full(GRPC, LONG, "0"), Err("the gRPC response is longer than 4 KiB")),
        (Answer::Full("text/html", SERVING, "0"), Err("not gRPC: it has content-type text/html")),
        (Answer::NoTrailers(SERVING), Err("the gRPC response has no grpc-status")),
        (
            Answer::HeadOnly(200, "12", "unknown service grpc.health.v1.Health"),
            Err("gRPC status 12 (UNIMPLEMENTED): unknown service grpc.health.v1.Health"),
        ),
        (Answer::HeadOnly(200, "0", ""), Err("the gRPC response has no message")),
        (Answer::HeadOnly(404, "0", ""), Err("HTTP status 404, expected 200 and a gRPC response")),
        (Answer::Fields(300), Err("invalid response (clients would get a 502): too_many_fields")),
        (Answer::Reset(false), Err("HTTP/2 failed: stream error received: unexpected internal error")),
        (Answer::Reset(true), Err("HTTP/2 failed: stream error received: unexpected internal error")),
        (Answer::GoAway, Err("HTTP/2 failed: connection error received: detected excessive load")),
    ] {
        match (outcome(answer, &check).await, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{answer:?}: {found}"),
            (found, _) => panic!("{answer:?}: {found:?}"),
        }
    }
    let timeout = Duration::from_millis(300);
    let silent = outcome(Answer::Silence, &HealthCheck { timeout, ..check }).await;
    assert_eq!(silent, Err("no answer within 300ms".to_owned()));
}

#[tokio::test]
async fn response_head_has_the_limits_of_requests_over_http2() {
    let response_head = HeadLimits { bytes: 4_000, fields: 5 };
    let requests = Some(CheckedRequests { version: HttpVersion::H1, response_head });
    let check = HealthCheck { requests, ..check(GrpcCheck::default()) };
    assert!(outcome(Answer::Full("application/grpc", SERVING, "0"), &check).await.is_ok());
    let refused = outcome(Answer::Fields(5), &check).await.unwrap_err();
    assert!(refused.contains("too_many_fields"), "{refused}");
}

#[tokio::test]
async fn call_has_service_and_metadata_and_its_connection_ends_in_order() {
    let (seen, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let (addr, task) = listen(move |stream| {
        let seen = seen.clone();
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (request, respond) = connection.accept().await.unwrap().unwrap();
            let (head, mut body) = request.into_parts();
            let body = async {
                let data = body.data().await.unwrap().unwrap();
                assert!(body.data().await.is_none());
                data
            };
            let data = tokio::select! {
                data = body => data,
                _ = connection.accept() => panic!("another request"),
            };
            reply(Answer::Full("application/grpc", SERVING, "0"), respond, &mut connection);
            let is_over = connection.accept().await.is_none();
            seen.send((head, data, is_over)).unwrap();
        }
    })
    .await;
    for (grpc, authority, expected) in [
        (GrpcCheck::default(), addr.to_string(), &b"\0\0\0\0\0"[..]),
        (
            GrpcCheck {
                service: "shop.Cart".to_owned(),
                host: Some("app.internal:81".to_owned()),
                headers: vec![("X-Key".to_owned(), "s3cret".to_owned())],
            },
            "app.internal:81".to_owned(),
            b"\0\0\0\0\x0b\x0a\x09shop.Cart",
        ),
    ] {
        let has_key = !grpc.headers.is_empty();
        outcome_of(addr, &check(grpc)).await.unwrap();
        let (head, data, is_over) = calls.recv().await.unwrap();
        assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/grpc.health.v1.Health/Check"));
        assert_eq!(head.uri.authority().unwrap().as_str(), authority);
        assert!(head.headers["content-type"] == "application/grpc" && head.headers["te"] == "trailers");
        assert!(head.headers["user-agent"].to_str().unwrap().ends_with(" health check"));
        assert_eq!(head.headers.get("x-key").is_some_and(|key| key == "s3cret"), has_key);
        assert!(is_over && data == expected, "{data:?}");
    }
    task.abort();
}

#[tokio::test]
async fn server_that_closes_its_connections_fails_at_once() {
    for has_read in [false, true].repeat(50) {
        let (addr, task) = listen(move |mut stream| async move {
            if has_read {
                let _ = stream.read(&mut [0; 1024]).await;
            }
        })
        .await;
        let found = outcome_of(addr, &check(GrpcCheck::default())).await.unwrap_err();
        let expected = ["HTTP/2 failed: the server closed the connection", "HTTP/2 failed: connection reset"];
        assert!(expected.contains(&&*found), "{found}");
        task.abort();
    }
}

#[tokio::test]
async fn server_of_another_protocol_fails_with_its_name_or_with_the_error() {
    // An empty SETTINGS frame, and then PING frames.
    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
    const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\x00abcdefgh";
    for (first, endless, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &b""[..], "HTTP/2 failed: the server answers in HTTP/1.1"),
        (
            b"220 mail.example ESMTP\r\n",
            b"",
            "HTTP/2 failed: connection error detected: frame with invalid size",
        ),
        (SETTINGS, PING, "the server sent more than 320 KiB"),
    ] {
        let (addr, task) = listen(move |mut stream| async move {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(first).await;
            let repeated = endless.repeat(1_000);
            while !endless.is_empty() && stream.write_all(&repeated).await.is_ok() {}
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        let found = outcome_of(addr, &check(GrpcCheck::default())).await.unwrap_err();
        assert_eq!(found, expected);
        task.abort();
    }
}
