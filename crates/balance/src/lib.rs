//! Load balancing algorithms. Pure: tables are built from the configured servers, and looked up by
//! hash. Equal servers give equal choices on every machine.
//!
//! Each algorithm is one file, and a type that implements [`Balancer`]:
//!
//! | algorithm | file | chooses by |
//! |---|---|---|
//! | [`Algorithm::RoundRobin`] | `round_robin` | turns, by weight |
//! | [`Algorithm::LeastConnections`] | `least_connections` | open connections for each weight |
//! | [`Algorithm::PowerOfTwo`] | `power_of_two` | open connections, of two random servers |
//! | [`Algorithm::Ewma`] | `ewma` | response times, of two random servers |
//! | [`Algorithm::Ring`] | `ring` | the flow's hash, on a ring of servers |
//! | [`Algorithm::Maglev`] | `maglev` | the flow's hash, in a table of servers |
//!
//! [`Ewma`] uses the response times of servers, which [`AnswerTimes`] records. Only mode `http`
//! measures these times, so the configuration accepts `ewma` only there.
//!
//! [`build`] creates the configured algorithm. `candidates` contains the shared parts: the servers
//! of a table, and the fallback when the chosen server is full. A new algorithm needs a file in
//! this crate, a variant of [`Algorithm`] and an arm of [`build`]; the tests in this file then
//! cover it. docs/design/extending.md lists the other steps.
//!
//! Tables contain only servers that may be chosen (see [`Member::eligible`]). The algorithms read
//! values that change with each connection (open connections, servers at their limit) from
//! [`Loads`].
//!
//! ```
//! use std::net::SocketAddr;
//! use std::sync::Arc;
//!
//! use convey_balance::{Identity, Loads, Member, build, flow_hash};
//! use convey_model::{Algorithm, HashOn};
//!
//! /// Three servers, of which the last is at its limit.
//! struct Now;
//!
//! impl Loads for Now {
//!     fn usable(&self, index: usize) -> bool {
//!         index != 2
//!     }
//!     fn active(&self, _index: usize) -> u32 {
//!         0
//!     }
//! }
//!
//! let member = |n: u8| {
//!     let identity = Identity::from(SocketAddr::from(([10, 0, 0, n], 80)));
//!     Member { identity, weight: 1, percent: 100, eligible: true }
//! };
//! let table = build(Algorithm::Maglev, &[1, 2, 3].map(member), Arc::default());
//! let (client, vip) = (SocketAddr::from(([203, 0, 113, 9], 4242)), SocketAddr::from(([192, 0, 2, 1], 80)));
//! let flow = flow_hash(HashOn::Source, client, vip);
//! let server = table.pick(flow, &Now).unwrap();
//! assert!(server < 2);
//! assert_eq!(table.pick(flow, &Now), Some(server), "one client meets one server");
//! ```
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod candidates;
mod ewma;
mod hash;
mod latency;
mod least_connections;
mod maglev;
mod pairs;
mod power_of_two;
mod ring;
mod round_robin;
mod steps;
#[cfg(test)]
mod testing;

pub use ewma::Ewma;
pub use hash::{FlowHash, Identity, flow_hash, value_hash};
pub use latency::AnswerTimes;
pub use steps::{Foreseen, Step};

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use convey_model::Algorithm;

/// Server of a balancing table. [`Balancer::pick`] returns the index of a server in the slice of
/// members that was passed to [`build`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Identity of the server. The identity alone determines the server's ring points and its
    /// Maglev permutation.
    pub identity: Identity,
    /// Relative weight; a server with weight 0 is never chosen.
    pub weight: u16,
    /// Percentage of the weight that is in effect, 1 to 100. Algorithms that hash ignore it.
    pub percent: u8,
    /// Whether the server may be chosen: it is healthy, and if it is a backup, backups are needed.
    pub eligible: bool,
}

/// Loads of the servers at the time of a choice.
pub trait Loads {
    /// Whether the server can take the connection now: the server is below its connection limit,
    /// and has not been tried for this connection yet.
    fn usable(&self, index: usize) -> bool;
    /// Number of the server's open connections.
    fn active(&self, index: usize) -> u32;
    /// Cost of a request to the server, at least 1, as in [`AnswerTimes::cost`]. `None`: the cost
    /// is unknown, and counts as equal to any other server's. Only [`Ewma`] uses it.
    fn cost(&self, _index: usize) -> Option<f64> {
        None
    }
    /// Whether an answer of the server is overdue, as in [`AnswerTimes::is_silent`]. Only [`Ewma`]
    /// uses it.
    fn is_silent(&self, _index: usize) -> bool {
        false
    }
    /// Whether the server failed for its most recent client. `substitute` chooses such a server
    /// only if no other server is usable.
    fn is_failing(&self, _index: usize) -> bool {
        false
    }
}

/// Balancing algorithm over a table of servers. A choice never blocks and never allocates.
pub trait Balancer: Send + Sync {
    /// Chooses the server of a flow; returns `None` if no eligible server is usable.
    fn pick(&self, flow: FlowHash, loads: &dyn Loads) -> Option<usize>;

    /// Predicts the result of [`Balancer::pick`] and lists its steps, without taking a turn.
    fn foresee(&self, flow: FlowHash, loads: &dyn Loads) -> Foreseen;
}

/// Chooses a substitute for a server that did not answer: any usable server, spread by the flow's
/// hash. Returns `None` if no eligible server is usable.
///
/// A substitute takes no turn of round robin. Otherwise, with one of two servers dead, the other
/// server would spend its own turns on substitutions, and every flow would try the dead server
/// first. Servers that failed for their most recent client are chosen last, as several servers may
/// have died together.
pub fn substitute(members: &[Member], flow: FlowHash, loads: &dyn Loads) -> Option<usize> {
    let start = flow.below(members.len().max(1));
    let usable = |index: &usize| {
        let Member { weight, eligible, .. } = members[*index];
        eligible && weight > 0 && loads.usable(*index)
    };
    let around = || (start..members.len()).chain(0..start).filter(usable);
    around().find(|index| !loads.is_failing(*index)).or_else(|| around().next())
}

/// Builds the table of an algorithm.
///
/// `turn` is a counter that outlives the table, so that a rebuilt table continues at the same
/// position. Round robin takes its position from the counter, least connections breaks ties by the
/// counter, and `power_of_two` and `ewma` derive their draws from the counter.
pub fn build(algorithm: Algorithm, members: &[Member], turn: Arc<AtomicUsize>) -> Box<dyn Balancer> {
    match algorithm {
        Algorithm::RoundRobin => Box::new(round_robin::RoundRobin::new(members, turn)),
        Algorithm::LeastConnections => Box::new(least_connections::LeastConnections::new(members, turn)),
        Algorithm::PowerOfTwo => Box::new(power_of_two::PowerOfTwo::new(members, turn)),
        Algorithm::Ewma => Box::new(Ewma::new(members, turn)),
        Algorithm::Ring => Box::new(ring::HashRing::new(members)),
        Algorithm::Maglev => Box::new(maglev::Maglev::new(members)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::testing::{TestLoads, members, ports, sixteen};
    use super::*;
    use convey_model::HashKey;

    fn build_all(members: &[Member]) -> Vec<(Algorithm, Box<dyn Balancer>)> {
        Algorithm::ALL.map(|algorithm| (algorithm, build(algorithm, members, Arc::default()))).into()
    }

    /// Servers that a thousand flows of one client are sent to.
    fn picked(balancer: &dyn Balancer, now: &TestLoads) -> HashSet<Option<usize>> {
        ports().take(1_000).map(|flow| balancer.pick(flow, now)).collect()
    }

    #[test]
    fn a_single_server_gets_everything() {
        for (algorithm, balancer) in build_all(&members(&[1])) {
            assert_eq!(picked(&*balancer, &TestLoads::idle(1)), HashSet::from([Some(0)]), "{algorithm:?}");
        }
    }

    #[test]
    fn empty_pool_yields_no_pick() {
        for (algorithm, balancer) in build_all(&[]) {
            assert_eq!(picked(&*balancer, &TestLoads::idle(0)), HashSet::from([None]), "{algorithm:?}");
        }
    }

    #[test]
    fn servers_of_the_largest_weight_all_get_something() {
        for (algorithm, balancer) in build_all(&members(&[65_535; 5])) {
            assert_eq!(picked(&*balancer, &TestLoads::idle(5)).len(), 5, "{algorithm:?}");
        }
    }

    #[test]
    fn a_thousand_servers_are_all_reached() {
        for (algorithm, balancer) in build_all(&members(&[3; 1_000])) {
            let now = TestLoads::idle(1_000);
            let picked: HashSet<_> = ports().map(|flow| balancer.pick(flow, &now)).collect();
            assert_eq!(picked.len(), 1_000, "{algorithm:?}");
        }
    }

    #[test]
    fn servers_that_share_an_address_share_its_flows() {
        let mut twins = members(&[1, 1, 1]);
        twins[2].identity = twins[0].identity;
        for (algorithm, balancer) in build_all(&twins) {
            assert_eq!(picked(&*balancer, &TestLoads::idle(3)).len(), 3, "{algorithm:?}");
        }
    }

    #[test]
    fn flow_maps_to_the_same_server_in_any_order_of_servers() {
        let listed = members(&[1, 2, 3, 4, 5, 6, 7]);
        let reversed: Vec<Member> = listed.iter().rev().copied().collect();
        let mut now = TestLoads::idle(7);
        let mut now_reversed = TestLoads::idle(7);
        (now.unusable[0], now_reversed.unusable[6]) = (true, true);
        for algorithm in [Algorithm::Ring, Algorithm::Maglev] {
            let (a, b) =
                (build(algorithm, &listed, Arc::default()), build(algorithm, &reversed, Arc::default()));
            for flow in ports() {
                assert_eq!(a.pick(flow, &now), b.pick(flow, &now_reversed).map(|index| 6 - index));
            }
        }
    }

    #[test]
    fn a_new_release_leaves_every_flow_where_it_is() {
        let members = members(&[1, 2, 3, 4]);
        let picks = |algorithm| -> Vec<usize> {
            let balancer = build(algorithm, &members, Arc::default());
            ports().take(20).filter_map(|flow| balancer.pick(flow, &TestLoads::idle(4))).collect()
        };
        assert_eq!(picks(Algorithm::Ring), [0, 1, 1, 2, 2, 3, 0, 2, 1, 2, 0, 2, 3, 0, 2, 3, 0, 2, 2, 2]);
        assert_eq!(picks(Algorithm::Maglev), [2, 2, 3, 3, 2, 2, 3, 2, 2, 2, 3, 2, 1, 3, 2, 2, 2, 2, 0, 3]);
    }

    #[test]
    fn hash_key_without_port_maps_clients_alike_on_every_port() {
        let members = |key, port: u16| -> Vec<Member> {
            let identity = |n: u8| {
                let addr = if key == HashKey::Name { [10, 0, port as u8, n] } else { [10, 0, 0, n] };
                Identity::new(key, &format!("s{n}"), (addr, port).into())
            };
            let new = |n| Member { identity: identity(n), weight: 1, percent: 100, eligible: true };
            (0..5).map(new).collect()
        };
        for algorithm in [Algorithm::Ring, Algorithm::Maglev] {
            let picks = |key, port| -> Vec<_> {
                let balancer = build(algorithm, &members(key, port), Arc::default());
                sixteen().take(1_000).map(|flow| balancer.pick(flow, &TestLoads::idle(5))).collect()
            };
            for key in HashKey::ALL {
                assert_eq!(picks(key, 80) == picks(key, 8080), key != HashKey::AddrPort, "{}", key.name());
            }
        }
    }

    /// Any server, whether it is usable, and its open connections. Few addresses are generated, so
    /// that some occur twice.
    fn any_server() -> impl Strategy<Value = (Member, bool, u32)> {
        let weight = prop_oneof![Just(0u16), 1..10u16, 1..=u16::MAX];
        (0..20u8, weight, 1..=100u8, any::<bool>(), any::<bool>(), any::<u32>()).prop_map(
            |(host, weight, percent, eligible, usable, active)| {
                let addr = SocketAddr::from(([10, 0, 0, host], 80));
                (Member { identity: addr.into(), weight, percent, eligible }, usable, active)
            },
        )
    }

    /// Whether the step leads to this usable server.
    fn names(step: Option<&Step>, picked: Option<usize>) -> bool {
        match step.copied() {
            Some(Step::Point { server, usable, .. }) => usable && picked == Some(server),
            Some(Step::Slot { server, usable, .. }) => usable && picked == Some(server),
            Some(Step::Turn { server, usable, .. }) => usable && picked == Some(server),
            Some(Step::Drawn { pair }) => picked.is_some_and(|server| pair.contains(&server)),
            Some(Step::Least { server }) => picked == Some(server),
            Some(Step::FirstUsable { server }) => picked == server,
            None => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pick_finds_a_usable_server_whenever_there_is_one(
            servers in prop::collection::vec(any_server(), 0..12),
            flows in prop::collection::vec(any::<u64>(), 20),
        ) {
            let members: Vec<Member> = servers.iter().map(|server| server.0).collect();
            let now = TestLoads {
                unusable: servers.iter().map(|server| !server.1).collect(),
                active: servers.iter().map(|server| server.2).collect(),
            };
            let can = |i: usize| members[i].weight > 0 && members[i].eligible && now.usable(i);
            let somebody = (0..members.len()).any(can);
            for (algorithm, balancer) in build_all(&members) {
                for &flow in &flows {
                    let foreseen = balancer.foresee(FlowHash(flow), &now);
                    prop_assert_eq!(&foreseen, &balancer.foresee(FlowHash(flow), &now), "it took a turn");
                    let pick = balancer.pick(FlowHash(flow), &now);
                    prop_assert_eq!(foreseen.server, pick, "{:?}", algorithm);
                    prop_assert!(pick.is_none() || names(foreseen.steps.last(), pick), "{:?}", foreseen);
                    prop_assert_eq!(pick.is_some(), somebody, "{:?}", algorithm);
                    prop_assert!(pick.is_none_or(can), "{:?} picked {:?}", algorithm, pick);
                }
            }
        }
    }
}
