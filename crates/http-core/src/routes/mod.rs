//! Which route a request takes, by its host and its path.
//!
//! Of all routes that match a request the one with the closest host goes first: an exact name before a glob, a longer glob before a
//! shorter one, and any host last. Of those with the same host the longest path goes first.

mod pattern;
#[cfg(test)]
mod tests;

pub use pattern::{HostPattern, PathPrefix, PatternFault};

use std::collections::HashMap;

use pattern::{decoded_path, host_name};

/// The routes of a frontend. `T` is what a route leads to.
#[derive(Debug, Clone)]
pub struct RouteTable<T> {
    exact: HashMap<Box<[u8]>, Paths<T>>,
    /// By the suffix, which begins with a dot.
    globs: HashMap<Box<[u8]>, Paths<T>>,
    any: Paths<T>,
}

/// The routes of one host.
type Paths<T> = Vec<(PathPrefix, T)>;

/// A route that a request takes.
#[derive(Debug, PartialEq, Eq)]
pub struct RouteMatch<'a, T> {
    /// What the route leads to.
    pub to: &'a T,
    /// The prefix that the path begins with.
    pub prefix: &'a PathPrefix,
}

impl<T> Default for RouteTable<T> {
    fn default() -> RouteTable<T> {
        RouteTable { exact: HashMap::new(), globs: HashMap::new(), any: Vec::new() }
    }
}

impl<T> RouteTable<T> {
    /// Adds a route.
    ///
    /// # Errors
    /// No request could take it: this route has the same host and path.
    pub fn add(&mut self, host: &HostPattern, prefix: PathPrefix, to: T) -> Result<(), &T> {
        let paths = match host {
            HostPattern::Any => &mut self.any,
            HostPattern::Exact(name) => self.exact.entry(name.clone()).or_default(),
            HostPattern::Below(suffix) => self.globs.entry(suffix.clone()).or_default(),
        };
        if let Some(same) = paths.iter().position(|(other, _)| *other == prefix) {
            return Err(&paths[same].1);
        }
        let longer = paths.partition_point(|(other, _)| other.len() > prefix.len());
        paths.insert(longer, (prefix, to));
        Ok(())
    }

    /// The route of a request with this host, as [`RequestHead::host`](crate::RequestHead::host) has it, and this path.
    pub fn find(&self, host: &[u8], path: &[u8]) -> Option<RouteMatch<'_, T>> {
        let path = decoded_path(path);
        let name = host_name(host);
        let suffixes = name.iter().enumerate().filter(|(at, byte)| **byte == b'.' && *at > 0);
        let exact = self.exact.get(&name[..]).into_iter();
        let globs = suffixes.filter_map(|(at, _)| self.globs.get(&name[at..]));
        exact.chain(globs).chain([&self.any]).find_map(|paths| {
            let found = paths.iter().find(|(prefix, _)| prefix.matches(&path))?;
            Some(RouteMatch { to: &found.1, prefix: &found.0 })
        })
    }
}
