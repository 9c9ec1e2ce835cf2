//! Responses that arrive in small pieces, or do not arrive whole.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};

use convey_testkit::{BalancerProcess, Loopback, TestHttpServer};

use super::{ON, page, setup};
use crate::http::client::{Client, read_head};

/// Reads exactly so many bytes.
pub(super) fn read_exactly(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// The data of a body in chunks, and its trailers.
pub(super) fn read_chunks(stream: &mut TcpStream) -> (Vec<u8>, String) {
    let mut data = Vec::new();
    loop {
        let size = usize::from_str_radix(read_line(stream).trim_end(), 16).unwrap();
        if size == 0 {
            break;
        }
        data.extend(read_exactly(stream, size));
        assert_eq!(read_line(stream), "\r\n");
    }
    let mut trailers = String::new();
    while !trailers.ends_with("\r\n\r\n") && trailers != "\r\n" {
        trailers += &read_line(stream);
    }
    (data, trailers)
}

fn read_line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(read_exactly(stream, 1));
    }
    String::from_utf8(line).unwrap()
}

pub(super) fn each_event_is_at_the_client_at_once() {
    let lab = Loopback::new();
    let (events, next) = mpsc::channel::<()>();
    let next = Mutex::new(next);
    let _server = TestHttpServer::start(lab.server(1), move |_, stream| {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        for _ in 0..5 {
            if next.lock().unwrap().recv().is_err() {
                break;
            }
            stream.write_all(b"8\r\ndata: x\n\r\n")?;
        }
        stream.write_all(b"0\r\n\r\n")
    });
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for encoding in ["gzip", "br", "zstd"] {
            let mut curl = Command::new("curl")
                .args(["-sSN", "--max-time", "60", "--compressed", version, "-H"])
                .arg(format!("Accept-Encoding: {encoding}"))
                .arg(format!("http://{}/events", lab.vip()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut shown = BufReader::new(curl.stdout.take().unwrap());
            for _ in 0..5 {
                // The server sends the next message only once curl has printed this one.
                events.send(()).unwrap();
                let mut line = String::new();
                shown.read_line(&mut line).unwrap();
                assert_eq!(line, "data: x\n", "{version} {encoding}");
            }
            assert!(curl.wait().unwrap().success(), "{version} {encoding}");
        }
    }
}

pub(super) fn a_server_that_breaks_off_leaves_no_client_with_a_shorter_page() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let framing = match request.line.contains("/length") {
            true => "Content-Length: 100000\r\n\r\n".to_owned(),
            false => "Transfer-Encoding: chunked\r\n\r\nc350\r\n".to_owned(),
        };
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{framing}{}", &page(90_000)[..50_000])?;
        Err(std::io::ErrorKind::ConnectionAborted.into())
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    let mut count = 0;
    for path in ["length", "chunks"] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            for encoding in ["gzip", "br", "zstd"] {
                let ran = Command::new("curl")
                    .args(["-sS", "--max-time", "20", "--compressed", version, "-H"])
                    .arg(format!("Accept-Encoding: {encoding}"))
                    .arg(format!("http://{}/{path}", lab.vip()))
                    .output()
                    .unwrap();
                count += 1;
                let said = String::from_utf8_lossy(&ran.stderr);
                // Exit codes of curl: partial body (18), connection reset (56), stream reset (92).
                assert!(
                    matches!(ran.status.code(), Some(18 | 56 | 92)),
                    "{path} {version} {encoding}: {said}"
                );
                assert!(page(90_000).as_bytes().starts_with(&ran.stdout));
            }
        }
    }
    balancer.wait_for_stat("/frontends/web/requests/compression/responses/br", count / 3);
}

pub(super) fn trailers_survive() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        let body = page(20_000);
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"
        )?;
        write!(stream, "{:x}\r\n{body}\r\n0\r\nX-Sum: 7\r\nX-Rows: 500\r\n\r\n", body.len())
    });
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    let mut client = Client::new(lab.vip());
    for _ in 0..2 {
        client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
        let head = read_head(&mut client.0).unwrap();
        assert!(head.contains("Content-Encoding: gzip\r\n") && head.contains("Trailer: X-Sum\r\n"), "{head}");
        let (data, trailers) = read_chunks(&mut client.0);
        assert_eq!(trailers, "X-Sum: 7\r\nX-Rows: 500\r\n\r\n");
        assert!(data.len() < 5_000, "{} bytes", data.len());
    }
}
