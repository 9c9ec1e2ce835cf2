//! How often neighbours are asked for. Pure.

use std::collections::HashSet;
use std::time::Duration;

use crate::model::{Timestamp, Wanted};

/// The kernel asks a neighbour three times, a second apart: within the time that it takes for the first answer to be
/// missed, nothing is gained by telling it again.
const PERIOD: Duration = Duration::from_secs(1);

/// Clients asked for in a period. Whoever forges clients on the link can have three times as many wait for an answer,
/// which leaves room in a table of the usual size (`gc_thresh3`, 1,024) for those of this host.
const CLIENTS: usize = 200;

/// What was asked for lately.
#[derive(Debug, Default)]
pub struct Asking {
    since: Timestamp,
    asked: HashSet<Wanted>,
    clients: usize,
}

impl Asking {
    /// Whether to ask for it: not twice in a second, and not for too many clients.
    pub fn allows(&mut self, wanted: Wanted, now: Timestamp) -> bool {
        if now.since(self.since) >= PERIOD {
            *self = Asking { since: now, ..Asking::default() };
        }
        if !wanted.is_ours && self.clients >= CLIENTS || !self.asked.insert(wanted) {
            return false;
        }
        self.clients += usize::from(!wanted.is_ours);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(n: u32, is_ours: bool) -> Wanted {
        Wanted { interface: 2, ip: std::net::Ipv4Addr::from(n).into(), is_ours }
    }

    #[test]
    fn a_neighbour_is_asked_for_once_a_second() {
        let (mut asking, second) = (Asking::default(), 1_000_000_000);
        let mut asked = |at| asking.allows(wanted(1, true), Timestamp(at));
        assert_eq!([5, 6, second, second + 1, 2 * second].map(&mut asked), [true, false, true, false, true]);
    }

    #[test]
    fn a_scan_of_the_link_keeps_nobody_from_asking_for_servers() {
        let mut asking = Asking::default();
        let scanned = (0..65_536).filter(|&n| asking.allows(wanted(n, false), Timestamp(1)));
        assert_eq!(scanned.count(), CLIENTS);
        assert!(asking.allows(wanted(1 << 20, true), Timestamp(1)));
    }
}
