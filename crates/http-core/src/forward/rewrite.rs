//! Path of a request as the server gets it.

use std::borrow::Cow;
use std::fmt;

use super::reverse::PathMap;
use crate::head::{RequestHead, is_plain};
use crate::{PathPattern, PathView};

/// Replacement of the part of a path that a route's pattern matches.
#[derive(Debug, Clone)]
pub struct PathRewrite {
    from: PathPattern,
    view: PathView,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Box<[u8]>),
    /// A group of the regular expression; 0: its whole match.
    Group(usize),
}

/// Reason why a replacement is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupFault {
    /// The expression does not have this group.
    Missing {
        /// Number of the group.
        group: usize,
        /// Number of groups of the expression.
        groups: usize,
    },
    /// The digit behind a group could be meant as a part of its number, because the expression has
    /// such a group.
    Ambiguous {
        /// Number with both digits.
        group: usize,
    },
}

impl PathRewrite {
    /// Returns the rewrite of paths that match `from` in this view: `to` replaces the prefix, the
    /// path, or the first match of the regular expression. There, `$1` to `$9` are the groups of
    /// the expression, and `$0` is the whole match, as the client spelled them.
    ///
    /// # Errors
    /// The expression has no such group, or a digit behind a group is ambiguous.
    pub fn new(from: &PathPattern, view: PathView, to: &str) -> Result<PathRewrite, GroupFault> {
        let pieces = match from {
            PathPattern::Regex(pattern) => pieces(to, pattern.groups())?,
            PathPattern::Prefix(_) | PathPattern::Exact(_) => vec![Piece::Text(to.as_bytes().into())],
        };
        Ok(PathRewrite { from: from.in_view(view), view, pieces })
    }

    /// Replaces the part of a matching path, perhaps with its query.
    pub(crate) fn apply<'a>(&self, target: &'a [u8]) -> Cow<'a, [u8]> {
        // `OPTIONS *` is for the server as a whole.
        if !target.starts_with(b"/") {
            return Cow::Borrowed(target);
        }
        let query = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let (path, query) = target.split_at(query);
        let rewritten = match &self.from {
            PathPattern::Prefix(prefix) => joined(&self.text(), prefix.rest_of(path)),
            PathPattern::Exact(_) => self.text(),
            PathPattern::Regex(pattern) => {
                let viewed = self.view.mapped(path);
                let Some(groups) = pattern.captures(viewed.as_bytes()) else { return Cow::Borrowed(target) };
                let Some(whole) = groups.get(0) else { return Cow::Borrowed(target) };
                let of = |group| groups.get(group).map_or(&[][..], |found| viewed.sent(found.range()));
                let parts = self.pieces.iter().map(|piece| match piece {
                    Piece::Text(text) => text,
                    Piece::Group(group) => of(*group),
                });
                let replaced: Vec<u8> = parts.flatten().copied().collect();
                [viewed.sent_before(whole.start()), &replaced, viewed.sent_from(whole.end())].concat()
            }
        };
        // Groups side by side could become a dot segment, or a path without a slash at its start.
        if !rewritten.starts_with(b"/") || !is_plain(&rewritten) {
            return Cow::Borrowed(target);
        }
        Cow::Owned([&rewritten, query].concat())
    }

    /// Relation of the paths of servers to those of clients.
    pub(super) fn reversed(&self) -> PathMap {
        match &self.from {
            PathPattern::Prefix(prefix) => PathMap::below(prefix.as_bytes(), &self.text()),
            PathPattern::Exact(exact) => {
                PathMap::Exact { client: exact.as_bytes().into(), server: self.text().into() }
            }
            PathPattern::Regex(pattern) => match (fixed_prefix(pattern.as_str()), &self.pieces[..]) {
                (Some(client), [Piece::Text(server), Piece::Group(1)]) if server.ends_with(b"/") => {
                    PathMap::below(&client, server)
                }
                _ => PathMap::Same,
            },
        }
    }

    fn text(&self) -> Vec<u8> {
        match self.pieces.first() {
            Some(Piece::Text(text)) => text.to_vec(),
            _ => Vec::new(),
        }
    }
}

/// Returns the path of a request as a server gets it, without its query.
pub fn rewritten_path<'a>(head: &'a RequestHead, rewrite: Option<&PathRewrite>) -> Cow<'a, [u8]> {
    rewrite.map_or(Cow::Borrowed(head.path()), |rewrite| rewrite.apply(head.path()))
}

/// Joins a replacement and the rest of a path. The last slash of the replacement and the first one
/// of the rest become one slash.
fn joined(replacement: &[u8], rest: &[u8]) -> Vec<u8> {
    let begin = match rest.first() {
        Some(b'/') => replacement.strip_suffix(b"/").unwrap_or(replacement),
        _ if replacement.is_empty() => b"/",
        _ => replacement,
    };
    [begin, rest].concat()
}

/// Fixed text before the only group of a regular expression such as `^/a/(.*)$`, which matches all
/// paths with this prefix. `None`: the expression has another form.
fn fixed_prefix(regex: &str) -> Option<Vec<u8>> {
    let regex = regex.strip_prefix('^')?;
    let regex = regex.strip_suffix('$').unwrap_or(regex);
    let prefix = ["(.*)", "(.+)"].iter().find_map(|group| regex.strip_suffix(group))?;
    let (mut text, mut bytes) = (Vec::new(), prefix.bytes());
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'\\' => bytes.next().filter(u8::is_ascii_punctuation)?,
            byte if byte.is_ascii_alphanumeric() || b"/-_~%".contains(&byte) => byte,
            _ => return None,
        });
    }
    // Without the slash, `/a` would also be the prefix of `/ab`.
    text.ends_with(b"/").then_some(text)
}

/// Parses a replacement with groups.
fn pieces(text: &str, groups: usize) -> Result<Vec<Piece>, GroupFault> {
    let (mut pieces, mut rest) = (Vec::new(), text.as_bytes());
    while !rest.is_empty() {
        let is_group = |pair: &[u8]| matches!(pair, [b'$', b'0'..=b'9']);
        let end = rest.windows(2).position(is_group).unwrap_or(rest.len());
        pieces.push(Piece::Text(rest[..end].into()));
        rest = &rest[end..];
        if let [_, digit, after @ ..] = rest {
            let group = usize::from(digit - b'0');
            if group > groups {
                return Err(GroupFault::Missing { group, groups });
            }
            let next = after.first().filter(|next| next.is_ascii_digit() && group > 0);
            if let Some(two) =
                next.map(|next| 10 * group + usize::from(next - b'0')).filter(|two| *two <= groups)
            {
                return Err(GroupFault::Ambiguous { group: two });
            }
            pieces.push(Piece::Group(group));
            rest = after;
        }
    }
    Ok(pieces)
}

/// Two rewrites are equal if they change all paths alike.
impl PartialEq for PathRewrite {
    fn eq(&self, other: &PathRewrite) -> bool {
        (&self.from, self.view, &self.pieces) == (&other.from, other.view, &other.pieces)
    }
}

impl Eq for PathRewrite {}

impl fmt::Display for PathRewrite {
    /// Writes the replacement.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(&String::from_utf8_lossy(text)),
            Piece::Group(group) => write!(f, "${group}"),
        })
    }
}

impl fmt::Display for GroupFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupFault::Missing { group, groups } => {
                write!(f, "${group} is a group that path_regex does not have; it has {groups}")
            }
            GroupFault::Ambiguous { group } => write!(
                f,
                "${group} is ${} and the text {}, although path_regex has {group} groups or more; write the others as (?:...)",
                group / 10,
                group % 10
            ),
        }
    }
}

impl std::error::Error for GroupFault {}
