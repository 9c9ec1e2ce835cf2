//! Frames of HTTP/2 (RFC 9113, section 4).

/// Connection preface of a client (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of the head of a frame, in bytes.
pub(crate) const FRAME_HEAD: usize = 9;

/// Maximum length of a frame's payload in both directions, in bytes: the initial value of
/// `SETTINGS_MAX_FRAME_SIZE`.
pub(crate) const MAX_FRAME: usize = 16_384;

/// Types of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Flags of frames.
pub(crate) const ACK: u8 = 0x01;
pub(crate) const END_STREAM: u8 = 0x01;
pub(crate) const END_HEADERS: u8 = 0x04;
pub(crate) const PADDED: u8 = 0x08;
pub(crate) const HAS_PRIORITY: u8 = 0x20;

/// Length of a priority in a frame, in bytes.
const PRIORITY_LEN: usize = 5;

/// Reason for the end of a stream or a connection (RFC 9113, section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error: an end in order.
    pub const NO_ERROR: ErrorCode = ErrorCode(0);
    /// The peer breaks a rule.
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(1);
    /// The sender of the code has failed.
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(2);
    /// A window was exceeded.
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(3);
    /// A frame arrived on a stream that has ended.
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(5);
    /// A frame has a wrong length.
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(6);
    /// The request was not processed.
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(7);
    /// The stream is not needed any more.
    pub const CANCEL: ErrorCode = ErrorCode(8);
    /// A field section cannot be decoded.
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(9);
    /// The peer sends too much of something.
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(11);
}

/// Head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHead {
    /// Reads the head at the front of these bytes; `None`: it is incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Option<FrameHead> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<FRAME_HEAD>()?;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        Some(FrameHead { len, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn bytes(&self) -> [u8; FRAME_HEAD] {
        let [_, a, b, c] = (self.len as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    /// Appends the head.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// Writes the head over the bytes at `at`.
    pub(crate) fn put_at(&self, at: usize, out: &mut [u8]) {
        out[at..at + FRAME_HEAD].copy_from_slice(&self.bytes());
    }
}

/// Part of a HEADERS frame's payload.
pub(crate) struct HeadersPayload<'a> {
    pub(crate) fragment: &'a [u8],
    /// Stream that the frame's priority depends on.
    pub(crate) depends_on: Option<u32>,
}

/// Parses the payload of a HEADERS frame; `None`: its padding or its priority is malformed.
pub(crate) fn headers_payload<'a>(head: &FrameHead, payload: &'a [u8]) -> Option<HeadersPayload<'a>> {
    let (padding, payload) = match head.has(PADDED) {
        true => payload.split_first().map(|(padding, rest)| (usize::from(*padding), rest))?,
        false => (0, payload),
    };
    let (depends_on, payload) = match head.has(HAS_PRIORITY) {
        true => (depends_on(payload), payload.get(PRIORITY_LEN..)?),
        false => (None, payload),
    };
    let fragment = payload.get(..payload.len().checked_sub(padding)?)?;
    Some(HeadersPayload { fragment, depends_on })
}

/// Stream that a priority depends on.
pub(crate) fn depends_on(priority: &[u8]) -> Option<u32> {
    number(priority).map(|stream| stream & 0x7fff_ffff)
}

/// The first 32 bits of a payload.
pub(crate) fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Appends a frame.
pub(crate) fn put_frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    FrameHead { len: payload.len(), kind, flags, stream }.put(out);
    out.extend_from_slice(payload);
}

/// Appends a frame RST_STREAM.
pub(crate) fn put_reset(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    put_frame(RST_STREAM, 0, stream, &code.0.to_be_bytes(), out);
}

/// Appends a frame WINDOW_UPDATE.
pub(crate) fn put_window_update(stream: u32, increment: u32, out: &mut Vec<u8>) {
    put_frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes(), out);
}

/// Appends a frame GOAWAY.
pub(crate) fn put_goaway(last_stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    FrameHead { len: 8, kind: GOAWAY, flags: 0, stream: 0 }.put(out);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_read_as_it_was_put() {
        let head = FrameHead { len: 0x01_0203, kind: 9, flags: 5, stream: 0x7fff_fffd };
        let mut out = Vec::new();
        head.put(&mut out);
        assert_eq!(FrameHead::read(&out), Some(head));
        out[5] |= 0x80;
        assert_eq!(FrameHead::read(&out), Some(head), "the reserved bit has no meaning");
        for cut in 0..FRAME_HEAD {
            assert_eq!(FrameHead::read(&out[..cut]), None);
        }
    }

    #[test]
    fn padding_and_priority_surround_the_fragment() {
        let read = |flags, payload: &[u8]| {
            let head = FrameHead { len: payload.len(), kind: HEADERS, flags, stream: 1 };
            headers_payload(&head, payload).map(|read| (read.fragment.to_vec(), read.depends_on))
        };
        assert_eq!(read(0, b"ab"), Some((b"ab".to_vec(), None)));
        assert_eq!(read(PADDED, b"\x01ab"), Some((b"a".to_vec(), None)));
        let both = PADDED | HAS_PRIORITY;
        let whole = b"\x02\x80\0\0\x03\x10a\0\0";
        assert_eq!(read(both, whole), Some((b"a".to_vec(), Some(3))));
        for cut in 0..whole.len() {
            // The last two bytes are padding, whatever they are.
            assert_eq!(read(both, &whole[..cut]).is_some(), cut == whole.len() - 1, "{cut}");
        }
        assert_eq!(read(PADDED, b"\x02a"), None);
        assert_eq!(read(PADDED, b""), None);
        assert_eq!(read(HAS_PRIORITY, b"\0\0\0\x03"), None);
        assert_eq!(read(both, b"\x01\0\0\0\x03\x10"), None);
    }
}
