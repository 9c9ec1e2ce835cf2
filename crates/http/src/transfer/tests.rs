use std::future::poll_fn;
use std::time::Duration;

use convey_http_core::{HeadLimits, HeadReader};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::streams::body::ResetReason;

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
    let (exchange, mut hooks) = (Exchange::new(&head), Hooks::default());
    let pipes = PipePool::new(8);
    let mut state = TransferState::new(exchange, b"head".to_vec());
    let mut transfer = Transfer {
        client: &mut client,
        server: &mut server,
        received: &mut received,
        changes: changes(&fields, &mut hooks),
        pipes: &pipes,
        state: &mut state,
    };
    let answers = async {
        let mut some = vec![0; reads];
        app.read_exact(&mut some).await.unwrap();
        app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    };
    let (end, ()) = tokio::join!(poll_fn(|cx| transfer.poll(cx)), answers);
    assert_eq!((end, transfer.state.progress().is_request_whole()), (TransferEnd::Whole, true));
    let mut answer = [0; 2];
    browser.read_exact(&mut answer).await.unwrap();
    state.is_with_server()
}

fn changes<'a>(fields: &'a FieldRules, hooks: &'a mut Hooks) -> ResponseChanges<'a> {
    ResponseChanges { fields, rewritten: None, terms: None, hooks, retry: None }
}

fn read_head(received: &mut BytesMut) -> Exchange {
    Exchange::new(&HeadReader::default().request(received, &HeadLimits::default()).unwrap().unwrap())
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
    let mut hooks = Hooks::default();
    let pipes = PipePool::new(8);
    let mut state = TransferState::new(exchange, b"head".to_vec());
    let mut transfer = Transfer {
        client: &mut client,
        server: &mut server,
        received: &mut received,
        changes: changes(&rules, &mut hooks),
        pipes: &pipes,
        state: &mut state,
    };
    app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n").await.unwrap();
    let mut poll_once = async || {
        let polled = poll_fn(|cx| Poll::Ready(transfer.poll(cx))).await;
        assert!(polled.is_pending(), "{polled:?}");
        tokio::task::yield_now().await;
        ((transfer.state.reads_client, transfer.state.reads_server), transfer.unread_end())
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
    assert_eq!(resets.await, TransferEnd::ServerReset(ResetReason::Internal));
}

#[tokio::test]
async fn server_that_responds_before_the_whole_request_is_not_reused() {
    assert!(is_with_server(1_000, 1_004).await);
    assert!(!is_with_server(64 << 20, 4).await, "the kernel takes no 64 MiB");
}
