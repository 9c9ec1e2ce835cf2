//! Check of encoded field sections of HTTP/2 (HPACK, RFC 7541), before the HTTP/2 library reads
//! them. The library ends the connection for a malformed field, cuts a path off at its fragment,
//! and does not notice pseudo-header fields in trailers. Pure.

mod request_lines;
mod static_table;

use std::collections::VecDeque;

use convey_http_core::Malformed;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use self::request_lines::RequestLines;

use crate::field_coding::{integer, put_string, string};

/// Maximum size of the dynamic table in bytes, as HPACK counts them. This is the default of HTTP/2,
/// which convey does not change.
const MAX_TABLE: usize = 4_096;

/// Bytes that HPACK counts for an entry in addition to its name and value.
const ENTRY: usize = 32;

/// Name of a field for which the library resets the stream, unless the value is `trailers` (RFC
/// 9113, section 8.2.2).
const REFUSED_NAME: &[u8] = b"te";

/// Kind of a field section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// The head of a request. `is_over` if neither data nor trailers follow.
    Request { is_over: bool },
    /// The trailers of a request.
    Trailers,
    /// Any other section: of a server, or on a stream whose request has ended.
    Other,
}

/// Dynamic table of one direction of a connection: names and sizes of its entries, with the meaning
/// of their values.
#[derive(Debug)]
pub(super) struct FieldTable {
    /// Size of the fields of a request from which the library refuses it, as HPACK counts them.
    max_list: usize,
    /// Entries, the newest first.
    entries: VecDeque<Entry>,
    size: usize,
    max_size: usize,
}

/// Field line, or entry of a table.
#[derive(Debug, Clone, Copy)]
struct Entry {
    name: FieldName,
    value: ValueMeaning,
    size: usize,
}

/// Meaning of a value for the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueMeaning {
    /// The value does not matter.
    Any,
    /// Method `CONNECT`.
    Connect,
    /// `Content-Length`.
    Length(u64),
    /// Value for which the library refuses a request.
    Refused(Malformed),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldName {
    Authority,
    Method,
    Path,
    Scheme,
    Status,
    Protocol,
    Te,
    ContentLength,
    TransferEncoding,
    /// Field of one HTTP/1.1 connection (RFC 9113, section 8.2.2), whose name has this length.
    OfConnection(usize),
    /// Any other field, whose name has this length.
    Regular(usize),
}

/// Malformed section.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedBlock {
    pub(super) fault: Malformed,
    /// Replacement for the library. When the library reads it, it resets the stream and keeps its
    /// own dynamic table correct. `None`: the library gets the section unchanged, and responds to
    /// it with 431.
    pub(super) block: Option<Vec<u8>>,
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

impl FieldTable {
    /// Creates the empty table of a connection whose library refuses requests with fields of
    /// `max_list` bytes.
    pub(super) fn new(max_list: usize) -> FieldTable {
        FieldTable { max_list, entries: VecDeque::new(), size: 0, max_size: MAX_TABLE }
    }

    /// Checks a whole section. `Ok(None)`: the section is well-formed.
    ///
    /// # Errors
    /// The section cannot be decoded.
    pub(super) fn check(
        &mut self,
        block: &[u8],
        kind: BlockKind,
    ) -> Result<Option<MalformedBlock>, Undecodable> {
        let (mut left, mut fault, mut rewritten) = (block, None, None::<Vec<u8>>);
        let mut request = RequestLines::default();
        while !left.is_empty() {
            let line = left;
            let (verdict, entry) = self.read_line(&mut left, kind).ok_or(Undecodable)?;
            let as_it_came = &line[..line.len() - left.len()];
            if let Some(entry) = entry {
                request.read(entry);
            }
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
        if let BlockKind::Request { is_over } = kind {
            fault = fault.or_else(|| request.fault(is_over));
            if fault.is_none() && request.size >= self.max_list {
                return Ok(Some(MalformedBlock { fault: Malformed::HeadTooLong, block: None }));
            }
        }
        Ok(fault.map(|fault| {
            let mut block = rewritten.unwrap_or_else(|| block.to_vec());
            put_refused_field(REFUSED_NAME.len(), false, &mut block);
            MalformedBlock { fault, block: Some(block) }
        }))
    }

    /// Reads a line. The line of a field has an entry, other lines have none. `None`: the line cannot
    /// be decoded.
    fn read_line(&mut self, left: &mut &[u8], kind: BlockKind) -> Option<(LineVerdict, Option<Entry>)> {
        let first = *left.first()?;
        match first {
            0x80.. => {
                let entry = self.entry(integer(left, 7)?)?;
                let fault = kind.fault_of(entry.name);
                Some((fault.map_or(LineVerdict::Fine, LineVerdict::Misplaced), Some(entry)))
            }
            0x20..0x40 => {
                self.max_size = usize::try_from(integer(left, 5)?).ok().filter(|size| *size <= MAX_TABLE)?;
                self.evict();
                Some((LineVerdict::Fine, None))
            }
            _ => {
                let (verdict, entry) = self.read_literal(left, first >= 0x40, kind)?;
                Some((verdict, Some(entry)))
            }
        }
    }

    /// Reads a literal field line, which contains its value; `None`: the line cannot be decoded.
    /// `is_indexed`: the field becomes an entry of the table.
    fn read_literal(
        &mut self,
        left: &mut &[u8],
        is_indexed: bool,
        kind: BlockKind,
    ) -> Option<(LineVerdict, Entry)> {
        let (name, fault) = match integer(left, if is_indexed { 6 } else { 4 })? {
            0 => FieldName::read(&string(left, 7)?),
            index => (self.entry(index)?.name, None),
        };
        let value = string(left, 7)?;
        let len = name.len() + value.len();
        let mut entry = Entry { name, value: ValueMeaning::Any, size: ENTRY + len };
        let verdict = match fault.or_else(|| name.fault_of_value(&value, kind)) {
            None => {
                entry.value = name.meaning_of(&value);
                kind.fault_of(name).map_or(LineVerdict::Fine, LineVerdict::Misplaced)
            }
            // The field is shorter than any replacement. The library ends the connection for it.
            Some(_) if len < REFUSED_NAME.len() => return None,
            Some(fault) => {
                let mut other = Vec::with_capacity(len + 8);
                put_refused_field(len, is_indexed, &mut other);
                (entry.name, entry.value) = (FieldName::Te, ValueMeaning::Refused(fault));
                LineVerdict::Replaced(fault, other)
            }
        };
        if is_indexed {
            self.insert(entry);
        }
        Some((verdict, entry))
    }

    /// Returns an entry of the static table or of this one; `None`: there is no such entry.
    fn entry(&self, index: u64) -> Option<Entry> {
        let index = usize::try_from(index).ok()?.checked_sub(1)?;
        match index.checked_sub(static_table::LEN) {
            None => Some(static_table::entry(index)),
            Some(index) => self.entries.get(index).copied(),
        }
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
        (self == BlockKind::Trailers && !name.is_regular()).then_some(Malformed::PseudoField)
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
                let regular = FieldName::regular(name);
                return match HeaderName::from_lowercase(name) {
                    Ok(_) => (regular, None),
                    Err(_) if name.first() == Some(&b':') => (regular, Some(Malformed::PseudoField)),
                    Err(_) => (regular, Some(Malformed::FieldName)),
                };
            }
        };
        (pseudo, None)
    }

    /// Name of a field that is not a pseudo-header field.
    fn regular(name: &[u8]) -> FieldName {
        match name {
            b"te" => FieldName::Te,
            b"content-length" => FieldName::ContentLength,
            b"transfer-encoding" => FieldName::TransferEncoding,
            b"connection" | b"upgrade" | b"keep-alive" | b"proxy-connection" => {
                FieldName::OfConnection(name.len())
            }
            _ => FieldName::Regular(name.len()),
        }
    }

    fn is_regular(self) -> bool {
        match self {
            FieldName::Authority
            | FieldName::Method
            | FieldName::Path
            | FieldName::Scheme
            | FieldName::Status
            | FieldName::Protocol => false,
            FieldName::Te
            | FieldName::ContentLength
            | FieldName::TransferEncoding
            | FieldName::OfConnection(_)
            | FieldName::Regular(_) => true,
        }
    }

    fn len(self) -> usize {
        match self {
            FieldName::Authority => ":authority".len(),
            FieldName::Method => ":method".len(),
            FieldName::Path => ":path".len(),
            FieldName::Scheme => ":scheme".len(),
            FieldName::Status => ":status".len(),
            FieldName::Protocol => ":protocol".len(),
            FieldName::Te => "te".len(),
            FieldName::ContentLength => "content-length".len(),
            FieldName::TransferEncoding => "transfer-encoding".len(),
            FieldName::OfConnection(len) | FieldName::Regular(len) => len,
        }
    }

    /// Returns the reason why a value is invalid for this name; `None` if it is valid.
    fn fault_of_value(self, value: &[u8], kind: BlockKind) -> Option<Malformed> {
        let is_value = match self {
            name if name.is_regular() => {
                return HeaderValue::from_bytes(value).is_err().then_some(Malformed::FieldValue);
            }
            FieldName::Path if matches!(kind, BlockKind::Request { .. }) && value.contains(&b'#') => {
                return Some(Malformed::Target);
            }
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

    const MAX_LIST: usize = 10_000;
    const REQUEST: BlockKind = BlockKind::Request { is_over: true };

    /// Checks a section with a new table. Returns the fault of a malformed section, and its
    /// replacement.
    fn check(block: &[u8], kind: BlockKind) -> Option<(Malformed, Option<Vec<u8>>)> {
        let read = FieldTable::new(MAX_LIST).check(block, kind).unwrap();
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
            assert_eq!(check(&block, REQUEST), Some((fault, Some(expected))), "{line:x?}");
        }
    }

    #[test]
    fn pseudo_field_makes_trailers_malformed_however_it_is_encoded() {
        let mut table = FieldTable::new(MAX_LIST);
        assert_eq!(table.check(b"\x44\x02/x\x40\x01a\x01b", BlockKind::Other), Ok(None));
        for (line, is_malformed) in [
            (&b"\xbe"[..], false),    // a: b
            (b"\xbf", true),          // :path: /x
            (b"\x84", true),          // :path: /
            (b"\x0f\x30\x01/", true), // :path, the name of an entry
            (b"\0\x05:path\x01/", true),
            (b"\0\x01c\x01d", false),
        ] {
            let found = table.check(line, BlockKind::Trailers).unwrap();
            let expected = is_malformed.then(|| MalformedBlock {
                fault: Malformed::PseudoField,
                block: Some([line, MARK].concat()),
            });
            assert_eq!(found, expected, "{line:x?}");
        }
    }

    #[test]
    fn table_forgets_its_oldest_entries_as_that_of_the_sender_does() {
        let mut table = FieldTable::new(MAX_LIST);
        let long = [&b"\x40\x01a\x7f\xf1\x0e"[..], &[b'v'; 2_032]].concat();
        let [first, second] = [b"\x44\x02/x".to_vec(), long];
        for block in [&first, &second] {
            assert_eq!(table.check(block, BlockKind::Other), Ok(None));
        }
        assert!(table.check(b"\xbf", BlockKind::Trailers).unwrap().is_some(), "the path is there still");
        assert_eq!(table.check(&second, BlockKind::Other), Ok(None));
        assert_eq!(table.check(b"\xc0", BlockKind::Trailers), Err(Undecodable));
        // Valid sizes of the table, then one that is too large.
        assert_eq!(table.check(b"\x20\x3f\xe1\x1f", BlockKind::Other), Ok(None));
        assert_eq!(table.check(b"\xbe", BlockKind::Trailers), Err(Undecodable));
        assert_eq!(table.check(b"\x3f\xe2\x1f", BlockKind::Other), Err(Undecodable));
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
            assert_eq!(FieldTable::new(MAX_LIST).check(block, REQUEST), Err(Undecodable), "{block:x?}");
        }
    }
}
