//! Checks of servers on the loopback.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, header};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::health::check_once;
use convey_model::{HealthCheck, HttpVersion, ProbeKind};

fn check(version: HttpVersion, expected_body: Option<&str>) -> HealthCheck {
    let expected_body = expected_body.map(|pattern| BodyPattern::parse(pattern).unwrap());
    let kind = ProbeKind::Http(HttpCheck { expected_body, ..HttpCheck::default() });
    let requests = CheckedRequests { version, response_head: HeadLimits { bytes: 4_000, fields: 10 } };
    HealthCheck { timeout: Duration::from_secs(20), requests: Some(requests), ..HealthCheck::new(kind) }
}

/// Server that sends this response to each connection, no matter what it receives.
async fn server(answer: String) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (addr, task)
}

/// Outcome of one check, with the message of a failure.
async fn outcome(addr: SocketAddr, check: &HealthCheck) -> Result<String, String> {
    check_once(addr, check).await.map_err(|why| why.to_string())
}

async fn checked(answer: &str, expected_body: Option<&str>) -> Result<String, String> {
    let (addr, task) = server(answer.to_owned()).await;
    let outcome = outcome(addr, &check(HttpVersion::H1, expected_body)).await;
    task.abort();
    outcome
}

/// Server that speaks only HTTP/2, and answers with this number of fields and this body.
async fn http2_server(fields: usize, body: &'static str) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut connection) = h2::server::handshake(stream).await else { continue };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/");
                let mut response = Response::new(());
                for n in 0..fields {
                    let name = header::HeaderName::try_from(format!("x-{n}")).unwrap();
                    response.headers_mut().insert(name, header::HeaderValue::from_static("v"));
                }
                let mut stream = respond.send_response(response, false).unwrap();
                stream.send_data(Bytes::from_static(body.as_bytes()), true).unwrap();
            }
        }
    });
    (addr, task)
}

#[tokio::test]
async fn check_speaks_the_version_of_requests() {
    let (addr, task) = http2_server(0, "all ready").await;
    for body in [None, Some("ready$")] {
        let outcome = outcome(addr, &check(HttpVersion::H2, body)).await;
        assert_eq!(outcome, Ok("HTTP status 200".to_owned()), "{body:?}");
    }
    let differs = outcome(addr, &check(HttpVersion::H2, Some("down"))).await.unwrap_err();
    assert!(differs.contains("the body does not match"), "{differs}");
    outcome(addr, &check(HttpVersion::H1, None)).await.unwrap_err();
    task.abort();
    let (addr, task) = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()).await;
    assert_eq!(outcome(addr, &check(HttpVersion::H1, None)).await, Ok("HTTP status 200".to_owned()));
    assert_eq!(outcome(addr, &check(HttpVersion::Auto, None)).await, Ok("HTTP status 200".to_owned()));
    let other = outcome(addr, &check(HttpVersion::H2, None)).await.unwrap_err();
    assert!(other.starts_with("HTTP/2 failed"), "{other}");
    task.abort();
}

#[tokio::test]
async fn answer_that_requests_refuse_fails_the_check() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(11));
    let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "b".repeat(4_000));
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "two_framings"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "content_length"),
        ("HTTP/1.1 200 OK\nContent-Length: 1\n\n", "bare_line_end"),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "upgrade"),
        (&many, "too_many_fields"),
        (&long, "head_too_long"),
    ] {
        let refused = checked(answer, None).await.unwrap_err();
        assert!(refused.contains("502") && refused.contains(expected), "{answer:?}: {refused}");
    }
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\nready";
    let refused = checked(chunks, Some("ready")).await.unwrap_err();
    assert!(refused.contains("chunk_size"), "{refused}");
    let (addr, task) = http2_server(11, "").await;
    let refused = outcome(addr, &check(HttpVersion::H2, None)).await.unwrap_err();
    assert!(refused.contains("502") && refused.contains("too_many_fields"), "{refused}");
    task.abort();
}

#[tokio::test]
async fn body_of_an_answer_is_matched_without_its_framing() {
    let ok = Ok("HTTP status 200".to_owned());
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall ready",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nall \r\n5\r\nready\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nall ready",
    ] {
        assert_eq!(checked(answer, Some("^all ready$")).await, ok, "{answer:?}");
        let differs = checked(answer, Some("down")).await.unwrap_err();
        assert!(differs.contains("the body does not match"), "{answer:?}: {differs}");
    }
    let short = checked("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall", Some("ready")).await.unwrap_err();
    assert!(short.contains("closed the connection before its response was complete"), "{short}");
    let empty = checked("HTTP/1.1 204 No Content\r\n\r\n", Some("^$")).await;
    assert_eq!(empty, Ok("HTTP status 204".to_owned()));
}

#[tokio::test]
async fn status_is_judged_before_the_body() {
    let refused = checked("HTTP/1.1 503 Service Unavailable\r\n\r\nready", Some("ready")).await.unwrap_err();
    assert_eq!(refused, "HTTP status 503, expected 200-399");
}
