//! The HTTP/2 library `h2` as the other end, and as an oracle.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};

use bytes::Bytes;
use convey_http_core::Frame as BodyFrame;
use h2::server::Builder;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

use super::*;
use crate::frame::PREFACE;

/// Field sections that requests begin with.
const BEGINNINGS: [&[u8]; 5] = [
    b"\x82\x87\x84\x41\x01a",
    b"\x83\x86\x84",
    b"\x82\x87\x41\x05a:443",
    b"\x42\x07CONNECT\x01\x03a:1",
    b"\x42\x07CONNECT\0\x09:protocol\x09websocket\x87\x84\x01\x01a",
];

/// Field lines. The last two refer to the newest entries of the dynamic table.
const LINES: [&[u8]; 46] = [
    b"\x82",
    b"\x02\x07CONNECT",
    b"\x02\x07connect",
    b"\x86",
    b"\x06\x03ftp",
    b"\x06\x04a://",
    b"\x06\0",
    b"\x84",
    b"\x44\x02/x",
    b"\x44\0",
    b"\x04\x05hello",
    b"\x44\x04/a b",
    b"\x04\x05/a\r\nb",
    b"\x04\x01*",
    b"\x04\x02?q",
    b"\x04\x06/{\"}?{",
    b"\x04\x03/\xc3\xa9",
    b"\x81",
    b"\x41\x01b",
    b"\x41\x05a:b:c",
    b"\x01\x05[::1]",
    b"\x88",
    b"\0\x09:protocol\x09websocket",
    b"\x40\x02te\x04gzip",
    b"\x40\x02te\x08trailers",
    b"\x40\x0aconnection\x05close",
    b"\0\x07upgrade\x01a",
    b"\0\x0akeep-alive\x01a",
    b"\0\x10proxy-connection\x01a",
    b"\x40\x11transfer-encoding\x07chunked",
    b"\xb9",
    b"\x9c",
    b"\x5c\x013",
    b"\x0f\x0d\x010",
    b"\x0f\x0d\x0203",
    b"\x5c\x033,3",
    b"\x0f\x0d\x02+3",
    b"\x0f\x0d\x1400000000000000000003",
    b"\x90",
    b"\x40\x01x\x01y",
    b"\0\x04host\x01b",
    b"\0\x01x\x03a\tb",
    b"\0\x01x\x50yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy",
    b"\0\x01z\x03\xff\xfe\x80",
    b"\xbe",
    b"\xbf",
];

/// Returns the streams of which the library accepts the request, from these bytes of a client.
fn accepted(bytes: &[u8]) -> Vec<u32> {
    let cx = &mut Context::from_waker(Waker::noop());
    let (mut client, server) = duplex(1 << 20);
    assert!(matches!(pin!(&mut client).poll_write(cx, bytes), Poll::Ready(Ok(n)) if n == bytes.len()));
    let mut builder = Builder::new();
    builder.enable_connect_protocol();
    let Poll::Ready(Ok(mut library)) = pin!(builder.handshake::<_, Bytes>(server)).poll(cx) else {
        panic!("the library refuses the connection");
    };
    let mut streams = Vec::new();
    loop {
        match library.poll_accept(cx) {
            Poll::Ready(Some(accepted)) => streams.push(accepted.unwrap().1.stream_id().as_u32()),
            Poll::Ready(None) => panic!("the library ends the connection"),
            Poll::Pending => return streams,
        }
    }
}

proptest! {
    /// The library ends a stream for the same field sections.
    #[test]
    fn requests_are_those_that_the_library_accepts(
        requests in prop::collection::vec(
            (select(&BEGINNINGS), prop::collection::vec(select(&LINES), 0..4), any::<bool>(), any::<bool>()),
            1..6,
        ),
    ) {
        // The first request adds two entries to the dynamic table.
        let mut sections = vec![(b"\x82\x87\x44\x02/a\x41\x01a".to_vec(), true)];
        sections.extend(requests.into_iter().map(|(beginning, lines, is_first, is_over)| {
            let lines = lines.concat();
            (if is_first { [&lines, beginning].concat() } else { [beginning, &lines].concat() }, is_over)
        }));
        let frames: Vec<u8> = (0..).zip(&sections).flat_map(|(n, (block, is_over))| {
            let flags = END_HEADERS | if *is_over { END_STREAM } else { 0 };
            frame(HEADERS, flags, 2 * n + 1, block)
        }).collect();
        let expected = accepted(&[PREFACE, &frame(SETTINGS, 0, 0, b""), &frames].concat());
        let mut peer = Peer::new(limits());
        peer.receive(&frames);
        let mut streams = Vec::new();
        while let Some(request) = peer.connection.next_request() {
            streams.push(request.stream.id);
        }
        let refused = peer.connection.take_refused();
        prop_assert_eq!(refused.len() + streams.len(), sections.len());
        // The library knows no such path and no such name. They end one stream as well.
        let is_stricter = refused.iter().any(|refused| {
            matches!(refused.fault, Malformed::Target | Malformed::FieldName | Malformed::FieldValue)
        });
        prop_assert!(streams == expected || is_stricter, "{:?} {:?}", streams, expected);
    }
}

/// A call of the library's client.
#[derive(Debug, Clone)]
struct Call {
    /// Parts of the request's body.
    parts: Vec<usize>,
    has_trailers: bool,
    /// Length of a field of the request.
    field: usize,
}

fn byte(n: usize) -> u8 {
    (n / 7) as u8
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(byte).collect()
}

/// Serves a connection of the codec: each response has the body of its request, and its trailers.
struct Echo {
    io: DuplexStream,
    connection: ClientConnection,
    received: BytesMut,
    scratch: Scratch,
    streams: Vec<EchoStream>,
}

struct EchoStream {
    key: StreamKey,
    waiting: BytesMut,
    last: Option<BodyFrame<Bytes>>,
}

impl Echo {
    fn new(io: DuplexStream, connection_window: u32) -> Echo {
        let limits = ConnectionLimits { connection_window, stream_window: 65_535, ..limits() };
        let connection = ClientConnection::new(limits);
        Echo { io, connection, received: BytesMut::new(), scratch: Scratch::default(), streams: Vec::new() }
    }

    /// Moves bytes and bodies as far as possible. Ready once the client has left.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut buffer = [0; 5_000];
            let mut read = ReadBuf::new(&mut buffer);
            let reads = self.connection.is_reading();
            let has_read = reads && Pin::new(&mut self.io).poll_read(cx, &mut read).is_ready();
            if has_read && read.filled().is_empty() {
                return Poll::Ready(());
            }
            self.received.extend_from_slice(read.filled());
            // The preface was sent before anything else.
            let handled = self.connection.receive(&self.received, || Duration::ZERO, &mut self.scratch);
            let _ = self.received.split_to(handled);
            while let Some(request) = self.connection.next_request() {
                let (head, none) = (response(), FieldRules::default());
                assert_eq!(host(&request.head.unwrap()), "a.example");
                self.connection
                    .send_head(request.stream, &OutgoingResponse::new(&head, &none), false)
                    .unwrap();
                self.streams.push(EchoStream { key: request.stream, waiting: BytesMut::new(), last: None });
            }
            let before = self.streams.len();
            let connection = &mut self.connection;
            self.streams.retain_mut(|stream| !stream.has_ended(connection, cx));
            let mut has_sent = before != self.streams.len();
            while !self.connection.unsent().is_empty()
                && let Poll::Ready(sent) = Pin::new(&mut self.io).poll_write(cx, self.connection.unsent())
            {
                self.connection.has_sent(sent.unwrap());
                has_sent = true;
            }
            if !has_read && !has_sent {
                return Poll::Pending;
            }
        }
    }
}

impl EchoStream {
    fn has_ended(&mut self, connection: &mut ClientConnection, cx: &mut Context<'_>) -> bool {
        while let Poll::Ready(data) = connection.poll_data(self.key, cx, 3_000) {
            match data {
                Some(data) => self.waiting.extend_from_slice(&data.unwrap()),
                None => {
                    if let (None, Poll::Ready(last)) = (&self.last, connection.poll_last(self.key, cx)) {
                        self.last = Some(last.unwrap().unwrap());
                    }
                    break;
                }
            }
        }
        while !self.waiting.is_empty() {
            let Poll::Ready(room) = connection.poll_room(self.key, cx, self.waiting.len()) else {
                return false;
            };
            let part = self.waiting.split_to(room.unwrap());
            connection.release(self.key, part.len()).unwrap();
            connection.send_data(self.key, &part, false).unwrap();
        }
        match self.last.take() {
            None => return false,
            Some(BodyFrame::Trailers(trailers)) => connection.send_trailers(self.key, &trailers).unwrap(),
            Some(_) => connection.send_data(self.key, b"", true).unwrap(),
        }
        connection.close(self.key);
        true
    }
}

/// Makes a call, and returns the body and the trailers of its response.
async fn call(client: h2::client::SendRequest<Bytes>, call: Call) -> (Vec<u8>, bool) {
    let mut client = client.ready().await.unwrap();
    let field = "x".repeat(call.field);
    let request = http::Request::post("http://a.example/").header("x-field", field).body(()).unwrap();
    let (response, mut sink) = client.send_request(request, false).unwrap();
    let send = async {
        let all = bytes(call.parts.iter().sum());
        let mut at = 0;
        for part in &call.parts {
            let end = at + part;
            while at < end {
                sink.reserve_capacity(end - at);
                // Without room, the library would send an empty frame.
                while sink.capacity() == 0 {
                    poll_fn(|cx| sink.poll_capacity(cx)).await.unwrap().unwrap();
                }
                let room = sink.capacity();
                sink.send_data(all.slice(at..at + room.min(end - at)), false).unwrap();
                at += room.min(end - at);
            }
        }
        match call.has_trailers {
            true => {
                let status = ("x-last".parse().unwrap(), "1".parse().unwrap());
                sink.send_trailers(http::HeaderMap::from_iter([status])).unwrap();
            }
            false => sink.send_data(Bytes::new(), true).unwrap(),
        }
    };
    let receive = async {
        let mut body = response.await.unwrap().into_body();
        let mut all = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            all.extend_from_slice(&data);
        }
        (all, body.trailers().await.unwrap().is_some_and(|trailers| trailers["x-last"] == "1"))
    };
    tokio::join!(send, receive).1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn library_as_client_gets_the_bodies_that_it_sends(
        calls in prop::collection::vec(
            (prop::collection::vec(prop_oneof![0..10_usize, 0..100_000_usize], 0..5), any::<bool>(), 0..9_000_usize),
            1..12,
        ),
        pipe in prop_oneof![10..100_usize, 1_000..100_000_usize],
        windows in (1..100_000_u32, 65_535..200_000_u32, 65_535..300_000_u32),
        table in prop::option::of(0..5_000_u32),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (client, server) = duplex(pipe);
            let mut echo = Echo::new(server, windows.2);
            let preface = async {
                let mut preface = [0; PREFACE.len()];
                let mut at = 0;
                while at < preface.len() {
                    let mut read = ReadBuf::new(&mut preface[at..]);
                    poll_fn(|cx| Pin::new(&mut echo.io).poll_read(cx, &mut read)).await.unwrap();
                    at += read.filled().len();
                }
            };
            let mut builder = h2::client::Builder::new();
            builder.initial_window_size(windows.0).initial_connection_window_size(windows.1);
            if let Some(table) = table {
                builder.header_table_size(table);
            }
            let (begun, ()) = tokio::join!(builder.handshake::<_, Bytes>(client), preface);
            let (send, connection) = begun.unwrap();
            let all = calls.into_iter().map(|(parts, has_trailers, field)| Call { parts, has_trailers, field });
            let calls = async {
                let running: Vec<_> = all.map(|one| (one.clone(), Box::pin(call(send.clone(), one)))).collect();
                let mut running: Vec<_> = running.into_iter().map(|(one, call)| (one, call, None)).collect();
                poll_fn(|cx| {
                    let mut is_pending = false;
                    for (_, call, done) in running.iter_mut().filter(|(.., done)| done.is_none()) {
                        match call.as_mut().poll(cx) {
                            Poll::Ready(answer) => *done = Some(answer),
                            Poll::Pending => is_pending = true,
                        }
                    }
                    if is_pending { Poll::Pending } else { Poll::Ready(()) }
                }).await;
                running.into_iter().map(|(one, _, done)| (one, done)).collect::<Vec<_>>()
            };
            let echoes = async {
                tokio::select! {
                    answers = calls => answers,
                    _ = connection => panic!("the client's connection is over"),
                    () = poll_fn(|cx| echo.poll(cx)) => panic!("the server's connection is over"),
                }
            };
            let Ok(answers) = tokio::time::timeout(Duration::from_secs(60), echoes).await else {
                panic!("nothing moves");
            };
            for (call, answer) in answers {
                let expected = bytes(call.parts.iter().sum()).to_vec();
                assert!(answer == Some((expected, call.has_trailers)), "{call:?}");
            }
        });
    }
}
