//! Normalization of start lines, which many clients and servers write in different ways.

use bytes::{Bytes, BytesMut};
use memchr::memchr;

/// Normalizes the request line of a head for the parser and for servers: a minor version above 1
/// becomes 1 (RFC 9112, section 2.3), and characters of the target are percent-encoded where
/// necessary (RFC 3986, section 2.1).
pub(super) fn of_request(mut head: BytesMut) -> Bytes {
    let end = memchr(b'\r', &head).unwrap_or(head.len());
    let version = end.saturating_sub(VERSION.len() + 1);
    if head[..version].ends_with(b" ") {
        lower_version(&mut head[version..end]);
    }
    match head[..end].iter().any(is_unencoded) {
        true => with_encoded_target(&head, end),
        false => head.freeze(),
    }
}

/// Normalizes the status line of a head: a minor version above 1 becomes 1.
pub(super) fn of_response(mut head: BytesMut) -> Bytes {
    let len = head.len().min(VERSION.len() + 1);
    lower_version(&mut head[..len]);
    head.freeze()
}

const VERSION: &[u8] = b"HTTP/1.";

fn lower_version(version: &mut [u8]) {
    if let [major @ .., minor @ b'2'..=b'9'] = version
        && *major == *VERSION
    {
        *minor = b'1';
    }
}

/// Whether a byte of a target has to be percent-encoded: a target must not contain it, but some
/// clients send it. All servers accept its encoded form.
pub(super) fn is_unencoded(byte: &u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | 0x80..)
}

/// Returns a head with its target percent-encoded where necessary. `end` is the length of the
/// request line.
fn with_encoded_target(head: &[u8], end: usize) -> Bytes {
    let line = &head[..end];
    let begin = line.iter().position(|byte| *byte == b' ').unwrap_or(end);
    let after = line.iter().rposition(|byte| *byte == b' ').unwrap_or(end);
    let mut encoded = BytesMut::with_capacity(head.len() + 64);
    encoded.extend_from_slice(&head[..begin]);
    encode_target(&head[begin..after.max(begin)], &mut encoded);
    encoded.extend_from_slice(&head[after.max(begin)..]);
    encoded.freeze()
}

/// Appends a target with its characters percent-encoded where necessary.
pub(super) fn encode_target(target: &[u8], encoded: &mut BytesMut) {
    for byte in target {
        match byte {
            byte if is_unencoded(byte) => {
                let digit = |n: u8| b"0123456789ABCDEF"[usize::from(n)];
                encoded.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
            }
            byte => encoded.extend_from_slice(&[*byte]),
        }
    }
}
