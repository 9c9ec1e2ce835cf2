//! Conversion of HTTP/1.1 bodies to frames, and of frames to HTTP/1.1 bodies.

use std::io::Write;

use bytes::Bytes;

use super::trailers::Trailers;
use super::{BodyFraming, BodyPiece, BodyReader};
use crate::{HeadLimits, Malformed};

/// Part of a body, independent of the version of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<D> {
    /// A piece of the data, at least one byte.
    Data(D),
    /// Fields after the data. They end the body.
    Trailers(Trailers),
    /// The body ends without trailers.
    End,
}

/// Decoder that turns an HTTP/1.1 body into frames. It buffers trailers, but no data.
#[derive(Debug)]
pub struct BodyDecoder {
    reader: BodyReader,
    /// Trailer lines received so far.
    lines: Vec<u8>,
    has_ended: bool,
}

impl BodyDecoder {
    /// Returns a decoder for the body of a request, whose trailers have at most 8 KiB and 100
    /// fields.
    pub fn of_request(framing: BodyFraming) -> BodyDecoder {
        BodyDecoder::new(BodyReader::of_request(framing), framing)
    }

    /// Returns a decoder for the body of a response. `limits` apply to the trailers.
    pub fn of_response(framing: BodyFraming, limits: HeadLimits) -> BodyDecoder {
        let mut reader = BodyReader::of_response(framing);
        reader.limit_trailers(limits);
        BodyDecoder::new(reader, framing)
    }

    fn new(reader: BodyReader, framing: BodyFraming) -> BodyDecoder {
        BodyDecoder { reader, lines: Vec::new(), has_ended: framing.is_empty() }
    }

    /// Limits the data of a chunked body to `most` bytes. A longer body is malformed as soon as the
    /// size of a chunk exceeds the limit.
    pub fn limit(&mut self, most: u64) {
        self.reader.limit(most);
    }

    /// Number of next bytes that certainly belong to the body; 0: the next byte has to be parsed.
    pub fn opaque(&self) -> u64 {
        if self.has_ended { 0 } else { self.reader.opaque() }
    }

    /// Whether the last frame has been returned, or there is no body.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Removes the next frame from the front of `bytes`, and returns it. `None`: more bytes have to
    /// be received, or the body has ended. Bytes after the body stay in `bytes`.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<Frame<&'b [u8]>>, Malformed> {
        while !self.has_ended {
            let (len, data) = match self.reader.next(bytes)? {
                BodyPiece::End(len) => {
                    self.has_ended = true;
                    *bytes = &bytes[len..];
                    return self.last_frame().map(Some);
                }
                BodyPiece::Data(0) | BodyPiece::Framing(0) | BodyPiece::Trailers(0) => return Ok(None),
                BodyPiece::Data(len) => (len, true),
                BodyPiece::Framing(len) => (len, false),
                BodyPiece::Trailers(len) => {
                    self.lines.extend_from_slice(&bytes[..len]);
                    (len, false)
                }
            };
            let (piece, rest) = bytes.split_at(len);
            *bytes = rest;
            if data {
                return Ok(Some(Frame::Data(piece)));
            }
        }
        Ok(None)
    }

    /// Decodes received bytes, and passes the data among them to `put`. Returns the number of bytes
    /// that belong to the body, and the body's last frame; `None`: the last frame has not arrived.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        mut put: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Frame<Bytes>>), Malformed> {
        let mut left = bytes;
        let mut last = None;
        while let Some(frame) = self.next(&mut left)? {
            match frame {
                Frame::Data(data) => put(data),
                Frame::End => last = Some(Frame::End),
                Frame::Trailers(trailers) => last = Some(Frame::Trailers(trailers)),
            }
        }
        Ok((bytes.len() - left.len(), last))
    }

    /// Notes that the connection has ended. Returns the end of a body that lasts until its
    /// connection closes; `None`: the body is incomplete.
    pub fn connection_ended(&mut self) -> Option<Frame<&'static [u8]>> {
        self.has_ended = self.reader.may_end();
        self.has_ended.then_some(Frame::End)
    }

    fn last_frame<'b>(&mut self) -> Result<Frame<&'b [u8]>, Malformed> {
        // The last piece of the trailers includes the CR of the empty line.
        let lines = self.lines.strip_suffix(b"\r").unwrap_or(&self.lines);
        Ok(Trailers::of_lines(lines)?.map_or(Frame::End, Frame::Trailers))
    }
}

/// Encoder that writes data and trailers as an HTTP/1.1 body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyEncoder {
    is_chunked: bool,
}

impl BodyEncoder {
    /// Returns an encoder for a body with this framing.
    pub fn new(framing: BodyFraming) -> BodyEncoder {
        BodyEncoder { is_chunked: framing == BodyFraming::Chunked }
    }

    /// Appends data to `out`, as a chunk if the body is chunked.
    pub fn data(self, data: &[u8], out: &mut Vec<u8>) {
        // A chunk without data would end the body.
        if self.is_chunked && !data.is_empty() {
            let _ = write!(out, "{:x}\r\n", data.len());
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(data);
        }
    }

    /// Turns the data in `out`, from index `begin` to the end, into a chunk, if the body is
    /// chunked.
    pub fn enclose(self, out: &mut Vec<u8>, begin: usize) {
        let end = out.len();
        if self.is_chunked && end > begin {
            let _ = write!(out, "{:x}\r\n", end - begin);
            let len = out.len() - end;
            out[begin..].rotate_right(len);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Appends the end of the body to `out`. Trailers are written only if the body is chunked.
    pub fn end(self, trailers: Option<&Trailers>, out: &mut Vec<u8>) {
        if self.is_chunked {
            out.extend_from_slice(b"0\r\n");
            trailers.into_iter().for_each(|trailers| trailers.write(out));
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(mut decoder: BodyDecoder, body: &[u8], cuts: &[usize]) -> (Vec<u8>, Option<Trailers>, Vec<u8>) {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).collect();
        places.extend([0, body.len()]);
        places.sort_unstable();
        let (mut data, mut trailers, mut rest) = (Vec::new(), None, Vec::new());
        for piece in places.windows(2) {
            rest.extend_from_slice(&body[piece[0]..piece[1]]);
            let mut left = &rest[..];
            while let Some(frame) = decoder.next(&mut left).unwrap() {
                match frame {
                    Frame::Data(part) => data.extend_from_slice(part),
                    Frame::Trailers(fields) => trailers = Some(fields),
                    Frame::End => {}
                }
            }
            rest = left.to_vec();
        }
        assert!(decoder.has_ended());
        (data, trailers, rest)
    }

    proptest! {
        #[test]
        fn body_is_the_same_after_encoding_and_decoding_however_it_is_cut(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            fields in prop::collection::vec(("x[a-z]{0,3}", "[!-~]([ -~]{0,6}[!-~])?"), 0..3),
            is_chunked: bool,
            cuts in prop::collection::vec(any::<usize>(), 0..9),
        ) {
            let whole = parts.concat();
            let length = BodyFraming::Length(whole.len() as u64);
            let framing = if is_chunked { BodyFraming::Chunked } else { length };
            let pairs = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            let trailers = Trailers::of_stream(pairs, &HeadLimits::OF_RESPONSES).unwrap();
            prop_assert_eq!(trailers.is_some(), !fields.is_empty());
            let (encoder, mut out) = (BodyEncoder::new(framing), Vec::new());
            parts.iter().for_each(|part| encoder.data(part, &mut out));
            encoder.end(trailers.as_ref(), &mut out);
            out.extend_from_slice(b"next");
            for decoder in [
                BodyDecoder::of_request(framing),
                BodyDecoder::of_response(framing, HeadLimits::OF_RESPONSES),
            ] {
                let (data, decoded, rest) = decode(decoder, &out, &cuts);
                prop_assert_eq!(&data, &whole);
                prop_assert_eq!(decoded.as_ref(), trailers.as_ref().filter(|_| is_chunked));
                prop_assert_eq!(&rest[..], b"next");
            }
        }
    }

    #[test]
    fn enclosed_data_is_a_chunk() {
        let (mut out, mut enclosed) = (b"head".to_vec(), b"headdata".to_vec());
        let encoder = BodyEncoder::new(BodyFraming::Chunked);
        encoder.data(b"data", &mut out);
        encoder.enclose(&mut enclosed, 4);
        assert_eq!(out, enclosed);
        encoder.enclose(&mut out, enclosed.len());
        assert_eq!(out, enclosed, "no data is no chunk");
    }

    #[test]
    fn body_until_the_end_of_the_connection_ends_with_it_and_no_other_does() {
        let mut decoder = BodyDecoder::of_response(BodyFraming::UntilClose, HeadLimits::OF_RESPONSES);
        assert_eq!(decoder.next(&mut &b"ab"[..]), Ok(Some(Frame::Data(&b"ab"[..]))));
        assert_eq!(decoder.connection_ended(), Some(Frame::End));
        for framing in [BodyFraming::Length(3), BodyFraming::Chunked] {
            let mut decoder = BodyDecoder::of_response(framing, HeadLimits::OF_RESPONSES);
            assert_eq!((decoder.connection_ended(), decoder.has_ended()), (None, false), "{framing:?}");
        }
    }

    #[test]
    fn forbidden_trailer_is_malformed_in_both_forms() {
        let body = b"0\r\nhost: a\r\n\r\n";
        let mut decoder = BodyDecoder::of_request(BodyFraming::Chunked);
        assert_eq!(decoder.next(&mut &body[..]), Err(Malformed::Trailers));
        let fields = [(&b"host"[..], &b"a"[..])].into_iter();
        assert_eq!(Trailers::of_stream(fields, &HeadLimits::OF_RESPONSES), Err(Malformed::Trailers));
    }
}
