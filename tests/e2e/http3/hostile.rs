//! Malicious clients, or too many of them.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use convey_testkit::{BalancerProcess, Loopback, TestAuthority, TestHttpServer, TlsSettings, tests};
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint};
use tokio::net::UdpSocket;

use super::client::{Clients, read, uri};
use super::forger::Forger;
use super::{authority, site, unchecked_site, with};
use crate::http2::block_on;

tests!("http3_hostile":
    clients_beyond_a_limit_are_refused_and_may_come_over_tcp,
    handshakes_per_source_are_limited_and_need_a_validated_address,
    forged_addresses_occupy_a_bounded_number_of_handshakes,
    single_initial_brings_at_most_three_times_its_bytes,
    forged_moves_bring_bounded_bytes,
    empty_data_ends_no_request,
    a_head_that_is_too_long_ends_its_stream,
    a_head_that_never_comes_is_given_up,
    data_in_tiny_frames_takes_little_memory,
    heads_that_come_byte_by_byte_take_little_memory,
    fields_of_one_connection_are_refused,
    early_resets_end_the_connection_in_order,
    datagrams_that_are_not_quic_get_no_reply,
);

/// A QUIC connection without an HTTP/3 library.
pub(crate) async fn raw(authority: &TestAuthority, lab: &Loopback) -> (Endpoint, Connection) {
    let tls = TlsSettings::trusting(authority).offering(&["h3"]).client();
    let tls = QuicClientConfig::try_from(tls).unwrap();
    let mut endpoint = Endpoint::client((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    endpoint.set_default_client_config(ClientConfig::new(std::sync::Arc::new(tls)));
    let connection = endpoint.connect(lab.vip(), "site.example").unwrap().await.unwrap();
    // Empty settings.
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    std::mem::forget(control);
    (endpoint, connection)
}

/// A frame of this type.
pub(crate) fn frame(kind: u8, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(kind);
    frame.put_u32(0x8000_0000 | payload.len() as u32);
    frame.extend_from_slice(payload);
    frame.freeze()
}

/// The head of a GET for this path.
pub(super) fn get(path: &str) -> Bytes {
    let mut block = vec![0, 0, 0xc0 | 17, 0xc0 | 23];
    for (entry, value) in [(1, path), (0, "site.example")] {
        block.push(0x50 | entry);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    frame(1, &block)
}

/// Head of a POST that uses only QPACK's static table (RFC 9204, section 4.5), with this length of
/// its body.
pub(super) fn post(length: Option<&str>) -> Bytes {
    let mut block = vec![0, 0];
    // :method POST, :scheme https, :path /.
    block.extend_from_slice(&[0xc0 | 20, 0xc0 | 23, 0xc0 | 1]);
    // :authority is entry 0, content-length entry 4.
    for (entry, value) in [(Some(0), Some("site.example")), (Some(4), length)] {
        if let (Some(entry), Some(value)) = (entry, value) {
            block.push(0x50 | entry);
            block.push(value.len() as u8);
            block.extend_from_slice(value.as_bytes());
        }
    }
    frame(1, &block)
}

fn clients_beyond_a_limit_are_refused_and_may_come_over_tcp() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer =
        BalancerProcess::start(&lab, &with(&lab, "max_connections = 2", "").server("a", lab.server(1), ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let both = [clients.connect(lab.vip()).await, clients.connect(lab.vip()).await];
        let error = clients.try_connect(lab.vip()).await.err().unwrap();
        assert!(error.to_string().contains("refused"), "{error}");
        let [first, second] = both;
        first.connection.close(0x100_u32.into(), b"");
        let third = loop {
            if let Ok(third) = clients.try_connect(lab.vip()).await {
                break third;
            }
        };
        assert_eq!(third.get("/").await.status, 200);
        assert_eq!(second.get("/").await.status, 200);
    });
    assert!(balancer.stat("/frontends/web/ended/max_connections").as_u64().unwrap() >= 1);
}

fn handshakes_per_source_are_limited_and_need_a_validated_address() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let _balancer =
        BalancerProcess::start(&lab, &site(&lab, "max_handshakes_per_source = 2\nhandshake_timeout = 60"));
    block_on(async {
        // The first packet of a handshake, without the others.
        let recorder = super::recorder::Recorder::before(lab.vip()).await;
        let clients = Clients::trusting(&authority);
        clients.connect(recorder.addr()).await.connection.close(0x100_u32.into(), b"");
        recorder.only_the_first();
        recorder.replay().await;
        // Half of the slots are taken by unverified addresses: a client that answers gets one of
        // the other half.
        let client = clients.connect(lab.vip()).await;
        assert_eq!(client.get("/").await.status, 200);
    });
}

fn forged_addresses_occupy_a_bounded_number_of_handshakes() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    // No limit of one source applies.
    let lines = "trusted_clients = [\"127.0.0.0/8\"]";
    let setup = with(&lab, lines, "handshake_timeout = 60").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let most = 256 * std::thread::available_parallelism().unwrap().get();
    block_on(async {
        let recorder = super::recorder::Recorder::before(lab.vip()).await;
        recorder.be_mute();
        let forged = Clients::trusting(&authority);
        // Until the worker that gets them has no place left. A few at a time: a busy worker loses
        // what does not fit its socket.
        let mut begun = Vec::new();
        while recorder.retries() == 0 {
            if begun.len() < 2 * most {
                begun.extend((0..10).map(|_| forged.begin(recorder.addr())));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Other clients complete their handshakes, as they answer.
        let clients = Clients::trusting(&authority);
        for _ in 0..20 {
            assert_eq!(clients.connect(lab.vip()).await.get("/").await.status, 200);
        }
        let open = balancer.stat("/frontends/web/current_connections").as_u64().unwrap();
        assert!((200..=most as u64 + 20).contains(&open), "{open}");
        drop(begun);
    });
}

fn single_initial_brings_at_most_three_times_its_bytes() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, "handshake_timeout = 3"));
    block_on(async {
        let trap = UdpSocket::bind((lab.ip(98), 0)).await.unwrap();
        let clients = Clients::trusting(&authority);
        let begun = clients.begin(trap.local_addr().unwrap());
        let mut first = [0; 2048];
        let len = trap.recv(&mut first).await.unwrap();
        drop(begun);
        let forged = UdpSocket::bind((lab.ip(99), 0)).await.unwrap();
        forged.send_to(&first[..len], lab.vip()).await.unwrap();
        // convey retransmits its answer until then.
        while balancer.stat("/frontends/web/ended/tls_handshake_timeout") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (mut sizes, mut answer) = (Vec::new(), [0; 2048]);
        while let Ok(len) = forged.try_recv(&mut answer) {
            sizes.push(len);
        }
        let sent: usize = sizes.iter().sum();
        assert!(sent >= 1200 && sent <= 3 * len, "{len} bytes brought {sizes:?}");
        assert_ne!(balancer.stat("/frontends/web/drops/unproven_address"), 0);
        assert_eq!(clients.connect(lab.vip()).await.get("/").await.status, 200);
    });
}

fn forged_moves_bring_bounded_bytes() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let forger = Forger::before(lab.vip()).await;
        let clients = Clients::trusting(&authority);
        let client = clients.connect(forger.addr()).await;
        assert_eq!(client.get("/").await.status, 200);
        let mut call = client.begin(Request::post(uri("/")).body(()).unwrap()).await.unwrap();
        // Other addresses, and other ports of the last one.
        forger.forge((0..100_u8).map(|n| (lab.ip(100 + n % 50), 0).into()));
        while !forger.is_done() {
            call.send_data(Bytes::from_static(b"x")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let is_ended = || balancer.stat("/frontends/web/current_connections") == 0;
        while !is_ended() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (sent, forged, drawn) = forger.bytes();
        let most = 3 * (sent + forged) + 3_000;
        assert!(drawn <= most, "{sent} bytes, of which {forged} were forged, brought {drawn}");
        balancer.wait_for_stat("/frontends/web/ended/unproven_paths", 1);
        assert_eq!(clients.connect(lab.vip()).await.get("/").await.status, 200);
    });
}

fn empty_data_ends_no_request() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        for length in [None, Some("6")] {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            for part in [
                post(length),
                frame(0, b""),
                frame(0, b"abc"),
                frame(0, b""),
                frame(0, b"def"),
                frame(0, b""),
            ] {
                send.write_all(&part).await.unwrap();
            }
            send.finish().unwrap();
            let answer = receive.read_to_end(1 << 20).await.unwrap();
            assert!(answer.ends_with(b"a POST / 6"), "{}", String::from_utf8_lossy(&answer));
        }
    });
    assert!(server.seen().iter().all(|seen| seen.body == b"abcdef"));
}

fn a_head_that_is_too_long_ends_its_stream() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    let before = balancer.memory();
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        // Above convey's limit, and below the library's: convey replies.
        let long = client.fetch(Request::get(uri("/")).header("x", "y".repeat(60_000)), b"", None).await;
        assert_eq!(long.status, 431);
        let (_endpoint, connection) = raw(&authority, &lab).await;
        for kind in [1, 0x21] {
            let (mut send, _receive) = connection.open_bi().await.unwrap();
            // The head announces a gigabyte, and the client sends as long as it can.
            let mut head = BytesMut::new();
            head.put_u8(kind);
            head.put_u32(0x8000_0000 | 1 << 29);
            let written = async {
                send.write_all(&head).await?;
                loop {
                    send.write_all(&[0; 16 * 1024]).await?;
                }
                #[allow(unreachable_code, reason = "it says what the errors are")]
                Ok::<(), quinn::WriteError>(())
            };
            let error = written.await.unwrap_err();
            assert!(matches!(error, quinn::WriteError::Stopped(_)), "{error}");
        }
        assert_eq!(client.get("/").await.status, 200);
    });
    let grown = balancer.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
}

fn a_head_that_never_comes_is_given_up() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = with(&lab, "[frontends.web.http]\nhead_timeout = 1", "").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&post(None)[..4]).await.unwrap();
        // The stream is over, while the connection stays open.
        assert!(receive.read_to_end(100).await.is_err());
        assert!(connection.close_reason().is_none());
    });
}

fn data_in_tiny_frames_takes_little_memory() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    // The server reads nothing.
    let _server = convey_testkit::TcpServer::silent(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &unchecked_site(&lab));
    let before = balancer.memory();
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let tiny: Vec<u8> = [0, 1, b'x'].repeat(20_000);
        let mut streams = Vec::new();
        for _ in 0..20 {
            let (mut send, receive) = connection.open_bi().await.unwrap();
            send.write_all(&post(None)).await.unwrap();
            // Sends until nothing more is accepted.
            let sending = async {
                loop {
                    if send.write_all(&tiny).await.is_err() {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_millis(200), sending).await;
            streams.push((send, receive));
        }
        let grown = balancer.memory().saturating_sub(before);
        assert!(grown < 48 << 20, "{grown} bytes");
    });
}

fn heads_that_come_byte_by_byte_take_little_memory() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let before = balancer.memory();
        let mut streams = Vec::new();
        for n in 0..100 {
            let (mut send, receive) = connection.open_bi().await.unwrap();
            // For half of them, as trailers after a head.
            if n % 2 == 0 {
                send.write_all(&post(None)).await.unwrap();
            }
            send.write_all(&[1, 0x80, 0, 0xea, 0x60]).await.unwrap();
            streams.push((send, receive));
        }
        for _ in 0..200 {
            for (send, _) in &mut streams {
                send.write_all(&[0]).await.unwrap();
            }
            // Each byte is sent separately.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let grown = balancer.memory().saturating_sub(before);
        assert!(grown < 32 << 20, "{grown} bytes");
    });
}

fn fields_of_one_connection_are_refused() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        for (name, value) in [
            ("connection", "x-forwarded-for"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip"),
        ] {
            let answer = client.fetch(Request::get(uri("/")).header(name, value), b"", None).await;
            assert_eq!(answer.status, 400, "{name}");
        }
        let answer = client.fetch(Request::get(uri("/")).header("te", "trailers"), b"", None).await;
        assert_eq!(answer.status, 200);
    });
    assert_eq!(server.seen().len(), 1);
}

fn early_resets_end_the_connection_in_order() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (_server, _held) = convey_testkit::TcpServer::holding(lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &unchecked_site(&lab));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let error = loop {
            match client.begin(Request::get(uri("/")).body(()).unwrap()).await {
                Ok(mut call) => {
                    let _ = call.finish().await;
                    call.stop_sending(h3::error::Code::H3_REQUEST_CANCELLED);
                    call.stop_stream(h3::error::Code::H3_REQUEST_CANCELLED);
                }
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("Remote is closing"), "{error}");
        // Other clients are served.
        let other = clients.connect(lab.vip()).await;
        let mut call = other.begin(Request::get(uri("/a/../b")).body(()).unwrap()).await.unwrap();
        call.finish().await.unwrap();
        assert_eq!(read(&mut call).await.unwrap().status, 400);
    });
}

fn datagrams_that_are_not_quic_get_no_reply() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in
        [&b""[..], b"x", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 1200], &[0xc0, 0, 0, 0, 1, 255], &[0; 1400]]
    {
        socket.send_to(datagram, lab.vip()).unwrap();
    }
    block_on(async {
        let clients = Clients::trusting(&authority);
        assert_eq!(clients.connect(lab.vip()).await.get("/").await.status, 200);
    });
    socket.set_nonblocking(true).unwrap();
    // At most as many bytes as arrived: a stateless reset, or convey's versions.
    let mut answers = 0;
    while let Ok(len) = socket.recv(&mut [0; 2048]) {
        assert!(len <= 1400);
        answers += 1;
    }
    assert!(answers <= 2, "{answers}");
    balancer.wait_for_stat("/frontends/web/total_connections", 1);
}
