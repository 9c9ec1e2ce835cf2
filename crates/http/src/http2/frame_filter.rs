//! Frames of HTTP/2 (RFC 9113, section 4), as they go by on their way to the library. Pure.

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::BytesMut;
use convey_http_core::Malformed;

use super::field_block::{BlockKind, FieldTable, MalformedBlock};

/// Length of the head of a frame.
const FRAME_HEAD: usize = 9;

/// Most bytes in a frame that the library takes.
const MAX_FRAME: usize = 16_384;

/// Most frames of one section. The library takes fewer.
const MAX_FRAMES: usize = 16;

/// Length of the preface that a client begins with.
const PREFACE: usize = 24;

/// Most streams whose bodies are still to end. Of more, the first one's trailers are left to the library.
const MAX_BODIES: usize = 256;

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

/// Flags of frames.
const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// Length of a priority in a frame.
const PRIORITY_LEN: usize = 5;

/// The side whose frames these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Client,
    Server,
}

/// Looks at the fields of a connection, before the library does: a malformed section ends its stream, and not the connection (RFC 9113,
/// section 8.1.1). All else passes as it came. Sections wait here until they are whole.
#[derive(Debug)]
pub(super) struct FieldFilter {
    sender: Sender,
    state: State,
    /// The beginning of a section, or of the head of a frame.
    held: BytesMut,
    table: FieldTable,
    /// Most bytes of a section with the heads of its frames.
    max_section: usize,
    /// The last stream that the client has begun.
    last_stream: u32,
    /// Streams of the client that trailers may come on.
    bodies: VecDeque<u32>,
    /// Why requests are malformed, since somebody has asked last.
    faults: Vec<Malformed>,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Frame,
    /// So many bytes that are no fields.
    Other(usize),
    /// Whatever: the library ends the connection for something that has come, or refuses a head that is too long.
    Off,
}

/// What the library gets of the bytes at hand.
enum Piece {
    /// So many as they are.
    Pass(usize),
    /// These in place of so many.
    Replace(usize, Vec<u8>),
    /// Nothing before more has come.
    Wait,
}

/// Head of a frame.
struct FrameHead {
    len: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHead {
    fn read(bytes: &[u8]) -> Option<FrameHead> {
        let [len @ .., kind, flags, a, b, c, d] = *bytes.first_chunk::<FRAME_HEAD>()?;
        let len = len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        Some(FrameHead { len, kind, flags, stream: u32::from_be_bytes([a & 0x7f, b, c, d]) })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.len as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }

    /// The fields of a frame with this payload. `None`: it is no such frame.
    fn fields<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        if self.kind != HEADERS {
            return Some(payload);
        }
        let (padding, payload) = match self.flags & PADDED != 0 {
            true => payload.split_first().map(|(padding, payload)| (usize::from(*padding), payload))?,
            false => (0, payload),
        };
        let payload = if self.flags & PRIORITY != 0 { payload.get(PRIORITY_LEN..)? } else { payload };
        payload.get(..payload.len().checked_sub(padding)?)
    }
}

impl FieldFilter {
    /// Of a connection whose sections have so many bytes at most. Longer ones are left to the library.
    pub(super) fn new(sender: Sender, max_section: usize) -> FieldFilter {
        let state = if sender == Sender::Client { State::Other(PREFACE) } else { State::Frame };
        let (held, table, faults) = (BytesMut::new(), FieldTable::default(), Vec::new());
        let (last_stream, bodies) = (0, VecDeque::new());
        FieldFilter { sender, state, held, table, max_section, last_stream, bodies, faults }
    }

    /// What the library gets of these bytes; `None`: them, as they are.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Option<BytesMut> {
        if self.held.is_empty() {
            let (waits, passed) = self.walk(bytes);
            self.held.extend_from_slice(&bytes[waits..]);
            return passed.or_else(|| (waits < bytes.len()).then(|| bytes[..waits].into()));
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let (waits, passed) = self.walk(&all);
        self.held = all.split_off(waits);
        Some(passed.unwrap_or(all))
    }

    /// What is left when the connection has ended: the beginning of something that does not come.
    pub(super) fn end(&mut self) -> BytesMut {
        std::mem::take(&mut self.held)
    }

    /// Why requests are malformed that have come since the last call.
    pub(super) fn take_faults(&mut self) -> Vec<Malformed> {
        std::mem::take(&mut self.faults)
    }

    /// Looks at bytes. Returns from where on they wait, and what the library gets of those before; `None`: them, as they are.
    fn walk(&mut self, bytes: &[u8]) -> (usize, Option<BytesMut>) {
        let (mut at, mut passed) = (0, None::<BytesMut>);
        while at < bytes.len() {
            let left = &bytes[at..];
            let (len, others) = match self.next(left) {
                Piece::Wait => break,
                Piece::Pass(len) => (len, None),
                Piece::Replace(len, others) => (len, Some(others)),
            };
            match (others, &mut passed) {
                (Some(others), passed) => {
                    passed.get_or_insert_with(|| bytes[..at].into()).extend_from_slice(&others);
                }
                (None, Some(passed)) => passed.extend_from_slice(&left[..len]),
                (None, None) => {}
            }
            at += len;
        }
        (at, passed)
    }

    fn next(&mut self, left: &[u8]) -> Piece {
        match self.state {
            State::Off => Piece::Pass(left.len()),
            State::Other(len) if left.len() < len => {
                self.state = State::Other(len - left.len());
                Piece::Pass(left.len())
            }
            State::Other(len) => {
                self.state = State::Frame;
                Piece::Pass(len)
            }
            State::Frame => match FrameHead::read(left) {
                None => Piece::Wait,
                Some(head) if head.kind == HEADERS => self.section(left),
                Some(head) if head.kind == PUSH_PROMISE => self.give_up(left),
                Some(head) => {
                    if head.kind == RST_STREAM || head.kind == DATA && head.flags & END_STREAM != 0 {
                        self.ends_body(head.stream);
                    }
                    self.state = State::Other(FRAME_HEAD + head.len);
                    self.next(left)
                }
            },
        }
    }

    /// Leaves this and all that follows to the library.
    fn give_up(&mut self, left: &[u8]) -> Piece {
        self.state = State::Off;
        Piece::Pass(left.len())
    }

    /// Looks at a section, with which these bytes begin.
    fn section(&mut self, left: &[u8]) -> Piece {
        let (mut at, mut first, mut fields) = (0, None::<FrameHead>, Cow::Borrowed(&[][..]));
        for _ in 0..MAX_FRAMES {
            let Some(head) = FrameHead::read(&left[at..]) else { return Piece::Wait };
            let is_next = match &first {
                None => head.kind == HEADERS,
                Some(first) => head.kind == CONTINUATION && head.stream == first.stream,
            };
            let end = at + FRAME_HEAD + head.len;
            if !is_next || head.len > MAX_FRAME || end > self.max_section {
                return self.give_up(left);
            }
            let Some(payload) = left.get(at + FRAME_HEAD..end) else { return Piece::Wait };
            let Some(part) = head.fields(payload) else { return self.give_up(left) };
            if first.is_none() {
                fields = Cow::Borrowed(part);
            } else {
                fields.to_mut().extend_from_slice(part);
            }
            let is_last = head.flags & END_HEADERS != 0;
            at = end;
            let of_section = first.get_or_insert(head);
            if is_last {
                let (stream, flags) = (of_section.stream, of_section.flags & END_STREAM);
                let kind = self.kind_of(stream, flags == END_STREAM);
                return match self.table.check(&fields, kind) {
                    Ok(None) => Piece::Pass(at),
                    Ok(Some(malformed)) => {
                        if kind == BlockKind::Request {
                            self.faults.push(malformed.fault);
                        }
                        Piece::Replace(at, frames_of(stream, flags, &malformed))
                    }
                    Err(_) => self.give_up(left),
                };
            }
        }
        self.give_up(left)
    }

    fn kind_of(&mut self, stream: u32, ends_stream: bool) -> BlockKind {
        if self.sender == Sender::Server {
            return BlockKind::Other;
        }
        if stream <= self.last_stream {
            return if self.ends_body(stream) { BlockKind::Trailers } else { BlockKind::Other };
        }
        self.last_stream = stream;
        if !ends_stream {
            self.bodies.truncate(MAX_BODIES - 1);
            self.bodies.push_front(stream);
        }
        BlockKind::Request
    }

    /// The client sends nothing more on a stream. Returns whether its body was still to end.
    fn ends_body(&mut self, stream: u32) -> bool {
        let place = self.bodies.iter().position(|body| *body == stream);
        place.and_then(|place| self.bodies.remove(place)).is_some()
    }
}

/// The frames of a section.
fn frames_of(stream: u32, flags: u8, MalformedBlock { block, .. }: &MalformedBlock) -> Vec<u8> {
    let mut frames = Vec::with_capacity(block.len() + FRAME_HEAD);
    let mut parts = block.chunks(MAX_FRAME).peekable();
    let (mut kind, mut flags) = (HEADERS, flags);
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            flags |= END_HEADERS;
        }
        FrameHead { len: part.len(), kind, flags, stream }.write(&mut frames);
        frames.extend_from_slice(part);
        (kind, flags) = (CONTINUATION, 0);
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_coding::put_string;

    const MAX_SECTION: usize = 40_000;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        FrameHead { len: payload.len(), kind, flags, stream }.write(&mut frame);
        [&frame, payload].concat()
    }

    /// What a filter lets through of a client's connection that comes in pieces, and why requests are malformed.
    fn through(stream: &[u8], piece: usize) -> (Vec<u8>, Vec<Malformed>) {
        let mut filter = FieldFilter::new(Sender::Client, MAX_SECTION);
        let mut all = Vec::new();
        for piece in stream.chunks(piece) {
            match filter.pass(piece) {
                Some(passed) => all.extend_from_slice(&passed),
                None => all.extend_from_slice(piece),
            }
        }
        all.extend_from_slice(&filter.end());
        (all, filter.take_faults())
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
            [vec![0; PREFACE], frame(HEADERS, 0, 1, first), frame(CONTINUATION, END_HEADERS, 1, rest)]
                .concat();
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
    fn trailers_with_a_pseudo_field_are_replaced_and_no_request_of_their_own() {
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
        let mut filter = FieldFilter::new(Sender::Client, MAX_SECTION);
        let _ = filter.pass(&[0; PREFACE]);
        for stream in 0..1_000 {
            let _ = filter.pass(&frame(HEADERS, END_HEADERS, 2 * stream + 1, GET));
        }
        assert_eq!((filter.bodies.len(), filter.bodies[0]), (MAX_BODIES, 1_999));
    }

    #[test]
    fn connection_that_the_library_ends_passes_as_it_is_and_little_is_held() {
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
        let mut filter = FieldFilter::new(Sender::Server, MAX_SECTION);
        for piece in long.chunks(1_000).cycle().take(100) {
            let _ = filter.pass(piece);
            assert!(filter.held.len() <= MAX_SECTION);
        }
    }
}
