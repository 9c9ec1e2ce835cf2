//! Budget of one thread for wide receive windows, and for the bytes of blocked directions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;

use super::window::WIDEST;
use convey_model::Prefix;

/// Upper bound of the bytes that the unlimited directions of one thread hold if all are blocked.
/// With the usual 6 MB of `net.ipv4.tcp_rmem`, that allows 42 directions. All others stay at
/// [`WIDEST`], which gives 128 MB/s at a round-trip time of a millisecond, but 3 MB/s at fifty.
const UNLIMITED: u64 = 256 * 1024 * 1024;

/// Lower bound of the unlimited directions in one thread, whatever `net.ipv4.tcp_rmem` is.
const FEWEST: u64 = 8;

/// Upper bound of the bytes that blocked directions hold after they have released their slots.
const MAX_BLOCKED_BYTES: u64 = 256 * 1024 * 1024;

thread_local! {
    static BUDGET: RefCell<WindowBudget> = RefCell::new(WindowBudget::new(
        slots(fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").as_deref().unwrap_or("")),
        MAX_BLOCKED_BYTES,
    ));
}

#[derive(Debug)]
struct WindowBudget {
    /// Number of free slots.
    free: u64,
    /// Number of slots of each end that directions lead to.
    taken: HashMap<Prefix, u64>,
    /// Bytes that blocked directions may still take.
    held_free: u64,
}

/// Right of one direction to a wide window, until the drop.
#[derive(Debug)]
pub(super) struct WindowSlot {
    to: Prefix,
}

/// Bytes that a blocked direction holds, charged until the drop.
#[derive(Debug)]
pub(super) struct BlockedBytes {
    bytes: u64,
}

impl WindowBudget {
    fn new(free: u64, held_free: u64) -> WindowBudget {
        WindowBudget { free, taken: HashMap::new(), held_free }
    }
}

impl WindowSlot {
    /// Takes a slot for a direction that leads to this end; each end gets at most as many slots as
    /// are left then. The end that a direction leads to decides whether it is blocked.
    pub(super) fn take(to: Prefix) -> Option<WindowSlot> {
        BUDGET.with_borrow_mut(|budget| {
            let has = budget.taken.get(&to).copied().unwrap_or_default();
            (has < budget.free).then(|| {
                budget.free -= 1;
                budget.taken.insert(to, has + 1);
                WindowSlot { to }
            })
        })
    }

    /// Whether a slot is free.
    pub(super) fn is_free() -> bool {
        BUDGET.with_borrow(|budget| budget.free > 0)
    }
}

impl Drop for WindowSlot {
    fn drop(&mut self) {
        BUDGET.with_borrow_mut(|budget| {
            budget.free += 1;
            match budget.taken.get_mut(&self.to) {
                Some(taken) if *taken > 1 => *taken -= 1,
                _ => drop(budget.taken.remove(&self.to)),
            }
        });
    }
}

impl BlockedBytes {
    /// Charges this number of bytes, if the budget has room for them.
    pub(super) fn charge(bytes: u64) -> Option<BlockedBytes> {
        BUDGET.with_borrow_mut(|budget| {
            budget.held_free = budget.held_free.checked_sub(bytes)?;
            Some(BlockedBytes { bytes })
        })
    }
}

impl Drop for BlockedBytes {
    fn drop(&mut self) {
        BUDGET.with_borrow_mut(|budget| budget.held_free += self.bytes);
    }
}

/// Number of unlimited directions in a thread, with this `net.ipv4.tcp_rmem`.
fn slots(tcp_rmem: &str) -> u64 {
    let widest = tcp_rmem.split_whitespace().nth(2).and_then(|most| most.parse().ok());
    (UNLIMITED / widest.unwrap_or(u64::MAX).max(WIDEST)).max(FEWEST)
}

/// Sets the thread's budget.
#[cfg(test)]
pub(super) fn set(slots: u64, held: u64) {
    BUDGET.set(WindowBudget::new(slots, held));
}

/// Free slots, and bytes left in the budget.
#[cfg(test)]
pub(super) fn left() -> (u64, u64) {
    BUDGET.with_borrow(|budget| (budget.free, budget.held_free))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(n: u8) -> Prefix {
        Prefix::of([192, 0, 2, n].into(), 32)
    }

    #[test]
    fn window_slots_of_one_end_are_at_most_half_of_the_remaining() {
        set(42, 0);
        let take = |n| std::iter::from_fn(|| WindowSlot::take(end(n))).collect::<Vec<_>>();
        let first = take(1);
        let second = take(2);
        assert_eq!((first.len(), second.len(), left().0), (21, 11, 10));
        drop(first);
        assert_eq!(take(3).len(), 16);
        drop(second);
        assert!(left().0 == 42 && BUDGET.with_borrow(|budget| budget.taken.is_empty()));
    }

    #[test]
    fn the_wider_the_kernel_has_buffers_become_the_fewer_are_unlimited() {
        assert_eq!(slots("4096\t131072\t6291456\n"), 42);
        assert_eq!(slots("4096 131072 268435456"), FEWEST);
        assert_eq!(slots(""), FEWEST);
        assert_eq!(slots("1 1 1"), 1024, "no fewer bytes than all others have");
    }
}
