//! Buffers that all connections of a thread share: the read buffer, so that an idle connection needs
//! no memory for bytes, and spare buffers for heads, so that a request allocates none. They hold
//! nothing between two calls, so each call can use the buffers of the thread on which it runs.

use std::cell::RefCell;

/// Size of the buffer in bytes. A read that fills the buffer indicates a large body.
pub(crate) const SIZE: usize = 64 * 1024;

/// Capacity in bytes of a new spare buffer: a usual head with a small body.
const SPARE: usize = 2 * 1024;

/// Maximum capacity of a spare buffer that is kept.
const MAX_SPARE: usize = 16 * 1024;

/// Maximum number of spare buffers that a thread keeps.
const SPARES: usize = 16;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIZE].into());
}

/// Calls `use_it` with this thread's buffer. Calls must not be nested.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| use_it(buffer))
}

/// Returns an empty buffer for bytes that are about to be sent.
pub(crate) fn take_spare() -> Vec<u8> {
    SPARE_BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(SPARE))
}

/// Gives back a buffer whose bytes were sent.
pub(crate) fn give_back(mut buffer: Vec<u8>) {
    if !(SPARE..=MAX_SPARE).contains(&buffer.capacity()) {
        return;
    }
    buffer.clear();
    SPARE_BUFFERS.with_borrow_mut(|spare| {
        if spare.len() < SPARES {
            spare.push(buffer);
        }
    });
}
