//! Random draws of two servers by weight, for algorithms that compare two servers.

use super::candidates::{first_usable, weighted};
use super::steps::{Step, Turns, Witness};
use super::{FlowHash, Loads, Member};

/// Maximum number of pairs that are drawn for one choice; afterwards the servers are searched one
/// by one.
const MAX_PAIRS_DRAWN: usize = 8;

/// Table of servers for drawing pairs.
pub(super) struct PairTable {
    servers: Box<[u32]>,
    /// For each server, the sum of its own weight and the weights of all earlier servers.
    ends: Box<[u64]>,
}

/// Server of a drawn pair, and its weight.
#[derive(Clone, Copy)]
pub(super) struct DrawnServer {
    /// Index of the server among the members.
    pub server: usize,
    pub weight: u64,
}

impl PairTable {
    /// Builds a table of the servers that may be chosen.
    pub(super) fn new(members: &[Member]) -> Self {
        let (servers, weights): (Vec<u32>, Vec<u64>) = weighted(members).unzip();
        let ends = weights.iter().scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        PairTable { ends: ends.collect(), servers: servers.into() }
    }

    /// Average weight of a server; 0 for an empty table.
    pub(super) fn mean_weight(&self) -> f64 {
        self.end(self.ends.len()) as f64 / self.ends.len().max(1) as f64
    }

    /// Draws pairs of servers until a pair has a usable server. Returns the index of this server,
    /// or of the preferred server if both are usable. After `MAX_PAIRS_DRAWN` pairs, searches the
    /// servers one by one. Returns `None` if no server of the table is usable.
    ///
    /// `is_better` returns whether the second server of a pair is preferred to the first. Its last
    /// argument is a random number that clients cannot predict.
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
        // Combines two sources: a client can choose its flow hashes, and turns are equal on all
        // balancers that started together.
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

    /// Draws two servers by weight and returns their positions, which differ unless there is only
    /// one server.
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

    /// Position of the server whose part of the summed weights contains `place`.
    fn at(&self, place: u64) -> usize {
        self.ends.partition_point(|&end| end <= place)
    }

    /// Sum of the weights of the first `n` servers.
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
