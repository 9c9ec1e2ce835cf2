//! Routes of one host, found by path.

use foldhash::HashMap;
use smallvec::SmallVec;

use super::RouteEntry;
use super::conditions::RouteConditions;
use super::path::PathPattern;
use crate::TextPattern;

/// Routes of one host. A lookup takes as many steps as the longest prefix has segments, however many
/// routes there are; regular expressions are tried one after the other.
#[derive(Debug, Clone)]
pub(super) struct PathTable<T> {
    exact: HashMap<Box<[u8]>, Entries<T>>,
    /// The longest expression first.
    regexes: Vec<(TextPattern, Entries<T>)>,
    root: Node<T>,
}

/// Routes with the same host and path, in the order in which they are tried.
type Entries<T> = Vec<RouteEntry<T>>;

/// Routes with a prefix, and those whose prefix is longer by a segment.
#[derive(Debug, Clone)]
struct Node<T> {
    routes: Entries<T>,
    below: HashMap<Box<[u8]>, Node<T>>,
}

impl<T> Default for PathTable<T> {
    fn default() -> PathTable<T> {
        PathTable { exact: HashMap::default(), regexes: Vec::new(), root: Node::default() }
    }
}

impl<T> Default for Node<T> {
    fn default() -> Node<T> {
        Node { routes: Vec::new(), below: HashMap::default() }
    }
}

impl<T> PathTable<T> {
    /// Adds a route. Among routes with the same path, the one with the closer conditions goes first,
    /// then the one that was added first.
    pub(super) fn add(&mut self, path: &PathPattern, conditions: RouteConditions, to: T) {
        let entries = self.entries(path);
        let rank = conditions.rank();
        let at = entries.partition_point(|other| other.conditions.rank() <= rank);
        entries.insert(at, RouteEntry { conditions, to });
    }

    fn entries(&mut self, path: &PathPattern) -> &mut Entries<T> {
        match path {
            PathPattern::Exact(path) => self.exact.entry(path.as_bytes().into()).or_default(),
            PathPattern::Prefix(prefix) => {
                let mut node = &mut self.root;
                for segment in segments(prefix.as_bytes()) {
                    node = node.below.entry(segment.into()).or_default();
                }
                &mut node.routes
            }
            PathPattern::Regex(pattern) => {
                let len = |pattern: &TextPattern| pattern.as_str().len();
                let at = match self.regexes.iter().position(|(other, _)| other == pattern) {
                    Some(same) => same,
                    None => {
                        let at = self.regexes.partition_point(|(other, _)| len(other) >= len(pattern));
                        self.regexes.insert(at, (pattern.clone(), Vec::new()));
                        at
                    }
                };
                &mut self.regexes[at].1
            }
        }
    }

    /// First route for this path that `wanted` accepts: of the path itself, then of the longest
    /// regular expression, then of the longest prefix.
    pub(super) fn find<'a>(
        &'a self,
        path: &[u8],
        wanted: impl Fn(&RouteEntry<T>) -> bool,
    ) -> Option<&'a RouteEntry<T>> {
        let first = |entries: &'a Entries<T>| entries.iter().find(|entry| wanted(entry));
        let exact = || self.exact.get(path).and_then(first);
        let regex = || {
            let mut matching = self.regexes.iter().filter(|(pattern, _)| pattern.matches(path));
            matching.find_map(|(_, entries)| first(entries))
        };
        exact().or_else(regex).or_else(|| self.prefixes_of(path).into_iter().rev().find_map(first))
    }

    /// Routes whose prefix the path begins with, the shortest prefix first.
    fn prefixes_of(&self, path: &[u8]) -> SmallVec<[&Entries<T>; 8]> {
        let (mut node, mut found) = (&self.root, SmallVec::from_iter([&self.root.routes]));
        if node.below.is_empty() {
            return found;
        }
        for segment in segments(path) {
            let Some(below) = node.below.get(segment) else { break };
            node = below;
            if !node.routes.is_empty() {
                found.push(&node.routes);
            }
        }
        found
    }

    /// All routes, in groups with the same path. Within a group they have the order in which they
    /// are tried.
    pub(super) fn groups(&self) -> Vec<&[RouteEntry<T>]> {
        let mut groups: Vec<&[RouteEntry<T>]> = self.exact.values().map(Vec::as_slice).collect();
        groups.extend(self.regexes.iter().map(|(_, entries)| &entries[..]));
        let mut nodes = vec![&self.root];
        while let Some(node) = nodes.pop() {
            groups.push(&node.routes);
            nodes.extend(node.below.values());
        }
        groups
    }
}

/// Segments of a path: `/a//b` has the segments `a`, an empty one, and `b`. A path without a slash
/// at its beginning, such as `*`, has none.
fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let rest = path.strip_prefix(b"/");
    rest.into_iter().flat_map(|rest| rest.split(|byte| *byte == b'/'))
}
