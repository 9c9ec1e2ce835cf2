//! What every source of servers can do: name servers, clusters, service catalogues. Pure.

use std::convert::Infallible;

/// A source that knows servers which are not in the file. Each source is one implementation.
///
/// convey runs one watch for each name or service that some backend wants, and drops the watch when no backend wants it.
pub trait ServerSource {
    /// The name or the service to watch.
    type Wanted;
    /// All that the source knows of it. A newer word takes the place of an older one.
    type Said;

    /// Watches as long as it runs, and calls `tell` with all that is known whenever that changes.
    ///
    /// A watch never gives up: it waits and asks again. It says what is wrong by `tell`, too.
    fn watch(
        &self,
        wanted: Self::Wanted,
        tell: impl FnMut(Self::Said) + Send,
    ) -> impl Future<Output = Infallible> + Send;
}
