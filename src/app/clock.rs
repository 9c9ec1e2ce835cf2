//! Clocks of the program. Other modules do not read the system's clocks.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use convey_dataplane::kernel_time;
use convey_model::Timestamp;

static START: OnceLock<Instant> = OnceLock::new();

/// Current monotonic time, counted from the first call in this process; after an upgrade, from the
/// first call in the first process of the chain.
pub(super) fn now() -> Timestamp {
    Timestamp(start().elapsed().as_nanos() as u64)
}

/// The time of `Timestamp(0)`.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn start() -> Instant {
    *START.get_or_init(Instant::now)
}

/// Sets the start of the clock to the value that another process read with [`monotonic_start`].
/// Must be called before [`now`].
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn begin_at(monotonic_start: u64) {
    let passed = kernel_time().saturating_sub(Duration::from_nanos(monotonic_start));
    if let Some(start) = Instant::now().checked_sub(passed) {
        let _ = START.set(start);
    }
}

/// `CLOCK_MONOTONIC` at `Timestamp(0)`, in nanoseconds, as BPF programs read it. It does not depend
/// on the time namespace of this process.
pub(super) fn monotonic_start() -> u64 {
    kernel_time().saturating_sub(now().since(Timestamp::default())).as_nanos() as u64
}

/// The wall-clock time, in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Wall-clock time of `Timestamp(0)`.
#[expect(clippy::disallowed_methods, reason = "the shell's clock; everybody else takes `now`")]
pub(super) fn wall_clock_start() -> SystemTime {
    let since_start = now().since(Timestamp::default());
    SystemTime::now() - since_start
}
