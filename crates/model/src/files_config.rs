//! Static files that a backend serves in place of servers. Pure.

use std::path::PathBuf;

use convey_http_core::{InvalidGlob, PathGlob};

/// Static files of a backend. Mode `http` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// Root directory of the files; absolute, unless the configuration file's path is relative.
    pub root: PathBuf,
    /// Index files of a directory: convey serves the first that exists.
    pub index: Vec<String>,
    /// Whether convey lists a directory that has no index file.
    pub listing: bool,
    /// Whether convey serves files and directories whose names begin with a dot.
    pub dot_files: bool,
    /// Whether convey serves precompressed files: the `.zst`, `.br` or `.gz` file next to the
    /// requested file, to clients that accept the coding.
    pub precompressed: bool,
    /// File that a client gets with status 200 if the requested one does not exist; relative to the
    /// root.
    pub fallback: Option<String>,
    /// File that a client gets with status 404; relative to the root.
    pub not_found: Option<String>,
    /// Rules for `Cache-Control`. The first rule whose pattern matches applies.
    pub cache_control: Vec<CacheRule>,
}

/// `Cache-Control` of files that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRule {
    /// Files whose names, relative to the root, match.
    pattern: PathGlob,
    /// Value of the field.
    value: String,
}

impl FilesConfig {
    /// Serves the files of this directory with default settings.
    pub fn new(root: impl Into<PathBuf>) -> FilesConfig {
        FilesConfig {
            root: root.into(),
            index: vec!["index.html".to_owned()],
            listing: false,
            dot_files: false,
            precompressed: true,
            fallback: None,
            not_found: None,
            cache_control: Vec::new(),
        }
    }

    /// `Cache-Control` of the file with this name, relative to the root; `None`: the response has
    /// no such field.
    pub fn cache_control_of(&self, name: &str) -> Option<&str> {
        let rule = self.cache_control.iter().find(|rule| rule.pattern.matches(name));
        rule.map(|rule| &*rule.value)
    }
}

impl CacheRule {
    /// Compiles a rule.
    ///
    /// # Errors
    /// The pattern is no valid glob.
    pub fn new(pattern: &str, value: &str) -> Result<CacheRule, InvalidGlob> {
        Ok(CacheRule { pattern: PathGlob::parse(pattern)?, value: value.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_whose_pattern_matches_holds() {
        let rule = |pattern, value| CacheRule::new(pattern, value).unwrap();
        let config = FilesConfig {
            cache_control: vec![
                rule("assets/**/*.js", "immutable"),
                rule("*.css", "short"),
                rule("/docs/*", "docs"),
                rule("/robots.txt", "robots"),
                rule("**/*.jp*g", "other"),
            ],
            ..FilesConfig::new("/srv")
        };
        for (name, expected) in [
            ("assets/a.js", Some("immutable")),
            ("assets/v1/x/a.js", Some("immutable")),
            ("b.js", None),
            ("a.css", Some("short")),
            ("x/y/a.css", Some("short")),
            ("docs/a", Some("docs")),
            ("robots.txt", Some("robots")),
            ("x/robots.txt", None),
            ("docs/a/b", None),
            ("x/docs/a", None),
            ("a.jpg", Some("other")),
            ("index.html", None),
        ] {
            assert_eq!(config.cache_control_of(name), expected, "{name}");
        }
        assert!(CacheRule::new("a[", "x").is_err());
    }
}
