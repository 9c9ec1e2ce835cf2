//! Checks of the field lines of requests and trailers (RFC 9113, sections 8.1.1 to 8.3).

mod mark;
mod rules;

use std::ops::Range;

use bytes::Bytes;
use convey_http_core::{Frame, HeadLimits, Malformed, RequestHead, StreamRequest, StreamTunnel, Trailers};

use crate::hpack::Line;
pub(crate) use mark::Mark;
use mark::{FieldKind, Meaning};
use rules::RequestRules;

/// Decoded field lines of a section.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Names and values, one after the other.
    text: Vec<u8>,
    places: Vec<LinePlace>,
    /// Size of the section, as HPACK counts it.
    size: usize,
    max_size: usize,
    rules: RequestRules,
    /// First fault of a name or value in itself.
    fault: Option<Malformed>,
    /// Whether a line is not allowed in trailers.
    is_wrong_in_trailers: bool,
}

/// Place of a line in the text of its section.
#[derive(Debug, Clone, Copy)]
struct LinePlace {
    name: u32,
    value: u32,
    end: u32,
    kind: FieldKind,
}

impl LinePlace {
    fn name(&self) -> Range<usize> {
        self.name as usize..self.value as usize
    }

    fn value(&self) -> Range<usize> {
        self.value as usize..self.end as usize
    }
}

/// Context of a request's section.
pub(crate) struct RequestContext<'a> {
    pub(crate) limits: &'a HeadLimits,
    pub(crate) websocket_key: fn() -> String,
}

impl Lines {
    /// Removes all lines, for a section of at most `max_size` bytes.
    pub(crate) fn clear(&mut self, max_size: usize) {
        self.text.clear();
        self.places.clear();
        (self.size, self.max_size) = (0, max_size);
        (self.rules, self.fault, self.is_wrong_in_trailers) = (RequestRules::default(), None, false);
    }

    /// Adds a line. Lines beyond the maximum size count, and are not stored.
    pub(crate) fn push(&mut self, line: Line<'_>) {
        self.size += line.size();
        let Mark { kind, meaning } = line.mark;
        self.rules.read(line.mark);
        if let Meaning::Invalid(fault) = meaning {
            self.fault = self.fault.or(Some(fault));
        }
        self.is_wrong_in_trailers |= line.mark.is_wrong_in_trailers();
        if self.is_too_long() {
            return;
        }
        let name = self.text.len() as u32;
        self.text.extend_from_slice(line.name);
        let value = self.text.len() as u32;
        self.text.extend_from_slice(line.value);
        self.places.push(LinePlace { name, value, end: self.text.len() as u32, kind });
    }

    /// Whether the section is longer than its maximum size.
    pub(crate) fn is_too_long(&self) -> bool {
        self.size >= self.max_size
    }

    /// Stored lines: names and values.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.places.iter().map(|place| (&self.text[place.name()], &self.text[place.value()]))
    }

    /// Reason why the stream of a request with these lines is reset; `None`: the request has a head,
    /// or a head that convey replies to. `is_over` if neither data nor trailers follow.
    pub(crate) fn request_fault(&self, is_over: bool) -> Option<Malformed> {
        self.fault.or_else(|| self.rules.fault(is_over))
    }

    /// Length of the request's body, if the head announces it.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.rules.length()
    }

    /// Whether the head announces an empty body, by a content length of 0.
    pub(crate) fn says_no_body(&self) -> bool {
        let length = self.places.iter().find(|place| place.kind == FieldKind::ContentLength);
        let length = length.map(|place| &self.text[place.value()]);
        length.is_some_and(|length| !length.is_empty() && length.iter().all(|digit| *digit == b'0'))
    }

    /// Returns the head of a request. `has_body` if the stream continues after the head.
    ///
    /// # Errors
    /// HTTP/1.1 cannot express the head, or the head exceeds the limits.
    pub(crate) fn request(
        &self,
        has_body: bool,
        context: &RequestContext<'_>,
    ) -> Result<RequestHead, Malformed> {
        if self.is_too_long() {
            return Err(Malformed::HeadTooLong);
        }
        let pseudo = |kind| {
            let mut places = self.places.iter().take_while(|place| place.kind != FieldKind::Regular);
            places.find(|place| place.kind == kind).map(|place| &self.text[place.value()])
        };
        let authority = pseudo(FieldKind::Authority);
        let protocol = pseudo(FieldKind::Protocol);
        let key = protocol.map(|_| (context.websocket_key)()).unwrap_or_default();
        let request = StreamRequest {
            method: pseudo(FieldKind::Method).unwrap_or_default(),
            // Without an authority, the scheme has no meaning.
            scheme: authority.and(pseudo(FieldKind::Scheme)),
            authority,
            path: pseudo(FieldKind::Path).unwrap_or_default(),
            has_body,
            tunnel: protocol.map(|protocol| StreamTunnel { protocol, key: key.as_bytes() }),
        };
        RequestHead::of_stream(&request, self.fields(), context.limits)
    }

    /// Returns the last frame of a request with these trailers.
    ///
    /// # Errors
    /// A line is not allowed in trailers, so that the stream is reset.
    pub(crate) fn trailers(&self) -> Result<Result<Frame<Bytes>, Malformed>, Malformed> {
        if self.fault.is_some() || self.is_wrong_in_trailers {
            return Err(Malformed::Trailers);
        }
        if self.is_too_long() {
            return Ok(Err(Malformed::Trailers));
        }
        let trailers = Trailers::of_stream(self.fields(), &HeadLimits::OF_REQUEST_TRAILERS);
        Ok(trailers.map(|trailers| trailers.map_or(Frame::End, Frame::Trailers)))
    }

    /// Fields, without the pseudo-header fields.
    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.places.iter().filter(|place| !place.kind.is_pseudo());
        fields.map(|place| (&self.text[place.name()], &self.text[place.value()]))
    }
}
