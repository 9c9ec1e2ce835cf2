//! Monotonic time. Pure.

use std::ops::Sub;
use std::time::Duration;

/// Monotonic time, in nanoseconds since the program started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Time since `earlier`; zero if `earlier` lies in the future.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Timestamp that is `time` later.
    pub fn after(self, time: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// Time since `earlier`, see [`Timestamp::since`].
    fn sub(self, earlier: Timestamp) -> Duration {
        self.since(earlier)
    }
}
