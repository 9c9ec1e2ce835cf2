//! Meaning of single field lines.

use convey_http_core::Malformed;
use http::uri::{Authority, PathAndQuery, Scheme};

/// Maximum number of digits of a `Content-Length`.
const MAX_DIGITS: usize = 19;

/// Maximum length of a name in bytes.
const MAX_NAME: usize = 65_535;

/// Maximum length of a `:path` of which [`is_plain_path`] is certain.
const MAX_PLAIN_PATH: usize = 32 * 1024;

/// Kind and meaning of a field line. Entries of the dynamic table keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(super) kind: FieldKind,
    pub(super) meaning: Meaning,
}

/// Kind of a field, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldKind {
    Authority,
    Method,
    Path,
    Scheme,
    Status,
    Protocol,
    Te,
    ContentLength,
    TransferEncoding,
    /// Field of one HTTP/1.1 connection (RFC 9113, section 8.2.2).
    OfConnection,
    Regular,
}

/// Meaning of a value for the checks of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The value does not matter.
    Any,
    /// Method `CONNECT`.
    Connect,
    /// `Content-Length`.
    Length(u64),
    /// Name or value that no message may have.
    Invalid(Malformed),
    /// Field or value that no request may have.
    Refused(Malformed),
}

impl Mark {
    const REGULAR: Mark = Mark { kind: FieldKind::Regular, meaning: Meaning::Any };

    /// Mark of an entry of the static table.
    pub(crate) fn of_static(index: usize, name: &[u8], value: &[u8]) -> Mark {
        let kind = match index {
            2 | 3 => FieldKind::Method,
            4 | 5 => FieldKind::Path,
            6 | 7 => FieldKind::Scheme,
            8..=14 => FieldKind::Status,
            1 | 28 | 57 => return Mark::of(name, value, None),
            _ => return Mark::REGULAR,
        };
        Mark { kind, meaning: Meaning::Any }
    }

    /// Mark of a line. `known` is the mark of the name's entry in a table.
    pub(crate) fn of(name: &[u8], value: &[u8], known: Option<Mark>) -> Mark {
        let (kind, fault) = match known {
            Some(Mark { kind, meaning: Meaning::Invalid(_) }) if kind == FieldKind::Regular => {
                (kind, FieldKind::of(name).1)
            }
            Some(Mark { kind, .. }) => (kind, None),
            None => FieldKind::of(name),
        };
        let meaning = match fault.or_else(|| kind.fault_of(value)) {
            Some(fault) => Meaning::Invalid(fault),
            None => kind.meaning_of(value),
        };
        Mark { kind, meaning }
    }

    /// Whether the line is not allowed in trailers.
    pub(super) fn is_wrong_in_trailers(self) -> bool {
        let is_refused = matches!(self.meaning, Meaning::Refused(_));
        self.kind.is_pseudo() || is_refused && self.kind != FieldKind::ContentLength
    }
}

impl FieldKind {
    /// Returns the kind of a field, and the reason why its name is invalid, if it is.
    fn of(name: &[u8]) -> (FieldKind, Option<Malformed>) {
        let kind = match name {
            b":authority" => FieldKind::Authority,
            b":method" => FieldKind::Method,
            b":path" => FieldKind::Path,
            b":scheme" => FieldKind::Scheme,
            b":status" => FieldKind::Status,
            b":protocol" => FieldKind::Protocol,
            b"te" => FieldKind::Te,
            b"content-length" => FieldKind::ContentLength,
            b"transfer-encoding" => FieldKind::TransferEncoding,
            b"connection" | b"upgrade" | b"keep-alive" | b"proxy-connection" => FieldKind::OfConnection,
            name if is_name(name) => FieldKind::Regular,
            [b':', ..] => return (FieldKind::Regular, Some(Malformed::PseudoField)),
            _ => return (FieldKind::Regular, Some(Malformed::FieldName)),
        };
        (kind, None)
    }

    pub(super) fn is_pseudo(self) -> bool {
        match self {
            FieldKind::Authority
            | FieldKind::Method
            | FieldKind::Path
            | FieldKind::Scheme
            | FieldKind::Status
            | FieldKind::Protocol => true,
            FieldKind::Te
            | FieldKind::ContentLength
            | FieldKind::TransferEncoding
            | FieldKind::OfConnection
            | FieldKind::Regular => false,
        }
    }

    /// Returns the reason why a value is invalid in itself; `None` if it is valid.
    fn fault_of(self, value: &[u8]) -> Option<Malformed> {
        let is_valid = match self {
            FieldKind::Path if value.contains(&b'#') => return Some(Malformed::Target),
            FieldKind::Method => !value.is_empty() && value.iter().all(|byte| is_token(*byte)),
            FieldKind::Status => true,
            _ if self.is_pseudo() => std::str::from_utf8(value).is_ok(),
            _ => return (!value.iter().copied().all(is_of_value)).then_some(Malformed::FieldValue),
        };
        (!is_valid).then_some(Malformed::PseudoField)
    }

    /// Returns the meaning of a value that is valid in itself.
    fn meaning_of(self, value: &[u8]) -> Meaning {
        let (is_accepted, fault) = match self {
            FieldKind::Regular | FieldKind::Status | FieldKind::Protocol => return Meaning::Any,
            FieldKind::Method if value == b"CONNECT" => return Meaning::Connect,
            FieldKind::Method => return Meaning::Any,
            FieldKind::ContentLength => match length(value) {
                Some(length) => return Meaning::Length(length),
                None => (false, Malformed::ContentLength),
            },
            FieldKind::Path => {
                (is_plain_path(value) || PathAndQuery::try_from(value).is_ok(), Malformed::Target)
            }
            FieldKind::Authority => {
                (is_plain_authority(value) || Authority::try_from(value).is_ok(), Malformed::Host)
            }
            FieldKind::Scheme => {
                let is_usual = value == b"https" || value == b"http";
                (is_usual || Scheme::try_from(value).is_ok(), Malformed::PseudoField)
            }
            FieldKind::Te => (value == b"trailers", Malformed::FieldValue),
            FieldKind::TransferEncoding => (false, Malformed::TransferEncoding),
            FieldKind::OfConnection => (false, Malformed::FieldName),
        };
        if is_accepted { Meaning::Any } else { Meaning::Refused(fault) }
    }
}

/// Whether a name is a token without upper-case letters (RFC 9113, section 8.2.1).
fn is_name(name: &[u8]) -> bool {
    let is_of_name = |byte: &u8| is_token(*byte) && !byte.is_ascii_uppercase();
    (1..=MAX_NAME).contains(&name.len()) && name.iter().all(is_of_name)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_of_value(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t' | 0x80..)
}

/// Parses a `Content-Length`. An empty value is 0; the head of the request is refused for it later.
fn length(value: &[u8]) -> Option<u64> {
    if value.len() > MAX_DIGITS {
        return None;
    }
    value
        .iter()
        .try_fold(0, |length, digit| digit.is_ascii_digit().then(|| length * 10 + u64::from(digit - b'0')))
}

/// Whether a `:path` has only characters that are valid in each path. This saves most paths the
/// parser.
fn is_plain_path(path: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~?=&%+,;:@".contains(byte);
    path.first() == Some(&b'/') && path.len() <= MAX_PLAIN_PATH && path.iter().all(is_plain)
}

/// Whether an authority is a host name or an IPv4 address without a port.
fn is_plain_authority(authority: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    (1..=255).contains(&authority.len()) && authority.iter().all(is_plain)
}
