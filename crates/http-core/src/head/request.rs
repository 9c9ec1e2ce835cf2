//! The head of a request.

use std::ops::Range;

use bytes::Bytes;

use super::Field;
use super::fields::{FieldList, KnownField};
use super::host::split_port;
use super::lines::RequestLines;
use super::reader::HeadLimits;
use super::target::{self, TargetParts};
use crate::body::BodyFraming;
use crate::field_syntax::decimal;
use crate::{HttpMethod, Malformed};

/// Maximum number of digits in `Content-Length`, with leading zeros.
const MAX_DIGITS: usize = 32;

/// Head of a request with only one possible interpretation.
#[derive(Debug, Clone)]
pub struct RequestHead {
    head: Bytes,
    fields: FieldList,
    method: HttpMethod,
    method_len: usize,
    target: TargetParts,
    is_http11: bool,
    framing: BodyFraming,
    expects_continue: bool,
    keeps_alive: bool,
    upgrade: bool,
}

/// Parts of a head, before their interpretation.
pub(super) struct RequestParts {
    pub(super) head: Bytes,
    pub(super) fields: FieldList,
    /// Range of the method, which begins the head.
    pub(super) method: Range<usize>,
    pub(super) target: Range<usize>,
    pub(super) is_http11: bool,
    /// Framing of the body; `None`: the fields determine it.
    pub(super) framing: Option<BodyFraming>,
}

impl RequestHead {
    /// Parses a whole head of HTTP/1 from a text, with the default limits.
    ///
    /// # Errors
    /// The text is not exactly one head, or convey would refuse the request.
    pub fn of_text(text: &str) -> Result<RequestHead, Malformed> {
        RequestHead::parse(Bytes::copy_from_slice(text.as_bytes()), &HeadLimits::default())
    }

    /// Parses a whole head.
    pub(super) fn parse(head: Bytes, limits: &HeadLimits) -> Result<RequestHead, Malformed> {
        let lines = RequestLines::parse(&head, limits.max_fields())?;
        if lines.len != head.len() {
            return Err(Malformed::StartLine);
        }
        RequestHead::of_lines(lines, head)
    }

    /// Interprets the lines of a head, whose bytes are `head`.
    pub(super) fn of_lines(lines: RequestLines, head: Bytes) -> Result<RequestHead, Malformed> {
        let RequestLines { method, target, is_http11, mut fields, .. } = lines;
        fields.mark_connection_options(&head);
        RequestHead::of_parts(RequestParts { head, fields, method, target, is_http11, framing: None })
    }

    /// Interprets the parts of a head.
    pub(super) fn of_parts(parts: RequestParts) -> Result<RequestHead, Malformed> {
        let RequestParts { head, fields, method, target, is_http11, framing: of_version } = parts;
        let host = fields.single(&head, KnownField::Host, Malformed::Host)?;
        if is_http11 && host.is_none() {
            return Err(Malformed::Host);
        }
        let target = target::read(&head[method.clone()], &head[target.clone()], host)?.at(target.start);
        let framing = match of_version {
            Some(framing) => framing,
            None => framing(&head, &fields, is_http11)?,
        };
        let keeps_alive = fields.keep_alive(is_http11);
        let is_h2c = |protocol: &[u8]| protocol.eq_ignore_ascii_case(b"h2c");
        let upgrade = is_http11
            && fields.wants_upgrade()
            && fields.known(&head, KnownField::Upgrade).count() == 1
            && !fields.elements(&head, KnownField::Upgrade).any(is_h2c);
        let expects_continue = expects_continue(&head, &fields, is_http11)?;
        let (method_len, method) = (method.len(), HttpMethod::of(&head[method]));
        Ok(RequestHead {
            fields,
            method,
            method_len,
            target,
            is_http11,
            framing,
            expects_continue,
            keeps_alive,
            upgrade,
            head,
        })
    }

    /// The method.
    pub fn method(&self) -> HttpMethod {
        self.method
    }

    /// The method's token, unmodified.
    pub fn method_token(&self) -> &[u8] {
        &self.head[..self.method_len]
    }

    /// Path from its slash on, without the query; `*` for `OPTIONS *`.
    pub fn path(&self) -> &[u8] {
        &self.head[self.target.path.clone()]
    }

    /// Path and query of the target.
    pub fn path_and_query(&self) -> &[u8] {
        &self.head[self.target.path.start..self.target.end]
    }

    /// Requested host, as the client wrote it, with the port if there is one. Empty if the request
    /// names no host.
    pub fn host(&self) -> &[u8] {
        let named = match &self.target.authority {
            Some(authority) => Some(&self.head[authority.clone()]),
            None => self.fields.known(&self.head, KnownField::Host).next(),
        };
        named.unwrap_or_default()
    }

    /// Requested host without its port. An IPv6 address is in brackets.
    pub fn host_without_port(&self) -> &[u8] {
        split_port(self.host()).0
    }

    /// Whether the client speaks HTTP/1.1 or a later version; else it speaks HTTP/1.0.
    pub fn is_http11(&self) -> bool {
        self.is_http11
    }

    /// Framing of the body.
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Whether the client waits for a 100 (Continue) before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Whether another request may follow on the connection.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Value of `Upgrade`: the protocols that the client wants to switch to, such as `websocket`.
    /// `None`: the client wants no upgrade, or one to HTTP/2 (`h2c`). convey ignores `h2c`, because
    /// it could not read the requests that follow the switch.
    pub fn upgrade(&self) -> Option<&[u8]> {
        let wanted = self.fields.known(&self.head, KnownField::Upgrade).next();
        wanted.filter(|_| self.upgrade)
    }

    /// Values of a known field, one for each of its lines.
    pub(crate) fn known(&self, wanted: KnownField) -> impl Iterator<Item = &[u8]> {
        self.fields.known(&self.head, wanted)
    }

    /// Bytes of the head, as they were received or built.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.head
    }

    /// All fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.fields.all(&self.head)
    }

    /// Values of the fields with this name, one for each line.
    pub fn values<'h, 'n>(&'h self, name: &'n str) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
        let lines = self.fields().filter(|field| field.name.eq_ignore_ascii_case(name.as_bytes()));
        lines.map(|field| field.value)
    }

    /// First value of the field with this name; `None` if there is no such field.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.find(&self.head, name)
    }
}

/// Framing of a request's body (RFC 9112, section 6.3).
fn framing(head: &[u8], fields: &FieldList, is_http11: bool) -> Result<BodyFraming, Malformed> {
    let length = fields.single(head, KnownField::ContentLength, Malformed::ContentLength)?;
    let encoding = fields.single(head, KnownField::TransferEncoding, Malformed::TransferEncoding)?;
    match (length, encoding) {
        (Some(_), Some(_)) => Err(Malformed::TwoFramings),
        (_, Some(encoding)) if is_http11 && encoding.eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyFraming::Chunked)
        }
        (_, Some(_)) => Err(Malformed::TransferEncoding),
        (Some(length), None) => Ok(BodyFraming::Length(content_length(length)?)),
        (None, None) => Ok(BodyFraming::Empty),
    }
}

/// Parses the value of `Content-Length`, a decimal number of at most 63 bits: some servers use
/// signed numbers. convey does not forward leading zeros, because some servers would read an octal
/// number.
pub(super) fn content_length(value: &[u8]) -> Result<u64, Malformed> {
    if value.is_empty() || value.len() > MAX_DIGITS {
        return Err(Malformed::ContentLength);
    }
    decimal(value).filter(|number| *number <= i64::MAX as u64).ok_or(Malformed::ContentLength)
}

/// Whether the client waits for a 100 (Continue). HTTP/1.0 does not define `Expect`, so convey
/// ignores it there (RFC 9110, section 10.1.1).
fn expects_continue(head: &[u8], fields: &FieldList, is_http11: bool) -> Result<bool, Malformed> {
    match fields.single(head, KnownField::Expect, Malformed::Expectation)? {
        None => Ok(false),
        Some(b"") => Ok(false),
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(is_http11),
        Some(_) => Err(Malformed::Expectation),
    }
}
