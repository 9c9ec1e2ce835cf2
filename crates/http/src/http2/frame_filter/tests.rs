use convey_http2::field_coding::put_string;

use super::*;

const MAX_SECTION: usize = 40_000;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    FrameHead { len: payload.len(), kind, flags, stream }.write(&mut frame);
    [&frame, payload].concat()
}

fn filter() -> FieldFilter {
    FieldFilter::new(MAX_SECTION)
}

/// Returns the bytes that a filter passes on, from bytes that arrive in pieces.
fn pass(filter: &mut FieldFilter, stream: &[u8], piece: usize, now: Duration) -> Vec<u8> {
    let passed = stream
        .chunks(piece)
        .flat_map(|piece| filter.pass(piece, now).map_or_else(|| piece.to_vec(), |passed| passed.to_vec()));
    passed.collect()
}

/// Returns the bytes that a filter passes on from a whole connection.
fn through(stream: &[u8], piece: usize) -> Vec<u8> {
    let mut filter = filter();
    let mut all = pass(&mut filter, stream, piece, Duration::ZERO);
    all.extend_from_slice(&filter.end());
    all
}

/// `:status: 200`.
const OK: &[u8] = b"\x88";

#[test]
fn frames_pass_as_they_are_but_for_malformed_sections() {
    let bad = [OK, b"\x40\x02Xy\x01z"].concat();
    let padded = [b"\x02\0\0\0\0\x10", &bad[..], b"\0\0"].concat();
    let other = [OK, b"\x40\x02te\x01x", b"\0\x02te\0"].concat();
    let before =
        [frame(4, 0, 0, &[0; 6]), frame(HEADERS, END_HEADERS, 1, OK), frame(DATA, 0, 1, &[7; 300])].concat();
    let after =
        [frame(6, 0, 0, &[1; 8]), frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01a\x01b")].concat();
    let padding = END_STREAM | END_HEADERS | PADDED | PRIORITY;
    let stream = [&before[..], &frame(HEADERS, padding, 3, &padded), &after].concat();
    let expected = [&before[..], &frame(HEADERS, END_STREAM | END_HEADERS, 3, &other), &after].concat();
    for piece in 1..=stream.len() {
        assert!(through(&stream, piece) == expected, "{piece}");
    }
}

#[test]
fn section_in_several_frames_is_read_as_one() {
    let mut head = b"\x88\0\x01x".to_vec();
    put_string(&[&[b'x'; 19_999][..], b"\n"].concat(), &mut head);
    let (first, rest) = head.split_at(16_000);
    let stream = [frame(HEADERS, 0, 1, first), frame(CONTINUATION, END_HEADERS, 1, rest)].concat();
    for piece in [1_000, 7_777, stream.len()] {
        let passed = through(&stream, piece);
        let head = FrameHead::read(&passed).unwrap();
        assert_eq!((head.kind, head.flags, head.len), (HEADERS, 0, MAX_FRAME));
        let head = FrameHead::read(&passed[FRAME_HEAD + MAX_FRAME..]).unwrap();
        assert_eq!((head.kind, head.flags, head.stream), (CONTINUATION, END_HEADERS, 1));
    }
}

#[test]
fn frames_that_the_library_refuses_pass_unchanged_in_bounded_memory() {
    let long = frame(HEADERS, 0, 1, &[0x88; 16_384]);
    for frames in [
        vec![frame(HEADERS, END_HEADERS, 1, b"\x80")],
        vec![frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09a")],
        vec![frame(HEADERS, 0, 1, OK), frame(DATA, 0, 1, b"x")],
        vec![frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02\x82")],
        vec![
            long.clone(),
            frame(CONTINUATION, 0, 1, &[0x88; 16_384]),
            frame(CONTINUATION, 0, 1, &[0x88; 16_384]),
        ],
        [vec![frame(HEADERS, 0, 1, OK)], vec![frame(CONTINUATION, 0, 1, b""); MAX_FRAMES]].concat(),
    ] {
        let bad = frame(HEADERS, END_HEADERS, 3, b"\0\x01A\x01b");
        let stream = [&frames.concat()[..], &bad].concat();
        assert!(through(&stream, 100) == stream, "{:x?}", &frames[0][..20.min(frames[0].len())]);
    }
    let mut filter = filter();
    for piece in long.chunks(1_000).cycle().take(100) {
        let _ = filter.pass(piece, Duration::ZERO);
        assert!(filter.held.len() <= MAX_SECTION);
    }
}

#[test]
fn empty_data_frames_of_open_bodies_are_dropped() {
    let empty = |stream| frame(DATA, 0, stream, b"");
    let padded = |len: u8| frame(DATA, PADDED, 1, &[&[len][..], &vec![0; len.into()]].concat());
    let data = |flags, stream| frame(DATA, flags, stream, b"abc");
    let begin = |flags, stream| frame(HEADERS, END_HEADERS | flags, stream, OK);
    // Frames, and whether they pass.
    let mut frames = vec![(empty(1), true)];
    frames.extend([7, 1, 9, 3].map(|stream| (begin(0, stream), true)));
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
        let mut filter = filter();
        let passed = pass(&mut filter, &all, piece, Duration::ZERO);
        assert!(passed == expected, "{piece}");
        assert!(filter.held.is_empty());
    }
}

#[test]
fn empty_data_frames_beyond_the_rate_pass() {
    for frame_of in [frame(DATA, 0, 1, b""), frame(DATA, PADDED, 1, b"\x02\0\0")] {
        let (flood, len) = (frame_of.repeat(150_000), frame_of.len());
        let (mut filter, now) = (filter(), Duration::ZERO);
        let _ = filter.pass(&frame(HEADERS, END_HEADERS, 1, OK), now);
        for second in 0..2 {
            let now = now + second * PERIOD;
            assert_eq!(pass(&mut filter, &flood, 100_000, now).len(), 50_000 * len);
            let later = now + PERIOD / 2;
            assert_eq!(pass(&mut filter, &flood, 100_000, later).len(), 150_000 * len);
        }
    }
}

#[test]
fn padding_of_dropped_frames_alone_is_released() {
    let begin = |stream| frame(HEADERS, END_HEADERS, stream, OK);
    let padded = |stream| frame(DATA, PADDED, stream, &[&[255][..], &[0; 255]].concat());
    let update = |stream, increment: u32| frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
    let with_data = frame(DATA, PADDED, 1, &[&[100][..], &[0; 101]].concat());
    let ended = |end| [padded(3).repeat(4), end].concat();
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\0\x01a\x01b");
    for end in [frame(DATA, END_STREAM, 3, b""), frame(RST_STREAM, 0, 3, &[0; 4]), trailers] {
        for piece in [1, 100, 300, 100_000] {
            let mut filter = filter();
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
    let (mut filter, now) = (filter(), Duration::ZERO);
    for stream in 0..1_000 {
        let _ = filter.pass(&frame(HEADERS, END_HEADERS, 2 * stream + 1, OK), now);
    }
    assert_eq!((filter.bodies.len(), filter.bodies[0]), (MAX_BODIES, 1_999));
    for empty in [frame(DATA, 0, 1, b""), frame(DATA, PADDED, 1, b"\0")] {
        assert!(pass(&mut filter, &empty.repeat(400), 1_000, now).is_empty());
    }
}
