//! Waits for conditions in tests.

use std::thread;
use std::time::{Duration, Instant};

/// Default timeout. It is longer than any working operation takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Polls `look` until it returns a value. Panics after the default timeout.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_up_to(PATIENCE, what, look)
}

/// Polls `look` until it returns a value. Panics after the timeout `patience`.
pub fn wait_up_to<T>(patience: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = clock();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < patience, "waited {patience:?} in vain for: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Current time.
#[expect(clippy::disallowed_methods, reason = "tests happen in real time")]
pub fn clock() -> Instant {
    Instant::now()
}
