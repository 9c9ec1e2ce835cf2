//! Maglev hashing (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer",
//! NSDI 2016, section 3.4). Servers fill a table of slots in turns: each takes the next free slot
//! in its own permutation of the slots. A flow goes to the server in the slot that its hash
//! selects.
//!
//! Servers get slots almost exactly by weight, and a choice is one lookup. When a server goes down,
//! nearly all slots of the other servers stay the same. (On a ring all of them stay the same, but
//! the shares are less even.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::candidates::{Candidate, HashTable, candidates, usable_or_again};
use super::steps::{Foreseen, Step, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// Minimum number of slots of a table; a prime.
const MIN_SLOTS: usize = 65_537;
/// Minimum slots for each server. The paper needs at least this many to keep shares within 1 %.
const SLOTS_PER_MEMBER: usize = 100;

/// Maglev lookup table.
pub(super) struct Maglev {
    table: Box<[u32]>,
    servers: Box<[u32]>,
}

impl Maglev {
    /// Fills a table with the servers that may be chosen. The number of slots depends on the number
    /// of all members, eligible or not, so the number of slots stays when a server's health
    /// changes.
    pub(super) fn new(members: &[Member]) -> Self {
        Maglev::with_slots(members, next_prime(MIN_SLOTS.max(SLOTS_PER_MEMBER * members.len())))
    }

    /// Builds a table of `slots` slots: a prime, larger than the number of members.
    fn with_slots(members: &[Member], slots: usize) -> Self {
        let candidates = candidates(members);
        Maglev {
            table: fill(&candidates, slots),
            servers: candidates.iter().map(|candidate| candidate.index).collect(),
        }
    }
}

impl HashTable for Maglev {
    fn servers(&self) -> &[u32] {
        &self.servers
    }

    fn named(&self, flow: FlowHash) -> Option<usize> {
        self.table.get(flow.below(self.table.len())).map(|&server| server as usize)
    }

    fn step(&self, flow: FlowHash, server: usize, usable: bool) -> Step {
        Step::Slot { slot: flow.below(self.table.len()), of: self.table.len(), server, usable }
    }
}

impl Balancer for Maglev {
    fn pick(&self, flow: FlowHash, loads: &dyn Loads) -> Option<usize> {
        usable_or_again(self, flow, loads, &mut ())
    }

    fn foresee(&self, flow: FlowHash, loads: &dyn Loads) -> Foreseen {
        foresee(|steps| usable_or_again(self, flow, loads, steps))
    }
}

/// Returns the server of each slot; empty if there are no servers.
///
/// The turns of a server are due at the times 0, 1/weight, 2/weight and so on. So servers of equal
/// weight alternate, and even the lightest server gets a slot. (Rounds in which light servers
/// mostly skip their turn would give the same result, but take long when one weight is far above
/// the others.)
fn fill(candidates: &[Candidate], slots: usize) -> Box<[u32]> {
    let mut table = vec![FREE; slots];
    let mut servers: Vec<Filling> = candidates.iter().map(|c| Filling::new(c, slots)).collect();
    let mut turns: BinaryHeap<Reverse<(u64, usize)>> = (0..servers.len()).map(|i| Reverse((0, i))).collect();
    for _ in 0..slots {
        let Some(mut turn) = turns.peek_mut() else { return Box::default() };
        let Reverse((due, server)) = &mut *turn;
        let server = &mut servers[*server];
        server.take_slot(&mut table);
        *due += server.interval;
    }
    table.into()
}

const FREE: u32 = u32::MAX;

/// State of one server while a Maglev table is filled. In each of its turns, the server takes the
/// first free slot in its permutation: `slot`, `slot + skip`, `slot + 2 * skip` and so on, modulo
/// the number of slots. The number of slots is prime, so the permutation contains all slots.
struct Filling {
    index: u32,
    slot: usize,
    skip: usize,
    /// Time between two turns of the server: 1 / weight, in units of 2^-32.
    interval: u64,
}

impl Filling {
    fn new(candidate: &Candidate, slots: usize) -> Self {
        const SLOT_SEED: u64 = u64::from_be_bytes(*b"mag-slot");
        const SKIP_SEED: u64 = u64::from_be_bytes(*b"mag-skip");
        let hash = |seed| FlowHash(xxh3_64_with_seed(&candidate.identity, seed));
        Filling {
            index: candidate.index,
            slot: hash(SLOT_SEED).below(slots),
            skip: 1 + hash(SKIP_SEED).below(slots - 1),
            interval: (1 << 32) / u64::from(candidate.weight),
        }
    }

    /// Takes the next free slot of the server's permutation. The table must have a free slot.
    fn take_slot(&mut self, table: &mut [u32]) {
        while table[self.slot] != FREE {
            self.slot += self.skip;
            if self.slot >= table.len() {
                self.slot -= table.len();
            }
        }
        table[self.slot] = self.index;
    }
}

/// Smallest prime that is `n` or larger.
fn next_prime(mut n: usize) -> usize {
    let is_prime = |n: usize| n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    while !is_prime(n) {
        n += 1;
    }
    n
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestLoads, members, moved, ports, shares_are_within, sixteen};
    use super::*;

    /// Number of slots that each member has in the table.
    fn slots(maglev: &Maglev, members: usize) -> Vec<usize> {
        let mut slots = vec![0; members];
        maglev.table.iter().for_each(|&server| slots[server as usize] += 1);
        slots
    }

    #[test]
    fn clients_of_a_network_are_shared_by_weight() {
        for weights in [&[1, 1, 1, 1][..], &[1, 1, 1, 1, 1], &[10, 20, 30, 40], &[3, 4, 5, 6, 7]] {
            let maglev = Maglev::new(&members(weights));
            shares_are_within(0.03, weights, &maglev, sixteen());
        }
    }

    #[test]
    fn connections_of_one_client_are_shared_by_weight() {
        for weights in [&[1, 1, 1, 1][..], &[1, 1, 1, 1, 1], &[10, 20, 30, 40], &[3, 4, 5, 6, 7]] {
            let maglev = Maglev::new(&members(weights));
            shares_are_within(0.03, weights, &maglev, ports());
        }
    }

    #[test]
    fn equal_servers_differ_by_at_most_one_slot() {
        let slots = slots(&Maglev::with_slots(&members(&[1; 400]), 65_537), 400);
        assert_eq!(slots.iter().max().unwrap() - slots.iter().min().unwrap(), 1);
    }

    #[test]
    fn slots_are_in_proportion_to_weights() {
        let weights = [2, 13, 111, 10];
        let slots = slots(&Maglev::with_slots(&members(&weights), 65_537), 4);
        for (slots, weight) in slots.into_iter().zip(weights) {
            let exact = f64::from(weight) / 136.0 * 65_537.0;
            assert!((slots as f64 - exact).abs() < 2.0, "{slots} slots, not {exact}");
        }
    }

    #[test]
    fn even_the_lightest_server_has_a_slot() {
        let mut weights = [65_535; 1_000];
        weights[17] = 1;
        assert_eq!(slots(&Maglev::new(&members(&weights)), 1_000)[17], 1);
    }

    #[test]
    fn removal_of_one_server_of_a_thousand_moves_few_other_slots() {
        let mut servers = members(&[1; 1_000]);
        let before = Maglev::with_slots(&servers, 65_537);
        for gone in [0, 499, 999] {
            servers[gone].eligible = false;
            let after = Maglev::with_slots(&servers, 65_537);
            servers[gone].eligible = true;
            let others = before.table.iter().zip(&after.table).filter(|&(&b, _)| b as usize != gone);
            let changed = others.filter(|(before, after)| before != after).count();
            assert!(changed < 655, "{changed} slots of others changed");
        }
    }

    #[test]
    fn a_server_that_comes_takes_about_its_share() {
        let (before, after) = (Maglev::new(&members(&[1; 9])), Maglev::new(&members(&[1; 10])));
        let moved = moved(&before, &after, sixteen());
        let gained = moved.iter().filter(|&&(_, to)| to == 9).count();
        assert!((0.09..0.11).contains(&(gained as f64 / 65_536.0)));
        assert!(moved.len() - gained < 65_536 / 20, "{} moved between the others", moved.len() - gained);
    }

    #[test]
    fn the_table_keeps_its_length_when_servers_go_down() {
        let mut servers = members(&[1; 1_000]);
        servers[5].eligible = false;
        assert_eq!(Maglev::new(&servers).table.len(), 100_003);
    }

    #[test]
    fn a_flow_of_a_full_server_finds_the_same_substitute_every_time() {
        let maglev = Maglev::new(&members(&[1; 5]));
        let mut now = TestLoads::idle(5);
        now.unusable[2] = true;
        for flow in ports().take(1_000) {
            let substitute = maglev.pick(flow, &now);
            assert_ne!(substitute, Some(2));
            assert_eq!(substitute, maglev.pick(flow, &now));
        }
    }

    #[test]
    fn table_lengths_are_the_next_prime() {
        let primes =
            [(0, 2), (2, 2), (3, 3), (4, 5), (8, 11), (25, 29), (65_537, 65_537), (100_000, 100_003)];
        for (n, prime) in primes {
            assert_eq!(next_prime(n), prime);
        }
    }
}
