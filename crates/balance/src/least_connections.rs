//! Least connections: chooses the server with the fewest open connections in relation to its
//! weight.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::candidates::{Load, weighted};
use super::steps::{Foreseen, ForeseenTurns, Step, Turns, Witness, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// Least connections balancer. Equally loaded servers take turns.
pub(super) struct LeastConnections {
    /// Index and weight (times percentage) of each server.
    servers: Box<[(u32, u64)]>,
    turn: Arc<AtomicUsize>,
}

impl LeastConnections {
    /// Builds a balancer of the servers that may be chosen.
    pub(super) fn new(members: &[Member], turn: Arc<AtomicUsize>) -> Self {
        LeastConnections { servers: weighted(members).collect(), turn }
    }

    fn choose(&self, loads: &dyn Loads, mut turns: impl Turns, witness: &mut impl Witness) -> Option<usize> {
        let start = turns.take().checked_rem(self.servers.len())?;
        let (before, after) = self.servers.split_at(start);
        let mut best: Option<(usize, Load)> = None;
        // `for_each` on a chain compiles to one plain loop for each slice.
        after.iter().chain(before).for_each(|&(index, weight)| {
            let index = index as usize;
            // Load of the server if it took this connection.
            let load = Load { connections: u64::from(loads.active(index)) + 1, weight };
            let better = best.is_none_or(|(_, best)| load.is_less_than(best));
            if better && loads.usable(index) {
                best = Some((index, load));
            }
        });
        let (server, _) = best?;
        witness.see(|| Step::Least { server });
        Some(server)
    }
}

impl Balancer for LeastConnections {
    fn pick(&self, _: FlowHash, loads: &dyn Loads) -> Option<usize> {
        self.choose(loads, &*self.turn, &mut ())
    }

    fn foresee(&self, _: FlowHash, loads: &dyn Loads) -> Foreseen {
        foresee(|steps| self.choose(loads, ForeseenTurns::of(&self.turn), steps))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestLoads, members};
    use super::*;

    fn least_connections(weights: &[u16]) -> LeastConnections {
        LeastConnections::new(&members(weights), Arc::default())
    }

    /// Opens a connection on the chosen server.
    fn open(balancer: &LeastConnections, now: &mut TestLoads) -> Option<usize> {
        let server = balancer.pick(FlowHash(0), now)?;
        now.active[server] += 1;
        Some(server)
    }

    #[test]
    fn six_hundred_connections_fill_three_servers_by_weight() {
        let balancer = least_connections(&[1, 2, 3]);
        let mut now = TestLoads::idle(3);
        for _ in 0..600 {
            open(&balancer, &mut now).unwrap();
        }
        assert_eq!(now.active, [100, 200, 300]);
    }

    #[test]
    fn idle_servers_of_one_weight_share_short_connections_alike() {
        let balancer = least_connections(&[4, 4, 4]);
        let picks: Vec<_> =
            (0..6).map(|_| balancer.pick(FlowHash(0), &TestLoads::idle(3)).unwrap()).collect();
        assert_eq!(picks, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_server_that_has_caught_up_is_preferred_again() {
        let balancer = least_connections(&[1, 1]);
        let mut now = TestLoads::idle(2);
        now.active = vec![10, 7];
        let picks: Vec<_> = (0..3).map(|_| open(&balancer, &mut now).unwrap()).collect();
        assert_eq!(picks, [1, 1, 1]);
        now.active[0] = 2;
        assert_eq!(open(&balancer, &mut now), Some(0));
    }

    #[test]
    fn the_least_loaded_server_is_passed_over_while_it_is_full() {
        let balancer = least_connections(&[1, 1, 1]);
        let mut now = TestLoads::idle(3);
        now.active = vec![1, 5, 3];
        now.unusable[0] = true;
        assert_eq!(open(&balancer, &mut now), Some(2));
        now.unusable = vec![true; 3];
        assert_eq!(open(&balancer, &mut now), None);
    }

    #[test]
    fn the_largest_counts_and_weights_compare_without_overflow() {
        let balancer = least_connections(&[65_535, 65_534]);
        let mut now = TestLoads::idle(2);
        now.active = vec![u32::MAX; 2];
        assert_eq!(balancer.pick(FlowHash(0), &now), Some(0));
        assert_eq!(balancer.pick(FlowHash(0), &now), Some(0));
    }
}
