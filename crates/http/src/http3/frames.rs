//! Filter of received HTTP/3 frames (RFC 9114, section 7), before the HTTP/3 library. Pure.

use bytes::{Buf, Bytes, BytesMut};
use convey_http_core::Malformed;

use super::field_section::{self, SectionKind};

/// Type of a DATA frame, which may have any length.
const DATA: u64 = 0;

/// Type of a HEADERS frame, with a head or trailers.
const HEADERS: u64 = 1;

/// Type of a control stream, which has frames like a request stream (RFC 9114, section 6.2.1).
const CONTROL: u64 = 0;

/// Kind of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// A request, and its response.
    Request,
    /// A unidirectional stream, whose first bytes contain its type.
    OneWay,
}

/// Filter for the received frames of one stream.
///
/// Frames other than DATA have a maximum length. They pass only when complete, because the library
/// would store each piece separately. The filter drops empty DATA frames, which the library
/// mistakes for the end of the body. It detects faults of requests that the library does not
/// detect.
#[derive(Debug)]
pub(super) struct FrameFilter {
    kind: StreamKind,
    max_frame: u64,
    state: State,
    /// Received part of an incomplete frame.
    held: BytesMut,
    /// Kind of the next field section.
    section: SectionKind,
    fault: Option<Malformed>,
    /// Protocol of an extended CONNECT.
    protocol: Option<Bytes>,
}

/// Meaning of the next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    StreamType,
    Frame,
    /// Remaining bytes of a DATA frame.
    Payload {
        left: u64,
    },
    /// Bytes without frames.
    Other,
}

/// Error for a frame above the maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameTooLong;

impl FrameFilter {
    /// Creates the filter of a stream. Frames other than DATA have at most `max_frame` bytes.
    pub(super) fn new(kind: StreamKind, max_frame: u64) -> FrameFilter {
        let state = if kind == StreamKind::Request { State::Frame } else { State::StreamType };
        let (held, section) = (BytesMut::new(), SectionKind::Head);
        FrameFilter { kind, max_frame, state, held, section, fault: None, protocol: None }
    }

    /// Reason why the request is malformed, if one was found so far.
    pub(super) fn fault(&self) -> Option<Malformed> {
        self.fault
    }

    /// Protocol of an extended CONNECT (RFC 9220). The filter renames the field of this protocol
    /// for the library.
    pub(super) fn protocol(&self) -> Option<&Bytes> {
        self.protocol.as_ref()
    }

    /// Filters received bytes. Returns the bytes for the library, and how many of them are data.
    ///
    /// # Errors
    /// A frame is longer than the maximum.
    pub(super) fn pass(&mut self, bytes: BytesMut) -> Result<(BytesMut, usize), FrameTooLong> {
        let mut bytes = bytes;
        if !self.held.is_empty() {
            let mut whole = std::mem::take(&mut self.held);
            whole.extend_from_slice(&bytes);
            bytes = whole;
        }
        // Bytes that pass move to the front, over dropped bytes.
        let (mut at, mut passed, mut data) = (0, 0, 0);
        while at < bytes.len() {
            let left = &bytes[at..];
            let (len, passes) = match self.state {
                State::Other => (left.len(), true),
                State::Payload { left: of_frame } => {
                    let len = left.len().min(usize::try_from(of_frame).unwrap_or(usize::MAX));
                    data += len;
                    self.state = after(of_frame - len as u64);
                    (len, true)
                }
                State::StreamType => {
                    let Some((kind, len)) = varint(left) else { break };
                    self.state = if kind == CONTROL { State::Frame } else { State::Other };
                    (len, true)
                }
                State::Frame => {
                    let Some((kind, len)) = varint(left) else { break };
                    let Some((payload, more)) = varint(&left[len..]) else { break };
                    let is_data = kind == DATA;
                    if !is_data && payload > self.max_frame {
                        self.fault = self.fault.or(Some(Malformed::HeadTooLong));
                        return Err(FrameTooLong);
                    }
                    if is_data {
                        self.state = after(payload);
                        (len + more, payload > 0)
                    } else {
                        let whole =
                            (len + more).saturating_add(usize::try_from(payload).unwrap_or(usize::MAX));
                        if left.len() < whole {
                            break;
                        }
                        if kind == HEADERS {
                            self.has_fields(&mut bytes[at + len + more..at + whole]);
                        }
                        (whole, true)
                    }
                }
            };
            if passes {
                if passed != at {
                    bytes.copy_within(at..at + len, passed);
                }
                passed += len;
            }
            at += len;
        }
        if at < bytes.len() {
            self.held = bytes.split_off(at);
        }
        bytes.truncate(passed);
        Ok((bytes, data))
    }

    /// Checks a complete field section.
    fn has_fields(&mut self, fields: &mut [u8]) {
        if self.kind == StreamKind::Request {
            match field_section::check(fields, self.section) {
                Ok(Some(protocol)) => self.protocol = Some(protocol.hide(fields)),
                Ok(None) => {}
                Err(fault) => _ = self.fault.get_or_insert(fault),
            }
            self.section = SectionKind::Trailers;
        }
    }

    /// Number of bytes that wait for the rest of a frame.
    #[cfg(feature = "test-util")]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the remaining bytes at the end of the stream: a truncated frame.
    pub(super) fn end(&mut self) -> BytesMut {
        std::mem::take(&mut self.held)
    }
}

fn after(left: u64) -> State {
    if left == 0 { State::Frame } else { State::Payload { left } }
}

/// Reads a variable-length integer (RFC 9000, section 16). Returns it with its length in bytes;
/// `None` if bytes are missing.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let len = 1 << (bytes.first()? >> 6);
    let mut number = bytes.get(..len)?;
    let all = number.try_get_uint(len).ok()?;
    // The first two bits encode the length.
    Some((all & (u64::MAX >> (64 - 8 * len + 2)), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes that a filter passes on from a stream that arrives in pieces, and how many
    /// of these bytes are data.
    fn through(kind: StreamKind, stream: &[u8], piece: usize) -> Result<(Vec<u8>, usize), FrameTooLong> {
        let mut filter = FrameFilter::new(kind, 100);
        let (mut all, mut data) = (Vec::new(), 0);
        for piece in stream.chunks(piece) {
            let (passed, of_data) = filter.pass(piece.into())?;
            all.extend_from_slice(&passed);
            data += of_data;
        }
        all.extend_from_slice(&filter.end());
        Ok((all, data))
    }

    #[test]
    fn frames_pass_as_they_are_but_for_empty_data() {
        let headers = [&[1, 3][..], b"abc"].concat();
        let data = [&[0, 0x40, 4][..], b"data"].concat();
        let unknown = [&[0x40, 0x21, 1][..], b"x"].concat();
        let stream =
            [&headers[..], &[0, 0], &data, &[0, 0x40, 0], &unknown, &data, &[0, 0], &headers].concat();
        let expected = [&headers[..], &data, &unknown, &data, &headers].concat();
        for piece in 1..=stream.len() {
            assert_eq!(through(StreamKind::Request, &stream, piece), Ok((expected.clone(), 8)), "{piece}");
        }
    }

    #[test]
    fn data_frames_are_unbounded_and_other_frames_are_limited() {
        let long = [&[0, 0x80, 1, 0, 0][..], &[7; 1_000]].concat();
        assert_eq!(through(StreamKind::Request, &long, 64), Ok((long.clone(), 1_000)));
        for (kind, stream) in [
            (StreamKind::Request, vec![1, 0x40, 101]),
            (StreamKind::Request, vec![0x21, 0xc0, 0, 0, 1, 0, 0, 0, 0]),
            (StreamKind::OneWay, vec![0, 4, 0x40, 101]),
        ] {
            for piece in 1..=stream.len() {
                assert_eq!(through(kind, &stream, piece), Err(FrameTooLong), "{stream:?}");
            }
        }
        assert!(through(StreamKind::Request, &[&[1, 0x40, 100][..], &[0; 100]].concat(), 7).is_ok());
    }

    #[test]
    fn a_stream_of_another_kind_is_nothing_to_look_at() {
        let stream = [&[2][..], &[0xff; 50]].concat();
        assert_eq!(through(StreamKind::OneWay, &stream, 3), Ok((stream, 0)));
    }

    #[test]
    fn a_frame_that_is_no_data_passes_in_one_piece() {
        let mut filter = FrameFilter::new(StreamKind::Request, 100);
        let frame = [&[1, 50][..], &[9; 50]].concat();
        for byte in &frame[..51] {
            assert_eq!(filter.pass(BytesMut::from(&[*byte][..])), Ok((BytesMut::new(), 0)));
        }
        assert_eq!(filter.pass(BytesMut::from(&[9][..])), Ok((BytesMut::from(&frame[..]), 0)));
    }

    #[test]
    fn the_beginning_of_a_frame_comes_through_at_the_end() {
        assert_eq!(through(StreamKind::Request, &[1, 0x40], 1), Ok((vec![1, 0x40], 0)));
    }

    #[test]
    fn numbers_are_read_as_in_the_examples_of_the_rfc() {
        for (bytes, expected) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], (151_288_809_941_952_652, 8)),
            (&[0x9d, 0x7f, 0x3e, 0x7d], (494_878_333, 4)),
            (&[0x7b, 0xbd], (15_293, 2)),
            (&[0x25], (37, 1)),
            (&[0x40, 0x25], (37, 2)),
        ] {
            assert_eq!(varint(bytes), Some(expected));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None);
        }
    }
}
