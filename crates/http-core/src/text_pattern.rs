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
}

impl TextPattern {
    /// Limit for the memory of a compiled expression, in bytes.
    const MAX_COMPILED: usize = 1024 * 1024;

    /// Compiles an expression.
    ///
    /// # Errors
    /// The expression is invalid.
    pub fn parse(text: &str) -> Result<TextPattern, TextPatternFault> {
        let parsed = RegexBuilder::new(text).size_limit(TextPattern::MAX_COMPILED).build();
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
        }
    }
}

impl std::error::Error for TextPatternFault {}
