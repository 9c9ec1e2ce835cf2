//! Memory that a peak has taken goes back to the kernel, such as that of a reload with many servers
//! or of a large page.
//!
//! The allocator of the C library keeps freed memory for the next peak, except at the end of its
//! arenas.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks for a peak.
const PERIOD: Duration = Duration::from_secs(10);

/// Bytes from which on each allocation has a mapping of its own, which the kernel gets back when it is freed. The C library
/// would raise this to 32 MiB in time, and would then fill such memory with zeros itself.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: libc::c_int = 1 << 20;

/// Whether there was a peak since the last look.
static HAS_PEAKED: AtomicBool = AtomicBool::new(false);

/// Sets the allocator up. To be called before there are threads.
pub fn begin() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate has this function")]
    // SAFETY: No other thread allocates meanwhile.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * OWN_MAPPING);
    }
}

/// Much memory was taken, and is free now or soon.
pub fn note_peak() {
    HAS_PEAKED.store(true, Ordering::Relaxed);
}

/// Gives free memory back to the kernel after each peak, for as long as it is awaited.
pub async fn give_back() {
    loop {
        tokio::time::sleep(PERIOD).await;
        if HAS_PEAKED.swap(false, Ordering::Relaxed) {
            trim();
        }
    }
}

/// Gives free memory back to the kernel at once.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate has this function")]
    // SAFETY: It may be called at any time, and takes no memory from anybody.
    unsafe {
        libc::malloc_trim(0);
    }
}
