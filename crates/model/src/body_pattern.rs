//! Pattern for the body of a health check's response. Pure.

use std::fmt;

use convey_http_core::{TextPattern, TextPatternFault};

/// Compiled regular expression. Two patterns are equal if their texts are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyPattern(TextPattern);

impl BodyPattern {
    /// Length of the beginning of a body that the pattern is matched against, in bytes.
    pub const MAX_BODY: usize = 64 * 1024;

    /// Compiles an expression in the syntax of the crate `regex`.
    ///
    /// # Errors
    /// The expression is invalid.
    pub fn parse(text: &str) -> Result<BodyPattern, TextPatternFault> {
        TextPattern::parse_multiline(text).map(BodyPattern)
    }

    /// Whether the pattern matches the beginning of a body, no matter which bytes follow.
    pub fn matches_whatever_follows(&self, beginning: &[u8]) -> bool {
        self.0.matches_whatever_follows(beginning)
    }

    /// Whether the pattern matches within the first [`MAX_BODY`](BodyPattern::MAX_BODY) bytes of a
    /// body.
    pub fn matches(&self, body: &[u8]) -> bool {
        self.0.matches(&body[..body.len().min(BodyPattern::MAX_BODY)])
    }
}

/// Formats the text of the expression in quotes.
impl fmt::Display for BodyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_match_is_one_that_holds_whatever_follows() {
        let early = |pattern: &str, beginning: &[u8]| {
            BodyPattern::parse(pattern).unwrap().matches_whatever_follows(beginning)
        };
        assert!(early("ready", b"data: ready\n\n") && early("ready.*", b"ready, and more"));
        assert!(
            !early("ready", b"data: read") && !early("^ready$", b"ready") && !early(r"ready\b", b"ready")
        );
    }

    #[test]
    fn body_pattern_matches_raw_bytes_up_to_the_size_limit() {
        let pattern = BodyPattern::parse("(?i)\\bup\\b").unwrap();
        for (body, is_match) in [("all UP now", true), ("upside", false), ("", false)] {
            assert_eq!(pattern.matches(body.as_bytes()), is_match, "{body:?}");
        }
        assert!(pattern.matches(b"\xff\xfe up \xff"));
        let mut body = vec![b' '; BodyPattern::MAX_BODY - 2];
        body.extend(b"up");
        assert!(pattern.matches(&body));
        body.insert(0, b' ');
        assert!(!pattern.matches(&body), "its end is not looked at");
    }

    #[test]
    fn a_wrong_pattern_is_refused_in_one_line() {
        let refused = |text: &str| BodyPattern::parse(text).unwrap_err().to_string();
        assert_eq!(refused("(up"), "unclosed group");
        assert_eq!(refused("x{1000}{1000}"), "it needs more than 1 MiB of memory");
        assert_eq!(refused("(?=up)"), "look-around, including look-ahead and look-behind, is not supported");
    }
}
