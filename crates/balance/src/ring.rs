//! Consistent hash ring: a flow goes to the server whose point is the next one after the flow's
//! hash. When a server goes down, only its own flows move to other servers.

use std::hash::{BuildHasher, Hash, Hasher};

use consistent_hash_ring::{Ring, RingBuilder};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::candidates::{Candidate, HashTable, IDENTITY, candidates, usable_or_again};
use super::steps::{Foreseen, Step, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// Points of a server of weight 1. More points make shares more even: a share usually deviates from
/// the weight by 1 / sqrt(points of the server), here 8 %, and rarely by three times as much.
const POINTS: u64 = 160;

/// Upper bound for the points of a ring (6 MiB), a power of two. For a ring of many servers, the
/// bound is doubled until it allows [`POINTS`] for each server on average. Weights that need more
/// points are scaled down.
const MAX_POINTS: u64 = 1 << 18;

/// Consistent hash ring of servers.
pub(super) struct HashRing {
    ring: Ring<Point, RingHash>,
    servers: Box<[u32]>,
}

impl HashRing {
    /// Builds a ring of the servers that may be chosen.
    pub(super) fn new(members: &[Member]) -> Self {
        HashRing::with_bound(members, MAX_POINTS)
    }

    /// Builds a ring of at most `bound` points (a power of two), or of [`POINTS`] on average for
    /// each server if that is more.
    fn with_bound(members: &[Member], bound: u64) -> Self {
        let scale = Scale::new(members, bound);
        let candidates = candidates(members);
        let mut points: Vec<Point> = candidates
            .iter()
            .flat_map(|candidate| (0..scale.points(candidate.weight)).map(|n| Point::new(candidate, n)))
            .collect();
        // The ring keeps a sorted vector, so inserting in its order appends. Any other order would
        // move half of the vector for each point. Each point is a separate node of the ring,
        // because the ring derives the points of one node from a chain of hashes, which is
        // unsorted.
        points.sort_by_cached_key(|point| RingHash.hash_one(point));
        HashRing {
            ring: RingBuilder::new(RingHash).vnodes(1).nodes_iter(points).build(),
            servers: candidates.iter().map(|candidate| candidate.index).collect(),
        }
    }
}

/// Scale of the ring: converts a weight into a number of points.
///
/// At the same scale, the number depends on the weight alone: a change of one weight moves no
/// client between other servers. If all weights together need too many points, the scale halves
/// every server's number of points once or more often, and each server keeps its first points. So
/// clients of other servers move only when the sum of the weights passes a power of two. The sum
/// includes ineligible servers, so that a change of health keeps the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scale {
    halvings: u32,
}

impl Scale {
    fn new(members: &[Member], bound: u64) -> Scale {
        let weights = || members.iter().map(|member| u64::from(member.weight)).filter(|&weight| weight > 0);
        let bound = bound.max((POINTS * weights().count() as u64).next_power_of_two());
        // Both values are powers of two, so the division has no remainder unless the quotient is
        // below 1.
        let wanted = (POINTS * weights().sum::<u64>()).next_power_of_two();
        Scale { halvings: (wanted / bound).max(1).ilog2() }
    }

    fn points(self, weight: u16) -> u32 {
        let points = (POINTS * u64::from(weight)) >> self.halvings;
        points.max(1) as u32
    }
}

impl HashTable for HashRing {
    fn servers(&self) -> &[u32] {
        &self.servers
    }

    fn named(&self, flow: FlowHash) -> Option<usize> {
        self.ring.try_get(flow.0).map(|point| point.server as usize)
    }

    fn step(&self, flow: FlowHash, server: usize, usable: bool) -> Step {
        let point = self.ring.try_get(flow.0).map(|point| RingHash.hash_one(point));
        Step::Point { place: RingHash.hash_one(flow.0), point: point.unwrap_or_default(), server, usable }
    }
}

impl Balancer for HashRing {
    fn pick(&self, flow: FlowHash, loads: &dyn Loads) -> Option<usize> {
        usable_or_again(self, flow, loads, &mut ())
    }

    fn foresee(&self, flow: FlowHash, loads: &dyn Loads) -> Foreseen {
        foresee(|steps| usable_or_again(self, flow, loads, steps))
    }
}

/// Point of a server on the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    position: u64,
    server: u32,
}

impl Point {
    fn new(candidate: &Candidate, n: u32) -> Self {
        const SEED: u64 = u64::from_be_bytes(*b"position");
        let mut bytes = [0; IDENTITY + 4];
        bytes[..IDENTITY].copy_from_slice(&candidate.identity);
        bytes[IDENTITY..].copy_from_slice(&n.to_be_bytes());
        Point { position: xxh3_64_with_seed(&bytes, SEED), server: candidate.index }
    }
}

impl Hash for Point {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The hash excludes the server's index, because the index depends on the other configured
        // servers.
        state.write_u64(self.position);
    }
}

/// Hash function of the ring: xxh3 over bytes in a fixed order. The default of the ring's crate,
/// FNV, would send neighbouring keys to one server.
#[derive(Debug, Clone, Copy)]
struct RingHash;

impl BuildHasher for RingHash {
    type Hasher = RingHasher;

    fn build_hasher(&self) -> RingHasher {
        RingHasher(u64::from_be_bytes(*b"ringhash"))
    }
}

struct RingHasher(u64);

impl Hasher for RingHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // The default implementation uses the machine's byte order.
    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.write(&n.to_le_bytes());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use convey_model::{Algorithm, HashKey};
    use proptest::prelude::*;

    use super::super::testing::{TestLoads, members, moved, ports, shares_are_within, sixteen};
    use super::super::{Identity, build};
    use super::*;

    #[test]
    fn clients_of_a_network_are_shared_by_weight() {
        for weights in [&[1, 1, 1, 1][..], &[1, 1, 1, 1, 1], &[10, 20, 30, 40]] {
            let ring = HashRing::new(&members(weights));
            shares_are_within(0.25, weights, &ring, sixteen());
        }
    }

    #[test]
    fn connections_of_one_client_are_shared_by_weight() {
        for weights in [&[1, 1, 1, 1][..], &[1, 1, 1, 1, 1], &[10, 20, 30, 40]] {
            let ring = HashRing::new(&members(weights));
            shares_are_within(0.25, weights, &ring, ports());
        }
    }

    /// Checks the shares in 200 pools of servers. The tests above cover only a few pools, whose
    /// shares may be even by chance.
    #[test]
    fn ring_shares_in_small_pools_are_within_a_quarter_of_weights() {
        let weights = [3, 4, 5, 6, 7];
        let (mut beyond, mut squares) = (0, 0.0);
        for pool in 0..200 {
            let mut servers = members(&weights);
            let port = u16::to_be_bytes(8_000 + pool);
            servers.iter_mut().for_each(|server| server.identity.place[16..].copy_from_slice(&port));
            let mut shares = [0.0; 5];
            for arc in HashRing::new(&servers).ring.resident_ranges() {
                shares[arc.node().server as usize] += (arc.keys().end() - arc.keys().start()) as f64;
            }
            for (share, weight) in shares.into_iter().zip(weights) {
                let off = share / 2f64.powi(64) / (f64::from(weight) / 25.0) - 1.0;
                beyond += usize::from(off.abs() > 0.25);
                squares += off * off;
            }
        }
        assert!(beyond <= 10, "{beyond} servers are off by more than a quarter");
        assert!((squares / 1_000.0).sqrt() < 0.08);
    }

    #[test]
    fn a_server_has_points_by_weight_and_at_least_one() {
        assert_eq!(HashRing::new(&members(&[7])).ring.len(), 7 * 160);
        assert_eq!(HashRing::new(&members(&[1, 3, 0])).ring.len(), 160 + 480);
        assert_eq!(HashRing::new(&members(&[1; 2_000])).ring.len(), 2_000 * 160);
    }

    #[test]
    fn ring_of_high_weights_is_bounded_and_at_least_half_full() {
        for weights in [&[65_535, 1][..], &[65_535, 65_535, 1], &[1_638], &[1_639], &[65_535; 50]] {
            let points = HashRing::new(&members(weights)).ring.len() as u64;
            let half = MAX_POINTS / 2 - weights.len() as u64;
            assert!((half..=MAX_POINTS).contains(&points), "{weights:?} have {points}");
        }
    }

    #[test]
    fn scale_changes_where_the_sum_of_weights_doubles() {
        let halvings = |weights: &[u16]| Scale::new(&members(weights), MAX_POINTS).halvings;
        let sums = [1_638, 1_639, 3_276, 3_277, 6_553, 6_554];
        assert_eq!(sums.map(|sum| halvings(&[sum - 1, 1])), [0, 1, 1, 2, 2, 3]);
        // The bound grows with the number of servers: all servers of weight 1 keep their points.
        assert_eq!([1_000, 2_000, 4_000].map(|servers| halvings(&vec![1; servers])), [0, 0, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn changed_weight_moves_flows_of_that_server_alone(
            weights in prop::collection::vec(0..=6u16, 2..=12),
            changed in any::<prop::sample::Index>(),
            weight in 0..=12u16,
            key in prop::sample::select(vec![HashKey::AddrPort, HashKey::Addr, HashKey::Name]),
        ) {
            let changed = changed.index(weights.len());
            let mut servers = of_key(key, &weights);
            let before = HashRing::new(&servers);
            servers[changed].weight = weight;
            let after = HashRing::new(&servers);
            prop_assume!(!before.servers.is_empty() && !after.servers.is_empty());
            for (from, to) in moved(&before, &after, sixteen().step_by(16)) {
                let gives = weight < weights[changed];
                prop_assert_eq!(if gives { from } else { to }, changed, "{} -> {}", from, to);
            }
        }

        #[test]
        fn changed_weight_of_a_full_ring_moves_flows_of_that_server_alone(
            weights in prop::collection::vec(0..=200u16, 2..=12),
            changed in any::<prop::sample::Index>(),
            weight in 0..=200u16,
            key in prop::sample::select(vec![HashKey::AddrPort, HashKey::Addr, HashKey::Name]),
        ) {
            const BOUND: u64 = 1 << 12;
            let changed = changed.index(weights.len());
            let mut servers = of_key(key, &weights);
            let before = (Scale::new(&servers, BOUND), HashRing::with_bound(&servers, BOUND));
            servers[changed].weight = weight;
            let after = (Scale::new(&servers, BOUND), HashRing::with_bound(&servers, BOUND));
            prop_assume!(!before.1.servers.is_empty() && !after.1.servers.is_empty());
            let doubled = |sum: u64| (POINTS * sum).next_power_of_two();
            let sum: u64 = weights.iter().copied().map(u64::from).sum();
            let changed_sum = sum - u64::from(weights[changed]) + u64::from(weight);
            if before.0 != after.0 {
                prop_assert_ne!(doubled(sum), doubled(changed_sum));
                return Ok(());
            }
            for (from, to) in moved(&before.1, &after.1, sixteen().step_by(16)) {
                let gives = weight < weights[changed];
                prop_assert_eq!(if gives { from } else { to }, changed, "{} -> {}", from, to);
            }
        }

        #[test]
        fn order_in_the_file_moves_no_flow(
            weights in prop::collection::vec(0..=6u16, 2..=12),
            key in prop::sample::select(vec![HashKey::AddrPort, HashKey::Addr, HashKey::Name]),
            shift in any::<prop::sample::Index>(),
        ) {
            let servers = of_key(key, &weights);
            prop_assume!(weights.iter().any(|&weight| weight > 0));
            let shift = shift.index(servers.len());
            let mut others = servers.clone();
            others.reverse();
            others.rotate_left(shift);
            let now = TestLoads::idle(servers.len());
            for algorithm in [Algorithm::Ring, Algorithm::Maglev] {
                let [one, other] = [&servers, &others].map(|all| build(algorithm, all, Arc::default()));
                for flow in sixteen().step_by(64) {
                    let [one, other] = [one.pick(flow, &now), other.pick(flow, &now)].map(Option::unwrap);
                    prop_assert_eq!(servers[one].identity, others[other].identity);
                }
            }
        }
    }

    /// Servers in groups of three with a common IP address. With a `key` that ignores ports, the
    /// servers of a group have equal places on the ring.
    fn of_key(key: HashKey, weights: &[u16]) -> Vec<Member> {
        let mut servers = members(weights);
        for (n, server) in (0u8..).zip(&mut servers) {
            let addr = ([10, 0, 0, n / 3], 80 + u16::from(n % 3));
            server.identity = Identity::new(key, &format!("s{n}"), addr.into());
        }
        servers
    }

    #[test]
    fn a_server_that_goes_down_moves_only_its_own_flows() {
        let mut servers = members(&[1, 2, 3, 4, 5]);
        let before = HashRing::new(&servers);
        servers[3].eligible = false;
        let moved = moved(&before, &HashRing::new(&servers), sixteen());
        assert!(!moved.is_empty());
        assert!(moved.iter().all(|&(from, _)| from == 3));
    }

    #[test]
    fn a_server_removed_from_the_file_moves_only_its_own_flows() {
        let servers = members(&[1; 6]);
        let moved = moved(&HashRing::new(&servers), &HashRing::new(&servers[..5]), sixteen());
        assert!(!moved.is_empty());
        assert!(moved.iter().all(|&(from, _)| from == 5));
    }

    #[test]
    fn a_server_that_comes_takes_about_its_share_and_nothing_else_moves() {
        let (before, after) = (HashRing::new(&members(&[1; 9])), HashRing::new(&members(&[1; 10])));
        let moved = moved(&before, &after, sixteen());
        assert!(moved.iter().all(|&(_, to)| to == 9));
        assert!((0.075..0.125).contains(&(moved.len() as f64 / 65_536.0)));
    }

    #[test]
    fn the_flows_of_a_full_server_spread_over_all_others() {
        let ring = HashRing::new(&members(&[1; 5]));
        let mut now = TestLoads::idle(5);
        now.unusable[2] = true;
        let mut substitutes = [0; 5];
        for flow in sixteen().filter(|&flow| ring.pick(flow, &TestLoads::idle(5)) == Some(2)) {
            substitutes[ring.pick(flow, &now).unwrap()] += 1;
        }
        let quarter = substitutes.iter().sum::<usize>() / 4;
        assert_eq!(substitutes[2], 0);
        assert!([0, 1, 3, 4].iter().all(|&i| substitutes[i] > quarter * 2 / 3), "{substitutes:?}");
    }
}
