//! Identification numbers for packets that go on in fragments, or may be cut on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Identification numbers that nobody else gives at this time: a receiver puts fragments together by them, and those of several
/// clients come to a server from one address (RFC 6864, section 4.3). Clones share them.
///
/// After 65,536 packets in fragments, within the 30 s and more that a receiver waits for what is missing, numbers
/// repeat; IPv4 has no more of them.
#[derive(Debug, Clone)]
pub struct IpIds(Arc<AtomicU16>);

impl IpIds {
    /// Begins at `first`.
    pub fn new(first: u16) -> IpIds {
        IpIds(Arc::new(AtomicU16::new(first)))
    }

    /// A number.
    pub fn take(&self) -> u16 {
        self.take_many(1)
    }

    /// The first of so many numbers in a row.
    pub(crate) fn take_many(&self, count: u16) -> u16 {
        self.0.fetch_add(count, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn whoever_shares_them_never_gives_the_same_number_until_all_are_given() {
        let ids = IpIds::new(65_000);
        let others = [ids.clone(), ids.clone(), ids];
        let given: HashSet<u16> = (0..1 << 15).map(|n| others[n % 3].take()).collect();
        let first = others[0].take_many(1 << 15);
        let more: HashSet<u16> = (0..1 << 15).map(|n| first.wrapping_add(n)).collect();
        assert_eq!(given.union(&more).count(), 1 << 16);
    }
}
