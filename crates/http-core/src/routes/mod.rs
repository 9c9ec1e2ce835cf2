//! Route of a request, by its host and its path.
//!
//! Among the routes that match a request, the closest host wins: an exact name before a glob, a
//! longer glob before a shorter one, and any host last. Among routes with the same host, the
//! longest path wins.

mod hosts;
mod pattern;
#[cfg(test)]
mod tests;
mod view;

pub use hosts::HostTable;
pub use pattern::{HostPattern, PathPrefix, PatternFault};
pub use view::PathView;

/// Routes of a frontend. `T` is the target of a route.
#[derive(Debug, Clone)]
pub struct RouteTable<T> {
    hosts: HostTable<Paths<T>>,
    view: PathView,
}

/// Routes of one host, the longest path first.
type Paths<T> = Vec<(PathPrefix, T)>;

/// Route of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct RouteMatch<'a, T> {
    /// Target of the route.
    pub to: &'a T,
    /// Prefix that the path begins with.
    pub prefix: &'a PathPrefix,
}

impl<T> RouteTable<T> {
    /// Returns a table without routes. `view` is the normalization of paths for lookups.
    pub fn new(view: PathView) -> RouteTable<T> {
        RouteTable { hosts: HostTable::default(), view }
    }

    /// Adds a route.
    ///
    /// # Errors
    /// A route with the same host and path exists. Returns the target of that route.
    pub fn add(&mut self, host: &HostPattern, prefix: PathPrefix, to: T) -> Result<(), &T> {
        let (prefix, paths) = (prefix.in_view(self.view), self.hosts.entry(host));
        if let Some(same) = paths.iter().position(|(other, _)| *other == prefix) {
            return Err(&paths[same].1);
        }
        let longer = paths.partition_point(|(other, _)| other.len() > prefix.len());
        paths.insert(longer, (prefix, to));
        Ok(())
    }

    /// Finds the route of a request with this path and this host, as
    /// [`RequestHead::host`](crate::RequestHead::host) returns it. `None`: no route matches.
    pub fn find(&self, host: &[u8], path: &[u8]) -> Option<RouteMatch<'_, T>> {
        self.find_where(host, path, |_| true)
    }

    /// Finds the route of a request among the routes whose target `wanted` accepts.
    pub fn find_where(
        &self,
        host: &[u8],
        path: &[u8],
        wanted: impl Fn(&T) -> bool,
    ) -> Option<RouteMatch<'_, T>> {
        let mut viewed = None;
        self.hosts.closest(host, |paths| {
            let path = paths.first().map(|_| viewed.get_or_insert_with(|| self.view.of(path)))?;
            let found = paths.iter().find(|(prefix, to)| prefix.matches(path) && wanted(to))?;
            Some(RouteMatch { to: &found.1, prefix: &found.0 })
        })
    }
}
