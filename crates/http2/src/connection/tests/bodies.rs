//! Bodies of requests and responses, and their windows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use convey_http_core::{Frame as BodyFrame, Trailers};

use super::*;
use crate::stream::StreamFault;

fn data(peer: &mut Peer, key: StreamKey) -> Poll<Option<Result<Vec<u8>, StreamFault>>> {
    peer.connection
        .poll_data(key, &cx(), usize::MAX)
        .map(|data| data.map(|data| data.map(|data| data.to_vec())))
}

#[test]
fn body_of_a_request_has_data_and_trailers() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&post(1)).accept();
    assert!(data(&mut peer, key).is_pending());
    let frames = [
        frame(DATA, 0, 1, b"one"),
        frame(DATA, PADDED, 1, b"\x02two\0\0"),
        frame(DATA, 0, 1, b""),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01a\x01b"),
    ];
    peer.receive(&frames.concat());
    assert_eq!(data(&mut peer, key), Poll::Ready(Some(Ok(b"onetwo".to_vec()))));
    assert_eq!(data(&mut peer, key), Poll::Ready(None));
    let Poll::Ready(Ok(Ok(BodyFrame::Trailers(trailers)))) = peer.connection.poll_last(key, &cx()) else {
        panic!("trailers");
    };
    assert_eq!(trailers.fields().collect::<Vec<_>>(), [(&b"a"[..], &b"b"[..])]);
    assert!(peer.frames().is_empty());
}

#[test]
fn end_of_a_response_is_part_of_its_last_frame_if_possible() {
    let end = |between: &dyn Fn(&mut Peer)| {
        let mut peer = Peer::new(limits());
        let key = peer.receive(&get(1)).accept();
        assert_eq!(peer.room(key, 3), Some(3));
        peer.connection.send_data(key, b"abc", false).unwrap();
        between(&mut peer);
        peer.connection.send_data(key, b"", true).unwrap();
        peer.connection.close(key);
        peer.frames()
    };
    let (data, empty) = ((DATA, 0, 1, b"abc".to_vec()), (DATA, END_STREAM, 1, vec![]));
    assert_eq!(end(&|_| {}), [(DATA, END_STREAM, 1, b"abc".to_vec())]);
    assert_eq!(end(&|peer| _ = peer.frames()), std::slice::from_ref(&empty));
    assert_eq!(end(&|peer| peer.connection.has_offered()), [data.clone(), empty.clone()]);
    let ping = |peer: &mut Peer| _ = peer.receive(&frame(PING, 0, 0, &[7; 8]));
    assert_eq!(end(&ping), [data, (PING, ACK, 0, vec![7; 8]), empty]);
}

#[test]
fn malformed_trailers_end_their_stream() {
    let pseudo = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x84");
    let without_end = frame(HEADERS, END_HEADERS, 1, b"\0\x01a\x01b");
    let of_connection = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x0akeep-alive\x01b");
    for trailers in [pseudo, without_end, of_connection] {
        let mut peer = Peer::new(limits());
        let key = peer.receive(&post(1)).accept();
        peer.receive(&trailers);
        assert_eq!(peer.frame(), reset(1, ErrorCode::PROTOCOL_ERROR));
        assert_eq!(data(&mut peer, key), Poll::Ready(Some(Err(StreamFault::Malformed))));
    }
    let mut peer = Peer::new(limits());
    let key = peer.receive(&post(1)).accept();
    peer.receive(&frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x04host\x01b"));
    let last = peer.connection.poll_last(key, &cx());
    assert_eq!(last, Poll::Ready(Ok(Err(Malformed::Trailers))), "HTTP/1.1 forbids them");
}

#[test]
fn body_has_the_length_that_its_head_announces() {
    let with = |length: &[u8]| {
        let line = [b"\x0f\x0d\x01", length].concat();
        frame(HEADERS, END_HEADERS, 1, &[POST, &line].concat())
    };
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01a\x01b");
    for (length, body, is_whole) in [
        (b"3", frame(DATA, END_STREAM, 1, b"abc"), true),
        (b"3", [frame(DATA, 0, 1, b"abc"), trailers.clone()].concat(), true),
        (b"0", trailers.clone(), true),
        (b"0", frame(DATA, END_STREAM, 1, b""), true),
        (b"2", frame(DATA, END_STREAM, 1, b"abc"), false),
        (b"4", frame(DATA, END_STREAM, 1, b"abc"), false),
        (b"4", [frame(DATA, 0, 1, b"abc"), trailers].concat(), false),
        (b"0", frame(DATA, END_STREAM, 1, b"a"), false),
    ] {
        let mut peer = Peer::new(limits());
        peer.receive(&[with(length), body].concat());
        let request = peer.connection.next_request().unwrap();
        assert_eq!(request.if_empty.is_some(), length == b"0");
        let expected = if is_whole { vec![] } else { vec![reset(1, ErrorCode::PROTOCOL_ERROR)] };
        assert_eq!(peer.frames(), expected, "{length:?}");
    }
}

#[test]
fn client_sends_as_much_as_was_released() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&post(1)).accept();
    let part = frame(DATA, 0, 1, &[0; 16_384]);
    peer.receive(&part.repeat(4));
    assert_eq!(data(&mut peer, key), Poll::Ready(Some(Ok(vec![0; 4 * 16_384]))));
    peer.connection.release(key, 32_767).unwrap();
    assert!(peer.frames().is_empty());
    peer.connection.release(key, 1).unwrap();
    assert_eq!(peer.frames(), [update(1, 32_768), update(0, 32_768)]);
    peer.receive(&part.repeat(3));
    assert_eq!(peer.frames(), [update(0, 65_536), reset(1, ErrorCode::FLOW_CONTROL_ERROR)]);
}

#[test]
fn window_of_the_connection_returns_with_the_end_of_its_streams() {
    let mut peer = Peer::new(ConnectionLimits { connection_window: STREAM_WINDOW, ..limits() });
    for id in [1, 3, 5, 7] {
        let key = peer.receive(&post(id)).accept();
        let part = frame(DATA, 0, id, &[0; 16_384]);
        peer.receive(&part.repeat(2));
        let _ = data(&mut peer, key);
        match id {
            1 => peer.connection.close(key),
            3 => _ = peer.receive(&frame(RST_STREAM, 0, id, &[0; 4])),
            _ => peer.connection.reset(key, ErrorCode::CANCEL),
        }
        assert!(peer.frames().contains(&update(0, 32_768)), "{id}");
        peer.connection.close(key);
        // Late frames use the window, too.
        peer.receive(&part.repeat(2));
        assert!(peer.frames().contains(&update(0, 32_768)), "{id}");
    }
    peer.receive(&[post(9), frame(DATA, 0, 9, &[0; 16_384]).repeat(5)].concat());
    peer.has_failed(ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn padding_uses_no_window_for_long() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&post(1)).accept();
    let padded = frame(DATA, PADDED, 1, &[&[255][..], &[0; 255]].concat());
    let mut updates = Vec::new();
    for _ in 0..900 {
        peer.receive(&padded);
        updates.extend(peer.frames());
    }
    let of = |id| updates.iter().filter(|update_of| **update_of == update(id, 32_768)).count();
    assert_eq!((of(0), of(1), updates.len()), (7, 7, 14));
    peer.connection.close(key);
}

#[test]
fn uploads_that_no_server_reads_leave_room_for_another() {
    let mut peer = Peer::new(limits());
    let part = vec![0; 16_384];
    for stuck in (1..31).step_by(2) {
        peer.receive(&post(stuck)).accept();
        (0..4).for_each(|_| _ = peer.receive(&frame(DATA, 0, stuck, &part)));
    }
    let key = peer.receive(&post(31)).accept();
    // The connection's window has room for one more stream.
    let mut windows = [65_536_i64; 2];
    for _ in 0..100 {
        windows = windows.map(|window| window - 16_384);
        peer.receive(&frame(DATA, 0, 31, &part));
        assert!(data(&mut peer, key).is_ready());
        peer.connection.release(key, part.len()).unwrap();
        let frames = peer.frames();
        for (window, id) in windows.iter_mut().zip([0, 31]) {
            let updates = frames.iter().filter(|sent| **sent == update(id, 32_768)).count();
            *window += updates as i64 * 32_768;
        }
        assert!(windows.iter().all(|window| *window >= 16_384), "{windows:?}");
    }
}

#[test]
fn response_waits_for_the_windows_of_its_client() {
    let mut peer = Peer::new(limits());
    let settings = |window: u32| frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    let windows = |id, increment: u32| frame(WINDOW_UPDATE, 0, id, &increment.to_be_bytes());
    let key = peer.receive(&[settings(10), get(1), get(3)].concat()).accept();
    let other = peer.accept();
    [key, other].into_iter().for_each(|key| peer.respond(key, false));
    assert_eq!(peer.room(key, 100), Some(10));
    peer.connection.send_data(key, &[0; 10], false).unwrap();
    assert_eq!(peer.room(key, 100), None);
    peer.receive(&windows(1, 1));
    assert_eq!(peer.room(key, 100), Some(1));
    peer.receive(&settings(5));
    assert_eq!(peer.room(key, 100), None, "the window is negative");
    peer.receive(&[settings(100_000), windows(0, 100)].concat());
    let unsent = peer.connection.unsent().len();
    assert_eq!(peer.room(key, 100_000), Some(65_536 - unsent), "not more than may be unsent");
    assert!(peer.connection.send_data(key, &[0; 65_536], false).is_err());
    let frames = peer.frames().len();
    assert!(frames > 0);
    assert_eq!(peer.room(key, 100_000), Some(65_536));
    assert_eq!(peer.room(other, 10), None, "the room is reserved");
    peer.connection.send_data(key, &[0; 50_000], false).unwrap();
    let lens: Vec<_> = peer.frames().iter().map(|(.., data)| data.len()).collect();
    assert_eq!(lens, [16_384, 16_384, 16_384, 848]);
    assert_eq!(peer.room(other, 100_000), Some(65_535 + 100 - 10 - 50_000), "the connection's window");
}

#[test]
fn windows_do_not_overflow() {
    let largest = 0x7fff_ffff_u32;
    let windows = |id, increment: u32| frame(WINDOW_UPDATE, 0, id, &increment.to_be_bytes());
    let settings = |window: u32| frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    let mut peer = Peer::new(limits());
    peer.receive(&windows(0, largest - 65_535)).receive(&windows(0, 1));
    peer.has_failed(ErrorCode::FLOW_CONTROL_ERROR);
    let mut peer = Peer::new(limits());
    peer.receive(&[get(1), windows(1, largest - 65_535)].concat()).receive(&windows(1, 1));
    assert_eq!(peer.frame(), reset(1, ErrorCode::FLOW_CONTROL_ERROR));
    let mut peer = Peer::new(limits());
    peer.receive(&[get(1), windows(1, 1), settings(largest)].concat());
    peer.has_failed(ErrorCode::FLOW_CONTROL_ERROR);
    let mut peer = Peer::new(limits());
    peer.receive(&[get(1), windows(1, 0)].concat());
    assert_eq!(peer.frame(), reset(1, ErrorCode::PROTOCOL_ERROR));
}

#[test]
fn stream_that_ends_gives_its_reserved_room_to_others() {
    let mut peer = Peer::new(limits());
    peer.receive(&[get(1), get(3)].concat());
    let [first, second] = [peer.accept(), peer.accept()];
    [first, second].into_iter().for_each(|key| peer.respond(key, false));
    peer.frames();
    assert_eq!(peer.room(first, 100_000), Some(65_535));
    assert_eq!(peer.room(second, 100), None);
    peer.connection.close(first);
    assert!(peer.connection.queue.is_empty(), "the other stream was woken");
    assert_eq!(peer.room(second, 100), Some(100));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn streams_are_woken_in_order_as_there_is_room() {
    let mut peer = Peer::new(limits());
    let keys: Vec<_> = (0..20).map(|n| peer.receive(&get(2 * n + 1)).accept()).collect();
    let wakes: Vec<_> = keys.iter().map(|_| Arc::<Wakes>::default()).collect();
    let wait = |peer: &mut Peer, n: usize, wanted| {
        let waker = Waker::from(wakes[n].clone());
        peer.connection.poll_room(keys[n], &Context::from_waker(&waker), wanted)
    };
    let woken = || wakes.iter().map(|wakes| wakes.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    assert_eq!(wait(&mut peer, 0, 100_000), Poll::Ready(Ok(65_535)));
    peer.connection.send_data(keys[0], &[0; 65_535], false).unwrap();
    peer.frames();
    (1..20).for_each(|n| assert!(wait(&mut peer, n, 100_000).is_pending()));
    let update = |increment: u32| frame(WINDOW_UPDATE, 0, 0, &increment.to_be_bytes());
    peer.receive(&update(8_193));
    assert_eq!(woken(), [&[0, 1, 1, 1][..], &[0; 16]].concat());
    // One takes little and one nothing, so another finds room.
    assert_eq!(wait(&mut peer, 1, 10), Poll::Ready(Ok(10)));
    peer.connection.send_data(keys[1], &[0; 10], true).unwrap();
    peer.connection.close(keys[2]);
    assert_eq!(woken(), [&[0, 1, 1, 1, 1][..], &[0; 15]].concat());
    peer.receive(&update(1 << 20));
    assert_eq!(woken().iter().sum::<usize>(), 17, "a part of the room is for those that were called");
    (3..17).for_each(|n| {
        assert_eq!(wait(&mut peer, n, 5_000), Poll::Ready(Ok(5_000)));
        peer.connection.send_data(keys[n], &[0; 5_000], false).unwrap();
        peer.frames();
    });
    assert_eq!(woken(), [&[0][..], &[1; 19]].concat());
}

#[test]
fn room_that_is_freed_belongs_to_others() {
    let mut peer = Peer::new(limits());
    peer.receive(&[get(1), get(3)].concat());
    let [first, second] = [peer.accept(), peer.accept()];
    assert_eq!(peer.room(first, 100_000), Some(65_535));
    assert_eq!(peer.room(second, 100), None);
    peer.connection.free_room(first);
    assert_eq!(peer.room(second, 100), Some(100));
}

#[test]
fn trailers_end_a_response() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&get(1)).accept();
    peer.respond(key, false);
    let trailers =
        Trailers::of_stream([(&b"Grpc-Status"[..], &b"0"[..])].into_iter(), &HeadLimits::default());
    peer.connection.send_trailers(key, &trailers.unwrap().unwrap()).unwrap();
    let frames = peer.frames();
    assert_eq!(frames[1], (HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x0bgrpc-status\x010".to_vec()));
    assert!(peer.connection.send_data(key, b"", true).is_err());
}

#[test]
fn incomplete_request_is_reset_without_an_error_after_its_response() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&post(1)).accept();
    peer.respond(key, true);
    peer.frames();
    peer.connection.close(key);
    assert_eq!(peer.frame(), reset(1, ErrorCode::NO_ERROR));
    peer.receive(&frame(DATA, END_STREAM, 1, b"late"));
    assert!(peer.frames().is_empty(), "late frames are ignored");
}
