//! Regular expressions of an operator, with bounded memory.

use std::fmt;

use regex::bytes::{Captures, Regex, RegexBuilder};

/// Compiled regular expression, in the syntax of the crate `regex`: its time is linear in the length
/// of the text. Two patterns are equal if their texts are equal.
#[derive(Debug, Clone)]
pub struct TextPattern(Regex);

/// Reason why an expression is invalid; one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextPatternFault {
    /// The compiled expression would take too much memory.
    TooLarge,
    /// The syntax is wrong.
    Syntax(String),
    /// A class has characters outside of ASCII, in an expression that matches bytes.
    Unicode,
}

impl TextPattern {
    /// Limit for the memory of a compiled expression, in bytes.
    const MAX_COMPILED: usize = 1024 * 1024;

    /// Compiles an expression for values of requests, which may be any bytes: `.`, `[^a]` and `\W`
    /// match every byte, also line ends and invalid UTF-8. Otherwise a client could avoid a match by
    /// adding such a byte. Classes are those of ASCII, unless the expression has `(?u:...)`.
    ///
    /// # Errors
    /// The expression is invalid.
    pub fn parse(text: &str) -> Result<TextPattern, TextPatternFault> {
        let is_unicode = || TextPattern::build(&mut RegexBuilder::new(text)).is_ok();
        let parsed = TextPattern::build(RegexBuilder::new(text).unicode(false).dot_matches_new_line(true));
        parsed.map_err(|fault| match fault {
            TextPatternFault::Syntax(_) if is_unicode() => TextPatternFault::Unicode,
            fault => fault,
        })
    }

    /// Compiles an expression for texts of several lines: `.` does not match line ends, and classes are
    /// those of Unicode.
    ///
    /// # Errors
    /// The expression is invalid.
    pub fn parse_multiline(text: &str) -> Result<TextPattern, TextPatternFault> {
        TextPattern::build(&mut RegexBuilder::new(text))
    }

    fn build(builder: &mut RegexBuilder) -> Result<TextPattern, TextPatternFault> {
        let parsed = builder.size_limit(TextPattern::MAX_COMPILED).build();
        parsed.map(TextPattern).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => TextPatternFault::TooLarge,
            // The text of the error marks the position over several lines. The last line has the
            // reason.
            error => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default();
                TextPatternFault::Syntax(last.strip_prefix("error: ").unwrap_or(last).to_owned())
            }
        })
    }

    /// The text of the expression.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether the expression matches a part of the text.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.is_match(text)
    }

    /// Whether the expression matches the beginning of a text, no matter which bytes follow.
    pub fn matches_whatever_follows(&self, beginning: &[u8]) -> bool {
        // `$` and `\b` can match at the end of the input, which later bytes would move. A match
        // that ends earlier does not depend on later bytes.
        self.0.shortest_match(beginning).is_some_and(|end| end < beginning.len())
    }

    /// Number of groups that capture a part of the text, without the whole match.
    pub fn groups(&self) -> usize {
        self.0.captures_len() - 1
    }

    /// The first match in a text, with its groups; `None`: the expression does not match.
    pub(crate) fn captures<'t>(&self, text: &'t [u8]) -> Option<Captures<'t>> {
        self.0.captures(text)
    }
}

impl PartialEq for TextPattern {
    fn eq(&self, other: &TextPattern) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for TextPattern {}

impl fmt::Display for TextPatternFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextPatternFault::TooLarge => f.write_str("it needs more than 1 MiB of memory"),
            TextPatternFault::Syntax(reason) => f.write_str(reason),
            TextPatternFault::Unicode => {
                f.write_str(r"a class of characters outside of ASCII needs `(?u:...)`, such as `(?u:\p{L})`")
            }
        }
    }
}

impl std::error::Error for TextPatternFault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_for_requests_matches_any_bytes() {
        let cases: [(&str, &[u8], bool); 20] = [
            ("^BadBot.*$", b"BadBot/1\xff", true),
            ("^BadBot.*$", b"BadBot/1\n", true),
            ("^BadBot[^ ]*$", b"BadBot/1\xff\n", true),
            (r"^BadBot\W*$", b"BadBot/\xff", true),
            (r"^BadBot\S*$", b"BadBot/\xff", true),
            ("^...$", b"\xff\r\n", true),
            ("^admin$", b"admin\n", false),
            ("^admin$", b"x\nadmin", false),
            ("(?m)^admin$", b"x\nadmin\n", true),
            ("(?-s)^a.*$", b"a\n", false),
            ("(?i)^AdMiN", b"admin", true),
            ("^caf\u{e9}+$", "caf\u{e9}\u{e9}".as_bytes(), true),
            ("^caf\u{e9}$", b"caf\xe9", false),
            (r"^caf\xe9$", b"caf\xe9", true),
            (r"^(?u:\p{L})+$", "\u{e9}a".as_bytes(), true),
            ("^(?u:[\u{e0}-\u{ff}])$", "\u{e9}".as_bytes(), true),
            (r"^\w+$", b"a_1", true),
            (r"^\w+$", "\u{e9}".as_bytes(), false),
            (r"^\d$", "\u{661}".as_bytes(), false),
            (r"\bup\b", b"\xffup\xff", true),
        ];
        for (pattern, value, expected) in cases {
            let parsed = TextPattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(value), expected, "{pattern} {:?}", value.escape_ascii().to_string());
        }
    }

    #[test]
    fn unicode_class_in_a_pattern_for_requests_needs_a_flag() {
        for pattern in [r"^\p{L}+$", "[\u{e0}-\u{ff}]", r"\pN"] {
            assert_eq!(TextPattern::parse(pattern), Err(TextPatternFault::Unicode), "{pattern}");
            assert!(TextPattern::parse_multiline(pattern).is_ok(), "{pattern}");
        }
        let wrong = TextPattern::parse(r"\p{L}(").unwrap_err();
        assert_eq!(wrong.to_string(), "unclosed group");
    }
}
