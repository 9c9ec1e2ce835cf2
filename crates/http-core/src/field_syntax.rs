//! Syntax of field names and values.

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
pub(crate) fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_token)
}

/// Whether a byte is allowed in a field's value (RFC 9110, section 5.5): no control character but
/// the tab.
pub(crate) fn is_of_value(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t' | 0x80..)
}

/// End of the token that begins at `at`; `at` if there is none.
#[inline]
pub(crate) fn token_end(bytes: &[u8], mut at: usize) -> usize {
    // One branch for four bytes: most names are longer.
    while let Some(four) = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>) {
        let tokens = four.map(|byte| u32::from(is_token(byte)));
        let tokens = tokens[0] | tokens[1] << 1 | tokens[2] << 2 | tokens[3] << 3;
        if tokens != 0b1111 {
            return at + tokens.trailing_ones() as usize;
        }
        at += four.len();
    }
    while bytes.get(at).is_some_and(|byte| is_token(*byte)) {
        at += 1;
    }
    at
}

/// End of the bytes from `at` on that are allowed in a field's value.
#[inline]
pub(crate) fn value_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let controls = controls_in(u64::from_le_bytes(*eight));
        if controls == 0 {
            at += eight.len();
            continue;
        }
        at += controls.trailing_zeros() as usize / 8;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    while bytes.get(at).is_some_and(|byte| is_of_value(*byte)) {
        at += 1;
    }
    at
}

/// Finds control characters among eight bytes: the lowest bit that is set belongs to the first one,
/// if there is one. Higher bits mean nothing. (A subtraction borrows from the next byte only beyond
/// the first hit; see "Determine if a word has a byte less than n" in Sean Anderson's Bit Twiddling
/// Hacks.)
fn controls_in(word: u64) -> u64 {
    const EACH: u64 = u64::MAX / 255;
    const HIGH: u64 = EACH * 0x80;
    let below = |word: u64, n: u64| word.wrapping_sub(EACH * n) & !word & HIGH;
    below(word, 0x20) | below(word ^ (EACH * 0x7f), 1)
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
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), b'a'..=b'z', Just(b'-')], 0..20)
        ) {
            let expected = bytes.iter().take_while(|byte| is_token(**byte)).count();
            prop_assert_eq!(token_end(&bytes, 0), expected);
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
