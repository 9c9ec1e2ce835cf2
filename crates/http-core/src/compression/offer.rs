//! Compression decision for the response to one request.

use super::CompressionRules;
use super::change::CompressionChange;
use super::response::{ResponseFacts, elements};
use crate::head::Field;
use crate::{AcceptedEncodings, ContentCoding, HttpMethod, OutgoingResponse, RequestHead};

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
    /// The body is sent uncompressed, because the memory for encoders is used up.
    NoRoom,
    /// The body is compressed with this coding. Over HTTP/1.1 it is chunked.
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

    /// Decides whether to compress a response, and changes its head accordingly. `has_room` returns
    /// whether there is memory for an encoder of this coding, for a body of this many bytes
    /// (`None`: unknown). It is called for each coding that the client accepts, the best first,
    /// until `has_room` returns true.
    pub fn decide(
        &self,
        response: &mut OutgoingResponse<'_>,
        mut has_room: impl FnMut(ContentCoding, Option<u64>) -> bool,
    ) -> CompressionOutcome {
        let status = response.status();
        let facts = ResponseFacts::of(response.uncompressed_fields());
        if status == 304 {
            if facts.etag.is_some_and(|etag| self.has_weak(etag)) {
                response.set_compression(CompressionChange::of_weak_etag(facts.varies));
            }
            return CompressionOutcome::AsItIs;
        }
        if !has_whole_body(status) || !facts.is_compressible(self.rules) {
            return CompressionOutcome::AsItIs;
        }
        let (varies, len) = (facts.varies, facts.length);
        // The response to HEAD equals the one to GET, without a body.
        let has_body = self.request.method() != HttpMethod::Head;
        let mut codings = self.codings().peekable();
        if codings.peek().is_none() {
            response.set_compression(CompressionChange::of_plain_body(varies));
            return CompressionOutcome::AsItIs;
        }
        let Some(coding) = codings.find(|coding| !has_body || has_room(*coding, len)) else {
            response.set_compression(CompressionChange::of_plain_body(varies));
            return CompressionOutcome::NoRoom;
        };
        response.set_compression(CompressionChange::to(coding, varies));
        if has_body { CompressionOutcome::Compressed(coding) } else { CompressionOutcome::AsItIs }
    }

    /// Codings that the client accepts, the best first. Empty if the response may not be compressed
    /// for this client.
    fn codings(&self) -> impl Iterator<Item = ContentCoding> + use<> {
        let is_credential = |field: Field<'_>| {
            field.name.eq_ignore_ascii_case(b"authorization")
                || field.name.eq_ignore_ascii_case(b"cookie") && !self.rules.has_only_own_cookies(field.value)
        };
        let has_credentials = || self.has_certificate || self.request.fields().any(is_credential);
        // HTTP/1.0 has no chunks.
        let is_refused = !self.request.is_http11() || (!self.rules.with_credentials && has_credentials());
        let accepted = match is_refused {
            true => AcceptedEncodings::default(),
            false => AcceptedEncodings::of(self.values("accept-encoding")),
        };
        accepted.best_of(&self.rules.encodings)
    }

    /// Whether the client has cached a compressed body with this strong tag. convey sent the tag in
    /// its weak form, so the weak form is in `If-None-Match`.
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
