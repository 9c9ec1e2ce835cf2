//! Host and path patterns of a route.

use std::fmt;

use smallvec::SmallVec;

use super::view::PathView;
use crate::head::split_port;

/// Host of a route. Names are case-insensitive; a port and a final dot are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Any host; also requests without a host.
    Any,
    /// This name or address.
    Exact(Box<[u8]>),
    /// All names that end with this suffix, which begins with a dot.
    Below(Box<[u8]>),
}

/// Prefix of a path, by whole segments: `/v1` matches `/v1` and `/v1/a`, not `/v10`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPrefix {
    /// Path of the prefix, normalized for the view.
    path: Box<[u8]>,
    view: PathView,
}

/// Reason why a pattern is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternFault {
    /// The host is empty, or has a character that is not allowed.
    Host,
    /// The host has a `*` outside its first label.
    Star,
    /// The host has a port. Only a frontend has a port.
    Port,
    /// The path does not begin with a slash.
    Path,
    /// The path has a query, a fragment, a space, a broken percent encoding or a dot segment.
    PathCharacter,
}

impl HostPattern {
    /// Parses an exact host, or a glob such as `*.example.com`.
    ///
    /// # Errors
    /// The text is not a host pattern.
    pub fn parse(text: &str) -> Result<HostPattern, PatternFault> {
        let (is_glob, name) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if name.contains('*') {
            return Err(PatternFault::Star);
        }
        let is_address = name.starts_with('[') && name.ends_with(']') && !is_glob;
        if !is_address && name.contains(':') {
            return Err(PatternFault::Port);
        }
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_of_address = |byte: u8| byte.is_ascii_hexdigit() || b"[]:.".contains(&byte);
        let is_host =
            name.bytes().all(|byte| if is_address { is_of_address(byte) } else { is_of_name(byte) });
        if name.is_empty() || !is_host || name.starts_with('.') {
            return Err(PatternFault::Host);
        }
        let name = host_name(name.as_bytes());
        Ok(match is_glob {
            true => HostPattern::Below([b".", &name[..]].concat().into()),
            false => HostPattern::Exact(name[..].into()),
        })
    }
}

impl PathPrefix {
    /// Parses a prefix in the view [`PathView::AsSent`]. A slash at its end is ignored.
    ///
    /// # Errors
    /// The text is not a path.
    pub fn parse(text: &str) -> Result<PathPrefix, PatternFault> {
        if !text.starts_with('/') {
            return Err(PatternFault::Path);
        }
        let bytes = text.as_bytes();
        let is_of_path = |byte: &u8| matches!(byte, b'!'..=b'~') && !b"?#".contains(byte);
        if !bytes.iter().all(is_of_path) || !crate::head::is_plain(bytes) {
            return Err(PatternFault::PathCharacter);
        }
        Ok(PathPrefix::seen(bytes, PathView::AsSent))
    }

    /// Returns this prefix, normalized for another view.
    pub fn in_view(&self, view: PathView) -> PathPrefix {
        PathPrefix::seen(&self.path, view)
    }

    /// Prefix of every path.
    pub(super) fn root() -> PathPrefix {
        PathPrefix::seen(b"/", PathView::AsSent)
    }

    /// Path of the prefix, without a slash at its end.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.path
    }

    fn seen(path: &[u8], view: PathView) -> PathPrefix {
        let path = view.of(path);
        PathPrefix { path: path.strip_suffix(b"/").unwrap_or(&path).into(), view }
    }

    /// Length of the prefix in bytes. A prefix of length 0 matches every path.
    pub fn len(&self) -> usize {
        self.path.len()
    }

    /// Whether the prefix matches every path.
    pub fn is_empty(&self) -> bool {
        self.path.is_empty()
    }

    /// Whether all paths of another prefix in the same view are also paths of this prefix.
    pub fn includes(&self, other: &PathPrefix) -> bool {
        let rest = other.path.strip_prefix(&*self.path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }

    /// Rest of a matching path after this prefix, unmodified.
    pub(crate) fn rest_of<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        let (mut rest, mut seen) = (path, Vec::with_capacity(self.path.len()));
        while seen.len() < self.path.len() && !rest.is_empty() {
            rest = &rest[self.view.step(rest, &mut seen)..];
        }
        rest
    }
}

impl fmt::Display for HostPattern {
    /// Formats as in the configuration; `*` is any host.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Any => f.write_str("*"),
            HostPattern::Exact(name) => f.write_str(&String::from_utf8_lossy(name)),
            HostPattern::Below(suffix) => write!(f, "*{}", String::from_utf8_lossy(suffix)),
        }
    }
}

impl fmt::Display for PatternFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PatternFault::Host => "expected a host name, an address, or a glob like \"*.example.com\"",
            PatternFault::Star => "`*` matches only the first label, as in \"*.example.com\"",
            PatternFault::Port => "a route must not contain a port: the frontend determines it",
            PatternFault::Path => "a path begins with `/`",
            PatternFault::PathCharacter => {
                "a path must not contain a query, a space, a segment `.` or `..`, or an invalid `%` escape"
            }
        })
    }
}

/// Returns a host in lower case, without its port and the dot at its end.
pub(crate) fn host_name(host: &[u8]) -> SmallVec<[u8; 64]> {
    let name = split_port(host).0;
    let name = name.strip_suffix(b".").unwrap_or(name);
    name.iter().map(u8::to_ascii_lowercase).collect()
}
