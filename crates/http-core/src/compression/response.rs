//! Properties of a response's head that decide on compression.

use super::CompressionRules;

/// Facts that decide on compression, read from the fields of a head.
#[derive(Debug, Default)]
pub(super) struct ResponseFacts<'a> {
    pub(super) content_type: Option<&'a [u8]>,
    pub(super) length: Option<u64>,
    pub(super) etag: Option<&'a [u8]>,
    /// Whether `Vary` contains `Accept-Encoding` or `*`.
    pub(super) varies: bool,
    /// Whether the body must stay unchanged: it is already compressed, partial, marked
    /// `no-transform`, or has a digest of its bytes.
    is_fixed: bool,
    /// Whether the response is for one client: it has `Set-Cookie` or `Cache-Control: private`.
    is_private: bool,
}

/// Digest fields, which describe the bytes of a body. `Digest` and `Content-MD5` are obsolete; RFC
/// 9530 defines the others.
const DIGESTS: [&[u8]; 4] = [b"content-digest", b"content-md5", b"digest", b"repr-digest"];

impl<'a> ResponseFacts<'a> {
    /// Reads the fields of a head, as the client would get them.
    pub(super) fn of(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> ResponseFacts<'a> {
        let mut facts = ResponseFacts::default();
        fields.for_each(|(name, value)| facts.take(name, value));
        facts
    }

    fn take(&mut self, name: &'a [u8], value: &'a [u8]) {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        // Most names have another length, so few are compared.
        match name.len() {
            4 if is("etag") => self.etag = Some(value),
            4 if is("vary") => {
                self.varies |=
                    elements(value).any(|one| is_word(one, "*") || is_word(one, "accept-encoding"));
            }
            7 if is("trailer") => self.is_fixed |= elements(value).any(is_digest),
            10 if is("set-cookie") => self.is_private = true,
            12 if is("content-type") => self.content_type = Some(value),
            13 if is("cache-control") => {
                for directive in elements(value) {
                    self.is_fixed |= is_word(directive, "no-transform");
                    let name = directive.split(|byte| *byte == b'=').next().unwrap_or_default();
                    self.is_private |= is_word(name, "private");
                }
            }
            13 if is("content-range") => self.is_fixed = true,
            14 if is("content-length") => {
                self.length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            }
            16 if is("content-encoding") => self.is_fixed = true,
            _ if is_digest(name) => self.is_fixed = true,
            _ => {}
        }
    }

    /// Whether the response may be compressed for some client.
    pub(super) fn is_compressible(&self, rules: &CompressionRules) -> bool {
        !self.is_fixed
            && (rules.with_credentials || !self.is_private)
            && self.length.is_none_or(|len| len > 0 && len >= rules.min_size)
            && self.content_type.is_some_and(|value| rules.take_type(value))
    }
}

/// Elements of a comma-separated list, without the spaces around them.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn is_word(one: &[u8], other: &str) -> bool {
    one.eq_ignore_ascii_case(other.as_bytes())
}

fn is_digest(name: &[u8]) -> bool {
    DIGESTS.iter().any(|digest| name.eq_ignore_ascii_case(digest))
}
