//! Fields of a head, stored as positions in the bytes of the head.

use std::ops::Range;

use crate::Malformed;

/// A field of a head, unmodified.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// Name in its original case. Names are case-insensitive.
    pub name: &'a [u8],
    /// Value without spaces around it.
    pub value: &'a [u8],
    /// Whether the field is for the next hop only, so that convey does not forward it (RFC 9110,
    /// section 7.6.1).
    pub is_hop_by_hop: bool,
    pub(crate) known: KnownField,
    /// Place of its line in the head; `None`: the head does not have the line just as convey would
    /// write it in HTTP/1.1.
    line: Option<(usize, usize)>,
}

/// Fields of one head.
#[derive(Debug, Clone, Default)]
pub(super) struct FieldList {
    places: Vec<FieldPlace>,
    /// Known fields of the head: a bit for each.
    present: u16,
    options: ConnectionOptions,
}

/// Number of fields that most heads do not exceed.
const USUAL: usize = 12;

/// Position of a field in the bytes of its head.
#[derive(Debug, Clone, Copy)]
struct FieldPlace {
    name: u32,
    value: u32,
    value_len: u32,
    name_len: u16,
    known: KnownField,
    marks: FieldMarks,
}

/// Two marks of a field's line, in one byte, so that the place of a field stays short.
#[derive(Debug, Clone, Copy)]
struct FieldMarks(u8);

impl FieldMarks {
    const HOP_BY_HOP: u8 = 1;
    const LINE: u8 = 2;

    fn new(is_hop_by_hop: bool, is_line: bool) -> FieldMarks {
        FieldMarks(u8::from(is_hop_by_hop) * FieldMarks::HOP_BY_HOP + u8::from(is_line) * FieldMarks::LINE)
    }

    fn is_hop_by_hop(self) -> bool {
        self.0 & FieldMarks::HOP_BY_HOP != 0
    }

    /// Whether the head has the field as a line of HTTP/1.1, just as convey would write it: one
    /// blank before the value, and none behind it.
    fn is_line(self) -> bool {
        self.0 & FieldMarks::LINE != 0
    }
}

/// Options of `Connection` that a proxy evaluates.
#[derive(Debug, Clone, Copy, Default)]
struct ConnectionOptions {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
}

/// Fields that a proxy evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownField {
    Connection,
    ContentLength,
    Expect,
    Host,
    TransferEncoding,
    Upgrade,
    /// `Forwarded`, `X-Forwarded-*` and `X-SSL-Client-DN`, which describe the client.
    Forwarded,
    XForwardedFor,
    XForwardedHost,
    XForwardedProto,
    ClientSubject,
    Other,
}

/// Fields that `Connection` cannot remove: without them, a server would interpret the request
/// differently.
const KEPT: [&[u8]; 4] = [b"content-length", b"host", b"expect", b"trailer"];

/// Fields that a name with `_` must not disguise, because CGI, WSGI and others treat `_` like `-`:
/// they are hop-by-hop, frame the message, or identify the client.
const UNDISGUISED: [&[u8]; 10] = [
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

/// Lengths of these names: a bit for each.
const UNDISGUISED_LENGTHS: u32 = {
    let (mut lengths, mut at) = (0, 0);
    while at < UNDISGUISED.len() {
        lengths |= 1 << UNDISGUISED[at].len();
        at += 1;
    }
    lengths
};

/// Whether a name is another spelling of one of these fields.
fn is_disguised(name: &[u8]) -> bool {
    let may_be = name.len() < 32 && UNDISGUISED_LENGTHS >> name.len() & 1 == 1;
    if !may_be || !name.contains(&b'_') {
        return false;
    }
    let is_same = |(one, other): (&u8, &u8)| match one {
        b'_' => *other == b'-',
        _ => one.eq_ignore_ascii_case(other),
    };
    let mut like = UNDISGUISED.iter().filter(|field| field.len() == name.len());
    like.any(|field| name.iter().zip(*field).all(is_same))
}

impl FieldList {
    /// Returns an empty list with memory for the usual number of fields.
    pub(super) fn with_room() -> FieldList {
        FieldList { places: Vec::with_capacity(USUAL), ..FieldList::default() }
    }

    /// Adds a field whose name and value have these ranges in the head so far. `is_line`: the head
    /// has the field's line just as convey would write it. Call
    /// [`FieldList::mark_connection_options`] once the head is whole.
    ///
    /// # Errors
    /// The name is too long.
    pub(super) fn push(
        &mut self,
        head: &[u8],
        name: Range<usize>,
        value: Range<usize>,
        is_line: bool,
    ) -> Result<(), Malformed> {
        let place = FieldPlace::new(head, name, value, is_line)?;
        self.present |= place.known.bit();
        self.places.push(place);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// All fields, in order.
    pub(super) fn all<'a>(&'a self, head: &'a [u8]) -> impl Iterator<Item = Field<'a>> {
        self.places.iter().map(|place| place.of(head))
    }

    /// First value of the field with this name; `None` if there is no such field.
    pub(super) fn find<'a>(&'a self, head: &'a [u8], name: &str) -> Option<&'a [u8]> {
        self.all(head).find(|field| field.name.eq_ignore_ascii_case(name.as_bytes())).map(|field| field.value)
    }

    /// Whether there is such a field.
    pub(super) fn has(&self, wanted: KnownField) -> bool {
        self.present & wanted.bit() != 0
    }

    /// Values of a known field, one for each of its lines.
    pub(super) fn known<'a>(
        &'a self,
        head: &'a [u8],
        wanted: KnownField,
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        let places = if self.has(wanted) { &self.places[..] } else { &[] };
        places.iter().filter(move |place| place.known == wanted).map(|place| place.of(head).value)
    }

    /// Value of a field that may occur once.
    ///
    /// # Errors
    /// Returns `repeated` if the field occurs more than once.
    pub(super) fn single<'a>(
        &'a self,
        head: &'a [u8],
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
        head: &'a [u8],
        wanted: KnownField,
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.known(head, wanted).flat_map(list_elements)
    }

    /// Whether `Connection` has the option `upgrade`.
    pub(super) fn wants_upgrade(&self) -> bool {
        self.options.upgrade
    }

    /// Whether the sender keeps the connection open (RFC 9112, section 9.3).
    pub(super) fn keep_alive(&self, is_http11: bool) -> bool {
        !self.options.close && (is_http11 || self.options.keep_alive)
    }

    /// Reads the options of `Connection`. Marks the fields that it lists: they are hop-by-hop.
    pub(super) fn mark_connection_options(&mut self, head: &[u8]) {
        if !self.has(KnownField::Connection) {
            return;
        }
        for at in 0..self.places.len() {
            let place = self.places[at];
            if place.known != KnownField::Connection {
                continue;
            }
            match place.of(head).value {
                // The usual value needs no search for elements.
                b"keep-alive" => self.options.keep_alive = true,
                value => list_elements(value).for_each(|option| self.mark_option(head, option)),
            }
        }
    }

    fn mark_option(&mut self, head: &[u8], option: &[u8]) {
        let is = |other: &[u8]| option.eq_ignore_ascii_case(other);
        match option.len() {
            5 if is(b"close") => self.options.close = true,
            // These fields are hop-by-hop anyway.
            7 if is(b"upgrade") => return self.options.upgrade = true,
            10 if is(b"keep-alive") => return self.options.keep_alive = true,
            _ if KEPT.iter().any(|kept| is(kept)) => return,
            _ => {}
        }
        for place in &mut self.places {
            let is_listed = place.of(head).name.eq_ignore_ascii_case(option);
            place.marks.0 |= u8::from(is_listed) * FieldMarks::HOP_BY_HOP;
        }
    }
}

impl FieldPlace {
    /// Returns the place of a field. A head has at most 262,144 bytes, so 32 bits are enough for a
    /// position.
    ///
    /// # Errors
    /// The name is longer than 65,535 bytes.
    fn new(
        head: &[u8],
        name: Range<usize>,
        value: Range<usize>,
        is_line: bool,
    ) -> Result<FieldPlace, Malformed> {
        let (known, is_hop_by_hop) = classify(&head[name.clone()]);
        Ok(FieldPlace {
            name: name.start as u32,
            name_len: u16::try_from(name.len()).map_err(|_| Malformed::FieldName)?,
            value: value.start as u32,
            value_len: value.len() as u32,
            known,
            marks: FieldMarks::new(is_hop_by_hop, is_line),
        })
    }

    fn of<'a>(&self, head: &'a [u8]) -> Field<'a> {
        let (name, value) = (self.name as usize, self.value as usize);
        let end = value + self.value_len as usize;
        // The ranges are within the head. Without a check that may panic, the compiler leaves out
        // what the caller does not use.
        Field {
            name: head.get(name..name + usize::from(self.name_len)).unwrap_or_default(),
            value: head.get(value..end).unwrap_or_default(),
            is_hop_by_hop: self.marks.is_hop_by_hop(),
            known: self.known,
            line: self.marks.is_line().then_some((name, end + 2)),
        }
    }
}

impl Field<'_> {
    /// Place in the head of the field's line in HTTP/1.1; `None`: the head does not have it just as
    /// convey would write it.
    pub(crate) fn line(&self) -> Option<Range<usize>> {
        self.line.map(|(begin, end)| begin..end)
    }
}

impl PartialEq for Field<'_> {
    fn eq(&self, other: &Field<'_>) -> bool {
        let parts = |field: &Field<'_>| (field.is_hop_by_hop, field.known);
        self.name == other.name && self.value == other.value && parts(self) == parts(other)
    }
}

impl Eq for Field<'_> {}

/// Elements of one line of a list field, without empty ones.
fn list_elements(value: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let elements = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    elements.filter(|one| !one.is_empty())
}

impl KnownField {
    fn bit(self) -> u16 {
        1 << self as u16
    }

    /// Whether the field describes the client to the server, so that convey replaces it.
    pub(crate) fn describes_client(self) -> bool {
        matches!(
            self,
            KnownField::Forwarded
                | KnownField::XForwardedFor
                | KnownField::XForwardedHost
                | KnownField::XForwardedProto
                | KnownField::ClientSubject
        )
    }
}

/// Returns the known field with this name, and whether the field is for the next hop only, whether
/// `Connection` lists it or not. `Proxy-*` fields are for forward proxies. `Proxy` is removed because
/// CGI turns it into the environment variable `HTTP_PROXY`.
fn classify(name: &[u8]) -> (KnownField, bool) {
    // Length and first letter exclude most names before a comparison.
    match (name.len(), name.first().map_or(0, u8::to_ascii_lowercase)) {
        (2, b't') if is(name, b"te") => (KnownField::Other, true),
        (4, b'h') if is(name, b"host") => (KnownField::Host, false),
        (5, b'p') if is(name, b"proxy") => (KnownField::Other, true),
        (6, b'e') if is(name, b"expect") => (KnownField::Expect, false),
        (7, b'u') if is(name, b"upgrade") => (KnownField::Upgrade, true),
        (9, b'f') if is(name, b"forwarded") => (KnownField::Forwarded, false),
        (10, b'c') if is(name, b"connection") => (KnownField::Connection, true),
        (10, b'k') if is(name, b"keep-alive") => (KnownField::Other, true),
        (14, b'c') if is(name, b"content-length") => (KnownField::ContentLength, false),
        (14, b'h') if is(name, b"http2-settings") => (KnownField::Other, true),
        (15, b'x') if is(name, b"x-forwarded-for") => (KnownField::XForwardedFor, false),
        (15, b'x') if is(name, b"x-ssl-client-dn") => (KnownField::ClientSubject, false),
        (16, b'x') if is(name, b"x-forwarded-host") => (KnownField::XForwardedHost, false),
        (16, b'p') if is(name, b"proxy-connection") => (KnownField::Other, true),
        (17, b't') if is(name, b"transfer-encoding") => (KnownField::TransferEncoding, true),
        (17, b'x') if is(name, b"x-forwarded-proto") => (KnownField::XForwardedProto, false),
        (19, b'p') if is(name, b"proxy-authorization") => (KnownField::Other, true),
        _ => (KnownField::Other, is_disguised(name)),
    }
}

/// Whether a name is `lower`, in any case. Both are tokens, and `lower` consists of lower-case
/// letters, digits and hyphens: such a byte differs from no other byte of a token by this one bit
/// but the upper-case letter.
fn is<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    let Ok(name) = <&[u8; N]>::try_from(name) else { return false };
    name.iter().zip(lower).fold(0, |differs, (byte, lower)| differs | ((byte | 0x20) ^ lower)) == 0
}
