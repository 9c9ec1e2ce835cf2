//! Request on its way to a server: a head, and the changes that are applied when it is written.

use std::borrow::Cow;
use std::net::SocketAddr;

use super::{
    ClientIdentity, FieldRules, ForwardedFields, PathRewrite, passed_on, write_field, write_passed_on,
};
use crate::head::{Field, KnownField, RequestHead};
use crate::{BodyFraming, HttpMethod};

/// Changes to a request on its way to a server.
#[derive(Debug, Clone)]
pub struct RequestChanges<'a> {
    /// The client, as described to the server.
    pub client: ClientIdentity<'a>,
    /// Fields that describe the client.
    pub forwarded: ForwardedFields,
    /// Address of the server.
    pub server: SocketAddr,
    /// Value of `Host` for the server; `None`: the host that the client sent.
    pub host: Option<&'a [u8]>,
    /// Replacement of a part of the path; `None`: the path stays unchanged.
    pub path: Option<&'a PathRewrite>,
    /// The operator's changes to the fields.
    pub fields: &'a FieldRules,
}

/// Head of a request for a server, in any version of HTTP: the client's head with the changes.
#[derive(Debug)]
pub struct OutgoingRequest<'a> {
    head: &'a RequestHead,
    changes: &'a RequestChanges<'a>,
}

impl<'a> OutgoingRequest<'a> {
    /// Returns a client's head with the changes for a server.
    pub fn new(head: &'a RequestHead, changes: &'a RequestChanges<'a>) -> OutgoingRequest<'a> {
        OutgoingRequest { head, changes }
    }

    /// The method.
    pub fn method(&self) -> HttpMethod {
        self.head.method()
    }

    /// The method's token.
    pub fn method_token(&self) -> &'a [u8] {
        self.head.method_token()
    }

    /// Path and query.
    pub fn path_and_query(&self) -> Cow<'a, [u8]> {
        let target = self.head.path_and_query();
        self.changes.path.map_or(Cow::Borrowed(target), |rewrite| rewrite.apply(target))
    }

    /// Host for the server, with its port if it has one. If there is no host, this is the server's
    /// address.
    pub fn host(&self) -> Cow<'a, [u8]> {
        match self.changes.host.unwrap_or_else(|| self.head.host()) {
            b"" => Cow::Owned(self.changes.server.to_string().into_bytes()),
            host => Cow::Borrowed(host),
        }
    }

    /// Whether the client speaks HTTP/1.1 or a later version.
    pub fn is_http11(&self) -> bool {
        self.head.is_http11()
    }

    /// Framing of the body.
    pub fn framing(&self) -> BodyFraming {
        self.head.framing()
    }

    /// Calls `each` with the name and value of each field for the server, in order. Skips `Host`
    /// and hop-by-hop fields.
    pub fn each_field(&self, mut each: impl FnMut(&[u8], &[u8])) {
        self.passed_on().for_each(|field| each(field.name, passed_on(&field)));
        self.each_added(each);
    }

    /// The client's fields that the server gets.
    fn passed_on(&self) -> impl Iterator<Item = Field<'a>> {
        self.head.fields().filter(|field| {
            let is_kept = match field.known {
                KnownField::Host => false,
                KnownField::Expect => !field.value.is_empty(),
                known => !known.describes_client(),
            };
            is_kept && !field.is_hop_by_hop && self.changes.fields.keeps(field.name)
        })
    }

    /// Calls `each` with the name and value of each field that convey adds.
    fn each_added(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let OutgoingRequest { head, changes } = self;
        changes.forwarded.each_field(head, &changes.client, &mut each);
        changes.fields.added().for_each(|(name, value)| each(name, value));
    }

    /// Writes the head for a server of HTTP/1.1 (RFC 9112, section 2.3).
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method_token());
        out.push(b' ');
        out.extend_from_slice(&self.path_and_query());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        write_field(b"Host", &self.host(), out);
        let fields = self.passed_on().map(|field| {
            let is_length = field.known == KnownField::ContentLength;
            (field, is_length.then(|| Cow::Borrowed(passed_on(&field))))
        });
        write_passed_on(self.head.bytes(), fields, out);
        self.each_added(|name, value| write_field(name, value, out));
        if self.framing() == BodyFraming::Chunked {
            write_field(b"Transfer-Encoding", b"chunked", out);
        }
        if let Some(protocol) = self.head.upgrade() {
            write_field(b"Connection", b"upgrade", out);
            write_field(b"Upgrade", protocol, out);
        }
        out.extend_from_slice(b"\r\n");
    }
}
