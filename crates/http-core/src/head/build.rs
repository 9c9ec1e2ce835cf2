//! Builders of heads that were not parsed from HTTP/1.1 text: heads of streams, and of local
//! replies.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::ResponseHead;
use super::fields::FieldList;
use super::reader::HeadLimits;
use super::reason::reason_phrase;
use crate::Malformed;
use crate::body::{BodyFraming, is_token};

/// Bytes of an HTTP/1.1 field line besides its name and value: colon, space, CR and LF.
const LINE: usize = 4;

/// Bytes of a head under construction, and the places of its fields.
#[derive(Debug)]
pub(super) struct HeadBuilder<'a> {
    limits: &'a HeadLimits,
    bytes: BytesMut,
    ranges: Vec<(Range<usize>, Range<usize>)>,
    /// Length in bytes that the head has in HTTP/1.1. The limits apply to it.
    len: usize,
}

impl HeadBuilder<'_> {
    pub(super) fn new(limits: &HeadLimits) -> HeadBuilder<'_> {
        // The length begins with the empty line: CR and LF.
        HeadBuilder { limits, bytes: BytesMut::with_capacity(512), ranges: Vec::with_capacity(24), len: 2 }
    }

    /// Appends bytes outside of the fields. Returns their range.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        self.append_with(bytes.len(), |out| out.extend_from_slice(bytes))
    }

    /// Appends bytes with `write`, and counts them as `len` bytes. Returns their range.
    pub(super) fn append_with(&mut self, len: usize, write: impl FnOnce(&mut BytesMut)) -> Range<usize> {
        let at = self.bytes.len();
        write(&mut self.bytes);
        self.len += len;
        at..self.bytes.len()
    }

    /// Counts `len` bytes that only the HTTP/1.1 form of the head has.
    pub(super) fn lengthen(&mut self, len: usize) {
        self.len += len;
    }

    /// Appends a field.
    ///
    /// # Errors
    /// The name or the value is invalid, or the head is too long.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(Malformed::FieldName);
        }
        let is_of_value = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | 0x80..);
        if !value.iter().all(is_of_value) {
            return Err(Malformed::FieldValue);
        }
        let (name, value) = (self.append(name), self.append(value.trim_ascii()));
        self.ranges.push((name, value));
        self.len += LINE;
        self.check_len()
    }

    /// Returns the bytes of the head, and its fields.
    ///
    /// # Errors
    /// The head exceeds the limits.
    pub(super) fn finish(self) -> Result<(Bytes, FieldList), Malformed> {
        self.check_len()?;
        if self.ranges.len() > self.limits.max_fields() {
            return Err(Malformed::TooManyFields);
        }
        let head = self.bytes.freeze();
        let fields = FieldList::of_ranges(&head, self.ranges.into_iter());
        Ok((head, fields))
    }

    fn check_len(&self) -> Result<(), Malformed> {
        match self.len > self.limits.max_bytes() {
            true => Err(Malformed::HeadTooLong),
            false => Ok(()),
        }
    }
}

/// Builder of the head of a response that convey itself generates.
#[derive(Debug)]
pub struct ResponseBuilder {
    head: HeadBuilder<'static>,
    status: u16,
    reason: Range<usize>,
}

impl ResponseBuilder {
    /// Begins a response with a status from 200 to 999.
    pub fn new(status: u16) -> ResponseBuilder {
        static LIMITS: HeadLimits = HeadLimits { bytes: usize::MAX, fields: usize::MAX };
        let mut head = HeadBuilder::new(&LIMITS);
        let reason = head.append(reason_phrase(status).as_bytes());
        ResponseBuilder { head, status, reason }
    }

    /// Adds a field that the caller has validated. An invalid field is left out.
    pub fn field(&mut self, name: &str, value: &str) -> &mut ResponseBuilder {
        let added = self.head.add(name.as_bytes(), value.as_bytes());
        debug_assert!(added.is_ok(), "{name}: {value}");
        self
    }

    /// Returns the head of a response whose body has this framing. It has a `Content-Length` only
    /// if the caller added that field.
    pub fn build(self, framing: BodyFraming) -> ResponseHead {
        let (head, fields) = self.head.finish().unwrap_or_default();
        ResponseHead::generated(head, fields, (self.status, self.reason), framing)
    }
}
