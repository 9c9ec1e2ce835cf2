//! Trait of server sources: name servers, clusters, service catalogues. Pure.

use std::convert::Infallible;

/// Source of servers that are not in the file. Each kind of source implements this trait.
///
/// convey runs one watch for each name or service that a backend uses. When no backend uses the
/// name or service any longer, convey drops the watch.
pub trait ServerSource {
    /// Name or service to watch.
    type Wanted;
    /// State of the name or service at the source. A newer state replaces the older one.
    type Said;

    /// Watches until the future is dropped, and calls `tell` with the full state after each change.
    ///
    /// A watch never ends by itself: after a failure it reports the fault through `tell`, waits and
    /// retries.
    fn watch(
        &self,
        wanted: Self::Wanted,
        tell: impl FnMut(Self::Said) + Send,
    ) -> impl Future<Output = Infallible> + Send;
}
