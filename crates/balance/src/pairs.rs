//! Draws two servers at random, by weight, and has one of them chosen: what the algorithms share that compare two.

use super::candidates::{first_usable, weighted};
use super::steps::{Step, Turns, Witness};
use super::{FlowHash, Loads, Member};

/// Pairs that are drawn before the servers are gone through one by one.
const MAX_PAIRS_DRAWN: usize = 8;

/// Servers, to be drawn in pairs.
pub(super) struct PairTable {
    servers: Box<[u32]>,
    /// The sum of the weights up to and including each server's.
    ends: Box<[u64]>,
}

/// One of a pair.
#[derive(Clone, Copy)]
pub(super) struct DrawnServer {
    /// Its index among the members.
    pub server: usize,
    pub weight: u64,
}

impl PairTable {
    /// Lays the weights of the servers that may be chosen end to end.
    pub(super) fn new(members: &[Member]) -> Self {
        let (servers, weights): (Vec<u32>, Vec<u64>) = weighted(members).unzip();
        let ends = weights.iter().scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        PairTable { ends: ends.collect(), servers: servers.into() }
    }

    /// The weight of a server on average.
    pub(super) fn mean_weight(&self) -> f64 {
        self.end(self.ends.len()) as f64 / self.ends.len().max(1) as f64
    }

    /// The first usable server of the pairs that are drawn. `is_better` says whether the second of two goes before the first,
    /// and is given a number that nobody can foretell.
    pub(super) fn choose(
        &self,
        (flow, mut turns): (FlowHash, impl Turns),
        loads: &dyn Loads,
        is_better: impl Fn([DrawnServer; 2], FlowHash) -> bool,
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
            let (first, second) = self.draw(random, other);
            let mut pair = [first, second].map(|position| self.drawn(position));
            random = other.again();
            if is_better(pair, random) {
                pair.reverse();
            }
            let pair = pair.map(|one| one.server);
            witness.see(|| Step::Drawn { pair });
            if let Some(usable) = pair.into_iter().find(|&server| loads.usable(server)) {
                return Some(usable);
            }
        }
        let server = first_usable(&self.servers, random.below(self.servers.len()), loads);
        witness.see(|| Step::FirstUsable { server });
        server
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

    fn drawn(&self, position: usize) -> DrawnServer {
        let weight = self.end(position + 1) - self.end(position);
        DrawnServer { server: self.servers[position] as usize, weight }
    }

    /// The position of the server whose weight covers this place.
    fn at(&self, place: u64) -> usize {
        self.ends.partition_point(|&end| end <= place)
    }

    /// Where the weights of the first `n` servers end.
    fn end(&self, n: usize) -> u64 {
        if n == 0 { 0 } else { self.ends[n - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{members, ports};
    use super::*;

    #[test]
    fn two_that_are_drawn_are_never_the_same() {
        let table = PairTable::new(&members(&[5, 1, 65_535, 2]));
        let flows: Vec<FlowHash> = ports().take(2_000).collect();
        for pair in flows.windows(2) {
            let (a, b) = table.draw(pair[0], pair[1]);
            assert!(a != b && a < 4 && b < 4);
        }
        let ends = [FlowHash(0), FlowHash(u64::MAX)];
        assert_eq!(ends.map(|other| table.draw(FlowHash(0), other)), [(0, 1), (0, 3)]);
        assert_eq!(ends.map(|other| table.draw(FlowHash(u64::MAX), other)), [(3, 0), (3, 2)]);
    }
}
