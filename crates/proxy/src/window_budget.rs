//! Memory budget of one thread for wide receive windows: slots of unlimited directions, and bytes
//! that blocked directions hold.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;

use super::window::WIDEST;
use convey_model::Prefix;

/// Upper bound of the bytes that the unlimited directions of one thread hold if all of them are
/// blocked. With the usual maximum of 6 MB in `net.ipv4.tcp_rmem`, this allows 42 directions.
///
/// All other directions stay at [`WIDEST`], which gives 128 MB/s at a round-trip time of 1 ms, but
/// only 3 MB/s at 50 ms.
const UNLIMITED: u64 = 256 * 1024 * 1024;

/// Minimum number of unlimited directions in one thread, even if `net.ipv4.tcp_rmem` is large.
const FEWEST: u64 = 8;

/// Upper bound of the bytes that the blocked directions of one thread hold after they have released
/// their slots.
const MAX_BLOCKED_BYTES: u64 = 256 * 1024 * 1024;

thread_local! {
    static BUDGET: RefCell<WindowBudget> = RefCell::new(WindowBudget::new(
        slots(fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").as_deref().unwrap_or("")),
        MAX_BLOCKED_BYTES,
    ));
}

#[derive(Debug)]
struct WindowBudget {
    /// Number of free slots for unlimited directions.
    free: u64,
    /// Number of taken slots of each destination.
    taken: HashMap<Prefix, u64>,
    /// Number of bytes that further blocked directions may hold.
    held_free: u64,
}

/// Slot that allows one direction a wide window. The drop releases the slot.
#[derive(Debug)]
pub(super) struct WindowSlot {
    to: Prefix,
}

/// Guard that charges the bytes of a blocked direction to the budget until it is dropped.
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
    /// Takes a slot for a direction to this destination. Returns `None` if no slot is free, or if
    /// the destination already has as many slots as are still free. The limit is by destination,
    /// because the destination decides whether a direction is blocked.
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
    /// Charges this number of bytes to the budget. Returns `None` if the budget has no room for
    /// them.
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

/// Number of slots for unlimited directions in a thread, with this value of `net.ipv4.tcp_rmem`.
fn slots(tcp_rmem: &str) -> u64 {
    let widest = tcp_rmem.split_whitespace().nth(2).and_then(|most| most.parse().ok());
    (UNLIMITED / widest.unwrap_or(u64::MAX).max(WIDEST)).max(FEWEST)
}

/// Sets the thread's budget.
#[cfg(test)]
pub(super) fn set(slots: u64, held: u64) {
    BUDGET.set(WindowBudget::new(slots, held));
}

/// Returns the number of free slots, and the bytes left in the budget.
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
