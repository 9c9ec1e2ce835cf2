//! Read buffer that all connections of a thread share, so that an idle connection needs no memory
//! for bytes. The buffer holds nothing between two calls, so each call can use the buffer of the
//! thread on which it runs.

use std::cell::RefCell;

/// Size of the buffer in bytes. A read that fills the buffer indicates a large body.
pub(crate) const SIZE: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIZE].into());
}

/// Calls `use_it` with this thread's buffer. Calls must not be nested.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| use_it(buffer))
}
