//! Tests of the relay between real sockets on loopback.
#![expect(clippy::disallowed_methods, reason = "tests of a shell: they go by tokio's clock")]

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;

const NEVER: Duration = Duration::from_secs(3600);

/// Client and server, with the relay between them.
struct Line {
    client: TcpStream,
    server: TcpStream,
    relay: JoinHandle<(RelayEnd, u64, u64)>,
}

impl Line {
    async fn new(idle: Duration) -> Line {
        Line::begun(Vec::new(), idle).await
    }

    /// Starts a relay whose client has sent the bytes `early` before the server was connected.
    async fn begun(early: Vec<u8>, idle: Duration) -> Line {
        let (client, front) = pair().await;
        let (back, server) = pair().await;
        let relay = tokio::spawn(async move {
            let (mut front, mut back) = (ByteStream::from(front), ByteStream::from(back));
            let (rx, tx) = (AtomicU64::new(0), AtomicU64::new(0));
            let count = |up, down| {
                rx.fetch_add(up, Relaxed);
                tx.fetch_add(down, Relaxed);
            };
            let resources =
                RelayResources { pipes: PipePool::new(8), windows: WindowBudget::new(8, 1 << 20) };
            let patience = Patience { idle, unanswered: NEVER };
            let timer = pin!(sleep(Duration::ZERO));
            let end = relay((&mut front, &mut back), early, &resources, (patience, timer), count).await;
            if end != RelayEnd::Closed {
                let _ = (front.tcp().set_zero_linger(), back.tcp().set_zero_linger());
            }
            (end, rx.into_inner(), tx.into_inner())
        });
        Line { client, server, relay }
    }
}

/// Both ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connect = TcpStream::connect(listener.local_addr().unwrap());
    let (connected, accepted) = tokio::join!(connect, listener.accept());
    (connected.unwrap(), accepted.unwrap().0)
}

/// Pseudo-random bytes, so that the tests notice lost, repeated and reordered bytes.
fn bytes(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(len as u64);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

async fn read_exactly(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut read = vec![0; len];
    stream.read_exact(&mut read).await.unwrap();
    read
}

async fn read_to_end(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.map(|_| read)
}

#[tokio::test]
async fn bytes_received_before_the_connect_are_sent_first_and_counted() {
    let mut line = Line::begun(b"early ".to_vec(), NEVER).await;
    line.client.write_all(b"and late").await.unwrap();
    line.client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut line.server).await.unwrap(), b"early and late");
    drop(line.server);
    assert_eq!(line.relay.await.unwrap(), (RelayEnd::Closed, 14, 0));
}

#[tokio::test]
async fn question_and_answer_arrive_and_are_counted() {
    let mut line = Line::new(NEVER).await;
    line.client.write_all(b"question").await.unwrap();
    assert_eq!(read_exactly(&mut line.server, 8).await, b"question");
    line.server.write_all(b"answer").await.unwrap();
    assert_eq!(read_exactly(&mut line.client, 6).await, b"answer");
    drop((line.client, line.server));
    assert_eq!(line.relay.await.unwrap(), (RelayEnd::Closed, 8, 6));
}

#[tokio::test]
async fn a_server_may_speak_first() {
    let mut line = Line::new(NEVER).await;
    line.server.write_all(b"220 ready").await.unwrap();
    assert_eq!(read_exactly(&mut line.client, 9).await, b"220 ready");
}

#[tokio::test]
async fn a_client_that_has_said_all_still_reads_everything() {
    let mut line = Line::new(NEVER).await;
    let answer = bytes(3_000_000);
    line.client.write_all(b"question").await.unwrap();
    line.client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut line.server).await.unwrap(), b"question");
    let serve = async {
        line.server.write_all(&answer).await.unwrap();
        line.server.shutdown().await.unwrap();
    };
    let ((), read) = tokio::join!(serve, read_to_end(&mut line.client));
    assert!(read.unwrap() == answer);
    assert_eq!(line.relay.await.unwrap(), (RelayEnd::Closed, 8, 3_000_000));
}

#[tokio::test]
async fn a_server_that_has_said_all_still_reads_everything() {
    let mut line = Line::new(NEVER).await;
    line.server.write_all(b"hello").await.unwrap();
    line.server.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut line.client).await.unwrap(), b"hello");
    let upload = bytes(1_000_000);
    let send = async {
        line.client.write_all(&upload).await.unwrap();
        line.client.shutdown().await.unwrap();
    };
    let ((), read) = tokio::join!(send, read_to_end(&mut line.server));
    assert!(read.unwrap() == upload);
}

#[tokio::test]
async fn bulk_in_both_directions_at_once_arrives_whole() {
    let line = Line::new(NEVER).await;
    let data = bytes(20_000_000);
    let (mut client_reads, mut client_writes) = line.client.into_split();
    let (mut server_reads, mut server_writes) = line.server.into_split();
    let copy = data.clone();
    tokio::spawn(async move { client_writes.write_all(&copy).await.unwrap() });
    let copy = data.clone();
    tokio::spawn(async move { server_writes.write_all(&copy).await.unwrap() });
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let (a, b) = tokio::join!(server_reads.read_to_end(&mut up), client_reads.read_to_end(&mut down));
    a.and(b).unwrap();
    assert!(up == data && down == data);
    assert_eq!(line.relay.await.unwrap(), (RelayEnd::Closed, 20_000_000, 20_000_000));
}

#[tokio::test]
async fn a_stream_that_changes_between_bulk_and_drops_arrives_whole() {
    let mut line = Line::new(NEVER).await;
    let parts: Vec<Vec<u8>> = (0..60).map(|i| bytes(if i % 10 == 0 { 2_000_000 } else { 1 + i })).collect();
    let expected = parts.concat();
    let send = async {
        for part in &parts {
            line.client.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
        line.client.shutdown().await.unwrap();
    };
    let ((), read) = tokio::join!(send, read_to_end(&mut line.server));
    assert!(read.unwrap() == expected);
}

#[tokio::test]
async fn a_reset_by_the_client_resets_the_server() {
    let mut line = Line::new(NEVER).await;
    line.client.write_all(b"question").await.unwrap();
    read_exactly(&mut line.server, 8).await;
    line.client.set_zero_linger().unwrap();
    drop(line.client);
    let error = read_to_end(&mut line.server).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(line.relay.await.unwrap().0, RelayEnd::ClientReset);
}

#[tokio::test]
async fn a_reset_by_the_server_resets_the_client() {
    let mut line = Line::new(NEVER).await;
    line.client.write_all(b"question").await.unwrap();
    read_exactly(&mut line.server, 8).await;
    line.server.set_zero_linger().unwrap();
    drop(line.server);
    let error = read_to_end(&mut line.client).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(line.relay.await.unwrap().0, RelayEnd::ServerReset);
}

#[tokio::test]
async fn the_last_answer_of_a_server_that_reads_no_further_is_delivered() {
    let mut line = Line::new(NEVER).await;
    line.server.write_all(b"413 too large").await.unwrap();
    drop(line.server); // nothing unread: an orderly close
    assert_eq!(read_exactly(&mut line.client, 13).await, b"413 too large");
    // The server's host answers these bytes with a reset. Until the reset arrives, the client can
    // still write.
    while line.client.write_all(&[0; 1000]).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(line.relay.await.unwrap().0, RelayEnd::Closed);
}

#[tokio::test]
async fn a_connection_without_a_byte_ends_after_the_idle_timeout() {
    let idle = Duration::from_secs(80);
    let mut line = Line::new(idle).await;
    tokio::time::pause();
    let start = Instant::now();
    assert_eq!(line.relay.await.unwrap().0, RelayEnd::Idle);
    let took = start.elapsed();
    assert!((idle..idle + LONGEST_PULSE).contains(&took), "{took:?}");
    assert!(read_to_end(&mut line.client).await.is_err() && read_to_end(&mut line.server).await.is_err());
}

#[tokio::test]
async fn a_byte_now_and_then_keeps_a_connection_open() {
    let idle = Duration::from_secs(40);
    let mut line = Line::new(idle).await;
    tokio::time::pause();
    for _ in 0..10 {
        // Advances the paused clock, and resumes it before the transfer: while the kernel
        // transports the byte, a paused clock would jump to the next timer.
        tokio::time::advance(idle / 2).await;
        tokio::time::resume();
        line.server.write_all(b".").await.unwrap();
        read_exactly(&mut line.client, 1).await;
        tokio::time::pause();
    }
    assert!(!line.relay.is_finished(), "five times the idle timeout");
    assert_eq!(line.relay.await.unwrap().0, RelayEnd::Idle, "no byte any more");
}

#[tokio::test]
async fn a_reader_that_pauses_holds_the_sender_back_and_loses_nothing() {
    let mut line = Line::new(NEVER).await;
    let data = bytes(30_000_000);
    let copy = data.clone();
    let mut server = line.server;
    let sent = tokio::spawn(async move { server.write_all(&copy).await });
    let first = read_exactly(&mut line.client, 10).await;
    assert!(!sent.is_finished(), "more than all buffers hold");
    let rest = read_to_end(&mut line.client).await.unwrap();
    assert!([first, rest].concat() == data);
    sent.await.unwrap().unwrap();
}

#[tokio::test]
async fn server_reset_during_a_blocked_upload_is_not_a_normal_end() {
    let mut line = Line::new(NEVER).await;
    fill(&mut line.client).await;
    line.server.write_all(b"partial answer").await.unwrap();
    assert_eq!(read_exactly(&mut line.client, 14).await, b"partial answer");
    line.server.set_zero_linger().unwrap();
    drop(line.server);
    let error = read_to_end(&mut line.client).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(line.relay.await.unwrap().0, RelayEnd::ServerReset);
}

#[tokio::test]
async fn a_client_that_resets_while_its_server_does_not_read_is_noticed() {
    let mut line = Line::new(Duration::from_secs(4)).await;
    fill(&mut line.client).await;
    line.client.set_zero_linger().unwrap();
    drop(line.client);
    assert_eq!(line.relay.await.unwrap().0, RelayEnd::ClientReset);
}

#[tokio::test]
async fn urgent_data_within_bulk_stops_nothing() {
    let mut line = Line::new(NEVER).await;
    let data = bytes(4_000_000);
    let send = async {
        line.client.write_all(&data).await.unwrap();
        line.client.writable().await.unwrap();
        socket2::SockRef::from(&line.client).send_out_of_band(b"!").unwrap();
        line.client.write_all(&data).await.unwrap();
        line.client.shutdown().await.unwrap();
    };
    let ((), read) = tokio::join!(send, read_to_end(&mut line.server));

    assert!(read.unwrap() == [&data[..], &data[..]].concat(), "everything but the urgent byte");
}

/// Writes until the peer accepts no more bytes.
async fn fill(stream: &mut TcpStream) {
    let block = vec![0; 1 << 20];
    while tokio::time::timeout(Duration::from_millis(300), stream.write_all(&block)).await.is_ok() {}
}
