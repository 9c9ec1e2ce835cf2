//! URL in a `Refresh`, as browsers find it (HTML Standard, "shared declarative refresh steps").

use std::ops::Range;

/// Place of the URL in a value such as `5; url=/a`; `None`: there is none. A comma may stand for the
/// semicolon, `url=` may be missing, and the URL may be within quotes.
pub(super) fn url_in(value: &[u8]) -> Option<Range<usize>> {
    let skip = |from: usize, is_skipped: fn(&u8) -> bool| {
        from + value[from..].iter().take_while(|byte| is_skipped(byte)).count()
    };
    let blanks = |from| skip(from, u8::is_ascii_whitespace);
    let digits = blanks(0);
    let after_time = skip(digits, |byte| byte.is_ascii_digit() || *byte == b'.');
    if after_time == digits {
        return None;
    }
    let mut at = blanks(after_time);
    match value.get(at) {
        Some(b';' | b',') => at = blanks(at + 1),
        Some(_) if at > after_time => {}
        _ => return None,
    }
    if value.get(at..at + 3).is_some_and(|word| word.eq_ignore_ascii_case(b"url")) {
        let equals = blanks(at + 3);
        if value.get(equals) == Some(&b'=') {
            at = blanks(equals + 1);
        }
    }
    let quote = value.get(at).filter(|byte| matches!(byte, b'"' | b'\''));
    let begin = at + usize::from(quote.is_some());
    let rest = &value[begin..];
    let end = quote.and_then(|quote| rest.iter().position(|byte| byte == quote));
    let end = end.unwrap_or_else(|| rest.trim_ascii_end().len());
    (end > 0).then_some(begin..begin + end)
}
