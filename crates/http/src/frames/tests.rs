use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use convey_http_core::{
    BodyFraming, CompressionOffer, CompressionRules, HeadLimits, HeadReader, OutgoingResponse, RequestHead,
    Trailers,
};
use convey_stream::ByteStream;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::compress::{CompressionTerms, PIECE};
use crate::held_responses::{HeldResponses, MAX_HELD};
use crate::hooks::Hooks;
use crate::streams::body::ResetReason;
use crate::streams::{IncomingBody, IncomingStream};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A client's stream that sends these frames, and opens these windows in turn. Without a window,
/// it accepts a head and no byte of a body.
#[derive(Default)]
struct FakeStream {
    frames: VecDeque<Frame<Bytes>>,
    windows: VecDeque<usize>,
    is_reset: bool,
    released: usize,
    status: Option<u16>,
    received: Vec<u8>,
    trailers: Option<Trailers>,
    ends: usize,
}

impl IncomingBody for FakeStream {
    fn poll_frame(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        self.frames.pop_front().map_or(Poll::Pending, |frame| Poll::Ready(Ok(frame)))
    }

    fn release(&mut self, len: usize) -> io::Result<()> {
        self.released += len;
        Ok(())
    }

    fn keep(&mut self) {}

    fn is_kept(&self) -> bool {
        false
    }

    fn forget(&mut self) {}

    fn take_back(&mut self) -> Option<u64> {
        None
    }
}

impl IncomingStream for FakeStream {
    fn body(&mut self) -> &mut dyn IncomingBody {
        self
    }

    fn send_interim(&mut self, _: &OutgoingResponse<'_>) -> io::Result<()> {
        Ok(())
    }

    fn send_head(&mut self, response: &OutgoingResponse<'_>, is_over: bool) -> io::Result<usize> {
        self.status = Some(response.status());
        self.ends += usize::from(is_over);
        Ok(response.head_len())
    }

    fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        let Some(window) = self.windows.pop_front() else { return Poll::Pending };
        self.windows.push_back(window);
        match window {
            0 => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            room => Poll::Ready(Ok(room.min(most))),
        }
    }

    fn send_data(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        assert_eq!(self.ends, 0, "nothing follows the end");
        self.received.extend_from_slice(&data);
        self.ends += usize::from(is_last);
        Ok(())
    }

    fn send_trailers(&mut self, trailers: &Trailers) -> io::Result<()> {
        (self.trailers, self.ends) = (Some(trailers.clone()), self.ends + 1);
        Ok(())
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self, _: ResetReason) {}

    fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<io::Error> {
        if self.is_reset { Poll::Ready(io::ErrorKind::ConnectionReset.into()) } else { Poll::Pending }
    }
}

/// Both ends of a connection.
async fn connection() -> (ByteStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (ours, accepted) = tokio::join!(TcpStream::connect(at), listener.accept());
    (ours.unwrap().into(), accepted.unwrap().0)
}

fn head(text: &str) -> RequestHead {
    HeadReader::default().request(&mut BytesMut::from(text), &HeadLimits::default()).unwrap().unwrap()
}

fn changes<'a>(fields: &'a FieldRules, hooks: &'a mut Hooks) -> ResponseChanges<'a> {
    ResponseChanges { fields, rewritten: None, terms: None, hooks, retry: None }
}

/// Transfer of a request with this head from a stream to a server of HTTP/1.1.
fn transfer<'a>(
    client: &'a mut FakeStream,
    server: &'a mut ByteStream,
    head: &RequestHead,
    changes: ResponseChanges<'a>,
    budget: &'a Arc<HeldResponses>,
) -> FrameTransfer<'a> {
    let kind = (head.method(), head.framing());
    let server = Http1Server::new(server, b"head".to_vec(), kind, HeadLimits::OF_RESPONSES);
    let stream_of = Some(WaitingClient { ip: CLIENT, budget });
    let to_client = ToClient { changes, stream_of, tunnel_key: None };
    let (client, server) = (FrameClient::Stream(client), FrameServer::Http1(server));
    FrameTransfer::new(client, server, ExchangeState::new(head), None, to_client)
}

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
async fn waiting_bytes(fields: &str, parts: &[usize], terms: Option<CompressionTerms<'_>>) -> (usize, bool) {
    let ((mut server, mut app), mut client) = (connection().await, FakeStream::default());
    let (mut hooks, budget) = (Hooks::default(), Arc::default());
    let (rules, request) = (FieldRules::default(), head("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut transfer = transfer(
        &mut client,
        &mut server,
        &request,
        ResponseChanges { fields: &rules, rewritten: None, terms, hooks: &mut hooks, retry: None },
        &budget,
    );
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
        if let Poll::Ready(end) = poll_fn(|cx| Poll::Ready(transfer.poll(cx))).await {
            assert_eq!((end, transfer.is_clean()), (TransferEnd::Whole, true));
            return (transfer.into_rest().1.len(), true);
        }
        full += usize::from(transfer.waiting_for_client() >= MAX_HELD as u64);
        tokio::task::yield_now().await;
    }
    (transfer.into_rest().1.len(), false)
}

#[tokio::test]
async fn response_needs_no_server_while_its_client_reads_nothing() {
    for parts in [vec![2], vec![1_000, 1_000, 4_000], vec![20_000, 40_000]] {
        let len: usize = parts.iter().sum();
        let length = format!("Content-Length: {len}\r\n");
        assert_eq!(waiting_bytes(&length, &parts, None).await, (len, true));
    }
}

#[tokio::test]
async fn compressed_response_needs_no_server_while_its_client_reads_nothing() {
    let rules = CompressionRules::default();
    let head = head("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let memory = Arc::default();
    let terms = Some(CompressionTerms::new(CompressionOffer::new(&rules, &head, false), &memory));
    let fields = |len: usize| format!("Content-Type: text/plain\r\nContent-Length: {len}\r\n");
    let (waiting, is_whole) = waiting_bytes(&fields(40_000), &[20_000, 20_000], terms).await;
    assert!(is_whole && waiting > 8 * 1024, "{waiting}");
    let (waiting, is_whole) = waiting_bytes(&fields(1 << 20), &[100_000, 100_000], terms).await;
    assert!(!is_whole && waiting < MAX_HELD + 2 * PIECE, "{waiting}");
}

#[tokio::test]
async fn long_response_waits_at_its_server() {
    let (waiting, is_whole) = waiting_bytes("Content-Length: 1000000\r\n", &[50_000; 4], None).await;
    assert_eq!((waiting, is_whole), (MAX_HELD, false));
}

#[tokio::test]
async fn reset_is_noticed_while_the_server_reads_nothing() {
    let (mut server, _app) = connection().await;
    let mut client = FakeStream { is_reset: true, ..FakeStream::default() };
    client.frames = std::iter::repeat_n(Frame::Data(Bytes::from(vec![0; 16_384])), 4_096).collect();
    let mut hooks = Hooks::default();
    let (rules, request) =
        (FieldRules::default(), head("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n"));
    let (budget, changes) = (Arc::default(), changes(&rules, &mut hooks));
    let mut transfer = transfer(&mut client, &mut server, &request, changes, &budget);
    assert_eq!(poll_fn(|cx| transfer.poll(cx)).await, TransferEnd::ClientGone);
}

/// Sends a body back as it came: with its length, or in chunks with the trailers.
async fn echo(mut app: TcpStream, framing: BodyFraming) {
    let mut decoder = convey_http_core::BodyDecoder::of_request(framing);
    let (mut buffer, mut body, mut trailers) = (BytesMut::new(), Vec::new(), None);
    app.read_exact(&mut [0; 4]).await.unwrap();
    while !decoder.has_ended() {
        let mut left = &buffer[..];
        while let Some(frame) = decoder.next(&mut left).unwrap() {
            match frame {
                Frame::Data(data) => body.extend_from_slice(data),
                Frame::Trailers(fields) => trailers = Some(fields),
                Frame::End => {}
            }
        }
        let len = buffer.len() - left.len();
        buffer.advance(len);
        if !decoder.has_ended() {
            assert!(app.read_buf(&mut buffer).await.unwrap() > 0);
        }
    }
    let mut out = match framing {
        BodyFraming::Chunked => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        _ => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(),
    };
    let encoder = convey_http_core::BodyEncoder::new(framing);
    body.chunks(5_000).for_each(|part| encoder.data(part, &mut out));
    encoder.end(trailers.as_ref(), &mut out);
    app.write_all(&out).await.unwrap();
    std::future::pending::<()>().await;
}

/// Relays a body in these pieces to a server and back, through a stream with these windows.
async fn relay(is_chunked: bool, pieces: Vec<Vec<u8>>, windows: Vec<usize>, has_trailers: bool) {
    let whole = pieces.concat();
    let framing = if is_chunked { BodyFraming::Chunked } else { BodyFraming::Length(whole.len() as u64) };
    let fields = [(&b"grpc-status"[..], &b"0"[..])].into_iter().filter(|_| has_trailers);
    let trailers = Trailers::of_stream(fields, &HeadLimits::OF_REQUEST_TRAILERS).unwrap();
    let mut client = FakeStream::default();
    client
        .frames
        .extend(pieces.into_iter().filter(|piece| !piece.is_empty()).map(|piece| Frame::Data(piece.into())));
    client.frames.push_back(trailers.clone().map_or(Frame::End, Frame::Trailers));
    client.windows = windows.into_iter().chain([1]).collect();
    let (mut server, app) = connection().await;
    let length = match framing {
        BodyFraming::Length(len) => format!("Content-Length: {len}"),
        _ => "Transfer-Encoding: chunked".into(),
    };
    let mut hooks = Hooks::default();
    let (rules, request) =
        (FieldRules::default(), head(&format!("PUT / HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n")));
    let (budget, changes) = (Arc::default(), changes(&rules, &mut hooks));
    let mut transfer = transfer(&mut client, &mut server, &request, changes, &budget);
    let (end, mut rest) = tokio::select! {
        end = poll_fn(|cx| transfer.poll(cx)) => (end, transfer.into_rest().1),
        () = echo(app, framing) => unreachable!(),
    };
    assert_eq!(end, TransferEnd::Whole);
    poll_fn(|cx| rest.poll_send(cx, &mut FrameClient::Stream(&mut client), &mut 0)).await.unwrap();
    assert_eq!((client.status, client.ends), (Some(200), 1), "the response ends once");
    assert!(client.received == whole, "{} of {} bytes arrived", client.received.len(), whole.len());
    assert_eq!((client.trailers, client.released), (trailers.filter(|_| is_chunked), whole.len()));
}

fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let size = prop_oneof![0..40_usize, 250..260_usize, 4_080..4_100_usize, 16_370..16_400_usize];
    prop::collection::vec(size.prop_map(|size| (0..size).map(|n| n as u8).collect()), 0..6)
}

fn windows() -> impl Strategy<Value = Vec<usize>> {
    let window = prop_oneof![Just(0), 1..65_usize, 16_360..16_400_usize, Just(1 << 20)];
    prop::collection::vec(window, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn body_arrives_whole_at_both_ends_through_any_window(
        pieces in pieces(),
        windows in windows(),
        has_trailers: bool,
        is_chunked: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(relay(is_chunked, pieces, windows, has_trailers));
    }
}
