use super::*;
use crate::field_coding::put_string;

const MAX_LIST: usize = 20_000;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    FrameHead { len: payload.len(), kind, flags, stream }.write(&mut frame);
    [&frame, payload].concat()
}

fn filter_of(sender: Sender) -> FieldFilter {
    FieldFilter::new(sender, MAX_LIST, EmptyFrames::OF_CLIENT)
}

/// Returns the bytes that a filter passes on, from bytes that arrive in pieces.
fn pass(filter: &mut FieldFilter, stream: &[u8], piece: usize, now: Duration) -> Vec<u8> {
    let passed = stream
        .chunks(piece)
        .flat_map(|piece| filter.pass(piece, now).map_or_else(|| piece.to_vec(), |passed| passed.to_vec()));
    passed.collect()
}

/// Returns the bytes that a filter passes on from a client's whole connection, and the faults of
/// malformed requests.
fn through(stream: &[u8], piece: usize) -> (Vec<u8>, Vec<Malformed>) {
    let mut filter = filter_of(Sender::Client);
    let mut all = pass(&mut filter, stream, piece, Duration::ZERO);
    all.extend_from_slice(&filter.end());
    (all, filter.take_refused().into_iter().map(|refused| refused.fault).collect())
}

const GET: &[u8] = b"\x82\x87\x84\x41\x01a";

#[test]
fn frames_pass_as_they_are_but_for_malformed_sections() {
    let bad = [GET, b"\x40\x02Xy\x01z"].concat();
    let padded = [b"\x02\0\0\0\0\x10", &bad[..], b"\0\0"].concat();
    let (rest, mark) = (b"\x40\x02te\x01x", b"\0\x02te\0");
    let other = [GET, rest, mark].concat();
    let before = [
        vec![b'P'; PREFACE],
        frame(4, 0, 0, &[0; 6]),
        frame(HEADERS, END_HEADERS, 1, GET),
        frame(DATA, 0, 1, &[7; 300]),
    ]
    .concat();
    let after =
        [frame(6, 0, 0, &[1; 8]), frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01a\x01b")].concat();
    let padding = END_STREAM | END_HEADERS | PADDED | PRIORITY;
    let stream = [&before[..], &frame(HEADERS, padding, 3, &padded), &after].concat();
    let expected = [&before[..], &frame(HEADERS, END_STREAM | END_HEADERS, 3, &other), &after].concat();
    for piece in 1..=stream.len() {
        let (passed, faults) = through(&stream, piece);
        assert!(passed == expected, "{piece}");
        assert_eq!(faults, [Malformed::FieldName]);
    }
}

#[test]
fn section_in_several_frames_is_read_as_one() {
    let mut path = b"\x82\x87\x41\x01a\x44".to_vec();
    put_string(&[b"/", &[b'x'; 19_999][..], b"#"].concat(), &mut path);
    let (first, rest) = path.split_at(16_000);
    let stream =
        [vec![0; PREFACE], frame(HEADERS, 0, 1, first), frame(CONTINUATION, END_HEADERS, 1, rest)].concat();
    for piece in [1_000, 7_777, stream.len()] {
        let (passed, faults) = through(&stream, piece);
        assert_eq!(faults, [Malformed::Target]);
        let sections = &passed[PREFACE..];
        let head = FrameHead::read(sections).unwrap();
        assert_eq!((head.kind, head.flags, head.len), (HEADERS, 0, MAX_FRAME));
        let head = FrameHead::read(&sections[FRAME_HEAD + MAX_FRAME..]).unwrap();
        assert_eq!((head.kind, head.flags, head.stream), (CONTINUATION, END_HEADERS, 1));
    }
}

#[test]
fn trailers_with_a_pseudo_field_are_replaced_and_start_no_request() {
    let request = [vec![0; PREFACE], frame(HEADERS, END_HEADERS, 1, GET)].concat();
    let stream = [&request[..], &frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x84")].concat();
    let (passed, faults) = through(&stream, stream.len());
    let other = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x84\0\x02te\0");
    assert_eq!((passed, faults), ([request, other].concat(), vec![]));
}

#[test]
fn section_on_a_stream_that_is_over_is_left_to_the_library() {
    let stream = [
        vec![0; PREFACE],
        frame(HEADERS, END_HEADERS | END_STREAM, 5, GET),
        frame(HEADERS, END_HEADERS, 5, GET),
        frame(HEADERS, END_HEADERS, 3, GET),
        frame(HEADERS, END_HEADERS, 7, GET),
        frame(RST_STREAM, 0, 7, &[0; 4]),
        frame(HEADERS, END_HEADERS, 7, GET),
        frame(HEADERS, END_HEADERS, 9, GET),
        frame(DATA, END_STREAM, 9, b"x"),
        frame(HEADERS, END_HEADERS, 9, GET),
    ]
    .concat();
    assert_eq!(through(&stream, stream.len()), (stream.clone(), vec![]));
    let (mut filter, now) = (filter_of(Sender::Client), Duration::ZERO);
    let _ = filter.pass(&[0; PREFACE], now);
    for stream in 0..1_000 {
        let _ = filter.pass(&frame(HEADERS, END_HEADERS, 2 * stream + 1, GET), now);
    }
    assert_eq!((filter.bodies.len(), filter.bodies[0]), (MAX_BODIES, 1_999));
}

#[test]
fn frames_that_the_library_refuses_pass_unchanged_in_bounded_memory() {
    let preface = [0; PREFACE];
    let long = frame(HEADERS, 0, 1, &[0x82; 16_384]);
    for frames in [
        vec![frame(HEADERS, END_HEADERS, 1, b"\x80")],
        vec![frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09a")],
        vec![frame(HEADERS, 0, 1, GET), frame(DATA, 0, 1, b"x")],
        vec![frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02\x82")],
        vec![
            long.clone(),
            frame(CONTINUATION, 0, 1, &[0x82; 16_384]),
            frame(CONTINUATION, 0, 1, &[0x82; 16_384]),
        ],
        [vec![frame(HEADERS, 0, 1, GET)], vec![frame(CONTINUATION, 0, 1, b""); MAX_FRAMES]].concat(),
    ] {
        let bad = frame(HEADERS, END_HEADERS, 3, b"\0\x01A\x01b");
        let stream = [&preface[..], &frames.concat(), &bad].concat();
        assert!(
            through(&stream, 100) == (stream.clone(), vec![]),
            "{:x?}",
            &frames[0][..20.min(frames[0].len())]
        );
    }
    let (mut filter, now) = (filter_of(Sender::Server), Duration::ZERO);
    for piece in long.chunks(1_000).cycle().take(100) {
        let _ = filter.pass(piece, now);
        assert!(filter.held.len() <= MAX_LIST);
    }
}

#[test]
fn request_with_a_long_head_is_noted_and_the_library_responds() {
    let mut long = GET.to_vec();
    for _ in 0..10 {
        long.extend_from_slice(b"\0\x01x");
        put_string(&[b'y'; MAX_LIST / 10], &mut long);
    }
    let (first, rest) = long.split_at(MAX_FRAME);
    let (bad, flags) = ([GET, b"\0\x02te\x01x"].concat(), END_HEADERS | END_STREAM);
    let stream = [
        vec![0; PREFACE],
        frame(HEADERS, END_STREAM, 1, first),
        frame(CONTINUATION, END_HEADERS, 1, rest),
        frame(HEADERS, flags, 3, &bad),
    ]
    .concat();
    let mut filter = filter_of(Sender::Client);
    let passed = pass(&mut filter, &stream, 5_000, Duration::ZERO);
    let marked = frame(HEADERS, flags, 3, &[&bad, &b"\0\x02te\0"[..]].concat());
    assert!(passed == [&stream[..stream.len() - FRAME_HEAD - bad.len()], &marked].concat());
    let too_long = |has_response| RefusedRequest { fault: Malformed::HeadTooLong, has_response };
    let bad = RefusedRequest { fault: Malformed::FieldValue, has_response: false };
    assert_eq!(filter.take_refused(), [too_long(true), bad]);
    // The library ends the connection for a head with so many frames.
    let endless = [
        frame(HEADERS, 0, 5, &[0x82; MAX_FRAME]),
        frame(CONTINUATION, 0, 5, &[0x82; MAX_FRAME]).repeat(MAX_FRAMES),
    ];
    let _ = pass(&mut filter, &endless.concat(), 5_000, Duration::ZERO);
    assert_eq!(filter.take_refused(), [too_long(false)]);
}

#[test]
fn empty_data_frames_of_open_bodies_are_dropped() {
    let empty = |stream| frame(DATA, 0, stream, b"");
    let padded = |len: u8| frame(DATA, PADDED, 1, &[&[len][..], &vec![0; len.into()]].concat());
    let data = |flags, stream| frame(DATA, flags, stream, b"abc");
    let begin = |flags, stream| frame(HEADERS, END_HEADERS | flags, stream, GET);
    for (sender, begins) in [(Sender::Client, vec![1, 3, 7, 9]), (Sender::Server, vec![7, 1, 9, 3])] {
        let preface = if sender == Sender::Client { vec![0; PREFACE] } else { vec![] };
        // Frames, and whether they pass.
        let mut frames = vec![(preface, true), (empty(1), true)];
        frames.extend(begins.iter().map(|stream| (begin(0, *stream), true)));
        frames.extend([
            (empty(1), false),
            (data(0, 1), true),
            (empty(1), false),
            (empty(7), false),
            (frame(DATA, PADDED, 1, b"\x02\0\0"), false),
            (frame(DATA, PADDED, 7, b"\0"), false),
            (padded(255), false),
            // These frames have data or an effect. The library checks padding of a wrong length.
            (frame(DATA, PADDED, 1, b"\x02a\0\0"), true),
            (frame(DATA, PADDED, 1, &[255; 257]), true),
            (frame(DATA, PADDED, 1, &[2; 2]), true),
            (frame(DATA, PADDED, 1, b""), true),
            (frame(DATA, PADDED | END_STREAM, 3, b"\x01\0"), true),
            (frame(DATA, PADDED, 3, b"\x01\0"), true),
            (frame(DATA, PADDED, 5, b"\x01\0"), true),
            (frame(DATA, PADDED, 0, b"\x01\0"), true),
            (frame(6, 0, 0, &[0; 8]), true),
            // The library checks frames on streams that are over, idle or the server's, and on
            // stream 0.
            (data(END_STREAM, 9), true),
            (frame(RST_STREAM, 0, 7, &[0; 4]), true),
            (empty(3), true),
            (empty(7), true),
            (empty(9), true),
            (empty(5), true),
            (empty(11), true),
            (empty(0), true),
            (empty(2), true),
            (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01a\x01b"), true),
            (empty(1), true),
            (begin(END_STREAM, 13), true),
            (empty(13), true),
        ]);
        let all: Vec<u8> = frames.iter().flat_map(|(frame, _)| frame.clone()).collect();
        let expected: Vec<u8> =
            frames.into_iter().filter(|(_, passes)| *passes).flat_map(|(frame, _)| frame).collect();
        for piece in 1..=all.len() {
            let mut filter = filter_of(sender);
            let passed = pass(&mut filter, &all, piece, Duration::ZERO);
            assert!(passed == expected, "{sender:?} {piece}");
            assert!(filter.held.is_empty());
        }
    }
}

#[test]
fn empty_data_frames_beyond_the_rate_pass() {
    let preface = [vec![0; PREFACE], frame(HEADERS, END_HEADERS, 1, GET)].concat();
    for frame in [frame(DATA, 0, 1, b""), frame(DATA, PADDED, 1, b"\x02\0\0")] {
        let (flood, len) = (frame.repeat(1_500), frame.len());
        for (of_client, passed) in [(true, [500, 1_500]), (false, [0, 0])] {
            let empty_frames = if of_client { EmptyFrames::OF_CLIENT } else { EmptyFrames::SHARED };
            let (mut filter, now) =
                (FieldFilter::new(Sender::Client, MAX_LIST, empty_frames), Duration::ZERO);
            let _ = filter.pass(&preface, now);
            for second in 0..3 {
                let now = now + second * PERIOD;
                assert_eq!(pass(&mut filter, &flood, 10_000, now).len(), passed[0] * len);
                let later = now + PERIOD / 2;
                assert_eq!(pass(&mut filter, &flood, 10_000, later).len(), passed[1] * len);
            }
        }
    }
}

#[test]
fn padding_of_dropped_frames_alone_is_released() {
    let begin = |stream| frame(HEADERS, END_HEADERS, stream, GET);
    let padded = |stream| frame(DATA, PADDED, stream, &[&[255][..], &[0; 255]].concat());
    let update = |stream, increment: u32| frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
    let with_data = frame(DATA, PADDED, 1, &[&[100][..], &[0; 101]].concat());
    let ended = |end| [padded(3).repeat(4), end].concat();
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\0\x01a\x01b");
    for end in [frame(DATA, END_STREAM, 3, b""), frame(RST_STREAM, 0, 3, &[0; 4]), trailers] {
        for piece in [1, 100, 300, 100_000] {
            let mut filter = filter_of(Sender::Server);
            let frames = [begin(1), begin(3), with_data.clone(), padded(1).repeat(60), ended(end.clone())];
            let passed = pass(&mut filter, &frames.concat(), piece, Duration::ZERO);
            assert!(passed == [begin(1), begin(3), with_data.clone(), end.clone()].concat());
            let mut updates = Vec::new();
            filter.put_updates(&mut updates);
            assert_eq!(updates, [update(0, 64 * 256), update(1, 60 * 256)].concat());
        }
    }
}

#[test]
fn long_body_behind_many_others_is_not_forgotten() {
    for sender in [Sender::Client, Sender::Server] {
        let (mut filter, now) = (filter_of(sender), Duration::ZERO);
        let preface = if sender == Sender::Client { PREFACE } else { 0 };
        let _ = filter.pass(&vec![0; preface], now);
        for stream in 0..1_000 {
            let _ = filter.pass(&frame(HEADERS, END_HEADERS, 2 * stream + 1, GET), now);
        }
        for empty in [frame(DATA, 0, 1, b""), frame(DATA, PADDED, 1, b"\0")] {
            assert!(pass(&mut filter, &empty.repeat(400), 1_000, now).is_empty());
        }
    }
}
