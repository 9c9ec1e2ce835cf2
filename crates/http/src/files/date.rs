//! Date in HTTP format.
#![expect(clippy::disallowed_methods, reason = "a shell: what it writes is the present")]

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use httpdate::fmt_http_date;

thread_local! {
    /// Last second that was formatted, and its text. The cache only saves work, so each call can
    /// use the cache of the thread on which it runs.
    static WRITTEN: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// Present time, in seconds and nanoseconds since 1970.
pub(super) fn now() -> (u64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs(), since.subsec_nanos())
}

/// Formats a time in seconds since 1970, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn of(seconds: u64) -> String {
    // The last second of the year 9999: the format has no room for later years.
    const LAST: u64 = 253_402_300_799;
    fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST)))
}

/// Calls `use_it` with the present time, in seconds since 1970 and in HTTP format.
pub(super) fn with_present<T>(use_it: impl FnOnce(u64, &str) -> T) -> T {
    let (seconds, _) = now();
    WRITTEN.with_borrow_mut(|(written, text)| {
        if *written != seconds {
            (*written, *text) = (seconds, of(seconds));
        }
        use_it(seconds, text)
    })
}
