//! Limits of compression, and convey's behaviour beyond them.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, TcpServer, TestHttpServer, wait_for};

use super::{ON, field, setup};
use crate::http::client::{Client, read_head};

pub(super) fn a_client_that_reads_nothing_slows_its_server_and_holds_no_memory() {
    const SIZE: usize = 128 << 20;
    let lab = Loopback::new();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    // Pseudo-random numbers, which hardly compress.
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(1 << 20)
    .collect();
    let _server = TcpServer::start(lab.server(1), move |mut stream| {
        read_head(&mut stream)?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {SIZE}\r\n\r\n")?;
        for _ in 0..SIZE / noise.len() {
            stream.write_all(&noise)?;
            count.fetch_add(noise.len(), Ordering::Relaxed);
        }
        Ok(())
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    let before = balancer.memory();
    let mut client = Client::new(lab.vip());
    client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: zstd\r\n\r\n").unwrap();
    let head = read_head(&mut client.0).unwrap();
    assert_eq!(field(&head, "content-encoding"), Some("zstd"));
    let so_far = || sent.load(Ordering::Relaxed);
    let mut last = so_far();
    wait_for("the server to wait for the client", || {
        thread::sleep(Duration::from_millis(200));
        let now = so_far();
        (std::mem::replace(&mut last, now) == now && now > 0).then_some(())
    });
    assert!(so_far() < SIZE / 2, "{} bytes wait for a client that reads nothing", so_far());
    let grown = balancer.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    // The client reads the data after all.
    let mut some = vec![0; 32 << 20];
    client.0.read_exact(&mut some).unwrap();
}

pub(super) fn beyond_the_memory_budget_answers_go_as_they_are() {
    let lab = Loopback::new();
    // Responses that begin and do not end.
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: x\n\r\n",
        )
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    let encoding = || {
        let mut client = Client::new(lab.vip());
        client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n").unwrap();
        let head = read_head(&mut client.0).unwrap();
        assert_eq!(field(&head, "vary"), Some("Accept-Encoding"));
        (field(&head, "content-encoding").map(str::to_owned), client)
    };
    let cores = thread::available_parallelism().unwrap().get();
    let (mut compressed, mut plain) = (Vec::new(), Vec::new());
    // A worker has memory for 40 of them.
    while plain.is_empty() && compressed.len() <= 41 * cores {
        match encoding() {
            (Some(coding), client) => {
                assert_eq!(coding, "br");
                compressed.push(client);
            }
            (None, client) => plain.push(client),
        }
    }
    let [client] = &mut plain[..] else { panic!("{} answers are compressed at once", compressed.len()) };
    let mut event = [0; 13];
    client.0.read_exact(&mut event).unwrap();
    assert_eq!(&event, b"8\r\ndata: x\n\r\n", "as it is");
    let of = |what: &str| balancer.stat(&format!("/frontends/web/requests/compression/{what}"));
    assert_eq!(of("responses/br"), compressed.len());
    wait_for("the counter", || (of("no_memory") == 1).then_some(()));
    // Memory of the encoders is free when they end.
    drop(compressed);
    wait_for("room", || encoding().0);
}
