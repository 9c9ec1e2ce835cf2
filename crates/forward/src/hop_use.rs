//! Number of flows that send to each next hop.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of next hops whose counts are allocated together.
const CHUNK: usize = 256;

/// Number of flows of one worker that send to each next hop. Clones share the counts: one thread
/// writes them, others read.
#[derive(Debug, Clone)]
pub struct HopUse(Arc<[OnceLock<Box<[AtomicU32; CHUNK]>>; CHUNK]>);

impl HopUse {
    pub(crate) fn new() -> HopUse {
        HopUse(Arc::new([const { OnceLock::new() }; CHUNK]))
    }

    /// Whether some flow sends to this next hop.
    pub fn is_used(&self, next_hop: u32) -> bool {
        let chunk = self.0.get(next_hop as usize / CHUNK).and_then(OnceLock::get);
        chunk.is_some_and(|chunk| chunk[next_hop as usize % CHUNK].load(Ordering::Relaxed) > 0)
    }

    /// Counts a flow with these next hops.
    pub(crate) fn begin(&self, next_hops: [u32; 2]) {
        next_hops.into_iter().for_each(|next_hop| self.change(next_hop, 1));
    }

    /// Subtracts a flow with these next hops.
    pub(crate) fn end(&self, next_hops: [u32; 2]) {
        next_hops.into_iter().for_each(|next_hop| self.change(next_hop, -1));
    }

    /// Adds `by` to the count of a next hop. Ignores the index of flows without a next hop.
    fn change(&self, next_hop: u32, by: i32) {
        if next_hop >= u32::from(u16::MAX) {
            return;
        }
        let Some(chunk) = self.0.get(next_hop as usize / CHUNK) else { return };
        let chunk = chunk.get_or_init(|| Box::new([const { AtomicU32::new(0) }; CHUNK]));
        let count = &chunk[next_hop as usize % CHUNK];
        count.store(count.load(Ordering::Relaxed).saturating_add_signed(by), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hops_are_used_from_the_first_flow_to_the_last() {
        let used = HopUse::new();
        let seen = used.clone();
        let hops = [0, 255, 256, 65_534, 65_535, u32::MAX];
        let are_used = || hops.map(|hop| seen.is_used(hop));
        assert_eq!(are_used(), [false; 6]);
        used.begin([0, 256]);
        used.begin([256, 65_534]);
        used.begin([u32::MAX, 65_535]);
        assert_eq!(are_used(), [true, false, true, true, false, false]);
        used.end([0, 256]);
        used.end([u32::MAX, 65_535]);
        assert_eq!(are_used(), [false, false, true, true, false, false]);
        used.end([256, 65_534]);
        assert_eq!(are_used(), [false; 6]);
    }
}
