//! Smooth weighted round robin: servers take turns, and the turns of a heavy server are spread over
//! the cycle.
//!
//! The order of turns is computed when the table is built. A choice then increments a counter and
//! looks up its server.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::candidates::{first_usable, weighted};
use super::steps::{Foreseen, ForeseenTurns, Step, Turns, Witness, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// Maximum number of turns of a cycle; rounding may add half a turn for each server. Weights that
/// need a longer cycle are scaled down.
const MAX_CYCLE: u64 = 65_536;

/// Maximum number of turns that one choice takes; afterwards the servers are searched one by one.
/// The number is prime, so that successive searches start at different servers.
const MAX_TURNS: usize = 31;

/// Round robin balancer.
pub(super) struct RoundRobin {
    cycle: Box<[u32]>,
    servers: Box<[u32]>,
    turn: Arc<AtomicUsize>,
}

impl RoundRobin {
    /// Computes the cycle of the servers that may be chosen.
    pub(super) fn new(members: &[Member], turn: Arc<AtomicUsize>) -> Self {
        let (servers, weights): (Vec<u32>, Vec<u64>) = weighted(members).unzip();
        let cycle = smooth_cycle(&slots(&weights)).map(|position| servers[position]).collect();
        RoundRobin { cycle, servers: servers.into(), turn }
    }

    fn choose(&self, loads: &dyn Loads, mut turns: impl Turns, witness: &mut impl Witness) -> Option<usize> {
        // The turn of an unusable server is skipped. If it went to the next server in the cycle,
        // that server would get twice its share.
        for _ in 0..self.cycle.len().min(MAX_TURNS) {
            let (turn, of) = (turns.take() % self.cycle.len(), self.cycle.len());
            let server = self.cycle[turn] as usize;
            let usable = loads.usable(server);
            witness.see(|| Step::Turn { turn, of, server, usable });
            if usable {
                return Some(server);
            }
        }
        let start = turns.next().checked_rem(self.servers.len())?;
        let server = first_usable(&self.servers, start, loads);
        witness.see(|| Step::FirstUsable { server });
        server
    }
}

impl Balancer for RoundRobin {
    fn pick(&self, _: FlowHash, loads: &dyn Loads) -> Option<usize> {
        self.choose(loads, &*self.turn, &mut ())
    }

    fn foresee(&self, _: FlowHash, loads: &dyn Loads) -> Foreseen {
        foresee(|steps| self.choose(loads, ForeseenTurns::of(&self.turn), steps))
    }
}

/// Number of turns in the cycle for each weight: the smallest numbers with the same proportions, at
/// least 1.
fn slots(weights: &[u64]) -> Vec<u64> {
    let divisor = weights.iter().fold(0, |divisor, &weight| gcd(divisor, weight)).max(1);
    let total = weights.iter().sum::<u64>() / divisor;
    let scaled = |weight: u64| match total {
        ..=MAX_CYCLE => weight,
        _ => ((weight * MAX_CYCLE + total / 2) / total).max(1),
    };
    weights.iter().map(|&weight| scaled(weight / divisor)).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Servers with the same number of turns in the cycle. They take the group's turns one after the
/// other.
struct Group {
    slots: i64,
    positions: Vec<usize>,
    /// Index in `positions` of the server that takes the group's next turn.
    next: usize,
    /// Credit of the server that takes the group's next turn: the credit that the server has earned
    /// so far, minus the cost of its turns.
    credit: i64,
}

/// Order of turns in the cycle, as positions in `slots`.
///
/// Before every turn, each server earns its `slots` as credit. The server with the most credit
/// takes the turn (the first such server, if several have the most), and pays the total of all
/// slots.
///
/// Among servers with equal `slots`, only the next in line can have the most credit, so one
/// comparison for each group is enough. Numbers that add up to `MAX_CYCLE` have at most 361
/// different values, which bounds the work for any number of servers.
fn smooth_cycle(slots: &[u64]) -> impl Iterator<Item = usize> {
    let total = slots.iter().sum::<u64>() as i64;
    let mut groups = groups(slots);
    (0..total).map(move |_| {
        let mut best = 0;
        for i in 0..groups.len() {
            groups[i].credit += groups[i].slots;
            if groups[i].goes_before(&groups[best]) {
                best = i;
            }
        }
        groups[best].take_turn(total)
    })
}

fn groups(slots: &[u64]) -> Vec<Group> {
    let mut positions: Vec<usize> = (0..slots.len()).collect();
    positions.sort_by_key(|&position| slots[position]);
    positions
        .chunk_by(|&a, &b| slots[a] == slots[b])
        .map(|same| Group { slots: slots[same[0]] as i64, positions: same.to_vec(), next: 0, credit: 0 })
        .collect()
}

impl Group {
    fn goes_before(&self, other: &Group) -> bool {
        self.credit > other.credit
            || self.credit == other.credit && self.positions[self.next] < other.positions[other.next]
    }

    fn take_turn(&mut self, cost: i64) -> usize {
        let position = self.positions[self.next];
        self.next += 1;
        if self.next == self.positions.len() {
            // All servers of the group have paid now, including the first server, which is next
            // again.
            self.next = 0;
            self.credit -= cost;
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{TestLoads, members};
    use super::*;

    fn round_robin(weights: &[u16]) -> RoundRobin {
        RoundRobin::new(&members(weights), Arc::default())
    }

    fn picks(balancer: &RoundRobin, now: &TestLoads, n: usize) -> Vec<usize> {
        (0..n).map(|_| balancer.pick(FlowHash(0), now).unwrap()).collect()
    }

    #[test]
    fn the_turns_of_a_heavy_server_are_spread_out() {
        let balancer = round_robin(&[5, 1, 1]);
        assert_eq!(picks(&balancer, &TestLoads::idle(3), 9), [0, 0, 1, 0, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn equal_servers_take_turns() {
        let balancer = round_robin(&[7, 7, 7]);
        assert_eq!(picks(&balancer, &TestLoads::idle(3), 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(balancer.cycle.len(), 3);
    }

    #[test]
    fn a_rebuilt_table_carries_on_where_the_old_one_was() {
        let turn = Arc::default();
        let before = RoundRobin::new(&members(&[1, 1, 1]), Arc::clone(&turn));
        assert_eq!(picks(&before, &TestLoads::idle(3), 2), [0, 1]);
        let after = RoundRobin::new(&members(&[1, 1, 1]), turn);
        assert_eq!(picks(&after, &TestLoads::idle(3), 2), [2, 0]);
    }

    #[test]
    fn over_a_cycle_every_server_gets_exactly_its_weight() {
        let weights = [2, 13, 111, 10];
        let balancer = round_robin(&weights);
        let mut counts = [0; 4];
        picks(&balancer, &TestLoads::idle(4), 136).into_iter().for_each(|server| counts[server] += 1);
        assert_eq!(counts, weights);
    }

    #[test]
    fn the_turns_of_a_full_server_go_to_the_others_alike() {
        let balancer = round_robin(&[1, 1, 1]);
        let mut now = TestLoads::idle(3);
        now.unusable[1] = true;
        assert_eq!(picks(&balancer, &now, 6), [0, 2, 0, 2, 0, 2]);
    }

    #[test]
    fn light_server_is_picked_while_a_full_heavy_one_dominates_the_cycle() {
        let balancer = round_robin(&[65_535, 1, 1]);
        let mut now = TestLoads::idle(3);
        now.unusable[0] = true;
        let picks = picks(&balancer, &now, 300);
        assert!(picks.contains(&1) && picks.contains(&2));
    }

    #[test]
    fn weights_too_large_for_a_cycle_keep_their_proportions() {
        let weights: Vec<u64> = (0..1_000).map(|i| 65_535 - 65 * i).collect();
        let slots = slots(&weights);
        let sum = slots.iter().sum::<u64>();
        assert!(sum.abs_diff(MAX_CYCLE) <= 500, "{sum} slots");
        let total: f64 = weights.iter().map(|&w| w as f64).sum();
        for (&weight, &slots) in weights.iter().zip(&slots) {
            let exact = weight as f64 / total * MAX_CYCLE as f64;
            assert!(slots >= 1 && (slots as f64 - exact).abs() <= 0.5f64.max(1.0 - exact));
        }
    }

    #[test]
    fn cycle_of_a_thousand_servers_with_maximum_weight_has_a_thousand_turns() {
        let balancer = round_robin(&[65_535; 1_000]);
        assert_eq!(balancer.cycle.len(), 1_000);
        let in_turn: Vec<usize> = (0..1_000).collect();
        assert_eq!(picks(&balancer, &TestLoads::idle(1_000), 1_000), in_turn);
    }

    proptest! {
        #[test]
        fn comparing_groups_gives_the_order_that_comparing_all_servers_gives(
            slots in prop::collection::vec(1u64..12, 1..30)
        ) {
            let total = slots.iter().sum::<u64>() as i64;
            let mut credit = vec![0; slots.len()];
            let expected: Vec<usize> = (0..total)
                .map(|_| {
                    credit.iter_mut().zip(&slots).for_each(|(credit, &slots)| *credit += slots as i64);
                    let best = (0..slots.len()).rev().max_by_key(|&i| credit[i]).unwrap();
                    credit[best] -= total;
                    best
                })
                .collect();
            prop_assert_eq!(smooth_cycle(&slots).collect::<Vec<_>>(), expected);
        }
    }
}
