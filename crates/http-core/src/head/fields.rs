//! Fields of a head, stored as positions in the bytes of the head.

use std::ops::Range;

use bytes::Bytes;
use httparse::Header;
use smallvec::SmallVec;

use crate::Malformed;

/// A field of a head, unmodified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Name in its original case. Names are case-insensitive.
    pub name: &'a [u8],
    /// Value without spaces around it.
    pub value: &'a [u8],
    /// Whether the field is for the next hop only, so that convey does not forward it (RFC 9110,
    /// section 7.6.1).
    pub is_hop_by_hop: bool,
}

/// Fields of one head.
#[derive(Debug, Clone, Default)]
pub(super) struct FieldList {
    places: SmallVec<[FieldPlace; 24]>,
}

/// Position of a field in the bytes of its head.
#[derive(Debug, Clone, Copy)]
struct FieldPlace {
    name: u32,
    name_len: u32,
    value: u32,
    value_len: u32,
    known: KnownField,
    is_hop_by_hop: bool,
}

/// Fields that a proxy evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownField {
    Connection,
    ContentLength,
    Expect,
    Host,
    TransferEncoding,
    Upgrade,
    Other,
}

/// Fields that are for the next hop only, whether `Connection` lists them or not. `Proxy-*` fields
/// are for forward proxies. `Proxy` is removed because CGI turns it into the environment variable
/// `HTTP_PROXY`.
const HOP_BY_HOP: [&[u8]; 9] = [
    b"connection",
    b"keep-alive",
    b"te",
    b"transfer-encoding",
    b"upgrade",
    b"http2-settings",
    b"proxy",
    b"proxy-connection",
    b"proxy-authorization",
];

/// Fields that `Connection` cannot remove: without them, a server would interpret the request
/// differently.
const KEPT: [&[u8]; 4] = [b"content-length", b"host", b"expect", b"trailer"];

/// Whether a name with `_` is another spelling of a field that is hop-by-hop, frames the message,
/// or identifies the client. CGI, WSGI and others treat `_` like `-`.
fn is_disguised(name: &[u8]) -> bool {
    const FIELDS: [&[u8]; 10] = [
        b"content-length",
        b"transfer-encoding",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-ssl-client-dn",
        b"proxy-connection",
        b"proxy-authorization",
        b"keep-alive",
        b"http2-settings",
    ];
    let is_same = |(one, other): (&u8, &u8)| match one {
        b'_' => *other == b'-',
        _ => one.eq_ignore_ascii_case(other),
    };
    name.contains(&b'_')
        && FIELDS.iter().any(|field| field.len() == name.len() && name.iter().zip(*field).all(is_same))
}

impl FieldList {
    /// Returns the fields of parsed headers, whose names and values are slices of `head`.
    pub(super) fn new(head: &Bytes, headers: &[Header<'_>]) -> FieldList {
        let range = |part: &[u8]| if part.is_empty() { 0..0 } else { range_in(head, part) };
        let places = headers
            .iter()
            .map(|header| FieldPlace::new(head, range(header.name.as_bytes()), range(header.value)));
        let mut fields = FieldList { places: places.collect() };
        fields.mark_connection_options(head);
        fields
    }

    /// Adds a field whose name and value have these ranges in the head so far. Call
    /// [`FieldList::mark_connection_options`] once the head is whole.
    pub(super) fn push(&mut self, head: &[u8], name: Range<usize>, value: Range<usize>) {
        self.places.push(FieldPlace::new(head, name, value));
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// All fields, in order.
    pub(super) fn all<'a>(&'a self, head: &'a Bytes) -> impl Iterator<Item = Field<'a>> {
        self.places.iter().map(|place| place.of(head))
    }

    /// First value of the field with this name; `None` if there is no such field.
    pub(super) fn find<'a>(&'a self, head: &'a Bytes, name: &str) -> Option<&'a [u8]> {
        self.all(head).find(|field| field.name.eq_ignore_ascii_case(name.as_bytes())).map(|field| field.value)
    }

    /// Values of a known field, one for each of its lines.
    pub(super) fn known<'a>(
        &'a self,
        head: &'a Bytes,
        wanted: KnownField,
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.places.iter().filter(move |place| place.known == wanted).map(|place| place.of(head).value)
    }

    /// Value of a field that may occur once.
    ///
    /// # Errors
    /// Returns `repeated` if the field occurs more than once.
    pub(super) fn single<'a>(
        &'a self,
        head: &'a Bytes,
        wanted: KnownField,
        repeated: Malformed,
    ) -> Result<Option<&'a [u8]>, Malformed> {
        let mut values = self.known(head, wanted);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(repeated),
        }
    }

    /// Elements of a list field, from all of its lines (RFC 9110, section 5.6.1).
    pub(super) fn elements<'a>(
        &'a self,
        head: &'a Bytes,
        wanted: KnownField,
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        let values = self.known(head, wanted);
        values
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|one| !one.is_empty())
    }

    /// Whether `Connection` has this option.
    pub(super) fn has_option(&self, head: &Bytes, option: &[u8]) -> bool {
        self.elements(head, KnownField::Connection).any(|one| one.eq_ignore_ascii_case(option))
    }

    /// Whether the sender keeps the connection open (RFC 9112, section 9.3).
    pub(super) fn keep_alive(&self, head: &Bytes, is_http11: bool) -> bool {
        !self.has_option(head, b"close") && (is_http11 || self.has_option(head, b"keep-alive"))
    }

    /// Marks the fields that `Connection` lists: they are hop-by-hop.
    pub(super) fn mark_connection_options(&mut self, head: &Bytes) {
        if self.known(head, KnownField::Connection).next().is_none() {
            return;
        }
        let is_named = |place: &FieldPlace| {
            let name = place.of(head).name;
            !KEPT.iter().any(|kept| name.eq_ignore_ascii_case(kept)) && self.has_option(head, name)
        };
        let marks: SmallVec<[bool; 24]> = self.places.iter().map(is_named).collect();
        self.places.iter_mut().zip(marks).for_each(|(place, mark)| place.is_hop_by_hop |= mark);
    }
}

impl FieldPlace {
    /// Returns the place of a field. A head has at most 262,144 bytes, so 32 bits are enough for
    /// each number.
    fn new(head: &[u8], name: Range<usize>, value: Range<usize>) -> FieldPlace {
        let bytes = &head[name.clone()];
        FieldPlace {
            name: name.start as u32,
            name_len: name.len() as u32,
            value: value.start as u32,
            value_len: value.len() as u32,
            known: known(bytes),
            is_hop_by_hop: HOP_BY_HOP.iter().any(|one| bytes.eq_ignore_ascii_case(one))
                || is_disguised(bytes),
        }
    }

    fn of<'a>(&self, head: &'a Bytes) -> Field<'a> {
        let part = |at: u32, len: u32| &head[at as usize..at as usize + len as usize];
        Field {
            name: part(self.name, self.name_len),
            value: part(self.value, self.value_len),
            is_hop_by_hop: self.is_hop_by_hop,
        }
    }
}

/// Returns the range of `part`, which is a slice of `head`.
pub(super) fn range_in(head: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr() as usize - head.as_ptr() as usize;
    start..start + part.len()
}

fn known(name: &[u8]) -> KnownField {
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    match name.len() {
        4 if is(b"host") => KnownField::Host,
        6 if is(b"expect") => KnownField::Expect,
        7 if is(b"upgrade") => KnownField::Upgrade,
        10 if is(b"connection") => KnownField::Connection,
        14 if is(b"content-length") => KnownField::ContentLength,
        17 if is(b"transfer-encoding") => KnownField::TransferEncoding,
        _ => KnownField::Other,
    }
}
