//! Counter of waiting clients. Pure.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Number of clients that are waiting now.
#[derive(Debug, Default)]
pub struct Waiters(AtomicU32);

/// Guard that counts one waiting client until it is dropped.
#[derive(Debug)]
pub struct Waits<'a>(&'a Waiters);

impl Waiters {
    /// Counts one more waiting client, until the guard is dropped.
    pub fn enter(&self) -> Waits<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // See `wait_for_slot`.
        fence(Ordering::SeqCst);
        Waits(self)
    }

    /// Whether a client may wait for a slot that was released before this call. A client that
    /// enters later finds the slot free. Without waiting clients, this writes to no memory that
    /// other workers use.
    pub fn wait_for_slot(&self) -> bool {
        fence(Ordering::SeqCst);
        self.count() > 0
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
