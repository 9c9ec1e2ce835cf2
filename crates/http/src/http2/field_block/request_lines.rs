//! Rules of the HTTP/2 library for the field lines of a request (RFC 9113, sections 8.1.1 to 8.3).
//! The library resets the stream of a request that breaks one, and does not report the request.
//! Pure.

use convey_http_core::Malformed;
use http::uri::{Authority, PathAndQuery, Scheme};

use super::{Entry, FieldName, ValueMeaning};

/// Maximum number of digits of a `Content-Length`.
const MAX_DIGITS: usize = 19;

/// Maximum length of a `:path` of which [`is_plain_path`] is certain.
const MAX_PLAIN_PATH: usize = 32 * 1024;

/// Field lines of a request so far.
#[derive(Debug, Default)]
pub(super) struct RequestLines {
    /// Size of the fields, as HPACK counts them.
    pub(super) size: usize,
    /// Pseudo-header fields so far, one bit each.
    pseudo: u8,
    has_regular: bool,
    is_connect: bool,
    length: Option<u64>,
    fault: Option<Malformed>,
}

impl RequestLines {
    /// Notes the next line.
    pub(super) fn read(&mut self, line: Entry) {
        self.size += line.size;
        let fault = match line.value {
            ValueMeaning::Refused(fault) => Some(fault),
            ValueMeaning::Connect => {
                self.is_connect = true;
                None
            }
            ValueMeaning::Length(length) => {
                let is_other = self.length.replace(length).is_some_and(|other| other != length);
                is_other.then_some(Malformed::ContentLength)
            }
            ValueMeaning::Any => None,
        };
        let place = line.name.pseudo_bit();
        let is_misplaced = place != 0 && (self.has_regular || self.pseudo & place != 0);
        self.pseudo |= place;
        self.has_regular |= place == 0;
        let misplaced = is_misplaced.then_some(Malformed::PseudoField);
        self.fault = self.fault.or(misplaced).or(fault);
    }

    /// Returns the reason why the library refuses the request; `None` if it accepts it. `is_over` if
    /// neither data nor trailers follow.
    pub(super) fn fault(&self, is_over: bool) -> Option<Malformed> {
        let has = |name: FieldName| self.pseudo & name.pseudo_bit() != 0;
        let (has_scheme, has_path) = (has(FieldName::Scheme), has(FieldName::Path));
        let has_protocol = has(FieldName::Protocol);
        let are_fields_wrong = match (self.is_connect, has_protocol) {
            (true, true) => !has_scheme || !has_path,
            (true, false) => has_scheme || has_path,
            (false, true) => true,
            // Without both, the request names its host in `Host` and gets the path `/`.
            (false, false) => !has_scheme || has(FieldName::Authority) && !has_path,
        };
        if let Some(fault) = self.fault {
            return Some(fault);
        }
        if !has(FieldName::Method) || has(FieldName::Status) || are_fields_wrong {
            return Some(Malformed::PseudoField);
        }
        (is_over && self.length.is_some_and(|length| length > 0)).then_some(Malformed::ContentLength)
    }
}

impl FieldName {
    /// Bit of a pseudo-header field in a set; 0 for other fields.
    fn pseudo_bit(self) -> u8 {
        match self {
            FieldName::Authority => 1,
            FieldName::Method => 2,
            FieldName::Path => 4,
            FieldName::Scheme => 8,
            FieldName::Status => 16,
            FieldName::Protocol => 32,
            _ => 0,
        }
    }

    /// Returns the meaning of a value that is valid in itself.
    pub(super) fn meaning_of(self, value: &[u8]) -> ValueMeaning {
        let (is_accepted, fault) = match self {
            FieldName::Method if value == b"CONNECT" => return ValueMeaning::Connect,
            FieldName::ContentLength => match length(value) {
                Some(length) => return ValueMeaning::Length(length),
                None => (false, Malformed::ContentLength),
            },
            FieldName::Path => {
                (is_plain_path(value) || PathAndQuery::try_from(value).is_ok(), Malformed::Target)
            }
            FieldName::Authority => (Authority::try_from(value).is_ok(), Malformed::Host),
            FieldName::Scheme => (Scheme::try_from(value).is_ok(), Malformed::PseudoField),
            FieldName::Te => (value == b"trailers", Malformed::FieldValue),
            FieldName::TransferEncoding => (false, Malformed::TransferEncoding),
            FieldName::OfConnection(_) => (false, Malformed::FieldName),
            FieldName::Method | FieldName::Status | FieldName::Protocol | FieldName::Regular(_) => {
                return ValueMeaning::Any;
            }
        };
        if is_accepted { ValueMeaning::Any } else { ValueMeaning::Refused(fault) }
    }
}

/// Parses a `Content-Length` as the library does. It accepts an empty value, which convey refuses
/// later.
fn length(value: &[u8]) -> Option<u64> {
    if value.len() > MAX_DIGITS {
        return None;
    }
    value
        .iter()
        .try_fold(0, |length, digit| digit.is_ascii_digit().then(|| length * 10 + u64::from(digit - b'0')))
}

/// Whether a `:path` has only characters that the library certainly accepts. This saves most paths
/// a copy.
fn is_plain_path(path: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~?=&%+,;:@".contains(byte);
    path.first() == Some(&b'/') && path.len() <= MAX_PLAIN_PATH && path.iter().all(is_plain)
}
