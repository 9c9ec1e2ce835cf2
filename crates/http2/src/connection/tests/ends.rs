//! Ends of streams and connections.

use super::*;
use crate::frame::{HAS_PRIORITY, PRIORITY, PUSH_PROMISE};
use crate::stream::StreamFault;

#[test]
fn connection_ends_in_order_after_a_round_trip() {
    let mut peer = Peer::new(limits());
    let first = peer.receive(&get(1)).accept();
    peer.connection.announce_end();
    peer.connection.announce_end();
    let frames = peer.frames();
    let [goaway, ping] = &frames[..] else { panic!("{frames:x?}") };
    assert_eq!(*goaway, (GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0".to_vec()));
    // A stream that is on its way.
    let second = peer.receive(&get(3)).accept();
    peer.receive(&frame(PING, ACK, 0, b"not this"));
    assert!(peer.frames().is_empty());
    peer.receive(&frame(PING, ACK, 0, &ping.3));
    assert_eq!(peer.frame(), (GOAWAY, 0, 0, b"\0\0\0\x03\0\0\0\0".to_vec()));
    peer.receive(&[get(5), frame(DATA, END_STREAM, 5, b"ignored")].concat());
    assert!(peer.connection.next_request().is_none() && peer.frames().is_empty());
    assert!(!peer.connection.is_over());
    for key in [first, second] {
        peer.respond(key, true);
        peer.connection.close(key);
    }
    assert!(peer.connection.is_over());
}

#[test]
fn client_that_answers_no_ping_opens_no_streams_after_some_time() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&get(1)).accept();
    assert!(peer.connection.announce_end() && !peer.connection.announce_end());
    peer.frames();
    peer.connection.refuse_streams();
    assert_eq!(peer.frame(), (GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\0".to_vec()));
    peer.receive(&[get(3), frame(PING, ACK, 0, b"goaway 1")].concat());
    peer.connection.refuse_streams();
    assert!(peer.connection.next_request().is_none() && peer.frames().is_empty());
    peer.respond(key, true);
    peer.connection.close(key);
    assert!(peer.connection.is_over());
}

#[test]
fn client_that_leaves_gets_its_responses() {
    let mut peer = Peer::new(limits());
    peer.receive(&[get(1), frame(GOAWAY, 0, 0, &[0; 8])].concat());
    let key = peer.accept();
    assert!(!peer.connection.is_over());
    peer.respond(key, true);
    peer.connection.close(key);
    assert!(peer.connection.is_over());
}

#[test]
fn streams_end_with_their_connection() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&post(1)).accept();
    peer.connection.fail(ErrorCode::ENHANCE_YOUR_CALM);
    assert_eq!(peer.connection.poll_reset(key, &cx()), Poll::Ready(StreamFault::Gone));
    assert_eq!(peer.connection.poll_data(key, &cx(), 1), Poll::Ready(Some(Err(StreamFault::Gone))));
    assert!(peer.connection.send_data(key, b"", true).is_err());
    peer.connection.close(key);
    peer.has_failed(ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn reset_of_the_client_ends_its_stream() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&[post(1), frame(DATA, 0, 1, b"abc")].concat()).accept();
    assert!(peer.connection.poll_reset(key, &cx()).is_pending());
    peer.receive(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    let fault = StreamFault::Reset(ErrorCode::CANCEL);
    assert_eq!(peer.connection.poll_reset(key, &cx()), Poll::Ready(fault));
    assert_eq!(peer.connection.poll_data(key, &cx(), 1), Poll::Ready(Some(Err(fault))));
    peer.connection.close(key);
    assert!(peer.frames().is_empty());
}

#[test]
fn frames_on_ended_streams_are_faults() {
    let mut peer = Peer::new(limits());
    peer.receive(&[get(1), frame(DATA, 0, 1, b"x")].concat());
    assert_eq!(peer.frame(), reset(1, ErrorCode::STREAM_CLOSED));
    peer.receive(&[get(3), frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\0\x01a\x01b")].concat());
    assert_eq!(peer.frame(), reset(3, ErrorCode::STREAM_CLOSED));
    peer.receive(&[post(5), frame(RST_STREAM, 0, 5, &[0; 4]), frame(DATA, 0, 5, b"x")].concat());
    assert_eq!(peer.frame(), reset(5, ErrorCode::STREAM_CLOSED));
    peer.receive(&[frame(RST_STREAM, 0, 5, &[0; 4]), frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])].concat());
    assert!(peer.frames().is_empty(), "these have no effect");
}

#[test]
fn malformed_frames_end_the_connection() {
    use ErrorCode as Code;
    for (bytes, code) in [
        (frame(DATA, 0, 0, b"x"), Code::PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"x"), Code::PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 0, GET), Code::PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xbe"), Code::COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09a"), Code::PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, &[0; 4]), Code::PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, &[0; 3]), Code::FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1, b""), Code::PROTOCOL_ERROR),
        (frame(SETTINGS, ACK, 0, &[0; 6]), Code::FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, &[0; 5]), Code::FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), Code::PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 2]), Code::PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), Code::FLOW_CONTROL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02\x82"), Code::PROTOCOL_ERROR),
        (frame(PING, 0, 0, &[0; 7]), Code::FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, &[0; 8]), Code::PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 1, &[0; 8]), Code::PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, &[0; 7]), Code::FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Code::PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, &[0; 3]), Code::FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), Code::PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, GET), Code::PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 0, &[0; 5]), Code::PROTOCOL_ERROR),
        // No stream that could be reset has begun.
        (frame(PRIORITY, 0, 7, &[0; 4]), Code::FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 7, &[0, 0, 0, 7, 0]), Code::PROTOCOL_ERROR),
        (frame(200, 0, 0, &[0; 16_385]), Code::FRAME_SIZE_ERROR),
        ([post(1), frame(DATA, PADDED, 1, b"\x05abc")].concat(), Code::PROTOCOL_ERROR),
    ] {
        let mut peer = Peer::new(limits());
        peer.receive(&bytes);
        assert!(peer.connection.is_over(), "{:x?}", &bytes[..bytes.len().min(20)]);
        peer.has_failed(code);
    }
}

#[test]
fn priorities_and_unknown_frames_have_no_effect() {
    let mut peer = Peer::new(limits());
    let priority = [&b"\0\0\0\x01\x10"[..], GET].concat();
    let frames = [
        frame(PRIORITY, 0, 9, &[0, 0, 0, 1, 0]),
        frame(200, 0xff, 7, b"any"),
        frame(HEADERS, END_HEADERS | END_STREAM | HAS_PRIORITY, 3, &priority),
    ];
    peer.receive(&frames.concat()).accept();
    assert!(peer.frames().is_empty());
    peer.receive(&frame(PRIORITY, 0, 3, &[0, 0, 0, 3, 0]));
    assert_eq!(peer.frame(), reset(3, ErrorCode::PROTOCOL_ERROR));
    let itself = [&b"\0\0\0\x05\x10"[..], GET].concat();
    peer.receive(&frame(HEADERS, END_HEADERS | HAS_PRIORITY, 5, &itself));
    assert_eq!(peer.frame(), reset(5, ErrorCode::PROTOCOL_ERROR));
    peer.receive(&frame(PRIORITY, 0, 1, &[0; 4]));
    assert_eq!(peer.frame(), reset(1, ErrorCode::FRAME_SIZE_ERROR));
}
