//! Counter of open connections with a limit.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of open connections of one frontend or server, across all cores. The limit is an
/// argument, because a reload may change it while connections are open.
#[derive(Debug, Default)]
pub struct Slots {
    open: AtomicU32,
}

impl Slots {
    /// Number of open connections.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether the limit allows another connection; `None`: no limit.
    pub fn has_room(&self, limit: Option<u32>) -> bool {
        limit.is_none_or(|limit| self.open() < limit)
    }

    /// Takes a slot. Returns `false` if `limit` slots or more are taken. Call [`Slots::release`]
    /// when the connection closes.
    pub fn try_take(&self, limit: Option<u32>) -> bool {
        let Some(limit) = limit else {
            self.open.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        let one_more = |open: u32| (open < limit).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Returns a slot.
    pub fn release(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_frontend_takes_no_more_until_one_leaves() {
        let slots = Slots::default();
        assert!(slots.try_take(Some(1)));
        assert!(!slots.try_take(Some(1)));
        assert!(!slots.has_room(Some(1)));
        slots.release();
        assert!(slots.try_take(Some(1)));
    }

    #[test]
    fn a_limit_lowered_below_what_is_open_lets_nobody_in() {
        let slots = Slots::default();
        assert!((0..3).all(|_| slots.try_take(None)));
        assert!(!slots.try_take(Some(2)));
    }
}
