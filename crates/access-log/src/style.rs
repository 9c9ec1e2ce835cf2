//! Values as text and as JSON. Pure.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use wide::u8x16;

use super::digits::{append, write_addr, write_ip, write_milliseconds, write_number};
use super::times::FormattedSecond;

/// Bytes that are checked and copied at once.
const BLOCK: usize = 16;

/// Notation of values in a line.
pub(super) trait Style {
    /// Writes that there is no value.
    fn none(&mut self);
    /// Writes a word of convey, which needs no escape.
    fn keyword(&mut self, word: &'static str);
    /// Writes a word of others: a name, or what a client has sent.
    fn word(&mut self, word: &[u8]);
    /// Writes two names as one word: `backend/server`.
    fn names(&mut self, first: &str, second: &str);
    /// Writes a value that contains no special characters.
    fn with(&mut self, write: impl FnOnce(&mut Line<'_>));
    /// Writes a number.
    fn number(&mut self, write: impl FnOnce(&mut Line<'_>));
}

/// Line in progress.
pub(super) struct Line<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) second: &'a mut FormattedSecond,
}

/// Values as text: words are quoted if they have spaces or special characters, and `-` is a missing
/// value.
pub(super) struct Text<'a, 'b>(pub(super) &'a mut Line<'b>);

/// Values as JSON. A missing value is `null`.
pub(super) struct Json<'a, 'b>(pub(super) &'a mut Line<'b>);

impl Line<'_> {
    pub(super) fn addr(&mut self, addr: SocketAddr) {
        write_addr(self.out, addr);
    }

    pub(super) fn ip(&mut self, ip: IpAddr) {
        write_ip(self.out, ip);
    }

    pub(super) fn number(&mut self, n: u64) {
        write_number(self.out, n);
    }

    pub(super) fn milliseconds(&mut self, time: Duration) {
        write_milliseconds(self.out, time);
    }

    /// Writes a time, counted from 1970.
    pub(super) fn time(&mut self, at: Duration) {
        self.second.write(self.out, at);
    }

    /// Writes a time in the format of Apache and nginx.
    pub(super) fn common_time(&mut self, at: Duration) {
        self.second.write_common(self.out, at);
    }
}

impl Style for Text<'_, '_> {
    fn none(&mut self) {
        self.0.out.push(b'-');
    }

    fn keyword(&mut self, word: &'static str) {
        self.0.out.extend_from_slice(word.as_bytes());
    }

    fn word(&mut self, word: &[u8]) {
        let out = &mut *self.0.out;
        let begin = out.len();
        if !copy_if(out, word, is_plain) || matches!(word, [] | [b'-']) {
            out.truncate(begin);
            write_odd_word(out, word);
        }
    }

    fn names(&mut self, first: &str, second: &str) {
        let out = &mut *self.0.out;
        let begin = out.len();
        if !copy_names_if(out, [first, second], is_plain) {
            out.truncate(begin);
            write_odd_word(out, [first, second].join("/").as_bytes());
        }
    }

    fn with(&mut self, write: impl FnOnce(&mut Line<'_>)) {
        write(self.0);
    }

    fn number(&mut self, write: impl FnOnce(&mut Line<'_>)) {
        write(self.0);
    }
}

impl Style for Json<'_, '_> {
    fn none(&mut self) {
        self.0.out.extend_from_slice(b"null");
    }

    fn keyword(&mut self, word: &'static str) {
        self.with(|line| line.out.extend_from_slice(word.as_bytes()));
    }

    fn word(&mut self, word: &[u8]) {
        let out = &mut *self.0.out;
        let begin = out.len();
        out.push(b'"');
        if copy_if(out, word, is_plain_in_json) {
            return out.push(b'"');
        }
        out.truncate(begin);
        write_escaped_json(out, word);
    }

    fn names(&mut self, first: &str, second: &str) {
        let out = &mut *self.0.out;
        let begin = out.len();
        out.push(b'"');
        if copy_names_if(out, [first, second], is_plain_in_json) {
            return out.push(b'"');
        }
        out.truncate(begin);
        write_escaped_json(out, [first, second].join("/").as_bytes());
    }

    fn with(&mut self, write: impl FnOnce(&mut Line<'_>)) {
        self.0.out.push(b'"');
        write(self.0);
        self.0.out.push(b'"');
    }

    fn number(&mut self, write: impl FnOnce(&mut Line<'_>)) {
        write(self.0);
    }
}

/// Copies a text as long as its bytes are plain. Returns whether all of them are; otherwise, a part
/// of the text has been copied.
#[inline]
fn copy_if(out: &mut Vec<u8>, text: &[u8], plain: impl Fn(u8x16) -> u8x16) -> bool {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    for block in blocks {
        if plain(u8x16::new(*block)).to_bitmask() != 0xffff {
            return false;
        }
        out.extend_from_slice(block);
    }
    let mut block = [b'a'; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    append(out, &block, rest.len());
    plain(u8x16::new(block)).to_bitmask() == 0xffff
}

#[inline]
fn copy_names_if(out: &mut Vec<u8>, [first, second]: [&str; 2], plain: impl Fn(u8x16) -> u8x16) -> bool {
    let is_first_plain = copy_if(out, first.as_bytes(), &plain);
    out.push(b'/');
    is_first_plain && copy_if(out, second.as_bytes(), plain)
}

/// Marks visible characters of ASCII, except `"` and `=`.
#[inline]
fn is_plain(block: u8x16) -> u8x16 {
    let quote = block.simd_eq(u8x16::splat(b'"')) | block.simd_eq(u8x16::splat(b'='));
    at_most(block - u8x16::splat(b'!'), b'~' - b'!') & !quote
}

/// Marks the characters of ASCII that JSON does not escape.
#[inline]
fn is_plain_in_json(block: u8x16) -> u8x16 {
    let escaped = block.simd_eq(u8x16::splat(b'"')) | block.simd_eq(u8x16::splat(b'\\'));
    at_most(block - u8x16::splat(b' '), b'~' - b' ') & !escaped
}

#[inline]
fn at_most(block: u8x16, most: u8) -> u8x16 {
    block.min(u8x16::splat(most)).simd_eq(block)
}

/// Writes a text that is not only visible ASCII. The text is quoted if it is not a single word, or
/// if it looks like a missing value: names from DNS may contain any characters.
#[cold]
fn write_odd_word(out: &mut Vec<u8>, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=';
    if text.contains(is_odd) || matches!(&*text, "" | "-") {
        let _ = write!(out, "{text:?}");
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}

#[cold]
fn write_escaped_json(out: &mut Vec<u8>, text: &[u8]) {
    let json = serde_json::to_string(&String::from_utf8_lossy(text));
    debug_assert!(json.is_ok(), "every string is JSON");
    out.extend_from_slice(json.unwrap_or_default().as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_are_quoted_and_escaped_like_strings_of_rust_and_json(
            text in prop_oneof![any::<String>(), "[ -~]{0,40}", "[a-z0-9/._-]{0,40}"]
        ) {
            let (mut out, mut second) = (Vec::new(), FormattedSecond::default());
            let mut line = Line { out: &mut out, second: &mut second };
            Text(&mut line).word(text.as_bytes());
            line.out.push(b' ');
            Text(&mut line).names("b", &text);
            line.out.push(b' ');
            Json(&mut line).names(&text, "é");
            let quoted = |text: String| {
                let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=';
                if text.contains(is_odd) || text.is_empty() || text == "-" { format!("{text:?}") } else { text }
            };
            let json = serde_json::to_string(&format!("{text}/é")).unwrap();
            let expected = format!("{} {} {json}", quoted(text.clone()), quoted(format!("b/{text}")));
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
