//! The files that a configuration includes: `include = ["conf.d/*.toml"]`.

use std::path::{Component, Path, PathBuf};

use glob::{GlobError, MatchOptions, Pattern, glob_with};
use toml::de::{DeTable, DeValue};

use super::document::INCLUDE;
use super::variables::expand;

/// Maximum number of files that a configuration may include.
pub(super) const MAX_FILES: usize = 1_000;

/// Wildcards match as in shells: `*` does not match `/`. The crate glob would panic at names that
/// are not UTF-8, so [`is_shown`] checks hidden files.
const LIKE_A_SHELL: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// Valid include patterns in the text of a configuration. The result omits invalid patterns.
pub(super) fn patterns(text: &str) -> Vec<String> {
    if !text.contains(INCLUDE) {
        return Vec::new();
    }
    let (root, _) = DeTable::parse_recoverable(text);
    let pattern = |value: &DeValue<'_>| {
        let text = value.as_str()?;
        let text = expand(text, &|name| std::env::var(name)).ok()?.unwrap_or_else(|| text.to_owned());
        check(&text).is_ok().then_some(text)
    };
    match root.get_ref().get(INCLUDE).map(|value| value.get_ref()) {
        Some(DeValue::Array(items)) => items.iter().filter_map(|item| pattern(item.get_ref())).collect(),
        Some(one) => pattern(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Files that the include patterns of the file at `path` match: sorted, each file once. Returns at
/// most [`MAX_FILES`] + 1 files. A pattern without wildcards always yields its file, even if the
/// file does not exist. A pattern with wildcards never matches the file at `path` itself.
///
/// # Errors
/// A directory cannot be read, so its files are unknown.
pub(super) fn files(path: &Path, patterns: &[String]) -> Result<Vec<PathBuf>, GlobError> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let own = path.canonicalize().ok();
    let is_own = |file: &Path| own.is_some() && file.canonicalize().ok() == own;
    let mut files = Vec::new();
    for pattern in patterns {
        if !has_wildcards(pattern) {
            files.push(directory.join(pattern));
            continue;
        }
        let full = Path::new(&Pattern::escape(&directory.to_string_lossy())).join(pattern);
        let found = glob_with(&full.to_string_lossy(), LIKE_A_SHELL).into_iter().flatten();
        let is_wanted = |file: &Result<PathBuf, _>| {
            file.as_ref().map_or(true, |file| is_shown(file, &full) && !is_own(file))
        };
        for file in found.filter(is_wanted).take(MAX_FILES + 1) {
            files.push(file?);
        }
    }
    files.sort();
    files.dedup();
    files.truncate(MAX_FILES + 1);
    Ok(files)
}

/// Whether a pattern may match this file. A hidden name matches only a pattern that also begins
/// with a dot.
fn is_shown(file: &Path, pattern: &Path) -> bool {
    let is_hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
    // Compares from the end, because the paths may begin differently for the same directory.
    file.components()
        .rev()
        .zip(pattern.components().rev())
        .all(|(part, meant)| !is_hidden(part) || is_hidden(meant))
}

/// Directories in which the patterns may find files: the part of each pattern before its first
/// wildcard.
pub(super) fn folders(path: &Path, patterns: &[String]) -> Vec<PathBuf> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let folder = |pattern: &String| {
        let full = directory.join(pattern);
        let literal = full.iter().take_while(|part| !has_wildcards(&part.to_string_lossy()));
        let literal: PathBuf = literal.collect();
        if literal == full { literal.parent().unwrap_or(Path::new("")).to_owned() } else { literal }
    };
    patterns.iter().map(folder).collect()
}

/// Checks that a pattern is valid.
///
/// # Errors
/// Message about an invalid pattern.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("found \"\"; allowed: a file, or a pattern such as \"conf.d/*.toml\"".to_owned());
    }
    if pattern.contains("**") {
        return Err(format!("found {pattern:?}; `**` is not supported; write a pattern for each directory"));
    }
    Pattern::new(pattern).map(drop).map_err(|error| format!("found {pattern:?}; {}", error.msg))
}

/// Whether a pattern has wildcards.
pub(super) fn has_wildcards(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_folders_of_patterns_are_what_stands_before_the_first_wildcard() {
        let patterns =
            ["a.toml", "conf.d/*.toml", "*.toml", "/srv/site-?/x.toml", "/srv/b.toml"].map(String::from);
        let folders = folders(Path::new("/etc/convey/config.toml"), &patterns);
        assert_eq!(
            folders,
            ["/etc/convey", "/etc/convey/conf.d", "/etc/convey", "/srv", "/srv"].map(PathBuf::from)
        );
    }

    #[test]
    fn patterns_stand_for_files_as_in_a_shell() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("we[ir]d/conf.d/more")).unwrap();
        // A name that is not UTF-8 matches no pattern, and causes no panic.
        fs::write(at("we[ir]d/conf.d").join(OsStr::from_bytes(b"\xff.toml")), "").unwrap();
        for name in ["b.toml", "a.toml", ".a.toml.swp", ".hidden.toml", "a.toml~", "more/c.toml"] {
            fs::write(at("we[ir]d/conf.d").join(name), "").unwrap();
        }
        let main = at("we[ir]d/config.toml");
        fs::write(&main, "").unwrap();
        let found = |patterns: &[&str]| -> Vec<String> {
            let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            let files = files(&main, &patterns).unwrap().into_iter();
            let short =
                |file: PathBuf| file.strip_prefix(at("we[ir]d")).unwrap().to_string_lossy().into_owned();
            files.map(short).collect()
        };
        assert_eq!(found(&["conf.d/*.toml"]), ["conf.d/a.toml", "conf.d/b.toml"]);
        assert_eq!(found(&["conf.d/a.toml", "conf.d/?.toml"]), ["conf.d/a.toml", "conf.d/b.toml"]);
        assert_eq!(found(&["conf.d/*/*.toml"]), ["conf.d/more/c.toml"]);
        assert_eq!(found(&["*.toml"]), [""; 0], "the file itself is no other file");
        assert_eq!(found(&["none.toml", "none/*"]), ["none.toml"], "who names a file means it");
    }

    #[test]
    fn the_patterns_of_a_text_are_one_or_several() {
        for (text, found) in [
            ("include = 'a.toml'", vec!["a.toml"]),
            ("include = ['a', 3, '**/b', 'c[', '${CONVEY_NO_SUCH_VARIABLE:-d}']\n[broken", vec!["a", "d"]),
            ("[t]\ninclude = 'a'", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(patterns(text), found, "{text}");
        }
    }
}
