//! A client of HTTP/1.1 that sends given bytes unmodified.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use convey_testkit::connect;

/// A client with a persistent connection.
pub(crate) struct Client<S = TcpStream>(pub(crate) S);

/// A response, with its head as text.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Client {
    pub(crate) fn new(addr: SocketAddr) -> Client {
        Client(connect(addr))
    }
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn get(&mut self, host: &str, path: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    pub(crate) fn send(&mut self, request: &str) -> Response {
        self.0.write_all(request.as_bytes()).unwrap();
        self.read()
    }

    /// Reads the next response, which has a length.
    pub(crate) fn read(&mut self) -> Response {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte).unwrap_or_else(|error| {
                panic!("{error} after {:?}", String::from_utf8_lossy(&head));
            });
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| {
            // Field names of an HTTP/2 server's response are in lower case.
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut body).unwrap();
        Response { status, head, body: String::from_utf8(body).unwrap() }
    }

    /// Whether convey has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

/// Reads the next head, without a byte of what follows.
pub(crate) fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap())
}
