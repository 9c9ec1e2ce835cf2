//! Power of two choices: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001.
//! Two servers are drawn at random; the one with fewer open connections gets the new one.
//!
//! Nearly as even as comparing all servers, at a cost that hardly grows with their number. And balancers that share
//! servers without knowing of each other do not all turn to the one that is least loaded at the moment.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::candidates::{Load, first_usable, weighted};
use super::steps::{Foreseen, ForeseenTurns, Step, Turns, Witness, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// Pairs that are drawn before the servers are gone through one by one.
const MAX_PAIRS_DRAWN: usize = 8;

/// The less loaded of two.
pub(super) struct PowerOfTwo {
    servers: Box<[u32]>,
    /// The sum of the weights up to and including each server's.
    ends: Box<[u64]>,
    turn: Arc<AtomicUsize>,
}

impl PowerOfTwo {
    /// Lays the weights of the servers that may be chosen end to end.
    pub(super) fn new(members: &[Member], turn: Arc<AtomicUsize>) -> Self {
        let (servers, weights): (Vec<u32>, Vec<u64>) = weighted(members).unzip();
        let ends = weights.iter().scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        PowerOfTwo { ends: ends.collect(), servers: servers.into(), turn }
    }

    /// Two servers by weight, by their positions. Not the same one twice unless there is no other.
    fn draw(&self, first: FlowHash, second: FlowHash) -> (usize, usize) {
        let sum = self.end(self.ends.len());
        let first = self.at(first.below_sum(sum));
        if self.ends.len() == 1 {
            return (first, first);
        }
        let (from, to) = (self.end(first), self.end(first + 1));
        let place = second.below_sum(sum - (to - from));
        (first, self.at(if place < from { place } else { place + (to - from) }))
    }

    /// The position of the server whose weight covers this place.
    fn at(&self, place: u64) -> usize {
        self.ends.partition_point(|&end| end <= place)
    }

    /// Where the weights of the first `n` servers end.
    fn end(&self, n: usize) -> u64 {
        if n == 0 { 0 } else { self.ends[n - 1] }
    }

    fn load(&self, position: usize, loads: &dyn Loads) -> Load {
        let connections = loads.active(self.servers[position] as usize).into();
        Load { connections, weight: self.end(position + 1) - self.end(position) }
    }

    fn choose(
        &self,
        flow: FlowHash,
        loads: &dyn Loads,
        mut turns: impl Turns,
        witness: &mut impl Witness,
    ) -> Option<usize> {
        if self.servers.is_empty() {
            return None;
        }
        // A client may choose what its flows hash to, so they alone are no chance; turns alone would be those of
        // every balancer that started with us.
        let turn = turns.take();
        let mut random = FlowHash(flow.0.wrapping_add(turn as u64)).again();
        for _ in 0..MAX_PAIRS_DRAWN {
            let other = random.again();
            let (a, b) = self.draw(random, other);
            // Of two that have as few, as when all are idle, the first: it was drawn by weight.
            let pair = if self.load(b, loads).is_less_than(self.load(a, loads)) { [b, a] } else { [a, b] };
            let servers = pair.map(|position| self.servers[position] as usize);
            witness.see(|| Step::Drawn { pair: servers });
            if let Some(usable) = servers.into_iter().find(|&server| loads.usable(server)) {
                return Some(usable);
            }
            random = other.again();
        }
        let server = first_usable(&self.servers, random.below(self.servers.len()), loads);
        witness.see(|| Step::FirstUsable { server });
        server
    }
}

impl Balancer for PowerOfTwo {
    fn pick(&self, flow: FlowHash, loads: &dyn Loads) -> Option<usize> {
        self.choose(flow, loads, &*self.turn, &mut ())
    }

    fn foresee(&self, flow: FlowHash, loads: &dyn Loads) -> Foreseen {
        foresee(|steps| self.choose(flow, loads, ForeseenTurns::of(&self.turn), steps))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestLoads, members, ports, shares_are_within, sixteen};
    use super::*;

    fn power_of_two(weights: &[u16]) -> PowerOfTwo {
        PowerOfTwo::new(&members(weights), Arc::default())
    }

    /// Open connections after this many were opened and none was closed.
    fn after(connections: u32, balancer: &PowerOfTwo, servers: usize) -> Vec<u32> {
        let mut now = TestLoads::idle(servers);
        for _ in 0..connections {
            let server = balancer.pick(FlowHash(0), &now).unwrap();
            now.active[server] += 1;
        }
        now.active
    }

    #[test]
    fn the_fullest_of_a_thousand_servers_has_fewer_connections_than_chance_alone_would_give_it() {
        // A thousand connections. Theory: about ln ln n / ln 2 + 1, or 4, against ln n / ln ln n (and some), or 5 to 6.
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
    fn of_two_servers_the_one_with_fewer_connections_for_its_weight_always_wins() {
        let balancer = power_of_two(&[1, 4]);
        let mut now = TestLoads::idle(2);
        now.active = vec![2, 9];
        assert!((0..100).all(|_| balancer.pick(FlowHash(0), &now) == Some(0)), "2/1 is less than 9/4");
        now.active = vec![2, 7];
        assert!((0..100).all(|_| balancer.pick(FlowHash(0), &now) == Some(1)), "7/4 is less than 2/1");
    }

    #[test]
    fn two_that_are_drawn_are_never_the_same() {
        let balancer = power_of_two(&[5, 1, 65_535, 2]);
        let flows: Vec<FlowHash> = ports().take(2_000).collect();
        for pair in flows.windows(2) {
            let (a, b) = balancer.draw(pair[0], pair[1]);
            assert!(a != b && a < 4 && b < 4);
        }
        let ends = [FlowHash(0), FlowHash(u64::MAX)];
        assert_eq!(ends.map(|other| balancer.draw(FlowHash(0), other)), [(0, 1), (0, 3)]);
        assert_eq!(ends.map(|other| balancer.draw(FlowHash(u64::MAX), other)), [(3, 0), (3, 2)]);
    }

    #[test]
    fn a_light_server_is_found_though_the_heavy_ones_are_full() {
        let balancer = power_of_two(&[65_535, 65_535, 1]);
        let mut now = TestLoads::idle(3);
        now.unusable = vec![true, true, false];
        assert_eq!(balancer.pick(FlowHash(0), &now), Some(2));
    }
}
