//! Coarse clock of a worker's registry.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Coarse clock, at most one second late. It gives the time of the last bytes without a system
/// call for each read. Only the worker's thread advances it.
#[derive(Debug)]
pub(super) struct CoarseClock {
    created: Instant,
    /// Nanoseconds since the creation.
    nanos: AtomicU64,
}

impl Default for CoarseClock {
    fn default() -> CoarseClock {
        CoarseClock { created: Instant::now(), nanos: AtomicU64::new(0) }
    }
}

impl CoarseClock {
    /// Advances the clock, unless it is ahead.
    pub(super) fn advance(&self, now: Instant) {
        let nanos = now.saturating_duration_since(self.created).as_nanos() as u64;
        if nanos > self.nanos() {
            self.nanos.store(nanos, Ordering::Relaxed);
        }
    }

    /// Present time, in nanoseconds since the creation of the clock.
    #[inline]
    pub(super) fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// Converts a time of this clock.
    pub(super) fn instant(&self, nanos: u64) -> Instant {
        self.created + Duration::from_nanos(nanos)
    }
}
