//! Identification numbers of packets that are sent in fragments, or may be fragmented on their
//! path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Generator of IPv4 identification numbers, by which receivers reassemble fragments. Packets of
/// several clients reach a server from one address, so their senders' numbers may collide (RFC
/// 6864, section 4.3). Clones share one sequence of numbers.
///
/// Receivers wait 30 s or more for missing fragments. If more than 65,536 packets are numbered in
/// that time, numbers repeat: they have 16 bits.
#[derive(Debug, Clone)]
pub struct IpIds(Arc<AtomicU16>);

impl IpIds {
    /// Creates a generator that begins at `first`.
    pub fn new(first: u16) -> IpIds {
        IpIds(Arc::new(AtomicU16::new(first)))
    }

    /// Next number.
    pub fn take(&self) -> u16 {
        self.take_range(1)
    }

    /// First of `count` consecutive numbers.
    pub(crate) fn take_range(&self, count: u16) -> u16 {
        self.0.fetch_add(count, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn shared_ip_ids_do_not_repeat_until_all_are_used() {
        let ids = IpIds::new(65_000);
        let others = [ids.clone(), ids.clone(), ids];
        let given: HashSet<u16> = (0..1 << 15).map(|n| others[n % 3].take()).collect();
        let first = others[0].take_range(1 << 15);
        let more: HashSet<u16> = (0..1 << 15).map(|n| first.wrapping_add(n)).collect();
        assert_eq!(given.union(&more).count(), 1 << 16);
    }
}
