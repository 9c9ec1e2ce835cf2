//! Counter of waiting clients. Pure.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Interval at which a waiting client looks for a slot without a notification. See
/// [`Waiters::wait_for_slot`].
pub const SLOT_RECHECK: Duration = Duration::from_secs(1);

/// Number of clients that are waiting now.
#[derive(Debug, Default)]
pub struct Waiters(AtomicU32);

/// Guard that counts one waiting client until it is dropped.
#[derive(Debug)]
pub struct Waits<'a>(&'a Waiters);

impl Waiters {
    /// Counts one more waiting client, until the guard is dropped. Call it before the client looks
    /// for a slot.
    pub fn enter(&self) -> Waits<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Waits(self)
    }

    /// Whether a client may wait for a slot that was released before this call. The call only reads
    /// memory that other workers use.
    ///
    /// No client misses a slot that was counted together ([`Slots::release`]). The release, this
    /// read, the client's entry and the client's look for a slot are `SeqCst`, so they have one
    /// order. If this read precedes the entry, then the release precedes the look, and the client
    /// finds the slot free.
    ///
    /// A client may miss a slot that was taken before a reload introduced the limit: its release is
    /// a plain store, which may become visible to the client after this read. So a waiting client
    /// looks again every [`SLOT_RECHECK`]. A fence would cost every connection without a limit more
    /// than these looks cost the clients that wait.
    ///
    /// [`Slots::release`]: convey_model::Slots::release
    pub fn wait_for_slot(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// Number of waiting clients.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_counted_while_they_wait() {
        let waiters = Waiters::default();
        let (first, second) = (waiters.enter(), waiters.enter());
        assert_eq!(waiters.count(), 2);
        drop(first);
        assert_eq!(waiters.count(), 1);
        drop(second);
        assert_eq!(waiters.count(), 0);
    }
}
