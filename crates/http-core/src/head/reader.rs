//! Search for the end of a head, which may arrive in pieces. Invalid line ends are refused.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr2_iter;

use super::lines::{RequestLines, ResponseLines};
use super::{RequestHead, ResponseHead, start_line};
use crate::Malformed;

/// Maximum number of fields in a head: the highest configurable limit for a response is 1,000, and
/// convey may add fields.
pub(super) const MAX_FIELDS: usize = 1_256;

/// Maximum number of bytes in a head.
const MAX_BYTES: usize = 256 * 1024;

/// Limits for a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of the head with its empty line; the effective maximum is 262,144.
    pub bytes: usize,
    /// Fields; the effective maximum is 1,256.
    pub fields: usize,
}

impl Default for HeadLimits {
    /// [`HeadLimits::OF_REQUESTS`].
    fn default() -> HeadLimits {
        HeadLimits::OF_REQUESTS
    }
}

impl HeadLimits {
    /// Default limits of a request's head: 16 KiB and 100 fields.
    pub const OF_REQUESTS: HeadLimits = HeadLimits { bytes: 16 * 1024, fields: 100 };

    /// Default limits of a response's head, and of its trailers: 65,535 bytes and 256 fields.
    pub const OF_RESPONSES: HeadLimits = HeadLimits { bytes: 65_535, fields: 256 };

    /// Limits of the trailers of a request: 8 KiB and 100 fields.
    pub const OF_REQUEST_TRAILERS: HeadLimits = HeadLimits { bytes: 8 * 1024, fields: 100 };

    pub(super) fn max_bytes(&self) -> usize {
        self.bytes.min(MAX_BYTES)
    }

    pub(super) fn max_fields(&self) -> usize {
        self.fields.min(MAX_FIELDS)
    }
}

/// Reader of one head. A head that arrives whole is parsed at once. Otherwise each further byte is
/// scanned once, so a client that sends single bytes costs little more than others.
#[derive(Debug, Clone, Default)]
pub struct HeadReader {
    /// Number of bytes that need no second scan: all received bytes, except a CR at their end.
    scanned: usize,
}

impl HeadReader {
    /// Removes a request's head from the front of `received` and parses it. `None`: the head is
    /// incomplete. Empty lines before the head are skipped (RFC 9112, section 2.2).
    ///
    /// # Errors
    /// The head is malformed. The connection cannot be used any more.
    pub fn request(
        &mut self,
        received: &mut BytesMut,
        limits: &HeadLimits,
    ) -> Result<Option<RequestHead>, Malformed> {
        if self.scanned == 0 {
            while received.starts_with(b"\r\n") {
                let _ = received.split_to(2);
            }
        }
        if self.scanned == 0
            && let Ok(lines) = RequestLines::parse(received, limits.max_fields())
            && lines.len <= limits.max_bytes()
            && !received[lines.target.clone()].iter().any(start_line::is_unencoded)
        {
            let head = take_front(received, lines.len).freeze();
            return RequestHead::of_lines(lines, head).map(Some);
        }
        // The head is incomplete, has to be normalized, or is malformed: the search for its end finds
        // the first fault.
        let Some(len) = self.find_end(received, limits)? else { return Ok(None) };
        RequestHead::parse(start_line::of_request(take_front(received, len)), limits).map(Some)
    }

    /// Removes a response's head from the front of `received` and parses it. `None`: the head is
    /// incomplete. `method` is the method of the request.
    ///
    /// # Errors
    /// The head is malformed. The connection cannot be used any more.
    pub fn response(
        &mut self,
        received: &mut BytesMut,
        method: crate::HttpMethod,
        limits: &HeadLimits,
    ) -> Result<Option<ResponseHead>, Malformed> {
        let head = self.response_in(received, method, limits)?;
        Ok(head.map(|(head, len)| {
            received.advance(len);
            head
        }))
    }

    /// Parses the response's head at the front of `received`, which are all received bytes that are
    /// no part of an earlier head. Returns the head and its length in `received`. `None`: the head
    /// is incomplete.
    ///
    /// # Errors
    /// See [`HeadReader::response`].
    pub fn response_in(
        &mut self,
        received: &[u8],
        method: crate::HttpMethod,
        limits: &HeadLimits,
    ) -> Result<Option<(ResponseHead, usize)>, Malformed> {
        if self.scanned == 0
            && let Ok(lines) = ResponseLines::parse(received, limits.max_fields())
            && lines.len <= limits.max_bytes()
        {
            let len = lines.len;
            let head = Bytes::copy_from_slice(&received[..len]);
            return ResponseHead::of_lines(lines, head, method).map(|head| Some((head, len)));
        }
        let Some(len) = self.find_end(received, limits)? else { return Ok(None) };
        let head = start_line::of_response(BytesMut::from(&received[..len]));
        ResponseHead::parse(head, method, limits).map(|head| Some((head, len)))
    }

    /// Returns the length of the head with its empty line, and resets the reader. `None`: the head
    /// is incomplete.
    fn find_end(&mut self, received: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Malformed> {
        let most = limits.max_bytes();
        let begin = self.scanned;
        for at in memchr2_iter(b'\r', b'\n', &received[begin..]) {
            let at = begin + at;
            // The LF of the line end before.
            if at < self.scanned {
                continue;
            }
            if at + 2 > most {
                return Err(Malformed::HeadTooLong);
            }
            match (received[at], received.get(at + 1)) {
                (b'\r', Some(b'\n')) => {}
                // The CR is the last byte so far: the next one has to be LF.
                (b'\r', None) => {
                    self.scanned = at;
                    return Ok(None);
                }
                _ => return Err(Malformed::BareLineEnd),
            }
            self.scanned = at + 2;
            if received[..at].ends_with(b"\r\n") {
                return Ok(Some(std::mem::take(&mut self.scanned)));
            }
        }
        if received.len() >= most {
            return Err(Malformed::HeadTooLong);
        }
        self.scanned = received.len();
        Ok(None)
    }
}

/// Removes the first `len` bytes. If these are all bytes, the head takes over their memory, so that
/// nothing has to be shared.
fn take_front(received: &mut BytesMut, len: usize) -> BytesMut {
    if len == received.len() { std::mem::take(received) } else { received.split_to(len) }
}
