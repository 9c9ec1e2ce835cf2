//! Outcome for a client, whatever its HTTP version.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;

use bytes::Bytes;
use convey_testkit::connect;
use http::Request;

use super::super::http2::block_on;
use super::super::http2::client::Client;

/// A large body.
pub(super) const LARGE: usize = 2 << 20;

/// HTTP version of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// Outcome that a client sees.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Status of an error response of convey.
    Status(u16),
    /// 200 with this body.
    Body(String),
    /// A reset before the response is whole.
    BrokenOff,
}

/// Requests a page with this method; `POST` has a body.
pub(super) fn fetch(to: SocketAddr, version: Version, method: &str) -> Outcome {
    match version {
        Version::Http1 => over_http1(to, method),
        Version::Http2 => block_on(over_http2(to, method)).unwrap_or(Outcome::BrokenOff),
    }
}

fn over_http1(to: SocketAddr, method: &str) -> Outcome {
    let mut client = connect(to);
    let body = if method == "POST" { "Content-Length: 4\r\n\r\nbody" } else { "\r\n" };
    write!(client, "{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}").unwrap();
    let mut answer = Vec::new();
    match client.read_to_end(&mut answer) {
        Ok(_) => outcome(&String::from_utf8(answer).unwrap()),
        Err(_) => Outcome::BrokenOff,
    }
}

fn outcome(answer: &str) -> Outcome {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    match head.split(' ').nth(1).unwrap() {
        "200" => Outcome::Body(body.to_owned()),
        status => Outcome::Status(status.parse().unwrap()),
    }
}

async fn over_http2(to: SocketAddr, method: &str) -> Result<Outcome, h2::Error> {
    let client = Client::connect(to).await;
    let request = Request::builder().method(method).uri("http://a/").body(()).unwrap();
    let (response, mut stream) = client.begin(request, method != "POST").await;
    if method == "POST" {
        stream.send_data(Bytes::from_static(b"body"), true)?;
    }
    let (head, mut body) = response.await?.into_parts();
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        all.extend(data?);
    }
    Ok(match head.status.as_u16() {
        200 => Outcome::Body(String::from_utf8(all).unwrap()),
        status => Outcome::Status(status),
    })
}

/// Status, and length of the body, of a response to a request whose body never ends. An HTTP/1.1
/// client reads `len` bytes of the response's body.
pub(super) fn early(to: SocketAddr, version: Version, len: usize) -> (u16, usize) {
    match version {
        Version::Http1 => {
            let mut client = connect(to);
            write!(client, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
            let mut sender = client.try_clone().unwrap();
            let sending = thread::spawn(move || while sender.write_all(b"1\r\nx\r\n").is_ok() {});
            let head = super::read_head(&mut client).unwrap();
            let mut body = vec![0; len];
            client.read_exact(&mut body).unwrap();
            client.shutdown(Shutdown::Both).unwrap();
            sending.join().unwrap();
            (head.split(' ').nth(1).unwrap().parse().unwrap(), body.len())
        }
        Version::Http2 => block_on(async {
            let client = Client::connect(to).await;
            let (response, mut stream) =
                client.begin(Request::put("http://a/").body(()).unwrap(), false).await;
            stream.send_data(Bytes::from_static(b"x"), false).unwrap();
            let (head, mut body) = response.await.unwrap().into_parts();
            let mut len = 0;
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                len += data.len();
            }
            (head.status.as_u16(), len)
        }),
    }
}
