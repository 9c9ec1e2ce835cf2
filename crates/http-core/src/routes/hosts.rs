//! Table of values by host pattern, in which the closest pattern wins.

use std::collections::HashMap;

use super::pattern::{HostPattern, host_name};

/// A value for each host pattern.
#[derive(Debug, Clone)]
pub struct HostTable<T> {
    exact: HashMap<Box<[u8]>, T>,
    /// Values by suffix, which begins with a dot.
    globs: HashMap<Box<[u8]>, T>,
    any: T,
}

impl<T: Default> Default for HostTable<T> {
    fn default() -> HostTable<T> {
        HostTable { exact: HashMap::new(), globs: HashMap::new(), any: T::default() }
    }
}

impl<T: Default> HostTable<T> {
    /// Returns the value of a pattern for modification. A new pattern gets the default value.
    pub fn entry(&mut self, host: &HostPattern) -> &mut T {
        match host {
            HostPattern::Any => &mut self.any,
            HostPattern::Exact(name) => self.exact.entry(name.clone()).or_default(),
            HostPattern::Below(suffix) => self.globs.entry(suffix.clone()).or_default(),
        }
    }
}

impl<T> HostTable<T> {
    /// Calls `wanted` with the values for this host until it returns a result, and returns this
    /// result; `None`: `wanted` returned no result. The closest pattern comes first: an exact name
    /// before a glob, a longer glob before a shorter one, and any host last.
    pub fn closest<'a, F>(&'a self, host: &[u8], mut wanted: impl FnMut(&'a T) -> Option<F>) -> Option<F> {
        if self.exact.is_empty() && self.globs.is_empty() {
            return wanted(&self.any);
        }
        let name = host_name(host);
        self.named(&name).chain([&self.any]).find_map(&mut wanted)
    }

    /// All values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.globs.values()).chain([&self.any])
    }

    /// Whether a pattern other than "any" has a value for this host.
    pub fn has_name(&self, host: &[u8]) -> bool {
        self.named(&host_name(host)).next().is_some()
    }

    /// Values for a name, the closest pattern first, without the value for any host.
    fn named<'a>(&'a self, name: &[u8]) -> impl Iterator<Item = &'a T> {
        let suffixes = name.iter().enumerate().filter(|(at, byte)| **byte == b'.' && *at > 0);
        let exact = self.exact.get(name).into_iter();
        exact.chain(suffixes.filter_map(|(at, _)| self.globs.get(&name[at..])))
    }
}
