//! Changes of compression to the head of a response.

use std::borrow::Cow;

use crate::ContentCoding;

/// Changes to the head of a compressed body, or of a response that describes one: to `HEAD`, or 304.
/// They are applied when the head is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CompressionChange {
    /// Coding of the body; `None` if the body stays as it is.
    coding: Option<ContentCoding>,
    /// Whether the entity tag becomes a weak one.
    weakens_etag: bool,
    /// Whether the head gets a `Vary`.
    adds_vary: bool,
}

impl CompressionChange {
    /// Changes for a body in this coding. `varies`: the head has a `Vary` that covers
    /// `Accept-Encoding`.
    pub(super) fn to(coding: ContentCoding, varies: bool) -> CompressionChange {
        CompressionChange { coding: Some(coding), weakens_etag: true, adds_vary: !varies }
    }

    /// Changes for a body that stays as it is, and that another client could get compressed.
    pub(super) fn of_plain_body(varies: bool) -> CompressionChange {
        CompressionChange { adds_vary: !varies, ..CompressionChange::default() }
    }

    /// Changes for a 304 to a client that has a compressed body.
    pub(super) fn of_weak_etag(varies: bool) -> CompressionChange {
        CompressionChange { coding: None, weakens_etag: true, adds_vary: !varies }
    }

    pub(crate) fn has_coding(&self) -> bool {
        self.coding.is_some()
    }

    /// Value of a field of the head after the changes; `None` if the field does not apply to a
    /// compressed body: its length, and the offer of ranges.
    pub(crate) fn apply<'a>(&self, name: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        // The bytes differ, but the content is equal (RFC 9110, section 8.8.3.3).
        if self.weakens_etag && value.starts_with(b"\"") && is("etag") {
            return Some(Cow::Owned([b"W/", value].concat()));
        }
        let is_of_plain_body = self.has_coding() && (is("content-length") || is("accept-ranges"));
        (!is_of_plain_body).then_some(Cow::Borrowed(value))
    }

    /// Fields to add.
    pub(crate) fn added(&self) -> impl Iterator<Item = (&'static [u8], &'static [u8])> + use<> {
        let coding = self.coding.map(|coding| (&b"Content-Encoding"[..], coding.name().as_bytes()));
        let vary = self.adds_vary.then_some((&b"Vary"[..], &b"Accept-Encoding"[..]));
        coding.into_iter().chain(vary)
    }
}
