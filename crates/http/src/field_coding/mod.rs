//! Numbers and strings as HPACK and QPACK encode them (RFC 7541, section 5; RFC 9204, section 4.1).
//! Pure.

mod huffman;

use std::borrow::Cow;

/// Removes an integer from the front of `left`, and returns it. The integer has `bits` bits in its
/// first byte, and seven in each further byte. `None`: the integer is incomplete, or too large.
pub(crate) fn integer(left: &mut &[u8], bits: u32) -> Option<u64> {
    let (first, mut rest) = left.split_first()?;
    let most = u64::from(u8::MAX >> (8 - bits));
    let mut number = u64::from(*first) & most;
    if number == most {
        let mut shift = 0;
        loop {
            let (byte, more) = rest.split_first()?;
            rest = more;
            number = number.checked_add(u64::from(byte & 0x7f).checked_shl(shift)?)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *left = rest;
    Some(number)
}

/// Removes a string from the front of `left`, and returns it. The length of the string has `bits`
/// bits in its first byte. The bit before them marks a Huffman code. `None`: the string is
/// incomplete, or its code is invalid.
pub(crate) fn string<'a>(left: &mut &'a [u8], bits: u32) -> Option<Cow<'a, [u8]>> {
    let is_huffman = left.first()? & (1 << bits) != 0;
    let len = usize::try_from(integer(left, bits)?).ok()?;
    let (string, rest) = left.split_at_checked(len)?;
    *left = rest;
    if is_huffman { huffman::decode(string).map(Cow::Owned) } else { Some(Cow::Borrowed(string)) }
}

/// Appends a string without a Huffman code, with seven bits of its length in the first byte.
pub(crate) fn put_string(string: &[u8], out: &mut Vec<u8>) {
    const MOST: usize = 0x7f;
    match string.len() {
        len @ 0..MOST => out.push(len as u8),
        len => {
            out.push(MOST as u8);
            let mut more = len - MOST;
            while more > 0x7f {
                out.push(0x80 | (more & 0x7f) as u8);
                more >>= 7;
            }
            out.push(more as u8);
        }
    }
    out.extend_from_slice(string);
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
