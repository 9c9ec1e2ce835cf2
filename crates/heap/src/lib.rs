//! Returns memory to the kernel after a peak, such as a reload with many servers or a large page.
//!
//! The allocator of the C library keeps freed memory for the next peak, except at the end of its
//! arenas.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval between checks for a peak.
const PERIOD: Duration = Duration::from_secs(10);

/// Size in bytes from which each allocation has its own mapping, which the kernel gets back when it
/// is freed. The C library would raise this limit to 32 MiB over time, and would then zero such
/// memory itself.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: libc::c_int = 1 << 20;

/// Whether a peak occurred since the last check.
static HAS_PEAKED: AtomicBool = AtomicBool::new(false);

/// Configures the allocator. Call it before any thread starts.
pub fn begin() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate has this function")]
    // SAFETY: No other thread allocates meanwhile.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * OWN_MAPPING);
    }
}

/// Notes a peak: much memory was allocated, and is free now or soon.
pub fn note_peak() {
    HAS_PEAKED.store(true, Ordering::Relaxed);
}

/// Returns free memory to the kernel after each peak, until dropped.
pub async fn give_back() {
    loop {
        tokio::time::sleep(PERIOD).await;
        if HAS_PEAKED.swap(false, Ordering::Relaxed) {
            trim();
        }
    }
}

/// Returns free memory to the kernel at once.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate has this function")]
    // SAFETY: It may be called at any time, and takes no memory from anybody.
    unsafe {
        libc::malloc_trim(0);
    }
}
