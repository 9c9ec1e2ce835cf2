//! Heads that are passed on: a request as its server gets it, and a response as the client gets it.
//!
//! Hop-by-hop fields are left out. [`FieldRules`] are the fields that an operator sets, adds and
//! removes.

mod chain;
mod forwarded;
mod request;
mod response;
mod rules;
#[cfg(test)]
mod tests;

pub use chain::client_of_chain;
pub use forwarded::{ClientIdentity, ForwardedFields};
pub use request::{OutgoingRequest, RequestChanges};
pub use response::OutgoingResponse;
pub use rules::{FieldFault, FieldRules};

use std::borrow::Cow;

use crate::PathPrefix;
use crate::head::{Field, RequestHead};

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
    rewritten_target(head.path(), path)
}

fn rewritten_target<'a>(whole: &'a [u8], path: Option<(&PathPrefix, &[u8])>) -> Cow<'a, [u8]> {
    let Some((prefix, replacement)) = path else { return Cow::Borrowed(whole) };
    let (begin, rest) = (replacement.strip_suffix(b"/"), prefix.rest_of(whole));
    let mut out = match rest.first() {
        // Where two slashes meet, one is left.
        Some(b'/') => begin.unwrap_or(replacement).to_vec(),
        _ if replacement.is_empty() => b"/".to_vec(),
        _ => replacement.to_vec(),
    };
    out.extend_from_slice(rest);
    Cow::Owned(out)
}
