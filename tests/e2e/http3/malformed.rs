//! Malformed requests (RFC 9114, section 4.1.2): no server gets them, and each is counted.

use std::fs;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, TestHttpServer, tests, wait_for};

use http::Request;

use super::client::Clients;
use super::hostile::{frame, get, post, raw};
use super::{authority, site};
use crate::http2::block_on;

tests!("http3_malformed":
    body_of_another_length_than_declared_never_reaches_a_server_whole,
    pseudo_header_fields_stand_once_and_first,
    heads_that_the_library_refuses_are_counted_and_logged,
    host_of_another_certificate_is_misdirected,
);

fn body_of_another_length_than_declared_never_reaches_a_server_whole() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        for (length, body) in [("5", "GET / HTTP/1.1\r\n\r\n"), ("5", "abc"), ("0", "abc"), ("5", "")] {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&post(Some(length))).await.unwrap();
            if !body.is_empty() {
                send.write_all(&frame(0, body.as_bytes())).await.unwrap();
            }
            send.finish().unwrap();
            let answer = receive.read_to_end(1 << 20).await.unwrap();
            assert!(answer.ends_with(b"400 Bad Request: content_length\n"), "{length} {body}");
        }
        let clients = Clients::trusting(&authority);
        assert_eq!(clients.connect(lab.vip()).await.get("/after").await.text(), "a GET /after 0");
    });
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.line.contains("/after") || seen.body.is_empty()), "{seen:?}");
    assert!(!seen.iter().any(|seen| seen.line == "GET / HTTP/1.1"), "{seen:?}");
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 4);
}

/// Head of a GET for `/` at the site, with these lines after it.
fn get_with(lines: &[u8]) -> Bytes {
    let known = [&[0, 0, 0xc0 | 17, 0xc0 | 23, 0xc0 | 1, 0x50, 12][..], b"site.example"].concat();
    frame(1, &[&known, lines].concat())
}

fn pseudo_header_fields_stand_once_and_first() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    // Another path, method, scheme and host, by the static table, as plain text and Huffman-coded;
    // fields of responses; a field in front.
    let lines: [&[u8]; 8] = [
        b"\x51\x06/admin",
        b"\x5f\x00\x06DELETE",
        b"\x2d\xb8\x82\x4e\x5a\x4b\x04http",
        b"\x27\x03:authority\x05other",
        b"\x2c\xb9\x58\xd3\x3f\x06/admin",
        b"\xd9",
        b"\x27\x02:protocol\x0cwebtransport",
        b"\x21x\x01y\xd4",
    ];
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        for line in lines {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&get_with(line)).await.unwrap();
            send.finish().unwrap();
            let answer = receive.read_to_end(1 << 20).await.unwrap();
            assert!(answer.ends_with(b"400 Bad Request: pseudo_field\n"), "{line:x?}");
        }
        // A method and a host alone are not a valid request.
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&frame(1, b"\0\0\xd1\x50\x0csite.example")).await.unwrap();
        send.finish().unwrap();
        let answer = receive.read_to_end(1 << 20).await.unwrap();
        assert!(answer.ends_with(b"400 Bad Request: pseudo_field\n"));
        // Trailers with a path.
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        for part in [post(None), frame(0, b"abc"), frame(1, b"\0\0\x51\x06/admin")] {
            send.write_all(&part).await.unwrap();
        }
        send.finish().unwrap();
        let answer = receive.read_to_end(1 << 20).await.unwrap();
        assert!(answer.ends_with(b"400 Bad Request: pseudo_field\n"));
        // A fragment, which is never sent.
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&get("/admin#y")).await.unwrap();
        send.finish().unwrap();
        let answer = receive.read_to_end(1 << 20).await.unwrap();
        assert!(answer.ends_with(b"400 Bad Request: target\n"));
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&get_with(b"\x21x\x01y")).await.unwrap();
        send.finish().unwrap();
        assert!(receive.read_to_end(1 << 20).await.unwrap().ends_with(b"a GET / 0"));
    });
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", lines.len() as u64 + 3);
    assert!(server.seen().iter().all(|seen| !seen.line.contains("admin")));
}

fn heads_that_the_library_refuses_are_counted_and_logged() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let log = lab.directory().join("access.log");
    let access = format!("[access_log]\noutput = \"{}\"\nformat = \"json\"\n", log.display());
    let balancer = BalancerProcess::start(&lab, &site(&lab, "").and(&access));
    let message_error = h3::error::Code::H3_MESSAGE_ERROR.value();
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        // A name with a capital letter, a value with a line end, another host, an invalid path.
        for line in [&b"\x21X\x01y"[..], b"\x21x\x03a\r\n", b"\x24host\x05other"] {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&get_with(line)).await.unwrap();
            send.finish().unwrap();
            let error = receive.read_to_end(1 << 20).await.unwrap_err();
            let code = quinn::VarInt::from_u64(message_error).unwrap();
            assert!(
                matches!(error, quinn::ReadToEndError::Read(quinn::ReadError::Reset(is)) if is == code),
                "{line:x?}: {error}"
            );
        }
        balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 3);
        // The head refers to the dynamic table, which is empty: the connection ends.
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(&frame(1, b"\x02\0\x80")).await.unwrap();
        connection.closed().await;
    });
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 4);
    balancer.wait_for_stat("/frontends/web/requests/total", 4);
    assert!(server.seen().is_empty());
    let lines = wait_for("the log", || {
        let lines = std::fs::read_to_string(&log).ok()?;
        (lines.lines().count() == 4).then_some(lines)
    });
    for line in lines.lines() {
        assert!(line.contains(r#""termination":"refused","reason":"http3_message""#), "{line}");
        assert!(!line.contains(r#""status":2"#), "{line}");
    }
}

fn host_of_another_certificate_is_misdirected() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let more = lab.directory().join("more");
    fs::create_dir_all(&more).unwrap();
    authority.issue(&["other.example"]).save(&more, "other");
    let balancer =
        BalancerProcess::start(&lab, &site(&lab, &format!("certificate_dir = \"{}\"", more.display())));
    block_on(async {
        let client = Clients::trusting(&authority).connect(lab.vip()).await;
        for (host, status) in [("other.example", 421), ("third.example", 200), ("site.example", 200)] {
            let request = Request::get(format!("https://{host}/"));
            assert_eq!(client.fetch(request, b"", None).await.status, status, "{host}");
        }
    });
    balancer.wait_for_stat("/frontends/web/requests/local_replies/misdirected", 1);
}
