//! The buffer that all connections of a thread read through: an idle connection holds no memory for bytes.

use std::cell::RefCell;

/// Its size: a read that fills it is a part of something large.
pub(crate) const SIZE: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIZE].into());
}

/// Lends this thread's buffer. Not to be called from within.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| use_it(buffer))
}
