//! Check of encoded field sections of HTTP/2 servers (HPACK, RFC 7541), before the HTTP/2 library
//! reads them. The library ends the connection for a malformed field. Pure.

use std::collections::VecDeque;

use convey_http2::field_coding::{STATIC_FIELDS, integer, put_string, static_field, string};
use http::{HeaderName, HeaderValue, Method, StatusCode};

/// Maximum size of the dynamic table in bytes, as HPACK counts them. This is the default of HTTP/2,
/// which convey does not change.
const MAX_TABLE: usize = 4_096;

/// Bytes that HPACK counts for an entry in addition to its name and value.
const ENTRY: usize = 32;

/// Name of a field for which the library resets the stream, unless the value is `trailers` (RFC
/// 9113, section 8.2.2).
const REFUSED_NAME: &[u8] = b"te";

/// Dynamic table of a server's connection: kinds and lengths of the names of its entries, and their
/// sizes.
#[derive(Debug, Default)]
pub(super) struct FieldTable {
    /// Entries, the newest first.
    entries: VecDeque<Entry>,
    size: usize,
    max_size: Option<usize>,
}

/// Entry of a table.
#[derive(Debug, Clone, Copy)]
struct Entry {
    name: FieldName,
    size: usize,
}

/// Name of a field: its kind, which decides about valid values, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FieldName {
    kind: NameKind,
    len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Method,
    Status,
    OtherPseudo,
    Regular,
    Invalid,
}

/// A section that cannot be decoded. The library ends the connection for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undecodable;

impl FieldTable {
    /// Checks a whole section. `Ok(None)`: the section is well-formed. Otherwise returns a replacement
    /// for the library. When the library reads it, it resets the stream and keeps its own dynamic
    /// table correct.
    ///
    /// # Errors
    /// The section cannot be decoded.
    pub(super) fn check(&mut self, block: &[u8]) -> Result<Option<Vec<u8>>, Undecodable> {
        let (mut left, mut rewritten) = (block, None::<Vec<u8>>);
        while !left.is_empty() {
            let line = left;
            let replacement = self.read_line(&mut left).ok_or(Undecodable)?;
            let as_it_came = &line[..line.len() - left.len()];
            match (replacement, &mut rewritten) {
                (Some(other), rewritten) => {
                    let before = || block[..block.len() - line.len()].to_vec();
                    rewritten.get_or_insert_with(before).extend_from_slice(&other);
                }
                (None, Some(rewritten)) => rewritten.extend_from_slice(as_it_came),
                (None, None) => {}
            }
        }
        Ok(rewritten.map(|mut block| {
            put_refused_field(REFUSED_NAME.len(), false, &mut block);
            block
        }))
    }

    /// Reads a line. Returns a replacement for a malformed line. `None`: the line cannot be decoded.
    fn read_line(&mut self, left: &mut &[u8]) -> Option<Option<Vec<u8>>> {
        match *left.first()? {
            0x80.. => {
                self.name(integer(left, 7)?)?;
                Some(None)
            }
            0x20..0x40 => {
                let size = usize::try_from(integer(left, 5)?).ok().filter(|size| *size <= MAX_TABLE)?;
                self.max_size = Some(size);
                self.evict();
                Some(None)
            }
            first => self.read_literal(left, first >= 0x40),
        }
    }

    /// Reads a literal field line, which contains its value. `is_indexed`: the field becomes an entry
    /// of the table.
    fn read_literal(&mut self, left: &mut &[u8], is_indexed: bool) -> Option<Option<Vec<u8>>> {
        let mut name = match integer(left, if is_indexed { 6 } else { 4 })? {
            0 => FieldName::read(&string(left, 7)?),
            index => self.name(index)?,
        };
        let value = string(left, 7)?;
        let len = name.len + value.len();
        let is_valid = name.may_have(&value);
        // The field is shorter than any replacement. The library ends the connection for it.
        if !is_valid && len < REFUSED_NAME.len() {
            return None;
        }
        let replacement = (!is_valid).then(|| {
            let mut other = Vec::with_capacity(len + 8);
            put_refused_field(len, is_indexed, &mut other);
            name = FieldName { kind: NameKind::Regular, len: REFUSED_NAME.len() };
            other
        });
        if is_indexed {
            self.size += ENTRY + len;
            self.entries.push_front(Entry { name, size: ENTRY + len });
            self.evict();
        }
        Some(replacement)
    }

    /// Returns the name of an entry of the static table or of this one; `None`: there is no such
    /// entry.
    fn name(&self, index: u64) -> Option<FieldName> {
        if let Some((name, _)) = static_field(index) {
            return Some(FieldName::read(name.as_bytes()));
        }
        let index = usize::try_from(index).ok()?.checked_sub(STATIC_FIELDS + 1)?;
        self.entries.get(index).map(|entry| entry.name)
    }

    /// Removes the oldest entries until the table fits its maximum size.
    fn evict(&mut self) {
        while self.size > self.max_size.unwrap_or(MAX_TABLE)
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size;
        }
    }
}

impl FieldName {
    fn read(name: &[u8]) -> FieldName {
        let kind = match name {
            b":method" => NameKind::Method,
            b":status" => NameKind::Status,
            b":authority" | b":path" | b":scheme" | b":protocol" => NameKind::OtherPseudo,
            name if HeaderName::from_lowercase(name).is_ok() => NameKind::Regular,
            _ => NameKind::Invalid,
        };
        FieldName { kind, len: name.len() }
    }

    /// Whether a field with this name and value is valid.
    fn may_have(self, value: &[u8]) -> bool {
        match self.kind {
            NameKind::Method => Method::from_bytes(value).is_ok(),
            NameKind::Status => StatusCode::from_bytes(value).is_ok(),
            NameKind::OtherPseudo => std::str::from_utf8(value).is_ok(),
            NameKind::Regular => HeaderValue::from_bytes(value).is_ok(),
            NameKind::Invalid => false,
        }
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

    #[test]
    fn malformed_field_becomes_one_that_resets_the_stream_and_is_as_long() {
        let ok = b"\x88\x5c\x013";
        for (line, other) in [
            (&b"\x40\x02Xy\x01z"[..], &b"\x40\x02te\x01x"[..]),
            (b"\0\x03x y\x02ab", b"\0\x02te\x03xxx"),
            // A line end in Huffman code, with a name of the static table.
            (b"\x7a\x84\xff\xff\xff\xf3", b"\x40\x02te\x09xxxxxxxxx"),
            (b"\x10\x04:new\x01a", b"\0\x02te\x03xxx"),
            (b"\x08\x0299", b"\0\x02te\x07xxxxxxx"),
            (b"\x02\x03G T", b"\0\x02te\x08xxxxxxxx"),
        ] {
            let block = [&ok[..], line, b"\x90"].concat();
            let expected = [&ok[..], other, b"\x90", MARK].concat();
            assert_eq!(FieldTable::default().check(&block), Ok(Some(expected)), "{line:x?}");
        }
        assert_eq!(FieldTable::default().check(b"\x88\x5c\x013\x90"), Ok(None));
    }

    #[test]
    fn table_forgets_its_oldest_entries_as_that_of_the_sender_does() {
        let mut table = FieldTable::default();
        let long = [&b"\x40\x01a\x7f\xf1\x0e"[..], &[b'v'; 2_032]].concat();
        for block in [b"\x44\x02/x", &long[..], b"\xbf", &long] {
            assert_eq!(table.check(block), Ok(None));
        }
        assert_eq!(table.check(b"\xc0"), Err(Undecodable));
        // Valid sizes of the table, then one that is too large.
        assert_eq!(table.check(b"\x20\x3f\xe1\x1f"), Ok(None));
        assert_eq!(table.check(b"\xbe"), Err(Undecodable));
        assert_eq!(table.check(b"\x3f\xe2\x1f"), Err(Undecodable));
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
            assert_eq!(FieldTable::default().check(block), Err(Undecodable), "{block:x?}");
        }
    }
}
