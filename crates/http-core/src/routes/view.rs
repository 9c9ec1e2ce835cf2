//! Normalization of paths for route lookups: spellings that servers treat alike become one path.

use std::borrow::Cow;
use std::ops::Range;

use crate::head::hex_pair;

/// Normalization of paths for route lookups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PathView {
    /// Slashes in a row count as one, and an encoded slash or backslash (`%2F`, `%5C`) counts as a
    /// slash, as many servers read them.
    #[default]
    Normalized,
    /// Slashes, encoded or not, stay as the client sent them.
    AsSent,
}

impl PathView {
    /// Returns the path in this view. In both views, each visible ASCII character has one form: it is
    /// decoded, unless it would change the structure of the path (`%2F`, `%3F`). Other encodings are
    /// in upper case.
    pub fn of(self, path: &[u8]) -> Cow<'_, [u8]> {
        let has_slashes = self == PathView::Normalized && has_double_slash(path);
        if !path.contains(&b'%') && !has_slashes {
            return Cow::Borrowed(path);
        }
        let mut seen = Vec::with_capacity(path.len());
        let mut rest = path;
        while !rest.is_empty() {
            rest = &rest[self.step(rest, &mut seen)..];
        }
        Cow::Owned(seen)
    }

    /// Returns the path in this view, with the positions of its bytes in the path.
    pub(crate) fn mapped(self, path: &[u8]) -> ViewedPath<'_> {
        let (mut seen, mut origins, mut at) = (Vec::with_capacity(path.len()), Vec::new(), 0);
        while at < path.len() {
            let before = seen.len();
            let end = at + self.step(&path[at..], &mut seen);
            match seen.len() - before {
                // The character is only one of several slashes in a row.
                0 => {}
                1 => origins.push(at..end),
                escape => origins.extend((at..at + escape).map(|byte| byte..byte + 1)),
            }
            at = end;
        }
        ViewedPath { path, seen, origins }
    }

    /// Appends the first character of a path to `seen`, in this view. Returns the length of the
    /// character in bytes.
    pub(super) fn step(self, path: &[u8], seen: &mut Vec<u8>) -> usize {
        let (character, len) = match path {
            [b'%', high, low, ..] => (hex_pair(*high, *low), 3),
            _ => (path.first().copied(), 1),
        };
        let is_encoded = len == 3;
        let is_decoded = |byte: u8| byte.is_ascii_graphic() && !b"%/?#\\`".contains(&byte);
        match character {
            Some(b'/') if !is_encoded || self == PathView::Normalized => self.push_slash(seen),
            Some(b'\\') if is_encoded && self == PathView::Normalized => self.push_slash(seen),
            Some(byte) if !is_encoded || is_decoded(byte) => seen.push(byte),
            Some(_) => seen.extend([b'%', path[1].to_ascii_uppercase(), path[2].to_ascii_uppercase()]),
            // An encoding is broken. Accepted requests have none.
            None => {
                seen.push(b'%');
                return 1;
            }
        }
        len
    }

    fn push_slash(self, seen: &mut Vec<u8>) {
        if self == PathView::AsSent || seen.last() != Some(&b'/') {
            seen.push(b'/');
        }
    }
}

/// Path in a view, and its bytes as the client sent them.
pub(crate) struct ViewedPath<'a> {
    path: &'a [u8],
    seen: Vec<u8>,
    /// Range in `path` of each byte of `seen`.
    origins: Vec<Range<usize>>,
}

impl<'a> ViewedPath<'a> {
    /// The path in the view.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.seen
    }

    /// Bytes that the client sent for a range of the path in the view. Slashes that the view leaves
    /// out belong to the bytes after them.
    pub(crate) fn sent(&self, range: Range<usize>) -> &'a [u8] {
        if range.is_empty() {
            return &[];
        }
        &self.path[self.end_of(range.start)..self.end_of(range.end)]
    }

    /// Bytes that the client sent before this position in the view.
    pub(crate) fn sent_before(&self, at: usize) -> &'a [u8] {
        &self.path[..self.end_of(at)]
    }

    /// Bytes that the client sent from this position in the view on.
    pub(crate) fn sent_from(&self, at: usize) -> &'a [u8] {
        &self.path[self.end_of(at)..]
    }

    /// End in the client's path of the first `len` bytes of the view.
    fn end_of(&self, len: usize) -> usize {
        len.checked_sub(1).and_then(|last| self.origins.get(last)).map_or(0, |origin| origin.end)
    }
}

fn has_double_slash(path: &[u8]) -> bool {
    path.windows(2).any(|pair| pair == b"//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_seen_as_servers_read_it_or_as_sent() {
        let cases = [
            ("/login", "/login", "/login"),
            ("//login", "/login", "//login"),
            ("/%2flogin", "/login", "/%2Flogin"),
            ("/%5Clogin", "/login", "/%5Clogin"),
            ("/a%2f%2F/b//", "/a/b/", "/a%2F%2F/b//"),
            ("/%6cogin/%c3%a9", "/login/%C3%A9", "/login/%C3%A9"),
            ("/a;b=c/%3b", "/a;b=c/;", "/a;b=c/;"),
            ("/%40a%2bb/v1%3Aadmin", "/@a+b/v1:admin", "/@a+b/v1:admin"),
            ("/%21%24%26%27%28%29%2A%2c%3d", "/!$&'()*,=", "/!$&'()*,="),
            ("/%5ba%5D%7C%22", "/[a]|\"", "/[a]|\""),
            ("/%3f%23%25%60%20", "/%3F%23%25%60%20", "/%3F%23%25%60%20"),
            ("/%2540", "/%2540", "/%2540"),
            ("/%zz%", "/%zz%", "/%zz%"),
        ];
        for (path, normalized, as_sent) in cases {
            assert_eq!(PathView::Normalized.of(path.as_bytes()), normalized.as_bytes(), "{path}");
            assert_eq!(PathView::AsSent.of(path.as_bytes()), as_sent.as_bytes(), "{path}");
            assert_eq!(PathView::Normalized.of(normalized.as_bytes()), normalized.as_bytes(), "{path}");
        }
    }
}
