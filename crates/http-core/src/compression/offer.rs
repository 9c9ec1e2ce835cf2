//! Compression decision for the response to one request.

use memchr::memmem;

use super::CompressionRules;
use super::response::{ResponseFacts, elements, field, lines};
use crate::{AcceptedEncodings, ContentCoding, HttpMethod, RequestHead};

/// Compression rules applied to one request.
#[derive(Debug, Clone, Copy)]
pub struct CompressionOffer<'a> {
    rules: &'a CompressionRules,
    request: &'a RequestHead,
    has_certificate: bool,
}

/// Compression decision for a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionOutcome {
    /// The body, if there is one, is sent uncompressed.
    AsItIs,
    /// The body is sent uncompressed because the memory for encoders is in use.
    NoRoom,
    /// The body is compressed with this coding, and sent in chunks.
    Compressed(ContentCoding),
}

impl<'a> CompressionOffer<'a> {
    /// Returns the offer for a request. `has_certificate`: its client has presented a certificate.
    pub fn new(
        rules: &'a CompressionRules,
        request: &'a RequestHead,
        has_certificate: bool,
    ) -> CompressionOffer<'a> {
        CompressionOffer { rules, request, has_certificate }
    }

    /// Decides on a response with this status, and changes its head accordingly. The head is the
    /// last one in `heads`, as the client would get it. Calls `has_room` for each coding that the
    /// client accepts, the best first, until one has room for a body of this length.
    pub fn decide(
        &self,
        status: u16,
        heads: &mut Vec<u8>,
        mut has_room: impl FnMut(ContentCoding, Option<u64>) -> bool,
    ) -> CompressionOutcome {
        let at = start_of_last(heads);
        let facts = ResponseFacts::of(&heads[at..]);
        if status == 304 {
            let is_weak_with_client = facts.etag.is_some_and(|etag| self.has_weak(etag));
            if is_weak_with_client {
                let change = HeadChange { coding: None, varies: facts.varies, is_framed: true };
                change.apply(heads, at);
            }
            return CompressionOutcome::AsItIs;
        }
        if !has_whole_body(status) || !facts.is_compressible(self.rules) {
            return CompressionOutcome::AsItIs;
        }
        let (varies, len) = (facts.varies, facts.length);
        // The response to HEAD equals the one to GET, without a body.
        let has_body = self.request.method() != HttpMethod::Head;
        let is_framed = facts.is_chunked || !has_body;
        let as_it_is = HeadAddition { varies };
        let mut codings = self.codings().peekable();
        if codings.peek().is_none() {
            as_it_is.apply(heads);
            return CompressionOutcome::AsItIs;
        }
        let Some(coding) = codings.find(|coding| !has_body || has_room(*coding, len)) else {
            as_it_is.apply(heads);
            return CompressionOutcome::NoRoom;
        };
        HeadChange { coding: Some(coding), varies, is_framed }.apply(heads, at);
        if has_body { CompressionOutcome::Compressed(coding) } else { CompressionOutcome::AsItIs }
    }

    /// Codings that the client accepts, the best first. Empty if the response may not be compressed
    /// for this client.
    fn codings(&self) -> impl Iterator<Item = ContentCoding> + use<> {
        let is_credential =
            |name: &[u8]| name.eq_ignore_ascii_case(b"cookie") || name.eq_ignore_ascii_case(b"authorization");
        let has_credentials =
            || self.has_certificate || self.request.fields().any(|field| is_credential(field.name));
        // HTTP/1.0 has no chunks.
        let is_refused = !self.request.is_http11() || (!self.rules.with_credentials && has_credentials());
        let accepted = match is_refused {
            true => AcceptedEncodings::default(),
            false => AcceptedEncodings::of(self.values("accept-encoding")),
        };
        accepted.best_of(&self.rules.encodings)
    }

    /// Whether the client has a compressed body with this strong tag. convey sent the tag in its
    /// weak form.
    fn has_weak(&self, etag: &[u8]) -> bool {
        etag.starts_with(b"\"")
            && self
                .values("if-none-match")
                .flat_map(elements)
                .any(|one| one.strip_prefix(b"W/").is_some_and(|tag| tag == etag))
    }

    fn values(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.request.fields();
        fields.filter(move |field| field.name.eq_ignore_ascii_case(name.as_bytes())).map(|field| field.value)
    }
}

/// Whether a response with this status has a complete body: not a part (206), not empty (204, 205,
/// 304), not a delta (226).
fn has_whole_body(status: u16) -> bool {
    matches!(status, 200..=203 | 207..=208 | 400..=599)
}

/// Start of the last head in `heads`. Heads of interim responses come before it.
fn start_of_last(heads: &[u8]) -> usize {
    const END: &[u8] = b"\r\n\r\n";
    let before = &heads[..heads.len().saturating_sub(END.len())];
    memmem::rfind(before, END).map_or(0, |at| at + END.len())
}

/// Field that a head gets in addition to its own.
struct HeadAddition {
    varies: bool,
}

impl HeadAddition {
    fn apply(&self, heads: &mut Vec<u8>) {
        if !self.varies {
            heads.truncate(heads.len() - 2);
            heads.extend_from_slice(b"Vary: Accept-Encoding\r\n\r\n");
        }
    }
}

/// Changes in the head of a compressed body, or in a 304 or HEAD response that describes one.
struct HeadChange {
    /// `None` if there is no body.
    coding: Option<ContentCoding>,
    /// The head already has a `Vary` that covers `Accept-Encoding`.
    varies: bool,
    /// The head needs no `Transfer-Encoding`.
    is_framed: bool,
}

impl HeadChange {
    fn apply(&self, heads: &mut Vec<u8>, at: usize) {
        let old = heads.split_off(at);
        for line in lines(&old) {
            match field(line) {
                Some((name, _)) if self.coding.is_some() && is_of_plain_body(name) => {}
                // The bytes differ, but the content is equal (RFC 9110, section 8.8.3.3).
                Some((name, value)) if name.eq_ignore_ascii_case(b"etag") && value.starts_with(b"\"") => {
                    heads.extend_from_slice(name);
                    heads.extend_from_slice(b": W/");
                    heads.extend_from_slice(value);
                    heads.extend_from_slice(b"\r\n");
                }
                _ => heads.extend_from_slice(line),
            }
        }
        if let Some(coding) = self.coding {
            heads.extend_from_slice(b"Content-Encoding: ");
            heads.extend_from_slice(coding.name().as_bytes());
            heads.extend_from_slice(b"\r\n");
        }
        if !self.is_framed {
            heads.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        heads.extend_from_slice(b"\r\n");
        HeadAddition { varies: self.varies }.apply(heads);
    }
}

/// Whether a field does not apply to a compressed body: its length, and the offer of ranges.
fn is_of_plain_body(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"accept-ranges")
}
