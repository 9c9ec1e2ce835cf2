//! Malformed messages (RFC 9113, section 8.1.1) end their stream, and the other streams of the
//! connection go on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_testkit::{BalancerProcess, Loopback, TcpServer, TestHttpServer, connect, wait_for, whole_lines};

use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, receive, send,
};
use super::setup;
use crate::access_log::{log, path};
use crate::http::client::Client;

const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

/// End of a stream: the code of a reset, or the first byte of the response's head.
pub(super) fn end_of(stream: &mut TcpStream, id: u32) -> Result<u8, Vec<u8>> {
    loop {
        match receive(stream).unwrap() {
            (RST_STREAM, _, of, code) if of == id => return Err(code),
            (HEADERS, _, of, block) if of == id => return Ok(block[0]),
            _ => {}
        }
    }
}

pub(super) fn malformed_request_ends_its_stream_alone() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").server("a", lab.server(1), "").and(&log(&lab, "format = '{reason}'"));
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = connect(lab.vip());
    client.write_all(PREFACE).unwrap();
    send(&mut client, (SETTINGS, 0, 0, b""));
    let bad: [(&[u8], &str); 7] = [
        (b"\0\x01X\x01y", "field_name"),
        (b"\x40\x03x y\x01z", "field_name"),
        (b"\0\x01x\x03a\r\n", "field_value"),
        (b"\0\x04:new\x01a", "pseudo_field"),
        (b"\x44\x04/x#y", "target"),
        // A fragment as a Huffman code, and that line by its index in the dynamic table.
        (b"\x44\x83\x63\xfe\xbf", "target"),
        (b"\xc0", "target"),
    ];
    let mut id = 1;
    for (line, _) in bad {
        send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id, &[GET, line].concat()));
        assert_eq!(end_of(&mut client, id), Err(PROTOCOL_ERROR.to_vec()), "{line:x?}");
        send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id + 2, GET));
        // `:status: 200` of the static table.
        assert_eq!(end_of(&mut client, id + 2), Ok(0x88), "behind {line:x?}");
        id += 4;
    }
    // Trailers with a path.
    send(&mut client, (HEADERS, END_HEADERS, id, &[b"\x83", &GET[1..]].concat()));
    send(&mut client, (DATA, 0, id, b"abc"));
    send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id, b"\x84"));
    assert_eq!(end_of(&mut client, id), Err(PROTOCOL_ERROR.to_vec()));
    send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id + 2, GET));
    assert_eq!(end_of(&mut client, id + 2), Ok(0x88));
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 8);
    let lines = wait_for("the lines of the refused requests", || {
        Some(whole_lines(&path(&lab))).filter(|text| text.matches("target").count() == 3)
    });
    for (_, reason) in bad {
        assert!(lines.contains(reason), "{reason}: {lines}");
    }
    assert!(server.seen().iter().all(|seen| !seen.line.contains("/x")));
}

pub(super) fn each_refused_request_has_a_line_and_a_count() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").server("a", lab.server(1), "");
    let more = log(&lab, "format = '{status} {reason} {target} {phase}'");
    let balancer = BalancerProcess::start(&lab, &setup.and(&more));
    let mut client = connect(lab.vip());
    client.write_all(PREFACE).unwrap();
    send(&mut client, (SETTINGS, 0, 0, b""));
    let rest: &[u8] = &GET[1..];
    let with = |line: &[u8]| [GET, line].concat();
    let with_path = |path: &[u8]| [b"\x82\x86\x41\x01a\x04".as_slice(), &[path.len() as u8], path].concat();
    let bad = [
        (with(b"\0\x11transfer-encoding\x07chunked"), "transfer_encoding"),
        (with(b"\0\x0aconnection\x05close"), "field_name"),
        (with(b"\0\x02te\x04gzip"), "field_value"),
        (post_with("3,3"), "content_length"),
        (post_with("+3"), "content_length"),
        (post_with("3"), "content_length"),
        (with_path(b"/a\r\nb"), "target"),
        (with_path(b"/a b"), "target"),
        (with_path(b""), "target"),
        (with_path(b"hello"), "target"),
        (with(b"\x84"), "pseudo_field"),
        ([b"\x82\0\x01x\x01y", rest].concat(), "pseudo_field"),
        (with(b"\x88"), "pseudo_field"),
        (with(b"\0\x09:protocol\x09websocket"), "pseudo_field"),
        (rest.to_vec(), "pseudo_field"),
    ];
    let mut expected = String::new();
    for (id, (block, reason)) in (1..).step_by(2).zip(&bad) {
        send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id, block));
        assert_eq!(end_of(&mut client, id), Err(PROTOCOL_ERROR.to_vec()), "{block:x?}");
        expected += &format!("- {reason} - request_head\n");
    }
    // Ten fields, 90 KB together: the library responds with 431.
    let field = [&b"\0\x01x\x7f\xa9\x45"[..], &[b'y'; 9_000]].concat();
    let head = [GET, &field.repeat(10)].concat();
    let (id, parts) = (101, head.chunks(16_000).collect::<Vec<_>>());
    for (n, part) in parts.iter().enumerate() {
        let kind = if n == 0 { HEADERS } else { CONTINUATION };
        let flags = if n == 0 { END_STREAM } else { 0 } | if n + 1 == parts.len() { END_HEADERS } else { 0 };
        send(&mut client, (kind, flags, id, part));
    }
    // A literal value of `:status`.
    assert_eq!(end_of(&mut client, id), Ok(0x48));
    expected += "431 head_too_long - request_head\n";
    send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id + 2, GET));
    assert_eq!(end_of(&mut client, id + 2), Ok(0x88));
    expected += "200 - / -\n";
    let lines = wait_for("the lines of the requests", || {
        Some(whole_lines(&path(&lab))).filter(|text| text.lines().count() == bad.len() + 2)
    });
    assert_eq!(lines, expected);
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", bad.len() as u64 + 1);
    balancer.wait_for_stat("/frontends/web/requests/total", bad.len() as u64 + 2);
    balancer.wait_for_stat("/frontends/web/requests/responses/4xx", 1);
    assert_eq!(server.seen().len(), 1);
}

pub(super) fn refused_requests_count_towards_max_requests() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").frontend("mode = \"http\"\nhttp.max_requests = 3");
    let setup = setup.server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut client = connect(lab.vip());
    client.write_all(PREFACE).unwrap();
    send(&mut client, (SETTINGS, 0, 0, b""));
    for id in [1, 3] {
        send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id, &[GET, b"\0\x02te\x04gzip"].concat()));
    }
    send(&mut client, (HEADERS, END_STREAM | END_HEADERS, 5, GET));
    while receive(&mut client).unwrap().0 != GOAWAY {}
}

/// A server of HTTP/2 that counts its connections, and responds with these frames to the block of a
/// request on a stream.
pub(super) fn raw_server(
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    respond: impl Fn(&mut TcpStream, u32, &[u8]) + Send + Sync + 'static,
) -> TcpServer {
    TcpServer::start(addr, move |mut stream| {
        connections.fetch_add(1, Ordering::Relaxed);
        stream.read_exact(&mut [0; PREFACE.len()])?;
        send(&mut stream, (SETTINGS, 0, 0, b""));
        loop {
            match receive(&mut stream)? {
                (SETTINGS, flags, ..) if flags & ACK == 0 => send(&mut stream, (SETTINGS, ACK, 0, b"")),
                (HEADERS, _, id, block) => respond(&mut stream, id, &block),
                _ => {}
            }
        }
    })
}

pub(super) fn malformed_response_leaves_the_connection_to_its_server() {
    let lab = Loopback::new();
    let connections = Arc::new(AtomicUsize::new(0));
    // The server answers a POST with an invalid field.
    let _server = raw_server(lab.server(1), connections.clone(), |stream, id, block| {
        let head: &[u8] = if block[0] == 0x83 { b"\x88\0\x01X\x01y" } else { b"\x88" };
        send(stream, (HEADERS, END_STREAM | END_HEADERS, id, head));
    });
    let setup = setup(&lab, "h2").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut client = Client::new(lab.vip());
    for n in 0..1_200 {
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(client.send(post).status, 502, "{n}");
        if n % 5 == 0 {
            assert_eq!(client.get("a", "/").status, 200, "{n}");
        }
    }
    // convey opens another connection after 100 reset streams.
    assert_eq!(connections.load(Ordering::Relaxed), 12);
}

/// A POST whose head announces this length.
fn post_with(length: &str) -> Vec<u8> {
    let name_of_length = b"\x0f\x0d";
    [b"\x83", &GET[1..], name_of_length, &[length.len() as u8], length.as_bytes()].concat()
}

pub(super) fn body_of_another_length_than_announced_ends_its_stream() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").server("a", lab.server(1), "").and(&log(&lab, "format = '{reason}'"));
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = connect(lab.vip());
    client.write_all(PREFACE).unwrap();
    send(&mut client, (SETTINGS, 0, 0, b""));
    let trailers = b"\0\x01a\x01b";
    let cases: [(&str, &[u8], bool, bool); 10] = [
        ("0", b"abc", false, false),
        ("00", b"abc", true, false),
        ("2", b"abc", false, false),
        ("5", b"abc", false, false),
        ("5", b"abc", true, false),
        ("5", b"", false, false),
        ("0", b"", false, true),
        ("00", b"", true, true),
        ("3", b"abc", false, true),
        ("3", b"abc", true, true),
    ];
    for (n, (length, body, has_trailers, is_whole)) in cases.into_iter().enumerate() {
        let id = 2 * n as u32 + 1;
        send(&mut client, (HEADERS, END_HEADERS, id, &post_with(length)));
        // convey has only the head.
        send(&mut client, (PING, 0, 0, &[n as u8; 8]));
        while receive(&mut client).unwrap().0 != PING {}
        let flags = if has_trailers { 0 } else { END_STREAM };
        send(&mut client, (DATA, flags, id, body));
        if has_trailers {
            send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id, trailers));
        }
        let expected = if is_whole { Ok(0x88) } else { Err(PROTOCOL_ERROR.to_vec()) };
        assert_eq!(end_of(&mut client, id), expected, "{length} {body:?} {has_trailers}");
    }
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 6);
    let lines = wait_for("the lines of the requests", || {
        Some(whole_lines(&path(&lab))).filter(|text| text.lines().count() == 10)
    });
    assert_eq!(lines.matches("content_length").count(), 6, "{lines}");
    // A head that announces a body, which does not follow.
    let id = 101;
    send(&mut client, (HEADERS, END_STREAM | END_HEADERS, id, &post_with("5")));
    assert_eq!(end_of(&mut client, id), Err(PROTOCOL_ERROR.to_vec()));
    assert!(server.seen().len() <= 4, "no server has a request of another length");
}

pub(super) fn response_of_another_length_than_announced_is_not_whole() {
    for (length, is_whole) in [(b'0', false), (b'2', false), (b'5', false), (b'3', true)] {
        let lab = Loopback::new();
        let _server = raw_server(lab.server(1), Arc::default(), move |stream, id, _| {
            send(stream, (HEADERS, END_HEADERS, id, &[b"\x88\x0f\x0d\x01", &[length][..]].concat()));
            send(stream, (DATA, END_STREAM, id, b"abc"));
        });
        let _balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
        let mut client = connect(lab.vip());
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = Vec::new();
        let _ = client.read_to_end(&mut response);
        let response = String::from_utf8(response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or_default();
        let has_all = head.starts_with("HTTP/1.1 200 ") && body.len() >= usize::from(length - b'0');
        assert_eq!(has_all, is_whole, "{response}");
    }
}
