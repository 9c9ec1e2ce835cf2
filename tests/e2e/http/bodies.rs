//! Bodies of requests and responses.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, TestHttpServer, connect, wait_for};

use super::client::{Client, read_head};

pub(super) fn bodies_arrive_whole_whatever_their_framing() {
    let lab = Loopback::new();
    let server = TestHttpServer::start(lab.server(1), |request, stream| {
        // The server returns the body in chunks of another size.
        write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        for chunk in request.body.chunks(70_000) {
            write!(stream, "{:x}\r\n", chunk.len())?;
            stream.write_all(chunk)?;
            stream.write_all(b"\r\n")?;
        }
        stream.write_all(b"0\r\n\r\n")
    });
    let _balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    for size in [0, 1, 1_000, 65_536, 300_000, 5_000_000] {
        let body: Vec<u8> = (0..size).map(|n: usize| (n % 251) as u8).collect();
        for is_chunked in [false, true] {
            let mut client = connect(lab.vip());
            let mut sender = client.try_clone().unwrap();
            let sent = body.clone();
            let sending = thread::spawn(move || {
                let framing = match is_chunked {
                    true => "Transfer-Encoding: chunked".to_owned(),
                    false => format!("Content-Length: {}", sent.len()),
                };
                write!(sender, "PUT /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{framing}\r\n\r\n")
                    .unwrap();
                if !is_chunked {
                    return sender.write_all(&sent).unwrap();
                }
                for chunk in sent.chunks(9_999) {
                    write!(sender, "{:x}\r\n", chunk.len()).unwrap();
                    sender.write_all(chunk).unwrap();
                    sender.write_all(b"\r\n").unwrap();
                }
                sender.write_all(b"0\r\n\r\n").unwrap();
            });
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            sending.join().unwrap();
            let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            assert_eq!(without_chunks(&answer[head..]), body, "{size} {is_chunked}");
            assert_eq!(server.seen().pop().unwrap().body, body, "{size} {is_chunked}");
        }
    }
}

fn without_chunks(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|end| end == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        body.extend(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
        if size == 0 {
            assert!(bytes.is_empty());
            return body;
        }
    }
}

pub(super) fn expect_100_continue_is_answered_by_the_server() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        let mut head = read_head(&mut stream)?;
        assert!(head.contains("\r\nExpect: 100-continue\r\n"), "{head}");
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        let mut body = [0; 5];
        stream.read_exact(&mut body)?;
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\n")?;
        stream.write_all(&body)?;
        // The connection is kept for the next request.
        head = read_head(&mut stream)?;
        assert!(head.starts_with("GET /next "), "{head}");
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
    });
    let _balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let mut client = Client::new(lab.vip());
    let expects = "PUT /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(client.send(expects).status, 100);
    let created = client.send("hello");
    assert_eq!((created.status, &*created.body), (201, "hello"));
    assert_eq!(client.get("a", "/next").status, 204);
}

pub(super) fn an_answer_before_the_body_is_whole_arrives_and_ends_the_connection() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
    });
    let _balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let mut client = Client::new(lab.vip());
    let mut sender = client.0.try_clone().unwrap();
    write!(sender, "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n").unwrap();
    let sending = thread::spawn(move || while sender.write_all(&[b'x'; 4_096]).is_ok() {});
    let response = client.read();
    assert_eq!((response.status, &*response.body), (413, "big"), "{}", response.head);
    assert!(response.head.contains("\r\nConnection: close\r\n"), "{}", response.head);
    drop(client);
    sending.join().unwrap();
}

pub(super) fn large_bodies_take_no_memory_and_wait_for_who_reads_slowly() {
    const SIZE: usize = 256 << 20;
    let lab = Loopback::new();
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = sent.clone();
    let _server = TcpServer::start(lab.server(1), move |mut stream| {
        read_head(&mut stream)?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")?;
        let part = vec![b'x'; 1 << 20];
        for _ in 0..SIZE / part.len() {
            stream.write_all(&part)?;
            count.fetch_add(part.len(), std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    });
    let balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let before = balancer.memory();
    let mut client = Client::new(lab.vip());
    client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let head = read_head(&mut client.0).unwrap();
    assert!(head.contains(&format!("Content-Length: {SIZE}")), "{head}");
    let so_far = || sent.load(std::sync::atomic::Ordering::Relaxed);
    let mut last = so_far();
    wait_for("the server to wait for the client", || {
        thread::sleep(Duration::from_millis(200));
        let now = so_far();
        (std::mem::replace(&mut last, now) == now).then_some(())
    });
    assert!(so_far() < SIZE / 2, "{} bytes wait for a client that reads nothing", so_far());
    let (mut rest, mut buffer) = (SIZE, vec![0; 1 << 20]);
    while rest > 0 {
        rest -= client.0.read(&mut buffer).unwrap();
    }
    let grown = balancer.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
}
