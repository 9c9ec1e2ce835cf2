//! Memory that a peak has taken goes back to the kernel, such as that of a reload with many servers
//! or of a large page.
//!
//! The allocator of the C library keeps freed memory for the next peak, except at the end of its
//! arenas.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks for a peak.
const PERIOD: Duration = Duration::from_secs(10);

/// Whether there was a peak since the last look.
static HAS_PEAKED: AtomicBool = AtomicBool::new(false);

/// Much memory was taken, and is free now or soon.
pub(crate) fn note_peak() {
    HAS_PEAKED.store(true, Ordering::Relaxed);
}

/// Gives free memory back to the kernel after each peak, for as long as it is awaited.
pub(crate) async fn give_back() {
    loop {
        tokio::time::sleep(PERIOD).await;
        if HAS_PEAKED.swap(false, Ordering::Relaxed) {
            trim();
        }
    }
}

fn trim() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate has this function")]
    // SAFETY: It may be called at any time, and takes no memory from anybody.
    unsafe {
        libc::malloc_trim(0);
    }
}
