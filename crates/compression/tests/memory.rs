//! Tests of the memory that encoders use.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_compression::Encoder;
use convey_http_core::ContentCoding;

/// System allocator that counts the bytes in use, and their peak.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call is passed unchanged to the system's allocator, which fulfils the contract.
// Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(in_use, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of this function, which is the same for the
        // system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of this function, which is the same for the
        // system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Two bodies of 8 MiB: text, and bytes that can hardly be compressed.
fn bodies() -> [Vec<u8>; 2] {
    const LEN: usize = 8 << 20;
    let text =
        (0..).flat_map(|n: u32| format!("{{\"id\": {n}, \"name\": \"item {}\"}}\n", n % 977).into_bytes());
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    [text.take(LEN).collect(), noise.take(LEN).collect()]
}

/// Peak memory of one encoder in bytes, without its output.
fn most_of(coding: ContentCoding, body: &[u8]) -> usize {
    let mut out = Vec::with_capacity(1 << 20);
    let before = IN_USE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let mut encoder = Encoder::new(coding, None).unwrap();
    for piece in body.chunks(16 * 1024) {
        encoder.write(piece, &mut out).unwrap();
        out.clear();
    }
    // The zstd library has its own allocator.
    MOST.load(Ordering::Relaxed) - before + encoder.foreign_memory()
}

#[test]
fn an_encoder_holds_no_more_than_it_is_charged_for() {
    for coding in ContentCoding::ALL {
        for body in bodies() {
            let (most, charged) = (most_of(coding, &body), Encoder::memory(coding));
            assert!(most <= charged, "{coding:?}: {most} bytes, {charged} are charged");
            assert!(most > charged / 2, "{coding:?}: {most} bytes, {charged} are charged");
        }
    }
}
