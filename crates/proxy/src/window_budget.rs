//! Which directions of one thread may have a wide receive window, and how much those may hold that are blocked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;

use super::window::WIDEST;
use convey_model::Prefix;

/// What the directions of one thread that have what the kernel thinks right (`net.ipv4.tcp_rmem`) may hold together, should
/// they all be blocked: with the usual 6 MB those are 42. All others stay at [`WIDEST`], which is 128 MB/s at a
/// millisecond's distance, but 3 MB/s at fifty.
const UNLIMITED: u64 = 256 * 1024 * 1024;

/// So many directions in one thread are unlimited, however much that is.
const FEWEST: u64 = 8;

/// What directions that are blocked may hold beside that, once they have given their slots back.
const MAX_BLOCKED_BYTES: u64 = 256 * 1024 * 1024;

thread_local! {
    static BUDGET: RefCell<WindowBudget> = RefCell::new(WindowBudget::new(
        slots(fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").as_deref().unwrap_or("")),
        MAX_BLOCKED_BYTES,
    ));
}

#[derive(Debug)]
struct WindowBudget {
    /// Slots that are left.
    free: u64,
    /// Slots of each end that directions lead to.
    taken: HashMap<Prefix, u64>,
    /// Bytes that blocked directions may hold yet.
    held_free: u64,
}

/// One direction may have a wide window.
#[derive(Debug)]
pub(super) struct WindowSlot {
    to: Prefix,
}

/// So many bytes are held by a blocked direction.
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
    /// For a direction that leads to this end. One end may have as many slots as are left: the end of a direction decides
    /// whether it is blocked.
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

    /// Whether there is one for somebody.
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
    /// Charges so many bytes, if there is room for them.
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

/// How many directions of a thread are unlimited, with this `net.ipv4.tcp_rmem`.
fn slots(tcp_rmem: &str) -> u64 {
    let widest = tcp_rmem.split_whitespace().nth(2).and_then(|most| most.parse().ok());
    (UNLIMITED / widest.unwrap_or(u64::MAX).max(WIDEST)).max(FEWEST)
}

/// Sets the thread's budget.
#[cfg(test)]
pub(super) fn set(slots: u64, held: u64) {
    BUDGET.set(WindowBudget::new(slots, held));
}

/// Slots and bytes that are left.
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
    fn one_end_may_have_half_of_the_slots_and_several_leave_some_for_others() {
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
