//! Files that a backend serves in place of servers. Pure.

use std::path::PathBuf;

use glob::{MatchOptions, Pattern};

/// The files of a backend, and how they are served. Mode `http` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// The directory that has them; absolute, unless the path of the configuration file is not.
    pub root: PathBuf,
    /// The names that stand for a directory: the first one that is there is served.
    pub index: Vec<String>,
    /// Whether a directory without any of them is listed.
    pub listing: bool,
    /// Whether files and directories are served whose names begin with a dot.
    pub dot_files: bool,
    /// Whether `.zst`, `.br` and `.gz` beside a file are served in its place, to clients that take them.
    pub precompressed: bool,
    /// The file that a client gets with status 404; relative to the root.
    pub not_found: Option<String>,
    /// What is said of caching. The first rule whose pattern matches holds.
    pub cache_control: Vec<CacheRule>,
}

/// The `Cache-Control` of some files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRule {
    /// A glob, without a slash at its begin.
    pattern: Pattern,
    /// Whether it had a slash: then it is for paths from the root on. Else it is for names of files, in whichever directory.
    is_of_path: bool,
    /// The value of the field.
    value: String,
}

/// A `*` stands for any letters of one name; `**` for any directories.
const AS_PATHS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

impl FilesConfig {
    /// The files of this directory, served as is usual.
    pub fn new(root: impl Into<PathBuf>) -> FilesConfig {
        FilesConfig {
            root: root.into(),
            index: vec!["index.html".to_owned()],
            listing: false,
            dot_files: false,
            precompressed: true,
            not_found: None,
            cache_control: Vec::new(),
        }
    }

    /// The `Cache-Control` of the file with this name, relative to the root; `None`: nothing is said.
    pub fn cache_control_of(&self, name: &str) -> Option<&str> {
        let file = name.rsplit('/').next().unwrap_or(name);
        let subject = |rule: &CacheRule| if rule.is_of_path { name } else { file };
        let rule = self.cache_control.iter().find(|rule| rule.pattern.matches_with(subject(rule), AS_PATHS));
        rule.map(|rule| &*rule.value)
    }
}

impl CacheRule {
    /// A rule.
    ///
    /// # Errors
    /// The pattern is no glob: why, in words.
    pub fn new(pattern: &str, value: &str) -> Result<CacheRule, String> {
        let is_of_path = pattern.contains('/');
        // Names are relative to the root.
        let relative = pattern.strip_prefix('/').unwrap_or(pattern);
        let pattern = Pattern::new(relative).map_err(|error| error.msg.to_owned())?;
        Ok(CacheRule { pattern, is_of_path, value: value.to_owned() })
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
