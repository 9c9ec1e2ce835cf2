//! Check of encoded field sections of HTTP/2 (HPACK, RFC 7541), before the HTTP/2 library reads
//! them. The library ends the connection for a malformed field, cuts a path off at its fragment,
//! and does not notice pseudo-header fields in trailers. Pure.

use std::collections::VecDeque;

use convey_http_core::Malformed;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::field_coding::{integer, put_string, string};

/// Maximum size of the dynamic table in bytes, as HPACK counts them. This is the default of HTTP/2,
/// which convey does not change.
const MAX_TABLE: usize = 4_096;

/// Bytes that HPACK counts for an entry in addition to its name and value.
const ENTRY: usize = 32;

/// Names in the static table (RFC 7541, appendix A), without the pseudo-header fields at its
/// beginning.
const STATIC_NAMES: [&str; 47] = [
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
];

/// Names of the first 14 entries in the static table, which are pseudo-header fields.
const STATIC_PSEUDO: [FieldName; 14] = {
    use FieldName::{Authority, Method, Path, Scheme, Status};
    let (method, path, scheme, status) = (Method, Path, Scheme, Status);
    [
        Authority, method, method, path, path, scheme, scheme, status, status, status, status, status,
        status, status,
    ]
};

/// Name of a field for which the library resets the stream, unless the value is `trailers` (RFC
/// 9113, section 8.2.2).
const REFUSED_NAME: &[u8] = b"te";

/// Kind of a field section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// The head of a request.
    Request,
    /// The trailers of a request.
    Trailers,
    /// Any other section: of a server, or on a stream whose request has ended.
    Other,
}

/// Dynamic table of one direction of a connection: names and sizes of its entries, without their
/// values.
#[derive(Debug)]
pub(super) struct FieldTable {
    /// Entries, the newest first.
    entries: VecDeque<Entry>,
    size: usize,
    max_size: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    name: FieldName,
    size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldName {
    Authority,
    Method,
    Path,
    Scheme,
    Status,
    Protocol,
    /// A regular field, whose name has this length.
    Regular(usize),
}

/// Malformed section, and its replacement for the library. When the library reads the replacement,
/// it resets the stream and keeps its own dynamic table correct.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedBlock {
    pub(super) fault: Malformed,
    pub(super) block: Vec<u8>,
}

/// Verdict on a field line.
enum LineVerdict {
    Fine,
    /// The line is not allowed in the section.
    Misplaced(Malformed),
    /// The line is malformed; the library gets a replacement.
    Replaced(Malformed, Vec<u8>),
}

/// A section that cannot be decoded. The library ends the connection for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undecodable;

impl Default for FieldTable {
    fn default() -> FieldTable {
        FieldTable { entries: VecDeque::new(), size: 0, max_size: MAX_TABLE }
    }
}

impl FieldTable {
    /// Checks a whole section. `Ok(None)`: the library gets the section unchanged.
    ///
    /// # Errors
    /// The section cannot be decoded.
    pub(super) fn check(
        &mut self,
        block: &[u8],
        kind: BlockKind,
    ) -> Result<Option<MalformedBlock>, Undecodable> {
        let (mut left, mut fault, mut rewritten) = (block, None, None::<Vec<u8>>);
        while !left.is_empty() {
            let line = left;
            let verdict = self.read_line(&mut left, kind).ok_or(Undecodable)?;
            let as_it_came = &line[..line.len() - left.len()];
            match verdict {
                LineVerdict::Fine => {}
                LineVerdict::Misplaced(found) => fault = fault.or(Some(found)),
                LineVerdict::Replaced(found, other) => {
                    fault = fault.or(Some(found));
                    let before = || block[..block.len() - line.len()].to_vec();
                    rewritten.get_or_insert_with(before).extend_from_slice(&other);
                    continue;
                }
            }
            if let Some(rewritten) = &mut rewritten {
                rewritten.extend_from_slice(as_it_came);
            }
        }
        Ok(fault.map(|fault| {
            let mut block = rewritten.unwrap_or_else(|| block.to_vec());
            put_refused_field(REFUSED_NAME.len(), false, &mut block);
            MalformedBlock { fault, block }
        }))
    }

    /// Reads a field line; `None`: the line cannot be decoded.
    fn read_line(&mut self, left: &mut &[u8], kind: BlockKind) -> Option<LineVerdict> {
        let first = *left.first()?;
        match first {
            0x80.. => {
                let name = self.name(integer(left, 7)?)?;
                Some(kind.fault_of(name).map_or(LineVerdict::Fine, LineVerdict::Misplaced))
            }
            0x20..0x40 => {
                self.max_size = usize::try_from(integer(left, 5)?).ok().filter(|size| *size <= MAX_TABLE)?;
                self.evict();
                Some(LineVerdict::Fine)
            }
            _ => self.read_literal(left, first >= 0x40, kind),
        }
    }

    /// Reads a literal field line, which contains its value; `None`: the line cannot be decoded.
    /// `is_indexed`: the field becomes an entry of the table.
    fn read_literal(&mut self, left: &mut &[u8], is_indexed: bool, kind: BlockKind) -> Option<LineVerdict> {
        let (mut name, fault) = match integer(left, if is_indexed { 6 } else { 4 })? {
            0 => FieldName::read(&string(left, 7)?),
            index => (self.name(index)?, None),
        };
        let value = string(left, 7)?;
        let len = name.len() + value.len();
        let verdict = match fault.or_else(|| name.fault_of_value(&value, kind)) {
            None => kind.fault_of(name).map_or(LineVerdict::Fine, LineVerdict::Misplaced),
            // The field is shorter than any replacement. The library ends the connection for it.
            Some(_) if len < REFUSED_NAME.len() => return None,
            Some(fault) => {
                let mut other = Vec::with_capacity(len + 8);
                put_refused_field(len, is_indexed, &mut other);
                name = FieldName::Regular(REFUSED_NAME.len());
                LineVerdict::Replaced(fault, other)
            }
        };
        if is_indexed {
            self.insert(Entry { name, size: ENTRY + len });
        }
        Some(verdict)
    }

    fn name(&self, index: u64) -> Option<FieldName> {
        let index = usize::try_from(index).ok()?.checked_sub(1)?;
        let of_static = STATIC_PSEUDO.get(index).copied();
        of_static
            .or_else(|| {
                STATIC_NAMES
                    .get(index.checked_sub(STATIC_PSEUDO.len())?)
                    .map(|name| FieldName::Regular(name.len()))
            })
            .or_else(|| {
                self.entries
                    .get(index.checked_sub(STATIC_PSEUDO.len() + STATIC_NAMES.len())?)
                    .map(|entry| entry.name)
            })
    }

    fn insert(&mut self, entry: Entry) {
        self.size += entry.size;
        self.entries.push_front(entry);
        self.evict();
    }

    /// Removes the oldest entries until the table fits its maximum size.
    fn evict(&mut self) {
        while self.size > self.max_size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size;
        }
    }
}

impl BlockKind {
    /// Returns the reason why the section must not contain a field with this name; `None` if it
    /// may.
    fn fault_of(self, name: FieldName) -> Option<Malformed> {
        let is_pseudo = !matches!(name, FieldName::Regular(_));
        (self == BlockKind::Trailers && is_pseudo).then_some(Malformed::PseudoField)
    }
}

impl FieldName {
    /// Parses a name. Also returns the reason why the name is invalid; `None` if it is valid.
    fn read(name: &[u8]) -> (FieldName, Option<Malformed>) {
        let pseudo = match name {
            b":authority" => FieldName::Authority,
            b":method" => FieldName::Method,
            b":path" => FieldName::Path,
            b":scheme" => FieldName::Scheme,
            b":status" => FieldName::Status,
            b":protocol" => FieldName::Protocol,
            _ => {
                let regular = FieldName::Regular(name.len());
                return match HeaderName::from_lowercase(name) {
                    Ok(_) => (regular, None),
                    Err(_) if name.first() == Some(&b':') => (regular, Some(Malformed::PseudoField)),
                    Err(_) => (regular, Some(Malformed::FieldName)),
                };
            }
        };
        (pseudo, None)
    }

    fn len(self) -> usize {
        match self {
            FieldName::Authority => ":authority".len(),
            FieldName::Method => ":method".len(),
            FieldName::Path => ":path".len(),
            FieldName::Scheme => ":scheme".len(),
            FieldName::Status => ":status".len(),
            FieldName::Protocol => ":protocol".len(),
            FieldName::Regular(len) => len,
        }
    }

    /// Returns the reason why a value is invalid for this name; `None` if it is valid.
    fn fault_of_value(self, value: &[u8], kind: BlockKind) -> Option<Malformed> {
        let is_value = match self {
            FieldName::Regular(_) if HeaderValue::from_bytes(value).is_err() => {
                return Some(Malformed::FieldValue);
            }
            FieldName::Path if kind == BlockKind::Request && value.contains(&b'#') => {
                return Some(Malformed::Target);
            }
            FieldName::Regular(_) => true,
            FieldName::Method => Method::from_bytes(value).is_ok(),
            FieldName::Status => StatusCode::from_bytes(value).is_ok(),
            _ => std::str::from_utf8(value).is_ok(),
        };
        (!is_value).then_some(Malformed::PseudoField)
    }
}

/// Appends a field that the library refuses. Its name and value have `len` bytes together, at least
/// as many as the name.
fn put_refused_field(len: usize, is_indexed: bool, out: &mut Vec<u8>) {
    out.push(if is_indexed { 0x40 } else { 0 });
    put_string(REFUSED_NAME, out);
    put_string(&vec![b'x'; len - REFUSED_NAME.len()], out);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field `te` without a value: it marks a malformed section.
    const MARK: &[u8] = b"\0\x02te\0";

    /// Checks a section with a new table. Returns the fault of a malformed section, and its
    /// replacement.
    fn check(block: &[u8], kind: BlockKind) -> Option<(Malformed, Vec<u8>)> {
        let read = FieldTable::default().check(block, kind).unwrap();
        read.map(|MalformedBlock { fault, block }| (fault, block))
    }

    #[test]
    fn malformed_field_becomes_one_that_resets_the_stream_and_is_as_long() {
        let get = b"\x82\x87\x84";
        for (line, fault, other) in [
            (&b"\x40\x02Xy\x01z"[..], Malformed::FieldName, &b"\x40\x02te\x01x"[..]),
            (b"\0\x03x y\x02ab", Malformed::FieldName, b"\0\x02te\x03xxx"),
            // A line end in Huffman code, with a name of the static table.
            (b"\x7a\x84\xff\xff\xff\xf3", Malformed::FieldValue, b"\x40\x02te\x09xxxxxxxxx"),
            (b"\x10\x04:new\x01a", Malformed::PseudoField, b"\0\x02te\x03xxx"),
            (b"\x44\x04/x#y", Malformed::Target, b"\x40\x02te\x07xxxxxxx"),
            (b"\x02\x03G T", Malformed::PseudoField, b"\0\x02te\x08xxxxxxxx"),
        ] {
            let block = [&get[..], line, b"\x90"].concat();
            let expected = [&get[..], other, b"\x90", MARK].concat();
            assert_eq!(check(&block, BlockKind::Request), Some((fault, expected)), "{line:x?}");
        }
    }

    #[test]
    fn pseudo_field_makes_trailers_malformed_however_it_is_encoded() {
        let mut table = FieldTable::default();
        assert_eq!(table.check(b"\x44\x02/x\x40\x01a\x01b", BlockKind::Request), Ok(None));
        for (line, is_malformed) in [
            (&b"\xbe"[..], false),    // a: b
            (b"\xbf", true),          // :path: /x
            (b"\x84", true),          // :path: /
            (b"\x0f\x30\x01/", true), // :path, the name of an entry
            (b"\0\x05:path\x01/", true),
            (b"\0\x01c\x01d", false),
        ] {
            let found = table.check(line, BlockKind::Trailers).unwrap();
            let expected = is_malformed
                .then(|| MalformedBlock { fault: Malformed::PseudoField, block: [line, MARK].concat() });
            assert_eq!(found, expected, "{line:x?}");
        }
    }

    #[test]
    fn table_forgets_its_oldest_entries_as_that_of_the_sender_does() {
        let mut table = FieldTable::default();
        let long = [&b"\x40\x01a\x7f\xf1\x0e"[..], &[b'v'; 2_032]].concat();
        let [first, second] = [b"\x44\x02/x".to_vec(), long];
        for block in [&first, &second] {
            assert_eq!(table.check(block, BlockKind::Request), Ok(None));
        }
        assert!(table.check(b"\xbf", BlockKind::Trailers).unwrap().is_some(), "the path is there still");
        assert_eq!(table.check(&second, BlockKind::Request), Ok(None));
        assert_eq!(table.check(b"\xc0", BlockKind::Trailers), Err(Undecodable));
        // Valid sizes of the table, then one that is too large.
        assert_eq!(table.check(b"\x20\x3f\xe1\x1f", BlockKind::Request), Ok(None));
        assert_eq!(table.check(b"\xbe", BlockKind::Trailers), Err(Undecodable));
        assert_eq!(table.check(b"\x3f\xe2\x1f", BlockKind::Request), Err(Undecodable));
    }

    #[test]
    fn section_that_is_cut_off_or_no_code_is_undecodable() {
        for block in [
            &b"\x80"[..],
            b"\x40",
            b"\x40\x02a",
            b"\x00\x01a\x05b",
            b"\x44\x82\xff\xff",
            b"\xbe",
            b"\0\0\x01",
        ] {
            assert_eq!(
                FieldTable::default().check(block, BlockKind::Request),
                Err(Undecodable),
                "{block:x?}"
            );
        }
    }
}
