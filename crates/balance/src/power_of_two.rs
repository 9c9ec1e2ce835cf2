//! Power of two choices (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing",
//! IEEE TPDS 2001): draws two servers at random, and chooses the one with fewer open connections.
//!
//! The result is nearly as even as a comparison of all servers, and the cost hardly grows with the
//! number of servers. Independent balancers with the same servers do not all choose the server that
//! is least loaded at the moment.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::candidates::Load;
use super::pairs::{DrawnServer, PairTable};
use super::steps::{Foreseen, ForeseenTurns, Turns, Witness, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// Power of two choices balancer: chooses the less loaded of two servers.
pub(super) struct PowerOfTwo {
    pairs: PairTable,
    turn: Arc<AtomicUsize>,
}

impl PowerOfTwo {
    /// Builds a balancer of the servers that may be chosen.
    pub(super) fn new(members: &[Member], turn: Arc<AtomicUsize>) -> Self {
        PowerOfTwo { pairs: PairTable::new(members), turn }
    }

    fn choose(
        &self,
        asked: (FlowHash, impl Turns),
        loads: &dyn Loads,
        witness: &mut impl Witness,
    ) -> Option<usize> {
        let load =
            |one: DrawnServer| Load { connections: loads.active(one.server).into(), weight: one.weight };
        // With equal loads, as when all servers are idle, the first server wins. It was drawn by
        // weight.
        self.pairs.choose(asked, loads, |[a, b], _| load(b).is_less_than(load(a)), witness)
    }
}

impl Balancer for PowerOfTwo {
    fn pick(&self, flow: FlowHash, loads: &dyn Loads) -> Option<usize> {
        self.choose((flow, &*self.turn), loads, &mut ())
    }

    fn foresee(&self, flow: FlowHash, loads: &dyn Loads) -> Foreseen {
        foresee(|steps| self.choose((flow, ForeseenTurns::of(&self.turn)), loads, steps))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestLoads, members, ports, shares_are_within, sixteen};
    use super::*;

    fn power_of_two(weights: &[u16]) -> PowerOfTwo {
        PowerOfTwo::new(&members(weights), Arc::default())
    }

    /// Open connections of each server after `connections` were opened and none was closed.
    fn after(connections: u32, balancer: &PowerOfTwo, servers: usize) -> Vec<u32> {
        let mut now = TestLoads::idle(servers);
        for _ in 0..connections {
            let server = balancer.pick(FlowHash(0), &now).unwrap();
            now.active[server] += 1;
        }
        now.active
    }

    #[test]
    fn maximum_load_of_a_thousand_servers_is_below_random_choice() {
        // In theory, the maximum of a thousand connections is about ln ln n / ln 2 + 1, or 4. By
        // random choice it is a little above ln n / ln ln n, or 5 to 6.
        let fullest = |connections: Vec<u32>| connections.into_iter().max().unwrap();
        let mut by_chance = vec![0; 1_000];
        ports().take(1_000).for_each(|flow| by_chance[flow.again().below(1_000)] += 1);
        let two = fullest(after(1_000, &power_of_two(&[1; 1_000]), 1_000));
        assert!(two <= 4 && two < fullest(by_chance), "{two}");
    }

    #[test]
    fn open_connections_spread_by_weight_within_two_percent() {
        let open = after(60_000, &power_of_two(&[1, 2, 3, 4]), 4);
        for (open, weight) in open.into_iter().zip(1..) {
            assert!(open.abs_diff(weight * 6_000) <= weight * 120, "weight {weight} has {open}");
        }
    }

    #[test]
    fn idle_servers_share_short_connections_by_weight_whatever_is_hashed() {
        for weights in [&[1, 1, 1][..], &[1, 2, 7], &[1, 3]] {
            shares_are_within(0.04, weights, &power_of_two(weights), ports());
            shares_are_within(0.04, weights, &power_of_two(weights), sixteen());
        }
        let one_client = std::iter::repeat_n(FlowHash(7), 30_000);
        shares_are_within(0.04, &[1, 2, 3], &power_of_two(&[1, 2, 3]), one_client);
    }

    #[test]
    fn server_with_fewer_connections_for_its_weight_wins_between_two() {
        let balancer = power_of_two(&[1, 4]);
        let mut now = TestLoads::idle(2);
        now.active = vec![2, 9];
        assert!((0..100).all(|_| balancer.pick(FlowHash(0), &now) == Some(0)), "2/1 is less than 9/4");
        now.active = vec![2, 7];
        assert!((0..100).all(|_| balancer.pick(FlowHash(0), &now) == Some(1)), "7/4 is less than 2/1");
    }

    #[test]
    fn a_light_server_is_found_though_the_heavy_ones_are_full() {
        let balancer = power_of_two(&[65_535, 65_535, 1]);
        let mut now = TestLoads::idle(3);
        now.unusable = vec![true, true, false];
        assert_eq!(balancer.pick(FlowHash(0), &now), Some(2));
    }
}
