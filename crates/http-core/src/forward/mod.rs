//! Heads that are passed on: a request as its server gets it, and a response as the client gets it.
//!
//! Hop-by-hop fields are left out. [`FieldRules`] are the fields that an operator sets, adds and
//! removes.

mod chain;
mod forwarded;
mod response;
mod rules;
#[cfg(test)]
mod tests;

pub use chain::client_of_chain;
pub use forwarded::{ClientIdentity, ForwardedFields};
pub use response::OutgoingResponse;
pub use rules::{FieldFault, FieldRules};

use std::borrow::Cow;
use std::net::SocketAddr;

use crate::head::{Field, RequestHead};
use crate::{BodyFraming, PathPrefix};

/// Changes to a request on its way to a server.
#[derive(Debug, Clone)]
pub struct RequestChanges<'a> {
    /// The client, as described to the server.
    pub client: ClientIdentity<'a>,
    /// Fields that describe the client.
    pub forwarded: ForwardedFields,
    /// Address of the server.
    pub server: SocketAddr,
    /// Host that replaces the client's in the request to the server.
    pub host: Option<&'a [u8]>,
    /// Prefix of the path to replace, and its replacement, which begins with a slash or is empty.
    pub path: Option<(&'a PathPrefix, &'a [u8])>,
    /// The operator's changes to the fields.
    pub fields: &'a FieldRules,
}

/// State of the client's connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientConnection {
    /// The client may send another request.
    Stays,
    /// The client may send another request, and is told so, because it speaks HTTP/1.0.
    StaysHttp10,
    /// The connection is closed after the body.
    Closes,
    /// The connection is closed after the data of the body, whose chunks are removed: the client
    /// speaks HTTP/1.0.
    ClosesWithoutChunks,
    /// The connection changes to another protocol: the response is a 101.
    Changes,
}

/// Writes the head of a request for a server, always in HTTP/1.1 (RFC 9112, section 2.3). Without a
/// host from the client, `Host` is the address of the server.
pub fn write_request(head: &RequestHead, changes: &RequestChanges<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(head.method_token());
    out.push(b' ');
    write_target(head.path_and_query(), changes.path, out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    match changes.host.unwrap_or_else(|| head.host()) {
        b"" => write_field(b"Host", changes.server.to_string().as_bytes(), out),
        host => write_field(b"Host", host, out),
    }
    let is_told = |name: &[u8]| name.eq_ignore_ascii_case(b"host") || changes.forwarded.replaces(name);
    for field in head.fields().filter(|field| !field.is_hop_by_hop && !is_told(field.name)) {
        let is_empty_expect = field.value.is_empty() && field.name.eq_ignore_ascii_case(b"expect");
        if changes.fields.keeps(field.name) && !is_empty_expect {
            write_field(field.name, passed_on(&field), out);
        }
    }
    if head.framing() == BodyFraming::Chunked {
        write_field(b"Transfer-Encoding", b"chunked", out);
    }
    if let Some(protocol) = head.upgrade() {
        write_field(b"Connection", b"upgrade", out);
        write_field(b"Upgrade", protocol, out);
    }
    changes.forwarded.write(head, &changes.client, out);
    changes.fields.write(out);
    out.extend_from_slice(b"\r\n");
}

/// Value of a field as it is passed on: unchanged, except that a length loses its leading zeros.
fn passed_on<'a>(field: &Field<'a>) -> &'a [u8] {
    let is_length = || field.name.eq_ignore_ascii_case(b"content-length");
    match field.value {
        [b'0', _, ..] if is_length() => {
            let zeros = field.value.iter().take_while(|byte| **byte == b'0').count();
            &field.value[zeros.min(field.value.len() - 1)..]
        }
        value => value,
    }
}

fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Path of a request, without its query, as a server gets it: with the prefix replaced, if the
/// route has a replacement.
pub fn rewritten_path<'a>(head: &'a RequestHead, path: Option<(&PathPrefix, &[u8])>) -> Cow<'a, [u8]> {
    if path.is_none() {
        return Cow::Borrowed(head.path());
    }
    let mut out = Vec::new();
    write_target(head.path(), path, &mut out);
    Cow::Owned(out)
}

fn write_target(whole: &[u8], path: Option<(&PathPrefix, &[u8])>, out: &mut Vec<u8>) {
    let Some((prefix, replacement)) = path else { return out.extend_from_slice(whole) };
    let (begin, rest) = (replacement.strip_suffix(b"/"), prefix.rest_of(whole));
    match rest.first() {
        // Where two slashes meet, one is left.
        Some(b'/') => out.extend_from_slice(begin.unwrap_or(replacement)),
        _ if replacement.is_empty() => out.push(b'/'),
        _ => out.extend_from_slice(replacement),
    }
    out.extend_from_slice(rest);
}
