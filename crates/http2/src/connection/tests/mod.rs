mod bodies;
mod bounds;
mod ends;
mod library;
mod requests;

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use convey_http_core::{
    BodyFraming, FieldRules, HeadLimits, OutgoingResponse, RequestHead, ResponseBuilder, ResponseHead,
};

use super::*;
use crate::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, ErrorCode, FRAME_HEAD, FrameHead, GOAWAY, HEADERS,
    PADDED, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::hpack::Scratch;
use crate::limits::EmptyFrames;

/// Field sections of a GET and a POST.
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

const STREAM_WINDOW: u32 = 64 * 1024;

type Frame = (u8, u8, u32, Vec<u8>);

/// Connection, and the frames that it has sent.
struct Peer {
    connection: ClientConnection,
    left: BytesMut,
    sent: Vec<u8>,
    scratch: Scratch,
}

fn limits() -> ConnectionLimits {
    ConnectionLimits {
        streams: 100,
        stream_window: STREAM_WINDOW,
        connection_window: 1 << 20,
        head: HeadLimits::default(),
        faults: 1_000,
        remembered_resets: 50,
        empty_frames: EmptyFrames::OF_CLIENT,
        websocket_key: || "dGhlIHNhbXBsZSBub25jZQ==".to_owned(),
        new_buffer: Vec::new,
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    crate::frame::put_frame(kind, flags, stream, payload, &mut out);
    out
}

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, GET)
}

fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, POST)
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl Peer {
    /// Creates a connection whose settings are acknowledged.
    fn new(limits: ConnectionLimits) -> Peer {
        let mut peer = Peer {
            connection: ClientConnection::new(limits),
            left: BytesMut::new(),
            sent: Vec::new(),
            scratch: Scratch::default(),
        };
        peer.receive(&[frame(SETTINGS, 0, 0, b""), frame(SETTINGS, ACK, 0, b"")].concat());
        peer.frames();
        peer
    }

    /// Handles bytes of the client, as far as the connection does.
    fn receive(&mut self, bytes: &[u8]) -> &mut Peer {
        self.left.extend_from_slice(bytes);
        let len = self.connection.receive(&self.left, || Duration::ZERO, &mut self.scratch);
        let _ = self.left.split_to(len);
        self
    }

    /// Returns the next request's stream. Its head is valid.
    fn accept(&mut self) -> StreamKey {
        let request = self.connection.next_request().expect("a request");
        assert!(request.head.is_ok(), "{:?}", request.head);
        request.stream
    }

    /// Returns the frames that the client receives.
    fn frames(&mut self) -> Vec<Frame> {
        let len = self.connection.unsent().len();
        self.sent.extend_from_slice(self.connection.unsent());
        self.connection.has_sent(len);
        let (mut left, mut frames) = (&self.sent[..], Vec::new());
        while let Some(head) = FrameHead::read(left) {
            let payload = left[FRAME_HEAD..FRAME_HEAD + head.len].to_vec();
            frames.push((head.kind, head.flags, head.stream, payload));
            left = &left[FRAME_HEAD + head.len..];
        }
        assert!(left.is_empty(), "frames are whole");
        self.sent.clear();
        frames
    }

    /// Returns the only frame that the client receives.
    fn frame(&mut self) -> Frame {
        let mut frames = self.frames();
        assert_eq!(frames.len(), 1, "{frames:x?}");
        frames.remove(0)
    }

    /// Checks that the connection has ended with this code.
    fn has_failed(&mut self, code: ErrorCode) {
        assert!(self.connection.is_over());
        let (kind, _, _, payload) = self.frames().pop().expect("GOAWAY");
        assert_eq!((kind, &payload[4..8]), (GOAWAY, &code.0.to_be_bytes()[..]), "{code:?}");
    }

    fn room(&mut self, key: StreamKey, wanted: usize) -> Option<usize> {
        match self.connection.poll_room(key, &cx(), wanted) {
            Poll::Ready(room) => Some(room.unwrap()),
            Poll::Pending => None,
        }
    }

    fn respond(&mut self, key: StreamKey, is_over: bool) {
        let (head, none) = (response(), FieldRules::default());
        self.connection.send_head(key, &OutgoingResponse::new(&head, &none), is_over).unwrap();
    }
}

fn response() -> ResponseHead {
    let mut head = ResponseBuilder::new(200);
    head.field("Server", "a");
    head.build(BodyFraming::Chunked)
}

fn reset(stream: u32, code: ErrorCode) -> Frame {
    (RST_STREAM, 0, stream, code.0.to_be_bytes().to_vec())
}

fn update(stream: u32, increment: u32) -> Frame {
    (WINDOW_UPDATE, 0, stream, increment.to_be_bytes().to_vec())
}

fn host(head: &RequestHead) -> &str {
    std::str::from_utf8(head.host()).unwrap()
}
