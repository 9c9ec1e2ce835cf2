//! Upper bound for the memory of kept events.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use convey_control::{EventKind, EventLevel, EventLog};
use convey_model::Timestamp;

/// The system's allocator, which counts the bytes in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call is handed on as it is to the system's allocator, which keeps the contract.
// Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Upper bound for the texts, and for the memory to keep them, in bytes.
const MOST: isize = 1_100_000;

#[test]
fn event_log_memory_is_bounded_at_little_more_than_a_megabyte() {
    let text = "x".repeat(2 * EventLog::MAX_TEXT);
    let log = EventLog::default();
    let fill = || {
        (0..EventLog::CAPACITY)
            .for_each(|_| log.record(EventKind::Reload, EventLevel::Error, Timestamp(1), &text));
    };
    let before = IN_USE.load(Ordering::Relaxed);
    let in_use = || IN_USE.load(Ordering::Relaxed) - before;
    fill();
    let full = in_use();
    fill();
    // Read before printing, which allocates memory, too.
    let still = in_use();
    println!("{full} bytes");
    assert!((1_000_000..MOST).contains(&full), "{full} bytes");
    assert_eq!(still, full);
    assert_eq!(log.since(0).first().unwrap().number, EventLog::CAPACITY as u64);
}
