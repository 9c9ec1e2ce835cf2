//! Trait of server sources: name servers, clusters, service catalogues. Pure.

use std::convert::Infallible;

/// Source of servers that are not in the file. Each source is one implementation.
///
/// convey runs one watch for each name or service that a backend uses, and drops the watch when no
/// backend uses it.
pub trait ServerSource {
    /// Name or service to watch.
    type Wanted;
    /// State of the name or service at the source. A newer state replaces the older one.
    type Said;

    /// Watches until dropped, and calls `tell` with the full state after each change.
    ///
    /// A watch never gives up: after a failure it waits and retries. It reports faults through
    /// `tell`, too.
    fn watch(
        &self,
        wanted: Self::Wanted,
        tell: impl FnMut(Self::Said) + Send,
    ) -> impl Future<Output = Infallible> + Send;
}
