//! The one place that reads the clocks.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use crate::model::Timestamp;

/// Now, on the monotonic clock. The first call is the program's start.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn now() -> Timestamp {
    static START: OnceLock<Instant> = OnceLock::new();
    Timestamp(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
}

/// The time of `Timestamp(0)` as the kernel's programs tell it: nanoseconds of `CLOCK_MONOTONIC`.
pub(super) fn monotonic_start() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let time = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
    (time - now().since(Timestamp::default())).as_nanos() as u64
}

/// The wall-clock time of `Timestamp(0)`.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn wall_clock_start() -> SystemTime {
    let since_start = now().since(Timestamp::default());
    SystemTime::now() - since_start
}
