//! Normalization of paths for route lookups: spellings that servers treat alike become one path.

use std::borrow::Cow;

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
    /// Returns the path in this view. In both views, characters are percent-encoded only where
    /// necessary (RFC 3986, section 6.2.2.2).
    pub(crate) fn of(self, path: &[u8]) -> Cow<'_, [u8]> {
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

    /// Appends the first character of a path to `seen`, in this view. Returns the length of the
    /// character in bytes.
    pub(super) fn step(self, path: &[u8], seen: &mut Vec<u8>) -> usize {
        let (character, len) = match path {
            [b'%', high, low, ..] => (hex_pair(*high, *low), 3),
            _ => (path.first().copied(), 1),
        };
        let is_encoded = len == 3;
        let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        match character {
            Some(b'/') if !is_encoded || self == PathView::Normalized => self.push_slash(seen),
            Some(b'\\') if is_encoded && self == PathView::Normalized => self.push_slash(seen),
            Some(byte) if !is_encoded || is_unreserved(byte) => seen.push(byte),
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
            ("/a;b=c/%3b", "/a;b=c/%3B", "/a;b=c/%3B"),
            ("/%zz%", "/%zz%", "/%zz%"),
        ];
        for (path, normalized, as_sent) in cases {
            assert_eq!(PathView::Normalized.of(path.as_bytes()), normalized.as_bytes(), "{path}");
            assert_eq!(PathView::AsSent.of(path.as_bytes()), as_sent.as_bytes(), "{path}");
        }
    }
}
