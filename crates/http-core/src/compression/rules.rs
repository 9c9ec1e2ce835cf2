//! Compression settings of an operator.

use std::fmt;

use crate::ContentCoding;
use crate::field_syntax::is_token;

/// Rules for the compression of responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressionRules {
    /// Media types that are compressed.
    pub types: Vec<MediaPattern>,
    /// Minimum size in bytes of a body whose length is known.
    pub min_size: u64,
    /// Codings that may be used, the preferred one first. The order decides between codings to
    /// which a client gives the same weight.
    pub encodings: Vec<ContentCoding>,
    /// Whether to compress responses that may contain a secret of one client. These are responses
    /// to requests with `Authorization`, `Cookie` or a client certificate, and responses with
    /// `Set-Cookie` or `Cache-Control: private`.
    pub with_credentials: bool,
    /// Names of the cookies that convey itself sets. They name a server, and are no secrets of a
    /// client.
    pub own_cookies: Vec<Box<str>>,
}

/// A media type such as `text/html`, or a group of types: `text/*`, `*+json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaPattern(Box<str>);

/// Default media types: text, and other formats that are not yet compressed.
const DEFAULT_TYPES: [&str; 22] = [
    "text/*",
    "*+json",
    "*+xml",
    "application/javascript",
    "application/json",
    "application/json-seq",
    "application/ndjson",
    "application/rtf",
    "application/sql",
    "application/toml",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/xml",
    "application/yaml",
    "font/collection",
    "font/otf",
    "font/sfnt",
    "font/ttf",
    "image/bmp",
    "image/vnd.microsoft.icon",
];

impl CompressionRules {
    /// Default minimum size of a compressed body, in bytes. A shorter body fits one packet even
    /// uncompressed.
    pub const MIN_SIZE: u64 = 1_024;

    /// Whether responses with this value of `Content-Type` may be compressed. gRPC is never
    /// compressed: its messages carry their own compression flag.
    pub(super) fn take_type(&self, value: &[u8]) -> bool {
        const GRPC: &[u8] = b"application/grpc";
        let media = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is_grpc = media.get(..GRPC.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(GRPC));
        !is_grpc && self.types.iter().any(|pattern| pattern.matches(media))
    }

    /// Whether a `Cookie` field has no other cookies than those that convey sets.
    pub(super) fn has_only_own_cookies(&self, value: &[u8]) -> bool {
        let is_own = |pair: &[u8]| {
            let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
            self.own_cookies.iter().any(|own| own.as_bytes() == name)
        };
        let mut pairs = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        !self.own_cookies.is_empty() && pairs.all(|pair| pair.is_empty() || is_own(pair))
    }
}

impl Default for CompressionRules {
    fn default() -> CompressionRules {
        CompressionRules {
            types: DEFAULT_TYPES.iter().map(|text| MediaPattern((*text).into())).collect(),
            min_size: CompressionRules::MIN_SIZE,
            encodings: ContentCoding::ALL.to_vec(),
            with_credentials: false,
            own_cookies: Vec::new(),
        }
    }
}

impl fmt::Display for CompressionRules {
    /// Writes, for example, `zstd, br, gzip from 1024 bytes`. Types appear only if they differ from
    /// the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encodings: Vec<&str> = self.encodings.iter().map(|coding| coding.name()).collect();
        write!(f, "{} from {} bytes", encodings.join(", "), self.min_size)?;
        if self.types != CompressionRules::default().types {
            let types: Vec<String> = self.types.iter().map(ToString::to_string).collect();
            write!(f, " of {}", types.join(", "))?;
        }
        f.write_str(if self.with_credentials { ", with credentials" } else { "" })
    }
}

impl MediaPattern {
    /// Parses `TYPE/SUBTYPE`, `TYPE/*` or `*+SUFFIX`, in upper or lower case; `None` for any other
    /// text.
    pub fn parse(text: &str) -> Option<MediaPattern> {
        let is_name =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| is_token(byte) && byte != b'*');
        let is_right = match (text.strip_prefix("*+"), text.split_once('/')) {
            (Some(suffix), _) => is_name(suffix),
            (None, Some((main, sub))) => is_name(main) && (sub == "*" || is_name(sub)),
            (None, None) => false,
        };
        is_right.then(|| MediaPattern(text.to_ascii_lowercase().into()))
    }

    /// Whether a media type, without parameters, matches this pattern.
    fn matches(&self, media: &[u8]) -> bool {
        let pattern = self.0.as_bytes();
        let is = |one: Option<&[u8]>, other: &[u8]| one.is_some_and(|one| one.eq_ignore_ascii_case(other));
        match (pattern.strip_prefix(b"*"), pattern.strip_suffix(b"*")) {
            (Some(suffix), _) => is(media.len().checked_sub(suffix.len()).map(|at| &media[at..]), suffix),
            (None, Some(prefix)) => is(media.get(..prefix.len()), prefix),
            (None, None) => media.eq_ignore_ascii_case(pattern),
        }
    }
}

impl fmt::Display for MediaPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
