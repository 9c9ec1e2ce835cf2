//! Numbers and strings as HPACK and QPACK encode them (RFC 7541, section 5; RFC 9204, section 4.1).
//! Pure.

mod huffman;

use std::borrow::Cow;

use crate::hpack::static_table;

/// Number of fields in the static table of HPACK.
pub const STATIC_FIELDS: usize = static_table::LEN;

/// Returns the name and value of a field in the static table of HPACK, by its index from 1.
pub fn static_field(index: u64) -> Option<(&'static str, &'static str)> {
    let index = usize::try_from(index).ok()?.checked_sub(1)?;
    static_table::ENTRIES.get(index).copied()
}

/// Position of the highest seven bits of an integer. All together are less than 64 bits.
const MAX_SHIFT: u32 = 49;

/// Removes an integer from the front of `left`, and returns it. The integer has `bits` bits in its
/// first byte, and seven in each further byte. `None`: the integer is incomplete, or too large.
pub fn integer(left: &mut &[u8], bits: u32) -> Option<u64> {
    let (first, mut rest) = left.split_first()?;
    let most = u64::from(u8::MAX >> (8 - bits));
    let mut number = u64::from(*first) & most;
    if number == most {
        let mut shift = 0;
        loop {
            let (byte, more) = rest.split_first()?;
            rest = more;
            if shift > MAX_SHIFT {
                return None;
            }
            number += u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *left = rest;
    Some(number)
}

/// Encoded string.
#[derive(Debug, Clone, Copy)]
pub struct StringCode<'a> {
    code: &'a [u8],
    is_huffman: bool,
}

impl<'a> StringCode<'a> {
    /// Removes a string of HPACK from the front of `left`. `None`: the string is incomplete.
    pub fn read(left: &mut &'a [u8]) -> Option<StringCode<'a>> {
        StringCode::read_with(left, 7)
    }

    /// Removes a string from the front of `left`. The length of the string has `bits` bits in its
    /// first byte. The bit before them marks a Huffman code. `None`: the string is incomplete.
    fn read_with(left: &mut &'a [u8], bits: u32) -> Option<StringCode<'a>> {
        let is_huffman = left.first()? & (1 << bits) != 0;
        let len = usize::try_from(integer(left, bits)?).ok()?;
        let (code, rest) = left.split_at_checked(len)?;
        *left = rest;
        Some(StringCode { code, is_huffman })
    }

    /// Returns the string, decoded in `buffer` if it has a Huffman code. `None`: the code is invalid.
    pub fn decode<'b>(self, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        if !self.is_huffman {
            return Some(self.code);
        }
        buffer.clear();
        huffman::decode(self.code, buffer).then_some(&buffer[..])
    }
}

/// Removes a string from the front of `left`, and returns it. The length of the string has `bits`
/// bits in its first byte. The bit before them marks a Huffman code. `None`: the string is
/// incomplete, or its code is invalid.
pub fn string<'a>(left: &mut &'a [u8], bits: u32) -> Option<Cow<'a, [u8]>> {
    let string = StringCode::read_with(left, bits)?;
    if !string.is_huffman {
        return Some(Cow::Borrowed(string.code));
    }
    let mut decoded = Vec::new();
    huffman::decode(string.code, &mut decoded).then_some(Cow::Owned(decoded))
}

/// Appends a string without a Huffman code, with seven bits of its length in the first byte.
pub fn put_string(string: &[u8], out: &mut Vec<u8>) {
    put_integer(string.len(), 7, 0, out);
    out.extend_from_slice(string);
}

/// Appends an integer with `bits` bits in its first byte, whose other bits are those of `first`.
#[inline]
pub fn put_integer(number: usize, bits: u32, first: u8, out: &mut Vec<u8>) {
    let most = usize::from(u8::MAX >> (8 - bits));
    if number < most {
        return out.push(first | number as u8);
    }
    out.push(first | most as u8);
    let mut more = number - most;
    while more > 0x7f {
        out.push(0x80 | (more & 0x7f) as u8);
        more >>= 7;
    }
    out.push(more as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_as_in_the_examples_of_the_rfc() {
        for (bytes, bits, expected) in [
            (&[10][..], 5, Some(10)),
            (&[31, 154, 10], 5, Some(1_337)),
            (&[42], 8, Some(42)),
            (&[31, 154], 5, None),
        ] {
            assert_eq!(integer(&mut &bytes[..], bits), expected, "{bytes:?}");
        }
        let huge = [&[0x7f][..], &[0xff; 9], &[0x7f]].concat();
        assert_eq!(integer(&mut &huge[..], 7), None);
    }

    #[test]
    fn huffman_coded_strings_decode_as_in_the_rfc_examples() {
        let code = [0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(string(&mut &code[..], 7).as_deref(), Some(&b"www.example.com"[..]));
        assert_eq!(string(&mut &b"\x03abcd"[..], 7).as_deref(), Some(&b"abc"[..]));
        assert_eq!(string(&mut &code[..5], 7), None);
    }

    proptest! {
        #[test]
        fn number_is_read_as_it_was_put(number: u32, bits in 1u32..9) {
            let mut put = Vec::new();
            put_integer(number as usize, bits, 0, &mut put);
            prop_assert_eq!(integer(&mut &put[..], bits), Some(number.into()));
        }

        #[test]
        fn number_that_is_cut_off_is_left_as_it_is(number: u32, bits in 1u32..9) {
            let mut put = Vec::new();
            put_integer(number as usize, bits, 0, &mut put);
            for cut in 0..put.len() {
                let mut left = &put[..cut];
                prop_assert_eq!(integer(&mut left, bits), None);
                prop_assert_eq!(left.len(), cut);
            }
        }

        #[test]
        fn string_that_is_cut_off_is_refused(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut put = Vec::new();
            put_string(&text, &mut put);
            for cut in 0..put.len() {
                prop_assert_eq!(string(&mut &put[..cut], 7), None);
            }
        }

        #[test]
        fn string_is_read_as_it_was_put(text in proptest::collection::vec(any::<u8>(), 0..20_000)) {
            let mut put = Vec::new();
            put_string(&text, &mut put);
            let mut left = &put[..];
            let read = string(&mut left, 7);
            prop_assert_eq!(read.as_deref(), Some(&text[..]));
            prop_assert!(left.is_empty());
        }
    }
}
