//! Globs of paths.

use std::fmt;

use glob::{MatchOptions, Pattern};

/// Glob of paths: `*` matches any characters within one name, and `**` matches any directories.
///
/// A glob without a slash, such as `*.css`, matches the last name of a path, in any directory.
/// Other globs match paths from the root on, with or without their first slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathGlob {
    /// Glob without a leading slash.
    pattern: Pattern,
    is_of_path: bool,
    text: Box<str>,
}

/// Reason why a text is no valid glob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidGlob(&'static str);

const AS_PATHS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

impl PathGlob {
    /// Parses a glob.
    ///
    /// # Errors
    /// The text is no valid glob.
    pub fn parse(text: &str) -> Result<PathGlob, InvalidGlob> {
        let relative = text.strip_prefix('/').unwrap_or(text);
        let pattern = Pattern::new(relative).map_err(|error| InvalidGlob(error.msg))?;
        Ok(PathGlob { pattern, is_of_path: text.contains('/'), text: text.into() })
    }

    /// Whether the glob matches a path, with or without its first slash.
    pub fn matches(&self, path: &str) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        let name = path.rsplit('/').next().unwrap_or(path);
        self.pattern.matches_with(if self.is_of_path { path } else { name }, AS_PATHS)
    }
}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for InvalidGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidGlob {}
