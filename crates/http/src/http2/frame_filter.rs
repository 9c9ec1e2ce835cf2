//! Filter of the HTTP/2 frames of a server (RFC 9113, section 4), before the HTTP/2 library. Pure.

mod padding;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;

use self::padding::DroppedPadding;
use super::field_block::FieldTable;

/// Length of the head of a frame, in bytes.
const FRAME_HEAD: usize = 9;

/// Maximum length of a frame that the library accepts, in bytes.
const MAX_FRAME: usize = 16_384;

/// Maximum number of frames of a field section. The library accepts fewer.
const MAX_FRAMES: usize = 16;

/// Maximum number of tracked streams with an unfinished body.
const MAX_BODIES: usize = 256;

/// Upper bound for the empty DATA frames per second that a [`FieldFilter`] drops.
const MAX_EMPTY: u32 = 100_000;

/// Period of [`EmptyFrames`].
const PERIOD: Duration = Duration::from_secs(1);

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flags of frames.
const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// Length of a priority in a frame, in bytes.
const PRIORITY_LEN: usize = 5;

/// Counter of the empty DATA frames that a [`FieldFilter`] drops.
#[derive(Debug, Default)]
struct EmptyFrames {
    dropped: u32,
    /// Start of the current period, since the connection began.
    since: Duration,
}

impl EmptyFrames {
    /// Counts a frame. Returns whether the filter may drop it.
    fn may_drop(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.since) >= PERIOD {
            (self.since, self.dropped) = (now, 0);
        }
        self.dropped = self.dropped.saturating_add(1);
        self.dropped <= MAX_EMPTY
    }
}

/// Filter for the received frames of a connection, before the HTTP/2 library.
///
/// A malformed field section resets only its stream, not the connection (RFC 9113, section 8.1.1).
/// The filter buffers a section until it is complete.
///
/// The filter drops empty DATA frames, because the library closes a connection at the 101st.
/// Padding in dropped frames uses flow control windows of the sender, so
/// [`FieldFilter::put_updates`] returns the same number of bytes to these windows. All other frames
/// pass unchanged.
#[derive(Debug)]
pub(super) struct FieldFilter {
    state: State,
    /// Received part of an incomplete section or frame head.
    held: BytesMut,
    table: FieldTable,
    /// Maximum length of a section with its frame heads, in bytes.
    max_section: usize,
    /// Streams whose body has not ended.
    bodies: VecDeque<u32>,
    /// Highest stream id that was removed from `bodies` because `bodies` was full.
    forgotten: u32,
    empty_frames: EmptyFrames,
    padding: DroppedPadding,
}

/// Meaning of the next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Frame,
    /// Number of remaining bytes outside of field sections.
    Other(usize),
    /// Bytes that pass unchecked, because the library closes the connection for a received fault,
    /// or refuses a head that is too long.
    Off,
}

/// Action of the filter on the first of the received bytes.
enum Piece {
    /// Passes this number of bytes on unchanged.
    Pass(usize),
    /// Replaces this number of bytes by others.
    Replace(usize, Vec<u8>),
    /// Waits until more bytes are received.
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

    /// Returns the fields in the payload of a HEADERS or CONTINUATION frame; `None` if its padding or
    /// priority is malformed.
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
    /// Creates the filter of a connection that buffers sections of at most `max_section` bytes.
    /// Longer ones pass unchecked.
    pub(super) fn new(max_section: usize) -> FieldFilter {
        FieldFilter {
            state: State::Frame,
            held: BytesMut::new(),
            table: FieldTable::default(),
            max_section,
            bodies: VecDeque::new(),
            forgotten: 0,
            empty_frames: EmptyFrames::default(),
            padding: DroppedPadding::default(),
        }
    }

    /// Filters received bytes. Returns the bytes for the library; `None` if they are unchanged.
    /// `now` is the time since the connection began.
    pub(super) fn pass(&mut self, bytes: &[u8], now: Duration) -> Option<BytesMut> {
        if self.held.is_empty() {
            let (waits, passed) = self.walk(bytes, now);
            self.held.extend_from_slice(&bytes[waits..]);
            return passed.or_else(|| (waits < bytes.len()).then(|| bytes[..waits].into()));
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let (waits, passed) = self.walk(&all, now);
        self.held = all.split_off(waits);
        Some(passed.unwrap_or(all))
    }

    /// Returns the remaining bytes at the end of the connection: a truncated section or frame.
    pub(super) fn end(&mut self) -> BytesMut {
        std::mem::take(&mut self.held)
    }

    /// Appends the WINDOW_UPDATE frames that the sender needs for dropped frames.
    pub(super) fn put_updates(&mut self, out: &mut Vec<u8>) {
        self.padding.put_updates(out);
    }

    /// Filters bytes. Returns the index from which bytes wait, and the bytes for the library before
    /// that index; `None` if these are unchanged.
    fn walk(&mut self, bytes: &[u8], now: Duration) -> (usize, Option<BytesMut>) {
        let (mut at, mut passed) = (0, None::<BytesMut>);
        while at < bytes.len() {
            let left = &bytes[at..];
            let (len, others) = match self.next(left, now) {
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

    fn next(&mut self, left: &[u8], now: Duration) -> Piece {
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
                Some(head) => match self.is_empty_data(&head, left) {
                    None => Piece::Wait,
                    Some(true) if self.may_drop(&head, now) => {
                        Piece::Replace(FRAME_HEAD + head.len, Vec::new())
                    }
                    Some(_) => {
                        if head.kind == RST_STREAM || head.kind == DATA && head.flags & END_STREAM != 0 {
                            self.ends_body(head.stream);
                        }
                        self.state = State::Other(FRAME_HEAD + head.len);
                        self.next(left, now)
                    }
                },
            },
        }
    }

    /// Whether a frame is an empty DATA frame without effect; `None` if more bytes are needed.
    /// Considers only streams that may have an unfinished body; the library checks frames on all
    /// other streams.
    fn is_empty_data(&self, head: &FrameHead, bytes: &[u8]) -> Option<bool> {
        let has_body = || self.bodies.contains(&head.stream) || head.stream <= self.forgotten;
        let is_padded = head.flags & PADDED != 0;
        let is_empty = match head.kind == DATA && head.flags & END_STREAM == 0 {
            true if is_padded => padding::is_padding(head, bytes)?,
            is_data => is_data && head.len == 0,
        };
        Some(is_empty && head.stream % 2 == 1 && has_body())
    }

    /// Counts an empty DATA frame. Returns whether the filter may drop it.
    fn may_drop(&mut self, head: &FrameHead, now: Duration) -> bool {
        self.empty_frames.may_drop(now) && (head.len == 0 || self.padding.add(head.stream, head.len as u32))
    }

    /// Passes these bytes and all later bytes unchecked.
    fn give_up(&mut self, left: &[u8]) -> Piece {
        self.state = State::Off;
        Piece::Pass(left.len())
    }

    /// Filters the field section at the front of these bytes.
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
                // Interim responses precede the response with a body.
                self.ends_body(stream);
                if flags & END_STREAM == 0 {
                    self.begins_body(stream);
                }
                return match self.table.check(&fields) {
                    Ok(None) => Piece::Pass(at),
                    Ok(Some(block)) => Piece::Replace(at, frames_of(stream, flags, &block)),
                    Err(_) => self.give_up(left),
                };
            }
        }
        self.give_up(left)
    }

    fn begins_body(&mut self, stream: u32) {
        for left in self.bodies.drain(self.bodies.len().min(MAX_BODIES - 1)..) {
            self.forgotten = self.forgotten.max(left);
        }
        self.bodies.push_front(stream);
    }

    /// Notes that the sender has ended a stream.
    fn ends_body(&mut self, stream: u32) {
        self.padding.end(stream);
        let place = self.bodies.iter().position(|body| *body == stream);
        place.and_then(|place| self.bodies.remove(place));
    }
}

/// Encodes a replaced section as HEADERS and CONTINUATION frames.
fn frames_of(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
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
mod tests;
