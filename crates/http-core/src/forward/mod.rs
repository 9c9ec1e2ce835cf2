//! Heads as convey forwards them: of a request to a server, and of a response to a client.
//!
//! convey does not forward hop-by-hop fields. [`FieldRules`] are the fields that an operator sets,
//! adds and removes.

mod client_address;
mod condition;
mod field_trust;
mod forwarded;
mod request;
mod response;
mod reverse;
mod rewrite;
mod rules;
#[cfg(test)]
mod tests;

pub use client_address::{ClientAddress, NamedClient};
pub use condition::ResponseCondition;
pub use field_trust::FieldTrust;
pub use forwarded::{ClientIdentity, ForwardedFields};
pub use request::{OutgoingRequest, RequestChanges};
pub use response::OutgoingResponse;
pub use reverse::{ResponseReversal, ReverseRewrite, ReversedFields};
pub use rewrite::{GroupFault, PathRewrite, rewritten_path};
pub use rules::{FieldFault, FieldRules};

use std::borrow::Cow;

use crate::head::{Field, KnownField};

/// State of the client's connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientConnection {
    /// The client may send another request.
    Stays,
    /// The client may send another request. It speaks HTTP/1.0, so the response has `Connection:
    /// keep-alive`.
    StaysHttp10,
    /// The connection is closed after the body.
    Closes,
    /// The client speaks HTTP/1.0, so the body is sent without chunked encoding, and the connection
    /// is closed after it.
    ClosesWithoutChunks,
    /// The connection changes to another protocol: the response is a 101.
    Changes,
}

/// Returns the value of a field as it is forwarded: unchanged, except that leading zeros are
/// removed from `Content-Length`.
fn passed_on<'a>(field: &Field<'a>) -> &'a [u8] {
    match field.value {
        [b'0', _, ..] if field.known == KnownField::ContentLength => {
            let zeros = field.value.iter().take_while(|byte| **byte == b'0').count();
            &field.value[zeros.min(field.value.len() - 1)..]
        }
        value => value,
    }
}

/// Writes fields of a head, each with its value as it is forwarded; `None`: its value stays as it
/// is. `head` are the bytes of the head. Lines that follow each other there, and stay as they are,
/// are copied at once.
fn write_passed_on<'a>(
    head: &[u8],
    fields: impl Iterator<Item = (Field<'a>, Option<Cow<'a, [u8]>>)>,
    out: &mut Vec<u8>,
) {
    let mut run = 0..0;
    for (field, value) in fields {
        let is_changed = value.as_ref().is_some_and(|value| **value != *field.value);
        match field.line() {
            Some(line) if !is_changed => {
                if run.end != line.start {
                    out.extend_from_slice(&head[run]);
                    run = line.clone();
                }
                run.end = line.end;
            }
            _ => {
                out.extend_from_slice(&head[run]);
                run = 0..0;
                write_field(field.name, value.as_deref().unwrap_or(field.value), out);
            }
        }
    }
    out.extend_from_slice(&head[run]);
}

fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
