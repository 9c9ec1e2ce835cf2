//! Returns free memory to the kernel after a peak, for example after a reload with many servers or
//! a large page.
//!
//! Without this crate, the allocator of the C library would keep most of the freed memory for the
//! next peak. It returns only memory at the end of its arenas.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval between checks for a peak.
const PERIOD: Duration = Duration::from_secs(10);

/// Minimum size in bytes of an allocation with its own mapping. The mapping returns to the kernel
/// when the allocation is freed. Without a fixed value, the C library would raise this limit over
/// time, up to 32 MiB.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: libc::c_int = 1 << 20;

/// Whether a peak occurred since the last check.
static HAS_PEAKED: AtomicBool = AtomicBool::new(false);

/// Configures the allocator. Call this function before any thread starts.
pub fn begin() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate has this function")]
    // SAFETY: no other thread runs, so no other thread allocates during the calls.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * OWN_MAPPING);
    }
}

/// Records a peak: much memory was allocated, and is free now or soon.
pub fn note_peak() {
    HAS_PEAKED.store(true, Ordering::Relaxed);
}

/// Returns free memory to the kernel after each recorded peak. The future runs until it is dropped.
pub async fn give_back() {
    loop {
        tokio::time::sleep(PERIOD).await;
        if HAS_PEAKED.swap(false, Ordering::Relaxed) {
            trim();
        }
    }
}

/// Returns free memory to the kernel immediately.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate has this function")]
    // SAFETY: malloc_trim may be called at any time. It releases only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}
