//! Whose packets the cache forwards, by the numbers that it counts them under.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::writer::Failures;
use super::{FlowCounters, KernelCache, Outcome};
use convey_forward::Parties;
use convey_snapshot::stats::{Counter, PacketStats};

/// The numbers given so far. Clones share them; none is ever given to others.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers(Arc<Mutex<Given>>);

#[derive(Debug, Default)]
struct Given {
    numbers: HashMap<Parties, u16>,
    parties: Vec<Parties>,
}

impl Numbers {
    /// The number of these parties, a new one if they have none; `None` if `most` have been given.
    pub(super) fn of(&self, parties: Parties, most: u16) -> Option<u16> {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = given.parties.len() as u16;
        if let Some(number) = given.numbers.get(&parties) {
            return Some(*number);
        }
        if next == most {
            return None;
        }
        given.numbers.insert(parties, next);
        given.parties.push(parties);
        Some(next)
    }

    fn from(&self, first: usize) -> Vec<Parties> {
        let given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.parties[first..].to_vec()
    }
}

/// Reads what the cache has counted. There is one.
#[derive(Debug)]
pub struct Tally {
    cache: Arc<Mutex<KernelCache>>,
    numbers: Numbers,
    failures: Failures,
    /// Whom it knows by their numbers, and what was read of them.
    read: Vec<(Parties, FlowCounters)>,
}

impl Tally {
    pub(super) fn new(cache: Arc<Mutex<KernelCache>>, numbers: Numbers, failures: Failures) -> Tally {
        Tally { cache, numbers, failures, read: Vec::new() }
    }

    /// Hands what was forwarded since the last call to `count`, and says what became of packets so far.
    pub fn read(&mut self, stats: &PacketStats, mut count: impl FnMut(Parties, Counter, u64)) {
        let newcomers = self.numbers.from(self.read.len());
        self.read.extend(newcomers.into_iter().map(|parties| (parties, FlowCounters::default())));
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, (parties, before)) in self.read.iter_mut().enumerate() {
            // It cannot fail for a number that is in the map.
            let Ok(now) = cache.flow_counters(number as u16) else { continue };
            for (counter, n) in [
                (Counter::PacketsRx, now.packets_to_server - before.packets_to_server),
                (Counter::BytesRx, now.bytes_to_server - before.bytes_to_server),
                (Counter::PacketsTx, now.packets_to_client - before.packets_to_client),
                (Counter::BytesTx, now.bytes_to_client - before.bytes_to_client),
            ] {
                if n > 0 {
                    count(*parties, counter, n);
                }
            }
            *before = now;
        }
        for outcome in Outcome::ALL {
            if let Ok(n) = cache.count(outcome) {
                stats.set_outcome(outcome, n);
            }
        }
        if let Ok(n) = cache.fin_queue_full() {
            stats.set_fin_queue_full(n);
        }
        stats.set_cache_failures(self.failures.count());
        stats.set_cache_entries_lost(self.failures.entries_lost());
        if let Ok(n) = cache.syns_refused() {
            stats.set_syns_refused(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_beyond_the_most_get_no_number_and_those_before_keep_theirs() {
        let numbers = Numbers::default();
        let of = |server| numbers.of(Parties { frontend: 1, server }, 3);
        assert_eq!([1, 2, 3, 4].map(of), [Some(0), Some(1), Some(2), None]);
        assert_eq!([3, 4, 1].map(of), [Some(2), None, Some(0)]);
        assert_eq!(numbers.from(1).len(), 2);
    }
}
