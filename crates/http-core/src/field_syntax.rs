//! Syntax of field names and values, sixteen bytes at a time.

use wide::u8x16;

/// Bytes of a block.
const BLOCK: usize = 16;

/// Whether a byte is allowed in a token, such as a field's name (RFC 9110, section 5.6.2).
#[inline]
pub(crate) fn is_token(byte: u8) -> bool {
    TOKEN_BYTES[usize::from(byte)]
}

/// For each byte, whether it is allowed in a token.
static TOKEN_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        allowed[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let (marks, mut at) = (b"!#$%&'*+-.^_`|~", 0);
    while at < marks.len() {
        allowed[marks[at] as usize] = true;
        at += 1;
    }
    allowed
};

/// Whether a text is a token, such as a field's name: at least one byte, and all of them allowed.
pub fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_token)
}

/// Whether servers behind CGI, WSGI and the like see the same field in two names: `X-User` and
/// `x_user`.
pub fn is_same_for_cgi(name: &[u8], other: &[u8]) -> bool {
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == other.len() && name.iter().map(plain).eq(other.iter().map(plain))
}

/// Whether a byte is allowed in a field's value (RFC 9110, section 5.5): no control character but
/// the tab.
pub(crate) fn is_of_value(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t' | 0x80..)
}

/// End of the token that begins at `at`; `at` if there is none.
#[inline]
pub(crate) fn token_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = end_of_run(bytes, at, usual_in_tokens);
        if !bytes.get(at).is_some_and(|byte| is_token(*byte)) {
            return at;
        }
        at += 1;
    }
}

/// End of the bytes from `at` on that are allowed in a field's value.
#[inline]
pub(crate) fn value_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = end_of_run(bytes, at, no_controls);
        if bytes.get(at) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
}

/// End of the visible bytes of ASCII from `at` on. A target consists of such bytes; `head::target`
/// checks its parts.
#[inline]
pub(crate) fn visible_end(bytes: &[u8], at: usize) -> usize {
    end_of_run(bytes, at, |block| at_most(block - u8x16::splat(b'!'), b'~' - b'!'))
}

/// End of the bytes from `at` on that belong to a run. `belonging` marks them in a block; a zero
/// byte never belongs.
#[inline]
fn end_of_run(bytes: &[u8], mut at: usize, belonging: impl Fn(u8x16) -> u8x16) -> usize {
    let len_in = |block| (!belonging(u8x16::new(block)).to_bitmask() | 1 << BLOCK).trailing_zeros() as usize;
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<BLOCK>) {
        let len = len_in(*block);
        at += len;
        if len < BLOCK {
            return at;
        }
    }
    // Zero bytes behind the last ones end the run there.
    let (rest, mut block) = (bytes.get(at..).unwrap_or_default(), [0; BLOCK]);
    block[..rest.len()].copy_from_slice(rest);
    at + len_in(block)
}

/// Marks letters, digits and hyphens: few tokens have other bytes.
#[inline]
fn usual_in_tokens(block: u8x16) -> u8x16 {
    let letters = (block | u8x16::splat(0x20)) - u8x16::splat(b'a');
    let digits = block - u8x16::splat(b'0');
    at_most(letters, 25) | at_most(digits, 9) | block.simd_eq(u8x16::splat(b'-'))
}

/// Marks bytes that are no control characters.
#[inline]
fn no_controls(block: u8x16) -> u8x16 {
    !(at_most(block, 0x1f) | block.simd_eq(u8x16::splat(0x7f)))
}

#[inline]
fn at_most(block: u8x16, most: u8) -> u8x16 {
    block.min(u8x16::splat(most)).simd_eq(block)
}

/// Value of decimal digits; 0 without any. `None`: a byte is no digit, or the number exceeds 64 bits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn token_ends_before_the_first_other_byte(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), b'a'..=b'z', b'A'..=b'Z', Just(b'-')], 0..50)
        ) {
            let expected = bytes.iter().take_while(|byte| is_token(**byte)).count();
            prop_assert_eq!(token_end(&bytes, 0), expected);
        }

        #[test]
        fn visible_bytes_end_before_the_first_other_byte(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), b'!'..=b'~', b'!'..=b'~'], 0..60)
        ) {
            let expected = bytes.iter().take_while(|byte| (b'!'..=b'~').contains(*byte)).count();
            prop_assert_eq!(visible_end(&bytes, 0), expected);
        }

        #[test]
        fn value_ends_before_the_first_control_character(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\t'), b' '..=b'~', 0x80_u8..], 0..40)
        ) {
            let expected = bytes.iter().take_while(|byte| is_of_value(**byte)).count();
            prop_assert_eq!(value_end(&bytes, 0), expected);
        }
    }
}
