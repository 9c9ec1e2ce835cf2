//! Maps the path of a request to the name of a file. Pure.

use percent_encoding::percent_decode;

/// Name of a file, relative to the root: segments separated by single slashes, without a slash at
/// either end. An empty name is the root itself.
///
/// No segment is `.` or `..`, and no segment contains a NUL, a backslash or a control character. In
/// addition, `openat2` keeps the file beneath the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName {
    name: Vec<u8>,
    /// Whether the path ends with a slash, so that it is the path of a directory.
    is_directory: bool,
}

/// Dot directory that is always served, at the root only (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";

/// Reason why a path is not the name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameFault {
    /// The path does not begin with a slash, has an invalid escape, or escapes a slash, a backslash
    /// or a control character.
    Malformed,
    /// A segment is `.` or `..`, perhaps with escapes. Clients must resolve such segments before
    /// they send a request (RFC 3986, section 5.2.4).
    Traversal,
    /// A segment begins with a dot, and it is not `.well-known` at the root.
    DotFile,
}

impl FileName {
    /// Parses the path of a request without its query. The path is unescaped once.
    ///
    /// # Errors
    /// The path is not the name of a file that may be served.
    pub fn of(path: &[u8], with_dot_files: bool) -> Result<FileName, NameFault> {
        let rest = path.strip_prefix(b"/").ok_or(NameFault::Malformed)?;
        let mut name = Vec::with_capacity(rest.len());
        // Consecutive slashes count as one, as in the kernel.
        for part in rest.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            if !name.is_empty() {
                name.push(b'/');
            }
            let start = name.len();
            match part.contains(&b'%') {
                false => name.extend_from_slice(part),
                true if is_escaped_right(part) => name.extend(percent_decode(part)),
                true => return Err(NameFault::Malformed),
            }
            let is_well_known = start == 0 && name == WELL_KNOWN;
            check(&name[start..], with_dot_files || is_well_known)?;
        }
        Ok(FileName { name, is_directory: rest.is_empty() || rest.ends_with(b"/") })
    }

    /// The name as bytes; they need not be UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.name
    }

    /// Whether the path of the request ends with a slash, and so is the path of a directory.
    pub fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// Name of `file` in this directory, relative to the root.
    pub fn child(&self, file: &str) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.name.len() + 1 + file.len());
        name.extend_from_slice(&self.name);
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(file.as_bytes());
        name
    }
}

/// Whether each `%` is followed by two hexadecimal digits.
fn is_escaped_right(part: &[u8]) -> bool {
    part.iter().enumerate().filter(|(_, byte)| **byte == b'%').all(|(at, _)| {
        part.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Checks an unescaped segment of a name.
pub(crate) fn check(part: &[u8], with_dot_files: bool) -> Result<(), NameFault> {
    if part.iter().any(|byte| matches!(byte, b'/' | b'\\') || byte.is_ascii_control()) {
        return Err(NameFault::Malformed);
    }
    match part {
        b"." | b".." => Err(NameFault::Traversal),
        [b'.', ..] if !with_dot_files => Err(NameFault::DotFile),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(path: &str) -> Result<String, NameFault> {
        FileName::of(path.as_bytes(), false).map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned())
    }

    #[test]
    fn a_path_names_a_file_beneath_the_root() {
        for (path, name, is_directory) in [
            ("/", "", true),
            ("/a", "a", false),
            ("/a/b.css", "a/b.css", false),
            ("/a/", "a", true),
            ("//a///b//", "a/b", true),
            ("/a%20b/%C3%A4.html", "a b/ä.html", false),
            ("/%61", "a", false),
            ("/a..b/c..", "a..b/c..", false),
            ("/a.", "a.", false),
            ("/.well-known/security.txt", ".well-known/security.txt", false),
            ("/%2ewell-known/", ".well-known", true),
            // The path is unescaped only once, so the name of this file contains a percent sign.
            ("/%252e%252e", "%2e%2e", false),
        ] {
            let found = FileName::of(path.as_bytes(), false).unwrap();
            assert_eq!(
                (&*String::from_utf8_lossy(found.as_bytes()), found.is_directory),
                (name, is_directory)
            );
        }
    }

    #[test]
    fn traversal_is_refused_in_every_spelling() {
        use NameFault::{DotFile, Malformed, Traversal};
        for (path, fault) in [
            ("/..", Traversal),
            ("/../etc/passwd", Traversal),
            ("/a/../../etc/passwd", Traversal),
            ("/a/..", Traversal),
            ("/./a", Traversal),
            ("/%2e%2e/etc/passwd", Traversal),
            ("/%2E%2e/etc/passwd", Traversal),
            ("/.%2e/etc/passwd", Traversal),
            ("/a/%2e%2e%2fb", Malformed),
            ("/..%2f..%2fetc/passwd", Malformed),
            ("/a%2fb", Malformed),
            ("/..\\..\\etc\\passwd", Malformed),
            ("/..%5c..%5cetc", Malformed),
            ("/%2e%2e%5cetc", Malformed),
            ("/a%00.html", Malformed),
            ("/a%0ab", Malformed),
            ("/a%", Malformed),
            ("/a%2", Malformed),
            ("/%zz", Malformed),
            ("/%u002e%u002e/", Malformed),
            ("*", Malformed),
            ("", Malformed),
            ("http://host/a", Malformed),
            ("/.git/config", DotFile),
            ("/%2egit/config", DotFile),
            ("/a/.htaccess", DotFile),
            ("/...", DotFile),
            ("/....//", DotFile),
            ("/..;/manager", DotFile),
        ] {
            assert_eq!(named(path), Err(fault), "{path}");
        }
    }

    #[test]
    fn dot_files_are_served_where_the_operator_says_so_and_traversals_nowhere() {
        let named = |path: &str| FileName::of(path.as_bytes(), true).map(|name| name.name);
        assert_eq!(named("/.well-known/security.txt"), Ok(b".well-known/security.txt".to_vec()));
        assert_eq!(named("/..;/a"), Ok(b"..;/a".to_vec()));
        assert_eq!(named("/../a"), Err(NameFault::Traversal));
    }

    #[test]
    fn a_file_of_a_directory_has_its_name_before_its_own() {
        let child = |path: &str| FileName::of(path.as_bytes(), false).unwrap().child("index.html");
        assert_eq!(child("/"), b"index.html");
        assert_eq!(child("/a/"), b"a/index.html");
    }

    proptest! {
        #[test]
        fn parsed_file_names_never_lead_upwards(path in "/[./%2efF5c\\\\a]{0,24}") {
            if let Ok(name) = FileName::of(path.as_bytes(), true) {
                for part in name.name.split(|byte| *byte == b'/') {
                    prop_assert!(!matches!(part, b"." | b".."));
                    prop_assert!(!part.iter().any(|byte| matches!(byte, 0 | b'\\')));
                }
            }
        }
    }
}
