//! Bounds of memory and of floods.

use super::*;

#[test]
fn requests_wait_in_bounded_number() {
    let mut peer = Peer::new(ConnectionLimits { streams: 1_000, ..limits() });
    let cancelled = |id| [get(id), frame(RST_STREAM, 0, id, &[0; 4])].concat();
    peer.receive(&(0..1_000).flat_map(|n| cancelled(2 * n + 1)).collect::<Vec<u8>>());
    assert_eq!((peer.connection.waiting.len(), peer.connection.streams.open()), (MAX_WAITING, 1));
    let mut served = 0;
    while let Some(request) = peer.connection.next_request() {
        served += 1;
        peer.connection.close(request.stream);
        peer.receive(b"");
    }
    assert_eq!((served, peer.left.len()), (1_000, 0));
}

#[test]
fn cancelled_streams_that_are_still_served_are_bounded() {
    let mut peer = Peer::new(limits());
    for n in 0..1_000 {
        let id = 2 * n + 1;
        peer.receive(&[get(id), frame(RST_STREAM, 0, id, &[0; 4])].concat());
        let _ = peer.connection.next_request();
    }
    assert_eq!(peer.connection.streams.len(), 100 + MAX_RESET);
    assert!(peer.frames().contains(&reset(1_999, ErrorCode::REFUSED_STREAM)));
}

#[test]
fn connection_reads_nothing_while_the_client_reads_nothing() {
    for flood in [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, b""), frame(DATA, 0, 1, b"x")] {
        let mut peer = Peer::new(ConnectionLimits { faults: usize::MAX, ..limits() });
        let key = peer.receive(&get(1)).accept();
        peer.respond(key, true);
        peer.connection.close(key);
        let mut read = 0;
        while peer.connection.is_reading() {
            peer.receive(&flood.repeat(1_000));
            read += 1;
        }
        assert!(read < 10 && peer.connection.unsent().len() < 2 * MAX_UNSENT, "{read}");
    }
}

#[test]
fn empty_data_frames_are_limited() {
    let mut peer = Peer::new(limits());
    peer.receive(&[post(1), frame(DATA, 0, 1, b"").repeat(1_000)].concat()).accept();
    assert!(peer.frames().is_empty());
    peer.receive(&frame(DATA, 0, 1, b"")).has_failed(ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn sections_are_limited_in_frames_and_bytes() {
    let mut peer = Peer::new(limits());
    let frames = [frame(HEADERS, 0, 1, GET), frame(CONTINUATION, 0, 1, b"").repeat(16)].concat();
    peer.receive(&frames).has_failed(ErrorCode::ENHANCE_YOUR_CALM);
    assert!(peer.connection.take_refused().is_empty());
    let mut peer = Peer::new(limits());
    let frames = [frame(HEADERS, 0, 1, GET), frame(CONTINUATION, 0, 1, &[0x82; 16_384]).repeat(9)].concat();
    peer.receive(&frames).has_failed(ErrorCode::ENHANCE_YOUR_CALM);
    assert_eq!(peer.connection.take_refused(), [RefusedRequest { fault: Malformed::HeadTooLong }]);
}

#[test]
fn faults_of_a_client_are_limited() {
    let mut peer = Peer::new(ConnectionLimits { faults: 10, ..limits() });
    let bad = |n: u32| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, b"\x82");
    for n in 0..10 {
        peer.receive(&bad(n));
    }
    assert_eq!(peer.frames().len(), 10);
    peer.receive(&bad(10)).has_failed(ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn late_frames_of_forgotten_streams_are_faults() {
    let mut peer = Peer::new(ConnectionLimits { remembered_resets: 2, ..limits() });
    for id in [1, 3, 5] {
        let key = peer.receive(&post(id)).accept();
        peer.connection.close(key);
    }
    peer.frames();
    peer.receive(&[5, 3, 1].map(|id| frame(DATA, 0, id, b"x")).concat());
    assert_eq!(peer.frame(), reset(1, ErrorCode::STREAM_CLOSED));
    assert_eq!(peer.connection.resets.len(), 2);
}

#[test]
fn streams_that_waited_for_room_leave_the_queue() {
    let mut peer = Peer::new(limits());
    let first = peer.receive(&get(1)).accept();
    assert_eq!(peer.room(first, 100_000), Some(65_535));
    for n in 1..1_000 {
        let key = peer.receive(&get(2 * n + 1)).accept();
        assert_eq!(peer.room(key, 1), None);
        peer.connection.close(key);
        peer.frames();
    }
    assert!(peer.connection.queue.is_empty());
}

#[test]
fn idle_connection_keeps_little_memory() {
    let mut peer = Peer::new(limits());
    for n in 0..100 {
        peer.receive(&get(2 * n + 1));
    }
    while let Some(request) = peer.connection.next_request() {
        peer.respond(request.stream, true);
        peer.connection.close(request.stream);
    }
    assert!(peer.connection.take_empty_buffer().is_none());
    peer.frames();
    assert!(peer.connection.take_empty_buffer().is_some());
    assert_eq!(peer.connection.out.capacity(), 0);
    assert!(size_of::<ClientConnection>() < 1_200, "{}", size_of::<ClientConnection>());
}
