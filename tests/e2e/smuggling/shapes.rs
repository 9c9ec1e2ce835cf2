//! Shapes of requests: some are known to have been smuggled past a proxy, others look similar and
//! are valid.

/// Requests that the server may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sees {
    /// Neither request: convey refuses the first, and reads nothing after it.
    Nothing,
    /// The first request; the marked one is its body.
    Shape,
    /// At most the first request: convey may find it malformed only once the server has its head.
    ShapeAtMost,
    /// Both requests, as the client has sent two.
    Both,
}

use Sees::{Both, Nothing, Shape, ShapeAtMost};

/// HTTP/1.1 shapes, with the requests that the server may see.
#[rustfmt::skip]
pub(super) const HTTP1: [(&str, Sees); 68] = [
    // A length and chunks.
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{hex}\r\n{m}\r\n0\r\n\r\n", Nothing),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n{hex}\r\n{m}\r\n0\r\n\r\n", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\nTransfer_Encoding: chunked\r\n\r\n{m}", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\nContent_Length: 0\r\n\r\n{m}", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nConnection: content-length\r\nContent-Length: {len}\r\n\r\n{m}", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nConnection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n{hex}\r\n{m}\r\n0\r\n\r\n", Shape),
    // Encodings that one side ignores, or mistakes for another.
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\u{a0}\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: {len}\r\nTransfer-Encoding: chunked\r\n\r\n{m}", Nothing),
    // Lines and names.
    ("POST {s} HTTP/1.1\r\nHost: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\n Transfer-Encoding: chunked\r\nHost: a\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-\0Encoding: chunked\r\n\r\n0\r\n\r\n{m}", Nothing),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nX: y\n\n{m}", Nothing),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nX\r\n\r\n{m}", Nothing),
    ("GET {s} HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n{m}", Nothing),
    // Lengths.
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: {len}\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\nContent-Length: {len}\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 0, {len}\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: +{len}\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 0x{hex}\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 0{len}\r\n\r\n{m}", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 1 1\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n {len}\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length :{len}\r\n\r\n{m}", Nothing),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n{m}", Nothing),
    // Targets, hosts, versions, expectations.
    ("GET http://b{s} HTTP/1.1\r\nHost: a\r\n\r\n{m}", Nothing),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n{m}", Nothing),
    ("GET {s} HTTP/1.1\r\n\r\n{m}", Nothing),
    ("GET {s} HTTP/1.1\r\nHost: a, b\r\n\r\n{m}", Nothing),
    ("GET  {s} HTTP/1.1\r\nHost: a\r\n\r\n{m}", Nothing),
    ("GET {s} x HTTP/1.1\r\nHost: a\r\n\r\n{m}", Nothing),
    ("GET {s}\r\n\r\n{m}", Nothing),
    ("GET {s} HTTP/1.9\r\nHost: a\r\n\r\n{m}", Both),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue, x\r\nContent-Length: {len}\r\n\r\n{m}", Nothing),
    // Valid: the marked request is a body.
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{m}", Shape),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{m}", Shape),
    ("HEAD {s} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{m}", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{hex}\r\n{m}\r\n0\r\n\r\n", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{hex};a=b\r\n{m}\r\n0\r\n\r\n", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n00{hex}\r\n{m}\r\n000\r\nX: y\r\n\r\n", Shape),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {len}\r\n\r\n{m}", Shape),
    ("POST {s} HTTP/1.0\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{m}", Shape),
    // Valid: the client has sent two requests.
    ("GET {s} HTTP/1.1\r\nHost: a\r\n\r\n{m}", Both),
    ("GET http://a{s} HTTP/1.1\r\nHost: a\r\n\r\n{m}", Both),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello{m}", Both),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nContent-Length:\t5 \r\n\r\nhello{m}", Both),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n{m}", Both),
    ("POST {s} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tCHUNKED \r\n\r\n0\r\n\r\n{m}", Both),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: irc\r\n\r\n{m}", Both),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n{m}", Both),
    ("GET {s} HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n{m}", Both),
];

/// HTTP/1.1 shapes with chunks: the server may have seen the head, never the marked request.
#[rustfmt::skip]
pub(super) const CHUNKS: [&str; 14] = [
    "fffffffffffffffff\r\n", "10000000000000005\r\nhello\r\n0\r\n\r\n", "-1\r\n", "0x5\r\nhello\r\n0\r\n\r\n", " 5\r\nhello\r\n0\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n", "5\r\nhelloX0\r\n\r\n", "5\nhello\n0\n\n", "5\r\nhello\r\n0\r\n\n", "5;a\nb\r\nhello\r\n0\r\n\r\n",
    "5\r\r\nhello\r\n0\r\n\r\n", "\r\n0\r\n\r\n", "0\r\nContent-Length: 50\r\n\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n",
];

/// An HTTP/2 shape: a `POST` of the path whose body is the marked request, with these fields in
/// addition or instead.
pub(super) struct Http2Shape {
    pub(super) name: &'static str,
    pub(super) fields: &'static [(&'static str, &'static str)],
    pub(super) sees: Sees,
}

const fn of(name: &'static str, fields: &'static [(&'static str, &'static str)], sees: Sees) -> Http2Shape {
    Http2Shape { name, fields, sees }
}

/// HTTP/2 shapes.
#[rustfmt::skip]
pub(super) const HTTP2: [Http2Shape; 26] = [
    of("a body", &[], Shape),
    of("a body with a length", &[("content-length", "{len}")], Shape),
    of("a body of a GET", &[(":method", "GET")], Shape),
    of("a disguised encoding", &[("transfer_encoding", "chunked")], Shape),
    of("a disguised length", &[("content_length", "0")], Shape),
    of("trailers are taken", &[("te", "trailers")], Shape),
    of("no body by its length", &[("content-length", "0")], ShapeAtMost),
    of("a shorter body by its length", &[("content-length", "5")], ShapeAtMost),
    of("two lengths", &[("content-length", "{len}"), ("content-length", "0")], Nothing),
    of("a length with a sign", &[("content-length", "+{len}")], Nothing),
    of("an encoding", &[("transfer-encoding", "chunked")], Nothing),
    of("a connection", &[("connection", "transfer-encoding")], Nothing),
    of("another protocol", &[("upgrade", "websocket")], Nothing),
    of("a value that goes on", &[("x", "y\r\nTransfer-Encoding: chunked")], Nothing),
    of("a value that ends the head", &[("x", "y\r\n\r\n")], Nothing),
    of("a value with a line feed", &[("x", "y\nTransfer-Encoding: chunked")], Nothing),
    of("a name that goes on", &[("x: y\r\ntransfer-encoding", "chunked")], Nothing),
    of("a name with a colon", &[("transfer-encoding: chunked\r\nx", "y")], Nothing),
    of("a name in capitals", &[("Transfer-Encoding", "chunked")], Nothing),
    of("a path that goes on", &[(":path", "{s} HTTP/1.1\r\nHost: a\r\n\r\n")], Nothing),
    of("a path with a space", &[(":path", "{s} HTTP/1.1")], Nothing),
    of("a method that goes on", &[(":method", "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET")], Nothing),
    of("a method with a target", &[(":method", "GET /x HTTP/1.1")], Nothing),
    of("a host that goes on", &[(":authority", "a\r\nX: y")], Nothing),
    of("two hosts", &[("host", "b")], Nothing),
    of("a scheme with a target", &[(":scheme", "http://a/ HTTP/1.1\r\n")], Nothing),
];
