//! Route of a request, by its host, its path and further conditions.
//!
//! Among the routes that match a request, the closest host wins: an exact name before a glob, a
//! longer glob before a shorter one, and any host last. Among routes with the same host, the closest
//! path wins: one path, then the longest regular expression, then the longest prefix. Among routes
//! with the same path, the one with more conditions wins ([`RouteConditions`]), then the one that was
//! added first. This is the order of the Gateway API (v1.6, `HTTPRouteRule`), which leaves the place
//! of regular expressions open.

mod conditions;
mod hosts;
mod path;
mod paths;
mod pattern;
#[cfg(test)]
mod tests;
mod view;

pub use conditions::{NamedCondition, RouteConditions, ValueCondition};
pub use hosts::HostTable;
pub use path::{ExactPath, PathPattern};
pub(crate) use pattern::host_name;
pub use pattern::{HostPattern, PathPrefix, PatternFault};
pub use view::PathView;

use crate::{FieldTrust, RequestHead};
use paths::PathTable;

/// Routes of a frontend. `T` is the target of a route.
#[derive(Debug, Clone)]
pub struct RouteTable<T> {
    hosts: HostTable<PathTable<T>>,
    view: PathView,
    is_empty: bool,
}

/// A route of a [`RouteTable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteEntry<T> {
    /// Conditions beside host and path.
    pub conditions: RouteConditions,
    /// Target of the route.
    pub to: T,
}

impl<T> RouteTable<T> {
    /// Returns a table without routes. `view` is the normalization of paths for lookups.
    pub fn new(view: PathView) -> RouteTable<T> {
        RouteTable { hosts: HostTable::default(), view, is_empty: true }
    }

    /// Adds a route.
    pub fn add(&mut self, host: &HostPattern, path: &PathPattern, conditions: RouteConditions, to: T) {
        self.is_empty = false;
        self.hosts.entry(host).add(&path.in_view(self.view), conditions, to);
    }

    /// Finds the route of a request among the routes whose target `wanted` accepts. `None`: no route
    /// matches. Headers that are not trusted count as absent.
    pub fn find(&self, head: &RequestHead, trust: FieldTrust<'_>, wanted: impl Fn(&T) -> bool) -> Option<&T> {
        let is_wanted = |entry: &RouteEntry<T>| entry.conditions.hold_for(head, trust) && wanted(&entry.to);
        self.find_at(head.host(), head.path(), is_wanted)
    }

    /// Finds the route for this path and this host, as [`RequestHead::host`] returns it, among the
    /// routes that `wanted` accepts.
    pub fn find_at(&self, host: &[u8], path: &[u8], wanted: impl Fn(&RouteEntry<T>) -> bool) -> Option<&T> {
        if self.is_empty {
            return None;
        }
        let mut viewed = None;
        self.hosts.closest(host, |paths| {
            let path = viewed.get_or_insert_with(|| self.view.of(path));
            Some(&paths.find(path, &wanted)?.to)
        })
    }

    /// Pairs of routes with the same host and path, in which the first one includes all requests of
    /// the second one, so that the second one is unreachable. `covers` compares conditions that the
    /// table does not know.
    pub fn unreachable(&self, covers: impl Fn(&T, &T) -> bool) -> Vec<(&T, &T)> {
        let mut found = Vec::new();
        for group in self.hosts.values().flat_map(PathTable::groups) {
            for (at, later) in group.iter().enumerate() {
                let mut before = group[..at].iter();
                let cover = before.find(|first| {
                    first.conditions.include(&later.conditions) && covers(&first.to, &later.to)
                });
                found.extend(cover.map(|cover| (&cover.to, &later.to)));
            }
        }
        found
    }
}
