//! The head of a response.

use bytes::Bytes;

use super::Field;
use super::fields::{FieldList, KnownField};
use super::lines::ResponseLines;
use super::reader::HeadLimits;
use super::request::content_length;
use crate::body::BodyFraming;
use crate::{HttpMethod, Malformed};

/// Head of a response with only one possible interpretation.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    head: Bytes,
    fields: FieldList,
    status: u16,
    reason: std::ops::Range<usize>,
    framing: BodyFraming,
    keeps_alive: bool,
}

impl ResponseHead {
    /// Parses the complete head of a response. `method` is the method of the request.
    pub(super) fn parse(
        head: Bytes,
        method: HttpMethod,
        limits: &HeadLimits,
    ) -> Result<ResponseHead, Malformed> {
        let lines = ResponseLines::parse(&head, limits.max_fields())?;
        if lines.len != head.len() {
            return Err(Malformed::StartLine);
        }
        ResponseHead::of_lines(lines, head, method)
    }

    /// Interprets the lines of a head, whose bytes are `head`.
    pub(super) fn of_lines(
        lines: ResponseLines,
        head: Bytes,
        method: HttpMethod,
    ) -> Result<ResponseHead, Malformed> {
        let ResponseLines { is_http11, status, reason, mut fields, .. } = lines;
        fields.mark_connection_options(&head);
        let reason = if head[reason.clone()].is_ascii() { reason } else { 0..0 };
        let framing = framing(&head, &fields, (status, method), is_http11)?;
        let keeps_alive = fields.keep_alive(is_http11) && framing != BodyFraming::UntilClose;
        Ok(ResponseHead { fields, status, reason, framing, keeps_alive, head })
    }

    /// Returns a head that convey has built, for a local reply or from a stream.
    pub(super) fn generated(
        head: Bytes,
        fields: FieldList,
        (status, reason): (u16, std::ops::Range<usize>),
        framing: BodyFraming,
    ) -> ResponseHead {
        ResponseHead { fields, status, reason, framing, keeps_alive: true, head }
    }

    /// Status, 100 to 999.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Reason phrase; it may be empty.
    pub fn reason(&self) -> &[u8] {
        &self.head[self.reason.clone()]
    }

    /// Whether another head follows: 1xx, except 101, after which the connection is no longer HTTP.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// Framing of the body.
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Whether another request may follow on the connection.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// First value of `Upgrade`.
    pub(crate) fn upgrade(&self) -> Option<&[u8]> {
        self.fields.known(&self.head, KnownField::Upgrade).next()
    }

    /// Bytes of the head, as they were received or built.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.head
    }

    /// All fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.fields.all(&self.head)
    }

    /// First value of the field with this name; `None` if there is no such field.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.find(&self.head, name)
    }
}

/// Framing of a response's body (RFC 9112, section 6.3).
fn framing(
    head: &[u8],
    fields: &FieldList,
    (status, method): (u16, HttpMethod),
    is_http11: bool,
) -> Result<BodyFraming, Malformed> {
    let length = fields.single(head, KnownField::ContentLength, Malformed::ContentLength)?;
    let encoding = fields.single(head, KnownField::TransferEncoding, Malformed::TransferEncoding)?;
    let length = length.map(content_length).transpose()?;
    if length.is_some() && encoding.is_some() {
        return Err(Malformed::TwoFramings);
    }
    if method == HttpMethod::Head || status < 200 || status == 204 || status == 304 {
        return Ok(BodyFraming::Empty);
    }
    match (length, encoding) {
        (_, Some(encoding)) if is_http11 && encoding.eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyFraming::Chunked)
        }
        (_, Some(_)) => Err(Malformed::TransferEncoding),
        (Some(length), None) => Ok(BodyFraming::Length(length)),
        (None, None) => Ok(BodyFraming::UntilClose),
    }
}
