//! Streams whose data nobody reads.

use std::future::poll_fn;

use h2::server::SendResponse;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::super::frame_filter::FieldFilter;
use super::super::io::Connection;
use super::*;
use crate::data_queue::FRAME;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// `:method: POST`, `:scheme: http`, `:path: /`, `:authority: a`.
const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

/// `:status: 103` and `:status: 200`.
const EARLY_HINTS: &[u8] = b"\x08\x03103";
const OK: &[u8] = b"\x88";

/// Number of bytes that fits in the window of a stream.
const LEN: usize = 40_000;

const AT_ONCE: usize = 32 * 1024;

type Client = h2::server::Connection<Connection<convey_stream::ByteStream>, Bytes>;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Connection whose peer sends these frames, and reads all bytes.
async fn connection(frames: Vec<u8>) -> (Connection<convey_stream::ByteStream>, Arc<ReceiveQueue>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    tokio::spawn(async move {
        let (mut reads, mut writes) = other.into_split();
        let read = async { tokio::io::copy(&mut reads, &mut tokio::io::sink()).await };
        let _ = tokio::join!(writes.write_all(&frames), read);
    });
    let queue = ReceiveQueue::new(AT_ONCE);
    let stream = listener.accept().await.unwrap().0.into();
    (Connection::new(stream, FieldFilter::new(10_000), queue.clone()), queue)
}

/// Connection of a client, whose frames pass the filter unchecked, and which begins this number of requests, and then sends these frames.
async fn client(requests: u32, frames: Vec<u8>) -> (Client, Arc<ReceiveQueue>) {
    let heads = (0..requests).flat_map(|n| frame(HEADERS, END_HEADERS, 2 * n + 1, POST));
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let all = begin.into_iter().chain(heads).chain(frames).collect();
    let (connection, queue) = connection(all).await;
    let mut builder = h2::server::Builder::new();
    let builder = builder.data_frame_budget(DATA_FRAME_BUDGET);
    (builder.handshake(connection).await.unwrap(), queue)
}

type Accepted = (ReceivedStream, SendResponse<Bytes>);

async fn accept(client: &mut Client, queue: &Arc<ReceiveQueue>) -> Accepted {
    let (request, respond) =
        poll_fn(|cx| queue.poll(|| client.poll_accept(cx))).await.expect("it is open").unwrap();
    (ReceivedStream::new(LibraryStream::Body(request.into_body()), queue.clone()), respond)
}

fn unread(stream: &ReceivedStream) -> usize {
    let received = lock(&stream.0.received);
    received.data.len()
}

async fn read(stream: &mut ReceivedStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(data) = poll_fn(|cx| stream.poll_data(cx, FRAME)).await {
        let data = data.unwrap();
        stream.release(data.len()).unwrap();
        all.extend_from_slice(&data);
    }
    all
}

/// Polls the connection until `is_there` returns true.
async fn until(client: &mut Client, queue: &ReceiveQueue, mut is_there: impl FnMut() -> bool) {
    poll_fn(|cx| {
        let polled = queue.poll(|| client.poll_accept(cx));
        assert!(polled.is_pending(), "the connection is over");
        queue.take_unread();
        if is_there() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[tokio::test]
async fn unread_short_frames_wait_in_one_buffer() {
    let bytes: Vec<u8> = (0..LEN).map(|n| n as u8).collect();
    let mut frames: Vec<u8> = bytes.iter().flat_map(|byte| frame(DATA, 0, 1, &[*byte])).collect();
    frames.extend(frame(DATA, END_STREAM, 1, b""));
    let (mut client, queue) = client(2, frames).await;
    let mut streams = [accept(&mut client, &queue).await.0, accept(&mut client, &queue).await.0];
    until(&mut client, &queue, || unread(&streams[0]) == LEN).await;
    {
        let received = lock(&streams[0].0.received);
        assert!(received.data.memory() <= 2 * LEN);
    }
    tokio::select! {
        all = read(&mut streams[0]) => assert!(all == bytes),
        () = until(&mut client, &queue, || false) => {}
    }
    assert!(lock(&streams[0].0.received).data.memory() == 0, "it holds no memory");
}

/// The library buffers data that arrives before a stream is accepted.
#[tokio::test]
async fn library_reads_no_more_while_streams_wait_to_be_accepted() {
    const STREAMS: u32 = 100;
    let frames = (0..STREAMS).flat_map(|n| frame(DATA, 0, 2 * n + 1, &[0; 500])).collect();
    let (mut client, queue) = client(STREAMS, frames).await;
    let first = accept(&mut client, &queue).await;
    let most = queue.allowance();
    let mut accepted = vec![first];
    while accepted.len() < STREAMS as usize {
        accepted.push(accept(&mut client, &queue).await);
        assert!(queue.allowance() <= most, "the allowance has grown");
    }
    let all = || accepted.iter().map(|(stream, _)| unread(stream)).sum::<usize>();
    until(&mut client, &queue, || all() == STREAMS as usize * 500).await;
}

#[tokio::test]
async fn short_frames_of_a_dropped_stream_do_not_end_the_connection() {
    let short = frame(DATA, 0, 1, b"x").repeat(1_000);
    let frames = [short, frame(DATA, END_STREAM, 3, b"last")].concat();
    let (mut client, queue) = client(2, frames).await;
    let dropped = accept(&mut client, &queue).await;
    let (mut other, _respond) = accept(&mut client, &queue).await;
    drop(dropped);
    tokio::select! {
        all = read(&mut other) => assert_eq!(all, b"last"),
        () = until(&mut client, &queue, || false) => {}
    }
}

#[tokio::test]
async fn reader_is_woken_and_reads_what_the_library_has() {
    let (mut client, queue) = client(1, frame(DATA, END_STREAM, 1, &[7; 300])).await;
    let (mut stream, _respond) = accept(&mut client, &queue).await;
    let reads = tokio::spawn(async move { read(&mut stream).await });
    tokio::select! {
        all = reads => assert_eq!(all.unwrap(), [7; 300]),
        () = until(&mut client, &queue, || false) => {}
    }
}

/// The library buffers neither the head nor the body.
#[tokio::test]
async fn response_that_nobody_awaits_leaves_the_library() {
    let mut frames = frame(SETTINGS, 0, 0, &[]);
    frames.extend(frame(HEADERS, END_HEADERS, 1, EARLY_HINTS).repeat(3 * MAX_INTERIM));
    frames.extend(frame(HEADERS, END_HEADERS, 1, OK));
    frames.extend(frame(DATA, 0, 1, b"x").repeat(LEN));
    frames.extend(frame(DATA, END_STREAM, 1, b"x"));
    let (connection, queue) = connection(frames).await;
    let mut builder = h2::client::Builder::new();
    let builder = builder.data_frame_budget(DATA_FRAME_BUDGET);
    let (mut send, mut connection) = builder.handshake::<_, Bytes>(connection).await.unwrap();
    let request = http::Request::get("http://a/").body(()).unwrap();
    let mut stream = ReceivedStream::of_response(send.send_request(request, true).unwrap().0, queue.clone());
    poll_fn(|cx| {
        let polled = queue.poll(|| Pin::new(&mut connection).poll(cx));
        assert!(polled.is_pending(), "the connection is over");
        queue.take_unread();
        if unread(&stream) == LEN + 1 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    for n in 0..=MAX_INTERIM {
        let head = poll_fn(|cx| stream.poll_head(cx)).await.unwrap();
        match head {
            ReceivedHead::Interim(interim) => {
                assert_eq!((n < MAX_INTERIM, interim.status().as_u16()), (true, 103))
            }
            ReceivedHead::Last { response, is_over } => {
                assert_eq!((n, response.status().as_u16(), is_over), (MAX_INTERIM, 200, false));
            }
        }
    }
    assert!(read(&mut stream).await == [b'x'; LEN + 1]);
}
