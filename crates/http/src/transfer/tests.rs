use std::future::poll_fn;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use convey_http_core::{CompressionOffer, CompressionRules, HeadLimits, HeadReader};
use convey_stream::{ByteStream, More};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::compress::PIECE;
use crate::held_responses::MAX_HELD;

/// Both ends of a connection.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (ours, accepted) = tokio::join!(TcpStream::connect(at), listener.accept());
    (ours.unwrap(), accepted.unwrap().0)
}

/// Whether the whole request was written to a server that reads this many bytes before it responds.
async fn is_with_server(body: usize, reads: usize) -> bool {
    let ((client, mut browser), (server, mut app)) = (connection().await, connection().await);
    let (mut client, mut server) = (ByteStream::from(client), ByteStream::from(server));
    let head = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n");
    let mut received = BytesMut::from(&head[..]);
    let head = HeadReader::default().request(&mut received, &HeadLimits::default()).unwrap().unwrap();
    received.resize(received.len() + body, b'x');
    let fields = FieldRules::default();
    let (exchange, none) = (Exchange::new(&head), Compression::default());
    let mut transfer = Transfer::new(exchange, b"head".to_vec(), &mut received, &fields, none);
    let answers = async {
        let mut some = vec![0; reads];
        app.read_exact(&mut some).await.unwrap();
        app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    };
    let moves = poll_fn(|cx| transfer.poll(cx, Ends { client: &mut client, server: &mut server }));
    let (end, ()) = tokio::join!(moves, answers);
    assert_eq!((end, transfer.exchange.is_request_whole()), (TransferEnd::Whole, true));
    let mut answer = [0; 2];
    browser.read_exact(&mut answer).await.unwrap();
    transfer.is_with_server()
}

/// A stream whose client accepts a head, but no byte of a body.
struct ClosedWindow {
    head: usize,
    is_reset: bool,
}

impl End for ClosedWindow {
    fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8], _: More) -> Poll<io::Result<usize>> {
        match bytes.windows(4).position(|end| end == b"\r\n\r\n").filter(|_| self.head == 0) {
            Some(end) => {
                self.head = end + 4;
                Poll::Ready(Ok(self.head))
            }
            None => Poll::Pending,
        }
    }

    fn poll_room(&mut self, _: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        if self.head == 0 { Poll::Ready(Ok(most)) } else { Poll::Pending }
    }

    fn is_stream(&self) -> bool {
        true
    }

    fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<io::Error> {
        if self.is_reset { Poll::Ready(io::ErrorKind::ConnectionReset.into()) } else { Poll::Pending }
    }

    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

fn read_head(received: &mut BytesMut) -> Exchange {
    Exchange::new(&HeadReader::default().request(received, &HeadLimits::default()).unwrap().unwrap())
}

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Pseudo-random bytes, which compression hardly shortens.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 ^ (self.0 >> 32)).to_le_bytes()
        });
        let mut bytes: Vec<u8> = words.take(len.div_ceil(8)).flatten().collect();
        bytes.truncate(len);
        bytes
    }
}

/// Returns the number of response bytes that wait for a client that reads nothing, and whether they
/// are the whole response. The server sends a head with these fields and then these parts.
async fn waiting_bytes(fields: &str, parts: &[usize], compression: Compression<'_>) -> (usize, bool) {
    let (server, mut app) = connection().await;
    let (mut client, mut server) = (ClosedWindow { head: 0, is_reset: false }, ByteStream::from(server));
    let mut received = BytesMut::from("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (exchange, rules) = (read_head(&mut received), FieldRules::default());
    let mut transfer = Transfer::new(exchange, b"head".to_vec(), &mut received, &rules, compression);
    transfer.hold_response(Some(CLIENT));
    let (head, parts) = (format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), parts.to_vec());
    tokio::spawn(async move {
        app.read_exact(&mut [0; 4]).await.unwrap();
        app.write_all(head.as_bytes()).await.unwrap();
        let mut noise = Noise(1);
        for part in parts {
            app.write_all(&noise.bytes(part)).await.unwrap();
            tokio::task::yield_now().await;
        }
        // The connection stays open.
        std::future::pending::<()>().await;
    });
    let mut full = 0;
    while full < 100 {
        let polled =
            poll_fn(|cx| Poll::Ready(transfer.poll(cx, Ends { client: &mut client, server: &mut server })));
        if let Poll::Ready(end) = polled.await {
            assert_eq!((end, transfer.is_with_server()), (TransferEnd::Whole, true));
            return (transfer.take_rest().left(), true);
        }
        full += usize::from(transfer.to_client.left() >= MAX_HELD);
        tokio::task::yield_now().await;
    }
    (transfer.take_rest().left(), false)
}

#[tokio::test]
async fn response_needs_no_server_while_its_client_reads_nothing() {
    for parts in [vec![2], vec![1_000, 1_000, 4_000], vec![20_000, 40_000]] {
        let len: usize = parts.iter().sum();
        let length = format!("Content-Length: {len}\r\n");
        assert_eq!(waiting_bytes(&length, &parts, Compression::default()).await, (len, true));
    }
}

#[tokio::test]
async fn compressed_response_needs_no_server_while_its_client_reads_nothing() {
    let rules = CompressionRules::default();
    let mut head = BytesMut::from("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let head = HeadReader::default().request(&mut head, &HeadLimits::default()).unwrap().unwrap();
    let compression = || Compression::new(Some(CompressionOffer::new(&rules, &head, false)));
    let fields = |len: usize| format!("Content-Type: text/plain\r\nContent-Length: {len}\r\n");
    let (waiting, is_whole) = waiting_bytes(&fields(40_000), &[20_000, 20_000], compression()).await;
    assert!(is_whole && waiting > 8 * 1024, "{waiting}");
    let (waiting, is_whole) = waiting_bytes(&fields(1 << 20), &[100_000, 100_000], compression()).await;
    assert!(!is_whole && waiting < MAX_HELD + 2 * PIECE, "{waiting}");
}

#[tokio::test]
async fn long_response_waits_at_its_server() {
    let (waiting, is_whole) =
        waiting_bytes("Content-Length: 1000000\r\n", &[50_000; 4], Compression::default()).await;
    assert_eq!((waiting, is_whole), (MAX_HELD, false));
}

/// A client that accepts this number of bytes in each turn.
struct SlowReader(usize);

impl End for SlowReader {
    fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8], _: More) -> Poll<io::Result<usize>> {
        match std::mem::take(&mut self.0).min(bytes.len()) {
            0 => Poll::Pending,
            n => Poll::Ready(Ok(n)),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

#[tokio::test]
async fn bytes_that_are_sent_hold_no_memory() {
    let mut outgoing = Outgoing::default();
    for _ in 0..1_000 {
        let room = outgoing.room(CLIENT);
        outgoing.put(&vec![b'x'; room]);
        let flushed = poll_fn(|cx| Poll::Ready(outgoing.poll_flush(cx, &mut SlowReader(1_000), More::No)));
        assert!(flushed.await.is_pending() && outgoing.is_torn());
        assert!(outgoing.bytes.len() <= 2 * MAX_HELD);
    }
}

/// Returns the end of a transfer that reads neither of its sockets: the server accepts no request
/// and the client no response.
async fn unread_end(breaks: impl FnOnce(TcpStream, TcpStream) -> TcpStream) -> TransferEnd {
    let ((client, browser), (server, mut app)) = (connection().await, connection().await);
    let (mut client, mut server) = (ByteStream::from(client), ByteStream::from(server));
    let body = 64 << 20;
    let mut received =
        BytesMut::from(&*format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n"));
    let (exchange, rules) = (read_head(&mut received), FieldRules::default());
    received.resize(received.len() + body - 1, b'x');
    let none = Compression::default();
    let mut transfer = Transfer::new(exchange, b"head".to_vec(), &mut received, &rules, none);
    app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n").await.unwrap();
    let mut poll_once = async || {
        let polled =
            poll_fn(|cx| Poll::Ready(transfer.poll(cx, Ends { client: &mut client, server: &mut server })));
        let polled = polled.await;
        assert!(polled.is_pending(), "{polled:?}");
        tokio::task::yield_now().await;
        let ends = Ends { client: &mut client, server: &mut server };
        let reads = (transfer.reads_client, transfer.reads_server);
        (reads, transfer.unread_end(&ends))
    };
    let mut still = 0;
    while still < 10 {
        let is_full = !matches!(app.try_write(&[b'x'; 65_536]), Ok(n) if n > 0);
        let (reads, end) = poll_once().await;
        assert_eq!(end, None);
        still = if is_full && reads == (false, false) { still + 1 } else { 0 };
    }
    let _kept = breaks(browser, app);
    loop {
        if let Some(end) = poll_once().await.1 {
            return end;
        }
    }
}

fn reset(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

#[tokio::test]
async fn client_that_leaves_is_noticed_while_nobody_reads_it() {
    let closes = unread_end(|browser, app| {
        drop(browser);
        app
    });
    assert_eq!(closes.await, TransferEnd::ClientGone);
    let resets = unread_end(|browser, app| {
        reset(&browser);
        drop(browser);
        app
    });
    assert_eq!(resets.await, TransferEnd::ClientGone);
}

#[tokio::test]
async fn reset_of_a_server_is_noticed_while_nobody_reads_it() {
    let resets = unread_end(|browser, app| {
        reset(&app);
        drop(app);
        browser
    });
    assert_eq!(resets.await, TransferEnd::ServerReset);
}

#[tokio::test]
async fn reset_is_noticed_while_the_server_reads_nothing() {
    let (server, _app) = connection().await;
    let (mut client, mut server) = (ClosedWindow { head: 0, is_reset: true }, ByteStream::from(server));
    let body = 64 << 20;
    let head = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n");
    let mut received = BytesMut::from(&head[..]);
    let (exchange, fields) = (read_head(&mut received), FieldRules::default());
    received.resize(received.len() + body - 1, b'x');
    let none = Compression::default();
    let mut transfer = Transfer::new(exchange, b"head".to_vec(), &mut received, &fields, none);
    let moves = poll_fn(|cx| transfer.poll(cx, Ends { client: &mut client, server: &mut server }));
    assert_eq!(moves.await, TransferEnd::ClientGone);
}

#[tokio::test]
async fn server_that_responds_before_the_whole_request_is_not_reused() {
    assert!(is_with_server(1_000, 1_004).await);
    assert!(!is_with_server(64 << 20, 4).await, "the kernel takes no 64 MiB");
}
