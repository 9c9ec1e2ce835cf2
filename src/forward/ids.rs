//! Numbers for packets that go on in fragments.

/// Numbers that nobody else gives at this time: a receiver puts fragments together by them, and those of several
/// clients come to a server from one address (RFC 6864, section 4.3).
///
/// Each thread has a share of the 65,536 there are. After that many packets in fragments, within the 30 s and more
/// that a receiver waits for what is missing, numbers repeat; IPv4 has no more of them.
#[derive(Debug)]
pub struct Ids {
    next: u16,
    share: u16,
    step: u16,
}

impl Ids {
    /// The share of number `share` out of `shares`, beginning somewhere about `start`.
    ///
    /// # Panics
    /// If there is no such share.
    pub fn new(share: u16, shares: u16, start: u16) -> Ids {
        assert!(share < shares, "share {share} of {shares}");
        let next = (start - start % shares).checked_add(share).unwrap_or(share);
        Ids { next, share, step: shares }
    }

    /// A number.
    pub fn take(&mut self) -> u16 {
        let id = self.next;
        self.next = id.checked_add(self.step).unwrap_or(self.share);
        id
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn threads_never_give_the_same_number() {
        for shares in [1, 2, 3, 7, 64] {
            let mut all = HashSet::new();
            for share in 0..shares {
                let mut ids = Ids::new(share, shares, 65_535);
                let own: HashSet<u16> = (0..100_000).map(|_| ids.take()).collect();
                assert!(own.len() >= usize::from(u16::MAX / shares), "{} of {shares} shares", own.len());
                assert!(own.is_disjoint(&all), "share {share} of {shares}");
                all.extend(own);
            }
            assert_eq!(all.len(), 1 << 16, "together they have all");
        }
    }
}
