//! Builders of heads that were not parsed from HTTP/1.1 text: heads of streams, and of local
//! replies.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::ResponseHead;
use super::fields::FieldList;
use super::reader::HeadLimits;
use super::reason::reason_phrase;
use crate::Malformed;
use crate::body::BodyFraming;
use crate::field_syntax::{is_name, is_of_value};

/// Bytes of an HTTP/1.1 field line besides its name and value: colon, space, CR and LF.
const LINE: usize = 4;

/// Bytes of a head under construction, and the places of its fields.
#[derive(Debug)]
pub(super) struct HeadBuilder<'a> {
    limits: &'a HeadLimits,
    bytes: BytesMut,
    fields: FieldList,
    /// Length in bytes that the head has in HTTP/1.1. The limits apply to it.
    len: usize,
}

impl HeadBuilder<'_> {
    pub(super) fn new(limits: &HeadLimits) -> HeadBuilder<'_> {
        // The length begins with the empty line: CR and LF.
        HeadBuilder { limits, bytes: BytesMut::with_capacity(512), fields: FieldList::default(), len: 2 }
    }

    /// Appends bytes outside of the fields. Returns their range.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        self.append_with(bytes.len(), |out| out.extend_from_slice(bytes))
    }

    /// Appends bytes with `write`, and adds `len` to the head's length in HTTP/1.1. Returns the
    /// range of the appended bytes.
    pub(super) fn append_with(&mut self, len: usize, write: impl FnOnce(&mut BytesMut)) -> Range<usize> {
        let at = self.bytes.len();
        write(&mut self.bytes);
        self.len += len;
        at..self.bytes.len()
    }

    /// Adds `len` to the head's length in HTTP/1.1, for bytes that are only in the HTTP/1.1 form of
    /// the head.
    pub(super) fn lengthen(&mut self, len: usize) {
        self.len += len;
    }

    /// Appends a field.
    ///
    /// # Errors
    /// The name or the value is invalid, or the head is too long.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), Malformed> {
        if !is_name(name) {
            return Err(Malformed::FieldName);
        }
        if !value.iter().copied().all(is_of_value) {
            return Err(Malformed::FieldValue);
        }
        let (name, value) = (self.append(name), self.append(value.trim_ascii()));
        self.fields.push(&self.bytes, name, value, false)?;
        self.len += LINE;
        self.check_len()
    }

    /// Returns the bytes of the head, and its fields.
    ///
    /// # Errors
    /// The head exceeds the limits.
    pub(super) fn finish(self) -> Result<(Bytes, FieldList), Malformed> {
        self.check_len()?;
        if self.fields.len() > self.limits.max_fields() {
            return Err(Malformed::TooManyFields);
        }
        let head = self.bytes.freeze();
        let mut fields = self.fields;
        fields.mark_connection_options(&head);
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

    /// Adds a field that the caller has validated. An invalid field is not added.
    pub fn field(&mut self, name: &str, value: &str) -> &mut ResponseBuilder {
        let added = self.head.add(name.as_bytes(), value.as_bytes());
        debug_assert!(added.is_ok(), "{name}: {value}");
        self
    }

    /// Returns the head of a response whose body has this framing. Its fields include
    /// `Content-Length` only if the caller has added it. convey adds a missing `Content-Length`
    /// when it writes the head for a client of HTTP/1.1.
    pub fn build(self, framing: BodyFraming) -> ResponseHead {
        let (head, fields) = self.head.finish().unwrap_or_default();
        ResponseHead::generated(head, fields, (self.status, self.reason), framing)
    }
}
