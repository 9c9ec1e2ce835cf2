//! Trailers: fields after a body (RFC 9110, section 6.5).

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use memchr::memchr;

use super::chunked::is_forbidden_in_trailers;
use crate::field_syntax::{is_name, is_of_value};
use crate::{HeadLimits, Malformed};

/// Fields after a body: at least one field.
#[derive(Debug, Clone)]
pub struct Trailers {
    bytes: Bytes,
    places: Vec<(Range<usize>, Range<usize>)>,
}

impl Trailers {
    /// Builds the trailers of an HTTP/2 or HTTP/3 stream; `None`: there is no field. Ignores the
    /// field `Content-Length`: in trailers, it may repeat the length from the head, but does not
    /// frame the body.
    ///
    /// # Errors
    /// A name or value is invalid, a field is forbidden in trailers, or the fields exceed the
    /// limits.
    pub fn of_stream<'a>(
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        limits: &HeadLimits,
    ) -> Result<Option<Trailers>, Malformed> {
        let (mut bytes, mut places) = (BytesMut::new(), Vec::new());
        let is_length = |name: &[u8]| name.eq_ignore_ascii_case(b"content-length");
        for (name, value) in fields.filter(|(name, _)| !is_length(name)) {
            if !is_name(name) || is_forbidden_in_trailers(name) || !value.iter().copied().all(is_of_value) {
                return Err(Malformed::Trailers);
            }
            let at = bytes.len();
            bytes.extend_from_slice(name);
            let end = bytes.len();
            bytes.extend_from_slice(value.trim_ascii());
            places.push((at..end, end..bytes.len()));
        }
        // In HTTP/1.1, each field takes 4 more bytes: colon, space, CR and LF.
        if places.len() > limits.fields || bytes.len() + 4 * places.len() > limits.bytes {
            return Err(Malformed::Trailers);
        }
        Ok((!places.is_empty()).then(|| Trailers { bytes: bytes.freeze(), places }))
    }

    /// Parses trailer lines that `ChunkReader` has validated; `None`: there is no field.
    pub(super) fn of_lines(lines: &[u8]) -> Result<Option<Trailers>, Malformed> {
        let fields = lines.split(|byte| *byte == b'\n').filter_map(|line| {
            let colon = memchr(b':', line)?;
            Some((&line[..colon], line[colon + 1..].trim_ascii()))
        });
        Trailers::of_stream(fields, &HeadLimits { bytes: usize::MAX, fields: usize::MAX })
    }

    /// Names and values of the fields, in order. Names from HTTP/1.1 keep their original case.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.places.iter().map(|(name, value)| (&self.bytes[name.clone()], &self.bytes[value.clone()]))
    }

    /// Appends the fields to `out` as lines of HTTP/1.1.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in self.fields() {
            for part in [name, b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }
}

impl PartialEq for Trailers {
    fn eq(&self, other: &Trailers) -> bool {
        self.fields().eq(other.fields())
    }
}

impl Eq for Trailers {}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_stream(fields: &[(&str, &str)], limits: &HeadLimits) -> Result<Option<Trailers>, Malformed> {
        Trailers::of_stream(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())), limits)
    }

    #[test]
    fn trailers_have_lines_in_http11() {
        let trailers = of_stream(&[("grpc-status", " 0 "), ("x", "")], &HeadLimits::default());
        let mut out = Vec::new();
        trailers.unwrap().unwrap().write(&mut out);
        assert_eq!(out, b"grpc-status: 0\r\nx: \r\n");
    }

    #[test]
    fn trailers_without_a_field_are_none() {
        assert_eq!(of_stream(&[], &HeadLimits::default()), Ok(None));
        assert_eq!(of_stream(&[("content-length", "3")], &HeadLimits::default()), Ok(None));
    }

    #[test]
    fn fields_of_framing_and_invalid_fields_are_refused() {
        for (name, value) in
            [("transfer-encoding", "chunked"), ("x_forwarded_for", "a"), ("x y", ""), ("", ""), ("x", "a\nb")]
        {
            let refused = of_stream(&[(name, value)], &HeadLimits::default());
            assert_eq!(refused, Err(Malformed::Trailers), "{name}");
        }
    }

    #[test]
    fn trailers_are_limited_in_bytes_and_fields() {
        let limits = HeadLimits { bytes: 12, fields: 2 };
        assert!(of_stream(&[("a", "1"), ("b", "2")], &limits).is_ok());
        assert_eq!(of_stream(&[("a", "12"), ("b", "2")], &limits), Err(Malformed::Trailers));
        assert_eq!(of_stream(&[("a", ""), ("b", ""), ("c", "")], &limits), Err(Malformed::Trailers));
    }
}
