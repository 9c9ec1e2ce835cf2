//! Requests, and the faults that end their streams alone.

use convey_http_core::HttpMethod;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

#[test]
fn request_has_its_head_and_the_response_its_frames() {
    let mut peer = Peer::new(limits());
    peer.receive(&get(1));
    let request = peer.connection.next_request().unwrap();
    let head = request.head.unwrap();
    assert_eq!((head.method(), host(&head), head.path()), (HttpMethod::Get, "a", &b"/"[..]));
    assert!(head.framing().is_empty() && request.if_empty.is_none());
    peer.respond(request.stream, false);
    assert_eq!(peer.room(request.stream, 5), Some(5));
    peer.connection.send_data(request.stream, b"hello", true).unwrap();
    let expected =
        [(HEADERS, END_HEADERS, 1, b"\x88\x76\x01a".to_vec()), (DATA, END_STREAM, 1, b"hello".to_vec())];
    assert_eq!(peer.frames(), expected);
    peer.connection.close(request.stream);
    assert!(peer.connection.streams.is_empty() && peer.frames().is_empty());
}

#[test]
fn section_in_several_frames_is_one() {
    let mut peer = Peer::new(limits());
    let frames = [
        frame(HEADERS, END_STREAM, 1, &GET[..2]),
        frame(CONTINUATION, 0, 1, b""),
        frame(CONTINUATION, END_HEADERS, 1, &GET[2..]),
    ];
    peer.receive(&frames.concat()).accept();
    for other in [get(5), frame(CONTINUATION, 0, 5, b""), frame(PING, 0, 0, &[0; 8])] {
        let mut peer = Peer::new(limits());
        peer.receive(&[frame(HEADERS, 0, 3, GET), other].concat()).has_failed(ErrorCode::PROTOCOL_ERROR);
    }
}

#[test]
fn frames_that_arrive_in_pieces_are_handled_once_whole() {
    let frames = [
        frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]),
        get(1),
        frame(HEADERS, END_STREAM | PADDED, 3, &[b"\x01", &GET[..2], b"\0"].concat()),
        frame(CONTINUATION, END_HEADERS, 3, &GET[2..]),
        post(5),
        frame(DATA, PADDED, 5, b"\x02body\0\0"),
        frame(PING, 0, 0, &[7; 8]),
        frame(DATA, END_STREAM, 5, b"end"),
    ]
    .concat();
    let handled = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut peer = Peer::new(limits());
        for piece in pieces {
            peer.receive(piece);
        }
        let keys: Vec<_> = (0..3).map(|_| peer.accept()).collect();
        assert!(peer.left.is_empty() && !peer.connection.is_over());
        (keys.iter().map(|key| key.id()).collect::<Vec<_>>(), peer.frames())
    };
    let expected = handled(&mut [&frames[..]].into_iter());
    assert_eq!(expected.0, [1, 3, 5]);
    assert_eq!(handled(&mut frames.chunks(1)), expected);
    for cut in 0..frames.len() {
        let (first, rest) = frames.split_at(cut);
        assert_eq!(handled(&mut [first, rest].into_iter()), expected, "{cut}");
    }
}

#[test]
fn long_head_of_a_response_is_sent_in_several_frames() {
    let mut peer = Peer::new(limits());
    let key = peer.receive(&get(1)).accept();
    let mut head = ResponseBuilder::new(200);
    head.field("x", &"y".repeat(40_000));
    let (head, none) = (head.build(BodyFraming::Empty), FieldRules::default());
    peer.connection.send_head(key, &OutgoingResponse::new(&head, &none), true).unwrap();
    let frames: Vec<_> =
        peer.frames().into_iter().map(|(kind, flags, _, block)| (kind, flags, block.len())).collect();
    let expected =
        [(HEADERS, END_STREAM, 16_384), (CONTINUATION, 0, 16_384), (CONTINUATION, END_HEADERS, 7_240)];
    assert_eq!(frames, expected);
}

#[test]
fn malformed_request_ends_its_stream_alone() {
    let mut peer = Peer::new(limits());
    for (id, (line, fault)) in (1..).step_by(4).zip([
        (&b"\0\x01X\x01y"[..], Malformed::FieldName),
        (b"\x40\x03x y\x01z", Malformed::FieldName),
        (b"\xc0", Malformed::FieldName),
        (b"\0\0\x01z", Malformed::FieldName),
        (b"\0\x01x\x03a\r\n", Malformed::FieldValue),
        (b"\0\x04:new\x01a", Malformed::PseudoField),
        (b"\x44\x83\x63\xfe\xbf", Malformed::Target),
        (b"\xc0", Malformed::Target),
        (b"\0\x11transfer-encoding\x07chunked", Malformed::TransferEncoding),
        (b"\0\x0aconnection\x05close", Malformed::FieldName),
        (b"\0\x02te\x04gzip", Malformed::FieldValue),
        (b"\x0f\x0d\x015", Malformed::ContentLength),
        (b"\x84", Malformed::PseudoField),
    ]) {
        let section = [GET, line].concat();
        peer.receive(&frame(HEADERS, END_HEADERS | END_STREAM, id, &section));
        assert_eq!(peer.connection.take_refused(), [RefusedRequest { fault }], "{line:x?}");
        assert_eq!(peer.frame(), reset(id, ErrorCode::PROTOCOL_ERROR), "{line:x?}");
        let other = peer.receive(&get(id + 2)).accept();
        peer.connection.close(other);
        assert_eq!(peer.frame(), reset(id + 2, ErrorCode::CANCEL));
    }
}

#[test]
fn head_that_http1_cannot_express_is_a_request_with_a_fault() {
    let mut peer = Peer::new(limits());
    let long = [GET, &[&b"\0\x01x\x7f\x81\x7f"[..], &[b'y'; 16_384]].concat()].concat();
    for (id, (section, expected)) in (1..).step_by(2).zip([
        ([GET, b"\0\x04host\x01b"].concat(), Malformed::Host),
        ([GET, &b"\0\x01x\x01y".repeat(100)].concat(), Malformed::TooManyFields),
        (b"\x42\x07CONNECT\x41\x01a".to_vec(), Malformed::Connect),
        (long, Malformed::HeadTooLong),
    ]) {
        let (first, rest) = section.split_at(section.len().min(16_000));
        let frames = [frame(HEADERS, END_STREAM, id, first), frame(CONTINUATION, END_HEADERS, id, rest)];
        peer.receive(&frames.concat());
        let request = peer.connection.next_request().unwrap();
        assert_eq!(request.head.map(drop), Err(expected));
        peer.connection.close(request.stream);
    }
}

#[test]
fn websocket_of_a_stream_is_an_upgrade() {
    let mut peer = Peer::new(limits());
    let section = b"\x42\x07CONNECT\0\x09:protocol\x09websocket\x87\x84\x01\x01a";
    peer.receive(&frame(HEADERS, END_HEADERS, 1, section));
    let head = peer.connection.next_request().unwrap().head.unwrap();
    assert_eq!(head.upgrade(), Some(&b"websocket"[..]));
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut peer = Peer::new(ConnectionLimits { streams: 2, ..limits() });
    peer.receive(&[get(1), get(3), get(5)].concat());
    let (first, _) = (peer.accept(), peer.accept());
    assert_eq!(peer.frame(), reset(5, ErrorCode::REFUSED_STREAM));
    peer.respond(first, true);
    peer.receive(&get(7)).accept();
}

#[test]
fn numbers_of_streams_only_increase() {
    for (before, stream, code) in [
        (vec![], 2, ErrorCode::PROTOCOL_ERROR),
        (vec![5], 3, ErrorCode::PROTOCOL_ERROR),
        (vec![1, 3], 1, ErrorCode::STREAM_CLOSED),
    ] {
        let mut peer = Peer::new(limits());
        for id in before {
            let key = peer.receive(&get(id)).accept();
            peer.respond(key, true);
            peer.connection.close(key);
        }
        peer.receive(&get(stream)).has_failed(code);
    }
}

/// Field lines, some malformed, and some that refer to the dynamic table.
const LINES: [&[u8]; 12] = [
    b"\x84",
    b"\x44\x02/x",
    b"\x90",
    b"\x40\x01x\x01y",
    b"\0\x04host\x01b",
    b"\0\x01X\x01y",
    b"\xbe",
    b"\xbf",
    b"\x5c\x013",
    b"\0\x02te\x04gzip",
    b"\x40\x06cookie\x03a=1",
    b"\x20",
];

proptest! {
    #[test]
    fn bytes_mean_the_same_however_they_are_cut(
        frames in prop::collection::vec(
            (0u8..11, any::<u8>(), 0u32..12, prop::collection::vec(select(&LINES), 0..3), any::<bool>()),
            0..12,
        ),
        piece in 1usize..40,
    ) {
        let bytes: Vec<u8> = frames.into_iter().flat_map(|(kind, flags, stream, lines, has_begin)| {
            let begin = if has_begin { POST } else { b"" };
            frame(kind, flags, stream, &[begin, &lines.concat()].concat())
        }).collect();
        let seen = |piece: usize| {
            let (mut peer, mut requests, mut seen) = (Peer::new(limits()), String::new(), String::new());
            for part in bytes.chunks(piece) {
                peer.receive(part);
                while let Some(request) = peer.connection.next_request() {
                    requests += &format!("{:?} {:?}\n", request.stream.id, request.head);
                }
            }
            // A fault ends the connection at once, with the requests that were not begun by then.
            if peer.connection.is_over() {
                requests.clear();
            }
            let keys: Vec<_> = (1..12).filter_map(|id| peer.connection.streams.key(id)).collect();
            for key in keys {
                let data = peer.connection.poll_data(key, &cx(), usize::MAX);
                seen += &format!("{data:?} {:?}\n", peer.connection.poll_last(key, &cx()));
            }
            (requests, seen, peer.connection.take_refused(), peer.connection.is_over(), peer.frames())
        };
        prop_assert_eq!(seen(usize::MAX), seen(piece));
    }
}
