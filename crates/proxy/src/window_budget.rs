//! Memory budget of one worker for wide receive windows: slots of unlimited directions, and bytes
//! that blocked directions hold.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::window::WIDEST;
use convey_model::Prefix;

/// Upper bound of the bytes that the unlimited directions of one worker hold if all of them are
/// blocked. With the usual maximum of 6 MB in `net.ipv4.tcp_rmem`, this allows 42 directions.
///
/// All other directions stay at [`WIDEST`], which gives 128 MB/s at a round-trip time of 1 ms, but
/// only 3 MB/s at 50 ms.
const UNLIMITED: u64 = 256 * 1024 * 1024;

/// Minimum number of unlimited directions in one worker, even if `net.ipv4.tcp_rmem` is large.
const FEWEST: u64 = 8;

/// Upper bound of the bytes that the blocked directions of one worker hold after they have released
/// their slots.
const MAX_BLOCKED_BYTES: u64 = 256 * 1024 * 1024;

/// Memory budget of one worker for wide receive windows.
#[derive(Debug)]
pub(super) struct WindowBudget {
    left: Mutex<LeftWindows>,
}

#[derive(Debug)]
struct LeftWindows {
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
    budget: Arc<WindowBudget>,
    to: Prefix,
}

/// Guard that charges the bytes of a blocked direction to the budget until it is dropped.
#[derive(Debug)]
pub(super) struct BlockedBytes {
    budget: Arc<WindowBudget>,
    bytes: u64,
}

impl WindowBudget {
    /// Creates the budget of a worker on this host, by its `net.ipv4.tcp_rmem`.
    pub(super) fn of_host() -> Arc<WindowBudget> {
        let tcp_rmem = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem");
        WindowBudget::new(slots(tcp_rmem.as_deref().unwrap_or("")), MAX_BLOCKED_BYTES)
    }

    /// Creates a budget of this many slots, and this many bytes of blocked directions.
    pub(super) fn new(slots: u64, blocked_bytes: u64) -> Arc<WindowBudget> {
        let left = LeftWindows { free: slots, taken: HashMap::new(), held_free: blocked_bytes };
        Arc::new(WindowBudget { left: Mutex::new(left) })
    }

    /// Takes a slot for a direction to this destination. Returns `None` if no slot is free, or if
    /// the destination already has as many slots as are still free. The limit is by destination,
    /// because the destination decides whether a direction is blocked.
    pub(super) fn take_slot(self: &Arc<WindowBudget>, to: Prefix) -> Option<WindowSlot> {
        let mut left = self.lock();
        let has = left.taken.get(&to).copied().unwrap_or_default();
        (has < left.free).then(|| {
            left.free -= 1;
            left.taken.insert(to, has + 1);
            WindowSlot { budget: self.clone(), to }
        })
    }

    /// Whether a slot is free.
    pub(super) fn has_slot(&self) -> bool {
        self.lock().free > 0
    }

    /// Charges this number of bytes to the budget. Returns `None` if the budget has no room for
    /// them.
    pub(super) fn charge(self: &Arc<WindowBudget>, bytes: u64) -> Option<BlockedBytes> {
        let mut left = self.lock();
        left.held_free = left.held_free.checked_sub(bytes)?;
        Some(BlockedBytes { budget: self.clone(), bytes })
    }

    /// Returns the number of free slots, and the bytes left in the budget.
    #[cfg(test)]
    pub(super) fn left(&self) -> (u64, u64) {
        let left = self.lock();
        (left.free, left.held_free)
    }

    fn lock(&self) -> MutexGuard<'_, LeftWindows> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WindowSlot {
    fn drop(&mut self) {
        let mut left = self.budget.lock();
        left.free += 1;
        match left.taken.get_mut(&self.to) {
            Some(taken) if *taken > 1 => *taken -= 1,
            _ => _ = left.taken.remove(&self.to),
        }
    }
}

impl Drop for BlockedBytes {
    fn drop(&mut self) {
        self.budget.lock().held_free += self.bytes;
    }
}

/// Number of slots for unlimited directions in a worker, with this value of `net.ipv4.tcp_rmem`.
fn slots(tcp_rmem: &str) -> u64 {
    let widest = tcp_rmem.split_whitespace().nth(2).and_then(|most| most.parse().ok());
    (UNLIMITED / widest.unwrap_or(u64::MAX).max(WIDEST)).max(FEWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(n: u8) -> Prefix {
        Prefix::of([192, 0, 2, n].into(), 32)
    }

    #[test]
    fn window_slots_of_one_end_are_at_most_half_of_the_remaining() {
        let budget = WindowBudget::new(42, 0);
        let take = |n| std::iter::from_fn(|| budget.take_slot(end(n))).collect::<Vec<_>>();
        let first = take(1);
        let second = take(2);
        assert_eq!((first.len(), second.len(), budget.left().0), (21, 11, 10));
        drop(first);
        assert_eq!(take(3).len(), 16);
        drop(second);
        assert!(budget.left().0 == 42 && budget.lock().taken.is_empty());
    }

    #[test]
    fn the_wider_the_kernel_has_buffers_become_the_fewer_are_unlimited() {
        assert_eq!(slots("4096\t131072\t6291456\n"), 42);
        assert_eq!(slots("4096 131072 268435456"), FEWEST);
        assert_eq!(slots(""), FEWEST);
        assert_eq!(slots("1 1 1"), 1024, "no fewer bytes than all others have");
    }
}
