//! Changes that compression makes to the head of a response.

use std::borrow::Cow;

use crate::ContentCoding;

/// Changes that compression makes to the head of a response. They apply if the body is compressed,
/// or if another client could get it compressed. Responses to `HEAD` and 304s, which have no body,
/// get the changes, too. convey applies the changes when it writes the head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CompressionChange {
    /// Coding of the body; `None` if the body stays as it is.
    coding: Option<ContentCoding>,
    /// Whether the entity tag becomes weak.
    weakens_etag: bool,
    /// Whether `Vary: Accept-Encoding` is added.
    adds_vary: bool,
}

impl CompressionChange {
    /// Changes for a body in this coding. `varies`: the head already has a `Vary` that covers
    /// `Accept-Encoding`.
    pub(super) fn to(coding: ContentCoding, varies: bool) -> CompressionChange {
        CompressionChange { coding: Some(coding), weakens_etag: true, adds_vary: !varies }
    }

    /// Changes for an uncompressed body that another client could get compressed.
    pub(super) fn of_plain_body(varies: bool) -> CompressionChange {
        CompressionChange { adds_vary: !varies, ..CompressionChange::default() }
    }

    /// Changes for a 304 to a client that has cached a compressed body.
    pub(super) fn of_weak_etag(varies: bool) -> CompressionChange {
        CompressionChange { coding: None, weakens_etag: true, adds_vary: !varies }
    }

    pub(crate) fn has_coding(&self) -> bool {
        self.coding.is_some()
    }

    /// Whether a field of the head may change. If not, [`CompressionChange::apply`] returns each
    /// value as it is.
    pub(crate) fn changes_fields(&self) -> bool {
        self.has_coding() || self.weakens_etag
    }

    /// Returns the value of a field after the changes. `None`: the field is removed, because it
    /// describes the uncompressed body (`Content-Length`, `Accept-Ranges`).
    pub(crate) fn apply<'a>(&self, name: &[u8], value: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        // Compression changes the bytes but not the content, so the tag has to be weak (RFC 9110,
        // section 8.8.3.3).
        if self.weakens_etag && value.starts_with(b"\"") && is("etag") {
            return Some(Cow::Owned([b"W/", value].concat()));
        }
        let is_of_plain_body = self.has_coding() && (is("content-length") || is("accept-ranges"));
        (!is_of_plain_body).then_some(Cow::Borrowed(value))
    }

    /// Fields that compression adds to the head.
    pub(crate) fn added(&self) -> impl Iterator<Item = (&'static [u8], &'static [u8])> + use<> {
        let coding = self.coding.map(|coding| (&b"Content-Encoding"[..], coding.name().as_bytes()));
        let vary = self.adds_vary.then_some((&b"Vary"[..], &b"Accept-Encoding"[..]));
        coding.into_iter().chain(vary)
    }
}
