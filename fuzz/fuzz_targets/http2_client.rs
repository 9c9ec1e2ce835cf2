//! Any frames as the client of an HTTP/2 connection: requests and frames of the answer are the same
//! however the bytes are cut, and the connection holds a bounded number of bytes for the client.

#![no_main]

#[path = "../http2_frames.rs"]
mod http2_frames;

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use convey_http_core::{BodyFraming, FieldRules, HeadLimits, OutgoingResponse, ResponseBuilder};
use convey_http2::{ClientConnection, ConnectionLimits, EmptyFrames, Scratch, StreamKey};
use libfuzzer_sys::fuzz_target;

use http2_frames::frames;

/// More bytes than a connection holds for a client that reads nothing.
const MAX_HELD: usize = 256 * 1024;

// The first byte selects how the bytes are cut, and what happens to the requests. Each frame has its
// type, its flags, its stream (from 0 to 15) and its length; after a type above 15, the rest is sent
// unmodified.
fuzz_target!(|bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let client = frames(bytes, 15);
    let at_once = served(&client, usize::MAX, how & 3);
    let cut = served(&client, usize::from(how >> 2) + 1, how & 3);
    if at_once.is_over {
        // A fault ends the connection at once, with the requests that were not begun by then.
        assert!(cut.is_over && cut.heads.starts_with(&at_once.heads));
        assert_eq!(at_once.sent, cut.sent);
    } else {
        assert_eq!(at_once, cut);
    }
});

/// What became of a client's bytes.
#[derive(Debug, PartialEq, Eq)]
struct Served {
    /// Heads of the requests.
    heads: Vec<String>,
    /// Bodies of the requests.
    bodies: Vec<String>,
    /// Bytes for the client.
    sent: Vec<u8>,
    /// Whether the connection is over.
    is_over: bool,
}

/// Serves a client that sends these bytes, and reads nothing before it has sent all of them.
fn served(client: &[u8], piece: usize, responses: u8) -> Served {
    let limits = ConnectionLimits {
        streams: 4,
        stream_window: 1_000,
        connection_window: 65_535,
        head: HeadLimits { bytes: 2_000, fields: 20 },
        faults: 3,
        remembered_resets: 3,
        empty_frames: EmptyFrames::OF_CLIENT,
        websocket_key: || "dGhlIHNhbXBsZSBub25jZQ==".to_owned(),
        new_buffer: Vec::new,
    };
    let (mut connection, mut scratch) = (ClientConnection::new(limits), Scratch::default());
    let (mut left, mut heads, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for part in client.chunks(piece) {
        left.extend_from_slice(part);
        loop {
            let handled = connection.receive(&left, || Duration::ZERO, &mut scratch);
            left.drain(..handled);
            let Some(request) = connection.next_request() else { break };
            heads.push(format!("{} {:?}", request.stream.id(), request.head));
            keys.push(request.stream);
        }
        assert!(connection.unsent().len() < MAX_HELD);
    }
    let is_over = connection.is_over();
    let mut bodies = Vec::new();
    for key in keys {
        bodies.push(body(&mut connection, key));
        respond(&mut connection, key, responses);
    }
    Served { heads, bodies, sent: connection.unsent().to_vec(), is_over }
}

fn body(connection: &mut ClientConnection, key: StreamKey) -> String {
    let cx = &Context::from_waker(Waker::noop());
    let data = connection.poll_data(key, cx, 5);
    if let Poll::Ready(Some(Ok(data))) = &data {
        let _ = connection.release(key, data.len());
    }
    format!("{data:?} {:?} {:?}", connection.poll_last(key, cx), connection.poll_reset(key, cx))
}

fn respond(connection: &mut ClientConnection, key: StreamKey, how: u8) {
    let cx = &Context::from_waker(Waker::noop());
    let mut head = ResponseBuilder::new(200);
    head.field("Server", "a").field("X-Other", "b");
    let (head, none) = (head.build(BodyFraming::Chunked), FieldRules::default());
    let is_sent = connection.send_head(key, &OutgoingResponse::new(&head, &none), how == 0).is_ok();
    if is_sent
        && how > 0
        && let Poll::Ready(Ok(room)) = connection.poll_room(key, cx, 300)
    {
        connection.send_data(key, &vec![b'x'; room], how == 1).expect("there is room");
    }
    if how < 3 {
        connection.close(key);
    }
}
