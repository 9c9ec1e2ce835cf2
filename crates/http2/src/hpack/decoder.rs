//! Decoder of field sections (RFC 7541, section 3).

use super::table::{Entry, Line, Table};
use crate::field_coding::{StringCode, integer};
use crate::section::Mark;

/// Memory for the decoding of one field section at a time. It holds nothing between two calls, so
/// all connections of a thread may share it.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Decoded names and values of a section, and their places.
    pub(crate) lines: crate::section::Lines,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Decoder of the sections of a connection.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    table: Table,
}

/// A section that cannot be decoded, so that the connection has to end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Undecodable;

impl Decoder {
    /// Decodes a whole section into `scratch.lines`, as far as `max_size` bytes, as HPACK counts
    /// them. Lines beyond that change only the dynamic table.
    ///
    /// # Errors
    /// The section cannot be decoded.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        max_size: usize,
        scratch: &mut Scratch,
    ) -> Result<(), Undecodable> {
        scratch.lines.clear(max_size);
        let (mut left, mut may_resize) = (block, true);
        while let Some(first) = left.first() {
            let decoded = match first {
                0x80.. => self.indexed(&mut left, scratch),
                // Only the beginning of a section may change the size (RFC 7541, section 4.2).
                0x20..0x40 => {
                    integer(&mut left, 5).filter(|size| may_resize && self.table.resize(*size)).map(drop)
                }
                0x40..0x80 => self.literal(&mut left, 6, scratch),
                0..0x20 => self.literal(&mut left, 4, scratch),
            };
            decoded.ok_or(Undecodable)?;
            may_resize &= matches!(first, 0x20..0x40);
        }
        Ok(())
    }

    fn indexed(&mut self, left: &mut &[u8], scratch: &mut Scratch) -> Option<()> {
        let line = self.table.line(integer(left, 7)?)?;
        scratch.lines.push(line);
        Some(())
    }

    /// Decodes a literal line, whose first byte has `bits` bits for the index of the name. With 6
    /// bits, the line becomes an entry of the table.
    fn literal(&mut self, left: &mut &[u8], bits: u32, scratch: &mut Scratch) -> Option<()> {
        let index = integer(left, bits)?;
        let Scratch { lines, name, value } = scratch;
        let (name, known): (&[u8], _) = match index {
            0 => (StringCode::read(left)?.decode(name)?, None),
            index => {
                let line = self.table.line(index)?;
                (line.name, Some(line.mark))
            }
        };
        let value = StringCode::read(left)?.decode(value)?;
        let mark = Mark::of(name, value, known);
        let line = Line { name, value, mark };
        lines.push(line);
        // An insertion may evict the entry that has the name.
        let entry = (bits == 6).then(|| Entry::new(line));
        if let Some(entry) = entry {
            self.table.insert(entry);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<String, Undecodable> {
        let mut scratch = Scratch::default();
        decoder.decode(block, 100_000, &mut scratch)?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Ok(scratch.lines.all().map(|(name, value)| text(name) + "=" + &text(value) + "\n").collect())
    }

    /// The requests of RFC 7541, appendix C.4.
    #[test]
    fn requests_are_decoded_as_in_the_rfc() {
        let mut decoder = Decoder::default();
        for (block, expected) in [
            (
                &b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..],
                ":method=GET\n:scheme=http\n:path=/\n:authority=www.example.com\n",
            ),
            (
                b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
                ":method=GET\n:scheme=http\n:path=/\n:authority=www.example.com\ncache-control=no-cache\n",
            ),
            (
                b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
                ":method=GET\n:scheme=https\n:path=/index.html\n:authority=www.example.com\ncustom-key=custom-value\n",
            ),
        ] {
            assert_eq!(decode(&mut decoder, block).unwrap(), expected);
        }
    }

    #[test]
    fn table_forgets_its_oldest_entries() {
        let mut decoder = Decoder::default();
        let long = [&b"\x40\x01a\x7f\xf1\x0e"[..], &[b'v'; 2_032]].concat();
        for block in [&b"\x44\x02/x"[..], &long] {
            decode(&mut decoder, block).unwrap();
        }
        assert_eq!(decode(&mut decoder, b"\xbf").unwrap(), ":path=/x\n");
        decode(&mut decoder, &long).unwrap();
        assert_eq!(decode(&mut decoder, b"\xc0"), Err(Undecodable));
        // The name of an entry that the insertion evicts.
        let other = [&b"\x7e\x7f\xf1\x0e"[..], &[b'w'; 2_032]].concat();
        assert!(decode(&mut decoder, &other).unwrap().starts_with("a=www"));
        // An entry that is larger than the table empties it.
        decode(&mut decoder, &[&b"\x40\x01a\x7f\x81\x1f"[..], &[b'v'; 4_096]].concat()).unwrap();
        assert_eq!(decode(&mut decoder, b"\xbe"), Err(Undecodable));
    }

    #[test]
    fn size_of_the_table_changes_at_the_beginning_of_a_section() {
        let mut decoder = Decoder::default();
        decode(&mut decoder, b"\x44\x02/x").unwrap();
        assert_eq!(decode(&mut decoder, b"\x20\x3f\xe1\x1f\x82").unwrap(), ":method=GET\n");
        for block in [&b"\xbe"[..], b"\x3f\xe2\x1f", b"\x82\x20"] {
            assert_eq!(decode(&mut decoder, block), Err(Undecodable), "{block:x?}");
        }
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
            b"\x7f\xff",
        ] {
            assert_eq!(decode(&mut Decoder::default(), block), Err(Undecodable), "{block:x?}");
        }
    }

    #[test]
    fn section_cut_off_within_a_line_is_undecodable() {
        let long = [&b"\x00\x01a\x7f\x01"[..], &[b'v'; 128]].concat();
        let lines = [
            &b"\x3f\xe1\x1f"[..], // a size of the table
            b"\x82",
            b"\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x40\x82\x9c\x67\x01c", // the name has a Huffman code
            b"\x0f\x29\x02de",        // the name has an index of two bytes
            b"\xbe",
            &long,
        ];
        let block = lines.concat();
        let mut whole = vec![0];
        whole.extend(lines.iter().scan(0, |end, line| {
            *end += line.len();
            Some(*end)
        }));
        for cut in 0..=block.len() {
            let decoded = decode(&mut Decoder::default(), &block[..cut]);
            let expected = whole.iter().position(|end| *end == cut).map(|lines| lines.saturating_sub(1));
            assert_eq!(decoded.ok().map(|lines| lines.lines().count()), expected, "{cut}");
        }
    }

    #[test]
    fn lines_beyond_the_limit_change_only_the_table() {
        let (mut decoder, mut scratch) = (Decoder::default(), Scratch::default());
        let block = [&b"\x40\x01a\x01b"[..], &[0xbe; 10_000], b"\x40\x01c\x01d"].concat();
        decoder.decode(&block, 100, &mut scratch).unwrap();
        assert!(scratch.lines.is_too_long());
        assert_eq!(scratch.lines.all().count(), 2);
        assert_eq!(decode(&mut decoder, b"\xbe\xbf").unwrap(), "c=d\na=b\n");
    }
}
