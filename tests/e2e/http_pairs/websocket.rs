//! WebSocket over streams: extended CONNECT of HTTP/2 (RFC 8441) and HTTP/3 (RFC 9220), to servers
//! of HTTP/1.1.

use std::io::{Read, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, TcpServer};
use h2::ext::Protocol;
use http::{Method, Request};
use tokio::time::{Duration, sleep};

use super::streams::{Reading, Sending};
use super::{addresses, setup};
use crate::http::client::read_head;
use crate::http2::block_on;
use crate::http3::hostile::{frame, raw};
use crate::http3::{authority, site};

/// Bytes after which the server closes its connection.
const BYE: &[u8] = b"bye";

/// A server that accepts WebSocket at `/chat`, and returns all bytes behind its head.
fn chat_server(lab: &Loopback) -> TcpServer {
    TcpServer::start(lab.server(1), |mut stream| {
        let head = read_head(&mut stream)?;
        let field = |name: &str| {
            let fields = head.lines().filter_map(|line| line.split_once(": "));
            fields.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
        };
        let is_upgrade = head.starts_with("GET /chat HTTP/1.1\r\n")
            && field("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
            && field("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade"))
            && field("sec-websocket-version") == Some("13")
            && field("host") == Some("site.example");
        let (true, Some(key)) = (is_upgrade, field("sec-websocket-key")) else {
            return write!(stream, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        };
        let digest = sha1(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes());
        let accept = BASE64.encode(digest);
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket";
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        )?;
        let mut buffer = [0; 16_384];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                len => stream.write_all(&buffer[..len])?,
            }
            if buffer.starts_with(BYE) {
                return Ok(());
            }
        }
    })
}

pub(super) fn websocket_over_http2_reaches_servers_of_http1() {
    let lab = Loopback::new();
    authority(&lab);
    let _server = chat_server(&lab);
    let setup = setup(&lab, super::Version::Http1).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let stream = tokio::net::TcpStream::connect(addresses(&lab).plain).await.unwrap();
        let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        // The settings of convey may come after the handshake.
        while !send.is_extended_connect_protocol_enabled() {
            sleep(Duration::from_millis(5)).await;
        }
        let request = Request::builder().method(Method::CONNECT).uri("http://site.example/chat");
        let request = request.header("sec-websocket-version", "13");
        let request = request.extension(Protocol::from_static("websocket")).body(()).unwrap();
        send = send.ready().await.unwrap();
        let (response, stream) = send.send_request(request, false).unwrap();
        let (mut sending, mut reading) = (Sending::Http2(stream), Reading::Http2(response, None));
        assert_eq!(reading.head().await.unwrap(), 200);
        for message in [&b"hello"[..], &[7; 100_000]] {
            let mut echo = Vec::new();
            sending.send(Bytes::copy_from_slice(message)).await.unwrap();
            while echo.len() < message.len() {
                echo.extend_from_slice(&reading.data().await.unwrap().unwrap());
            }
            assert!(echo == message);
        }
        // The end of the stream is the end of the server's connection, in both directions.
        sending.finish().await.unwrap();
        assert_eq!(reading.rest().await.unwrap(), b"");
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// The head of an extended CONNECT for `/chat`.
fn connect_over_http3() -> Bytes {
    // :method CONNECT, :scheme https.
    let mut block = vec![0, 0, 0xc0 | 15, 0xc0 | 23];
    for (entry, value) in [(0, "site.example"), (1, "/chat")] {
        block.extend_from_slice(&[0x50 | entry, value.len() as u8]);
        block.extend_from_slice(value.as_bytes());
    }
    for (name, value) in [(":protocol", "websocket"), ("sec-websocket-version", "13")] {
        block.extend_from_slice(&[0x27, name.len() as u8 - 7]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    frame(1, &block)
}

pub(super) fn websocket_over_http3_reaches_servers_of_http1() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = chat_server(&lab);
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&connect_over_http3()).await.unwrap();
        // Status 200 is entry 25 of the static table.
        assert!(next_frame(&mut receive, 1).await.contains(&(0xc0 | 25)));
        for message in [&b"hello"[..], &[7; 100_000]] {
            send.write_all(&frame(0, message)).await.unwrap();
            let mut echo = Vec::new();
            while echo.len() < message.len() {
                echo.extend(next_frame(&mut receive, 0).await);
            }
            assert!(echo == message);
        }
        send.finish().unwrap();
        assert!(receive.read_to_end(100).await.unwrap().is_empty());
    });
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// The client learns it although it still sends, and what it sends then holds no server.
pub(super) fn end_of_a_websocket_server_reaches_the_client_and_frees_the_server() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = chat_server(&lab);
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    let is_free = || balancer.stat("/backends/pool/current_connections") == 0;
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&connect_over_http3()).await.unwrap();
        assert!(next_frame(&mut receive, 1).await.contains(&(0xc0 | 25)));
        assert!(!is_free());
        send.write_all(&frame(0, BYE)).await.unwrap();
        assert_eq!(next_frame(&mut receive, 0).await, BYE);
        assert!(receive.read_to_end(100).await.unwrap().is_empty());
        for _ in 0..200 {
            if is_free() {
                return;
            }
            let _ = send.write_all(&frame(0, b"x")).await;
            sleep(Duration::from_millis(50)).await;
        }
        panic!("the tunnel holds its server");
    });
}

/// Payload of the next frame, which has this type.
async fn next_frame(stream: &mut quinn::RecvStream, kind: u64) -> Vec<u8> {
    assert_eq!(number(stream).await, kind);
    let mut payload = vec![0; number(stream).await as usize];
    stream.read_exact(&mut payload).await.unwrap();
    payload
}

/// An integer of QUIC (RFC 9000, section 16).
async fn number(stream: &mut quinn::RecvStream) -> u64 {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes[..1]).await.unwrap();
    let len = 1 << (bytes[0] >> 6);
    stream.read_exact(&mut bytes[1..len]).await.unwrap();
    let first = u64::from(bytes[0] & 0x3f);
    bytes[1..len].iter().fold(first, |number, byte| number << 8 | u64::from(*byte))
}

/// SHA-1 (RFC 3174), which the handshake of WebSocket needs.
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64) + if padded.len() % 64 > 56 { 64 } else { 0 } - 8, 0);
    padded.extend_from_slice(&(8 * message.len() as u64).to_be_bytes());
    for block in padded.chunks(64) {
        let mut words: Vec<u32> =
            block.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        for n in 16..80 {
            words.push((words[n - 3] ^ words[n - 8] ^ words[n - 14] ^ words[n - 16]).rotate_left(1));
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (n, word) in words.into_iter().enumerate() {
            let (mix, constant) = match n {
                0..20 => (b & c | !b & d, 0x5a82_7999),
                20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6_u32),
            };
            let next = [a.rotate_left(5), mix, e, constant, word].into_iter().fold(0, u32::wrapping_add);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (sum, part) in state.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(part);
        }
    }
    let mut digest = [0; 20];
    digest.chunks_mut(4).zip(state).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
    digest
}

/// The example of RFC 6455, section 1.3.
pub(super) fn handshake_of_the_test_server_is_that_of_the_standard() {
    let digest = sha1(b"dGhlIHNhbXBsZSBub25jZQ==258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    assert_eq!(BASE64.encode(digest), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}
