//! Telling connections that stand between two requests that the worker drains.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether a worker drains, and who waits to hear it.
#[derive(Debug, Default)]
pub(super) struct Draining {
    has_begun: AtomicBool,
    begins: Notify,
}

impl Draining {
    /// The worker accepts no more: connections that need not go on are to end.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
        self.begins.notify_waiters();
    }

    /// Whether it drains.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Waits until it does.
    pub(super) async fn begun(&self) {
        let mut begins = pin!(self.begins.notified());
        begins.as_mut().enable();
        // Looked up only now: `begins` tells of every later change.
        if !self.has_begun() {
            begins.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn those_who_wait_hear_it_and_those_who_come_later_know_it() {
        let draining = Draining::default();
        let mut waits = Box::pin(draining.begun());
        assert!((&mut waits).now_or_never().is_none());
        draining.begin();
        assert!(waits.now_or_never().is_some() && draining.begun().now_or_never().is_some());
    }
}
