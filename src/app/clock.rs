//! Clocks of the program. No other module reads them.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use convey_dataplane::kernel_time;
use convey_model::Timestamp;

static START: OnceLock<Instant> = OnceLock::new();

/// Current monotonic time. It counts from the first call, or from that of the first program in a
/// chain of upgrades.
pub(super) fn now() -> Timestamp {
    Timestamp(start().elapsed().as_nanos() as u64)
}

/// The time of `Timestamp(0)`.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn start() -> Instant {
    *START.get_or_init(Instant::now)
}

/// Sets the start of the clock to a time that another process read from [`monotonic_start`]. To be
/// called before [`now`].
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn begin_at(monotonic_start: u64) {
    let passed = kernel_time().saturating_sub(Duration::from_nanos(monotonic_start));
    if let Some(start) = Instant::now().checked_sub(passed) {
        let _ = START.set(start);
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds at `Timestamp(0)`, as the kernel's programs read it,
/// independent of this process's time namespace.
pub(super) fn monotonic_start() -> u64 {
    kernel_time().saturating_sub(now().since(Timestamp::default())).as_nanos() as u64
}

/// The wall-clock time, in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The wall-clock time of `Timestamp(0)`.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn wall_clock_start() -> SystemTime {
    let since_start = now().since(Timestamp::default());
    SystemTime::now() - since_start
}
