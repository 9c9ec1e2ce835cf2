//! Syntax of field names and values.

/// Whether a byte is allowed in a token, such as a field's name (RFC 9110, section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a text is a token, such as a field's name: at least one byte, and all of them allowed.
pub(crate) fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_token)
}

/// Whether a byte is allowed in a field's value (RFC 9110, section 5.5): no control character but
/// the tab.
pub(crate) fn is_of_value(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t' | 0x80..)
}

/// Value of decimal digits; 0 without any. `None`: a byte is no digit, or the number exceeds 64 bits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
