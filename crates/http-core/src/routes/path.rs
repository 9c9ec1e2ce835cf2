//! Paths that a route matches: all below a path, one path, or those of a regular expression.

use std::fmt;

use super::pattern::{PathPrefix, PatternFault};
use super::view::PathView;
use crate::{TextPattern, TextPatternFault};

/// Paths that a route matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathPattern {
    /// A path and all paths below it.
    Prefix(PathPrefix),
    /// One path.
    Exact(ExactPath),
    /// Paths of which the expression matches a part.
    Regex(TextPattern),
}

/// One path. A slash at its end makes a difference.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExactPath {
    path: Box<[u8]>,
}

impl PathPattern {
    /// Pattern that matches every path.
    pub fn any() -> PathPattern {
        PathPattern::Prefix(PathPrefix::root())
    }

    /// Parses a regular expression.
    ///
    /// # Errors
    /// The expression is invalid.
    pub fn regex(text: &str) -> Result<PathPattern, TextPatternFault> {
        TextPattern::parse(text).map(PathPattern::Regex)
    }

    /// Whether the pattern matches every path.
    pub fn is_any(&self) -> bool {
        matches!(self, PathPattern::Prefix(prefix) if prefix.is_empty())
    }

    /// Returns this pattern, normalized for a view of paths. A regular expression stays as it is: it
    /// is matched against normalized paths.
    #[must_use]
    pub fn in_view(&self, view: PathView) -> PathPattern {
        match self {
            PathPattern::Prefix(prefix) => PathPattern::Prefix(prefix.in_view(view)),
            PathPattern::Exact(exact) => {
                PathPattern::Exact(ExactPath { path: view.of(&exact.path).into_owned().into() })
            }
            PathPattern::Regex(pattern) => PathPattern::Regex(pattern.clone()),
        }
    }
}

impl ExactPath {
    /// Parses a path.
    ///
    /// # Errors
    /// The text is not a path.
    pub fn parse(text: &str) -> Result<ExactPath, PatternFault> {
        // A single path may have the characters that a prefix may have.
        PathPrefix::parse(text)?;
        Ok(ExactPath { path: PathView::AsSent.of(text.as_bytes()).into_owned().into() })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.path
    }
}

impl From<PathPrefix> for PathPattern {
    fn from(prefix: PathPrefix) -> PathPattern {
        PathPattern::Prefix(prefix)
    }
}

impl fmt::Display for PathPattern {
    /// Formats as in names of routes: `/v1`, `= /v1` and `~ ^/v[0-9]+`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Prefix(prefix) if prefix.is_empty() => f.write_str("/"),
            PathPattern::Prefix(prefix) => f.write_str(&String::from_utf8_lossy(prefix.as_bytes())),
            PathPattern::Exact(exact) => write!(f, "= {}", String::from_utf8_lossy(&exact.path)),
            PathPattern::Regex(pattern) => write!(f, "~ {}", pattern.as_str()),
        }
    }
}
