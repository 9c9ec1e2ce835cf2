//! Response on its way to a client: a head, and the changes that are applied when it is written.

use std::borrow::Cow;

use super::reverse::{ResponseReversal, reversed};
use super::{ClientConnection, FieldRules, passed_on, write_field, write_passed_on};
use crate::compression::CompressionChange;
use crate::head::{Field, KnownField, ResponseHead};
use crate::{BodyEncoder, BodyFraming};

/// Head of a response for a client, in any version of HTTP: a server's head or a local reply's,
/// with the changes of the operator and of compression.
#[derive(Debug)]
pub struct OutgoingResponse<'a> {
    head: &'a ResponseHead,
    rules: &'a FieldRules,
    compression: CompressionChange,
    /// Translation of URLs and cookies; `None`: they stay.
    reversal: Option<&'a ResponseReversal<'a>>,
}

impl<'a> OutgoingResponse<'a> {
    /// Returns a response's head with the operator's changes to its fields.
    pub fn new(head: &'a ResponseHead, rules: &'a FieldRules) -> OutgoingResponse<'a> {
        OutgoingResponse { head, rules, compression: CompressionChange::default(), reversal: None }
    }

    /// Translates URLs and cookies of the server for the client.
    #[must_use]
    pub fn reversed(mut self, reversal: Option<&'a ResponseReversal<'a>>) -> OutgoingResponse<'a> {
        self.reversal = reversal;
        self
    }

    /// Status, 100 to 999.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// Framing of the body for a client of HTTP/1.1. Other versions frame every body themselves.
    pub fn framing(&self) -> BodyFraming {
        match self.head.framing() {
            BodyFraming::Empty => BodyFraming::Empty,
            _ if self.compression.has_coding() => BodyFraming::Chunked,
            framing => framing,
        }
    }

    /// Encoder of the body for a client of HTTP/1 whose connection has this state.
    pub fn body_encoder(&self, connection: ClientConnection) -> BodyEncoder {
        BodyEncoder::new(match connection {
            ClientConnection::ClosesWithoutChunks => BodyFraming::UntilClose,
            _ => self.framing(),
        })
    }

    /// Names and values of the fields for the client, in order, without hop-by-hop fields.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], Cow<'_, [u8]>)> {
        let passed_on = self.passed_on().filter_map(|field| Some((field.name, self.value_of(&field)?)));
        let added =
            self.added().filter_map(|(name, value)| Some((name, self.compression.apply(name, value)?)));
        let of_compression = self.compression.added().map(|(name, value)| (name, Cow::Borrowed(value)));
        passed_on.chain(added).chain(of_compression)
    }

    /// Value of a server's field for the client; `None`: the client does not get the field.
    fn value_of(&self, field: &Field<'a>) -> Option<Cow<'a, [u8]>> {
        match reversed(self.reversal, field.name, passed_on(field)) {
            Cow::Borrowed(value) => self.compression.apply(field.name, value),
            // Compression changes no field that has URLs or cookies.
            translated => Some(translated),
        }
    }

    /// Names and values of the fields for the client, before compression changes them, without the
    /// cookie of session affinity.
    pub(crate) fn uncompressed_fields<'s>(
        &'s self,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'s, 'a> {
        let fields = self.passed_on().map(|field| (field.name, passed_on(&field)));
        fields.chain(self.rules.configured())
    }

    /// Fields that the rules add. A response for shared caches gets no cookie that names a server:
    /// a cache would send all of its clients to this server.
    fn added(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let has_no_cookie = self.rules.add_affinity() && is_for_shared_caches(self.uncompressed_fields());
        let (all, configured) = match has_no_cookie {
            true => (None, Some(self.rules.configured())),
            false => (Some(self.rules.added()), None),
        };
        all.into_iter().flatten().chain(configured.into_iter().flatten())
    }

    /// The server's fields that the client gets.
    fn passed_on(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        // A 1xx or 204 has no body (RFC 9110, section 8.6). A client might wait for the bytes that
        // a length announces.
        let has_no_length = self.status() < 200 || self.status() == 204;
        let (head, rules): (&'a ResponseHead, &'a FieldRules) = (self.head, self.rules);
        head.fields().filter(move |field| {
            !(field.is_hop_by_hop || has_no_length && field.known == KnownField::ContentLength)
                && rules.keeps(field.name)
        })
    }

    /// Number of bytes of the status line and of the fields in HTTP/1.1, for statistics.
    pub fn head_len(&self) -> usize {
        let fields = self.fields().map(|(name, value)| OutgoingResponse::field_len(name, &value));
        self.start_len() + fields.sum::<usize>()
    }

    /// Number of bytes of the status line and of the empty line behind the fields in HTTP/1.1.
    pub fn start_len(&self) -> usize {
        b"HTTP/1.1 200 \r\n\r\n".len() + self.head.reason().len()
    }

    /// Number of bytes of a field in HTTP/1.1.
    pub fn field_len(name: &[u8], value: &[u8]) -> usize {
        name.len() + value.len() + b": \r\n".len()
    }

    pub(crate) fn set_compression(&mut self, change: CompressionChange) {
        self.compression = change;
    }

    /// Writes the head for a client of HTTP/1.
    pub fn write(&self, connection: ClientConnection, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(itoa::Buffer::new().format(self.status()).as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.head.reason());
        out.extend_from_slice(b"\r\n");
        let (mut has_length, is_chunked) = (false, self.framing() == BodyFraming::Chunked);
        let is_changed = self.compression.changes_fields() || self.reversal.is_some();
        let fields = self.passed_on().filter_map(|field| {
            let is_length = field.known == KnownField::ContentLength;
            if !is_length && !is_changed {
                return Some((field, None));
            }
            let value = self.value_of(&field)?;
            has_length |= is_length;
            // The response of a stream may have a length and trailers; chunks replace the length.
            (!(is_length && is_chunked)).then_some((field, Some(value)))
        });
        write_passed_on(self.head.bytes(), fields, out);
        for (name, value) in self.added() {
            if let Some(value) = self.compression.apply(name, value) {
                write_field(name, &value, out);
            }
        }
        self.compression.added().for_each(|(name, value)| write_field(name, value, out));
        match self.framing() {
            BodyFraming::Chunked if connection != ClientConnection::ClosesWithoutChunks => {
                write_field(b"Transfer-Encoding", b"chunked", out);
            }
            // The head of a stream may lack `Content-Length`; a client of HTTP/1.1 needs it.
            BodyFraming::Length(len) if !has_length => {
                write_field(b"Content-Length", itoa::Buffer::new().format(len).as_bytes(), out);
            }
            _ => {}
        }
        self.write_connection(connection, out);
        out.extend_from_slice(b"\r\n");
    }

    fn write_connection(&self, connection: ClientConnection, out: &mut Vec<u8>) {
        let upgrade = self.head.upgrade();
        let (options, protocol): (&[u8], _) = match connection {
            // `Upgrade` names the protocol that the client has to change to (RFC 9110, section
            // 15.5.22).
            ClientConnection::Stays if self.status() == 426 && upgrade.is_some() => (b"upgrade", upgrade),
            _ if self.status() == 426 && upgrade.is_some() => (b"close, upgrade", upgrade),
            ClientConnection::Stays => return,
            ClientConnection::StaysHttp10 => (b"keep-alive", None),
            ClientConnection::Closes | ClientConnection::ClosesWithoutChunks => (b"close", None),
            ClientConnection::Changes => (b"upgrade", upgrade),
        };
        write_field(b"Connection", options, out);
        if let Some(protocol) = protocol {
            write_field(b"Upgrade", protocol, out);
        }
    }
}

/// Whether `Cache-Control` allows shared caches explicitly to store a response with these fields
/// (RFC 9111, section 5.2.2).
fn is_for_shared_caches<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
    let (mut is_shared, mut is_private) = (false, false);
    let of_caches = fields.filter(|(name, _)| name.eq_ignore_ascii_case(b"cache-control"));
    for directive in of_caches.flat_map(|(_, value)| value.split(|byte| *byte == b',')) {
        let name = directive.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        is_shared |= is("public") || is("s-maxage");
        // `private="Set-Cookie"` keeps only the named fields out of shared caches.
        is_private |= !directive.contains(&b'=') && is("private") || is("no-store");
    }
    is_shared && !is_private
}
