//! Simulation of servers with different response times, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::super::testing::members;
use super::super::{AnswerTimes, FlowHash};
use super::*;

/// Number of concurrent clients, and of requests in total.
const CLIENTS: usize = 16;
const REQUESTS: usize = 1_500;

/// Behaviour of a server for one request: takes a random number; returns the response time in
/// microseconds, and whether the answer is a failure.
type Behaviour = fn(FlowHash) -> (u64, bool);

/// Responds in 0.5 to 1.5 ms. One in a hundred answers takes 50 ms longer, as after a garbage
/// collection or a lost packet.
fn usual(chance: FlowHash) -> (u64, bool) {
    let hiccup = if chance.again().below(100) == 0 { 50_000 } else { 0 };
    (500 + chance.below(1_000) as u64 + hiccup, false)
}

fn slower_by_50_ms(chance: FlowHash) -> (u64, bool) {
    (usual(chance).0 + 50_000, false)
}

fn fails_at_once(chance: FlowHash) -> (u64, bool) {
    (100 + chance.below(100) as u64, true)
}

/// Accepts the connection, and answers only after an hour.
fn hangs(_: FlowHash) -> (u64, bool) {
    (3_600_000_000, false)
}

fn in_100_ms(chance: FlowHash) -> (u64, bool) {
    (100_000 + chance.below(1_000) as u64, false)
}

const USUAL: [Behaviour; 3] = [usual; 3];

struct World {
    ewma: Ewma,
    times: Vec<AnswerTimes>,
    pending: Vec<u32>,
    now: Duration,
    random: FlowHash,
}

impl Loads for World {
    fn usable(&self, _: usize) -> bool {
        true
    }

    fn active(&self, index: usize) -> u32 {
        self.pending[index]
    }

    fn cost(&self, index: usize) -> Option<f64> {
        self.times[index].cost(self.now)
    }

    fn is_silent(&self, index: usize) -> bool {
        self.times[index].is_silent(self.now)
    }
}

impl World {
    fn new(weights: &[u16], seed: u64) -> World {
        let servers = weights.len();
        World {
            ewma: Ewma::new(&members(weights), Arc::default()),
            times: (0..servers).map(|_| AnswerTimes::default()).collect(),
            pending: vec![0; servers],
            now: Duration::ZERO,
            random: FlowHash(seed).again(),
        }
    }

    /// Sends all requests, each client one after the other. Returns the number of requests that
    /// each server got.
    fn ask(&mut self, servers: &[Behaviour]) -> Vec<usize> {
        let mut got = vec![0; servers.len()];
        let mut under_way = BinaryHeap::new();
        for request in 0..REQUESTS {
            if request >= CLIENTS {
                self.answer(&mut under_way);
            }
            self.random = self.random.again();
            let server = self.ewma.pick(self.random, self).unwrap();
            let (took, failed) = servers[server](self.random.again());
            let took = Duration::from_micros(took);
            (got[server], self.pending[server]) = (got[server] + 1, self.pending[server] + 1);
            self.times[server].begins();
            under_way.push(Reverse((self.now + took, server, took, failed)));
        }
        while !under_way.is_empty() {
            self.answer(&mut under_way);
        }
        got
    }

    /// Number of clients that wait for a hanging server after `time`. Each client sends its next
    /// request as soon as it has an answer.
    fn stuck_after(&mut self, servers: &[Behaviour], time: Duration) -> u32 {
        let mut under_way = BinaryHeap::new();
        let end = self.now + time;
        for _ in 0..CLIENTS {
            self.begin(servers, &mut under_way);
        }
        while under_way.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            self.answer(&mut under_way);
            self.begin(servers, &mut under_way);
        }
        self.pending[0]
    }

    fn begin(
        &mut self,
        servers: &[Behaviour],
        under_way: &mut BinaryHeap<Reverse<(Duration, usize, Duration, bool)>>,
    ) {
        self.random = self.random.again();
        let server = self.ewma.pick(self.random, self).unwrap();
        let (took, failed) = servers[server](self.random.again());
        let took = Duration::from_micros(took);
        self.pending[server] += 1;
        self.times[server].begins();
        under_way.push(Reverse((self.now + took, server, took, failed)));
    }

    fn answer(&mut self, under_way: &mut BinaryHeap<Reverse<(Duration, usize, Duration, bool)>>) {
        let Reverse((at, server, took, failed)) = under_way.pop().unwrap();
        self.now = at;
        self.pending[server] -= 1;
        self.times[server].ends();
        self.times[server].answered(took, failed, at);
    }
}

#[test]
fn equal_servers_get_equal_shares_and_at_least_half_each() {
    for seed in 0..200 {
        let got = World::new(&[1, 1, 1], seed).ask(&USUAL);
        assert!(got.iter().all(|got| *got >= REQUESTS / 6), "{got:?}, seed {seed}");
    }
    let sums = (0..200).map(|seed| World::new(&[1, 1, 1], seed).ask(&USUAL));
    let sums = sums.fold([0; 3], |sum, got| [0, 1, 2].map(|at| sum[at] + got[at]));
    let fair = 200 * REQUESTS / 3;
    assert!(sums.iter().all(|sum| sum.abs_diff(fair) < fair / 50), "{sums:?}");
}

#[test]
fn server_slower_by_50_ms_gets_few_requests_but_some() {
    for seed in 0..100 {
        let got = World::new(&[1, 1, 1], seed).ask(&[usual, slower_by_50_ms, usual]);
        assert!((1..REQUESTS / 10).contains(&got[1]), "{got:?}, seed {seed}");
    }
}

#[test]
fn a_server_that_answers_with_failures_at_once_attracts_nobody() {
    for seed in 0..100 {
        let got = World::new(&[1, 1, 1], seed).ask(&[usual, usual, fails_at_once]);
        assert!(got[2] < REQUESTS / 20, "{got:?}, seed {seed}");
    }
}

#[test]
fn a_server_that_has_recovered_gets_its_share_again() {
    for bad in [slower_by_50_ms, fails_at_once] {
        let mut world = World::new(&[1, 1, 1], 7);
        world.ask(&[usual, bad, usual]);
        // The server gets no requests for a minute.
        world.now += Duration::from_secs(60);
        let got = world.ask(&USUAL);
        assert!(got[1] > REQUESTS / 6, "{got:?}");
        // The clients send requests without a pause.
        let mut world = World::new(&[1, 1, 1], 7);
        world.ask(&[usual, bad, usual]);
        let got = (0..40).map(|_| world.ask(&USUAL)).last().unwrap();
        assert!(got[1] > REQUESTS / 6, "{got:?}");
    }
}

#[test]
fn servers_that_are_as_fast_share_by_weight() {
    for weights in [&[1, 3][..], &[1, 2, 7]] {
        let sum: u16 = weights.iter().sum();
        let mut got = vec![0; weights.len()];
        for seed in 0..100 {
            let of_one = World::new(weights, seed).ask(&vec![usual as Behaviour; weights.len()]);
            got.iter_mut().zip(of_one).for_each(|(got, one)| *got += one);
        }
        for (got, weight) in got.iter().zip(weights) {
            let fair = 100 * REQUESTS * usize::from(*weight) / usize::from(sum);
            assert!(got.abs_diff(fair) < fair / 5, "{got} of {fair}, {weights:?}");
        }
    }
}

#[test]
fn server_that_hangs_holds_few_clients_with_and_without_history() {
    let time = Duration::from_secs(4);
    for others in [usual as Behaviour, in_100_ms] {
        let behaviours = [hangs, others, others, others];
        let (mut all_new, mut known) = (0, 0);
        for seed in 0..20 {
            let mut world = World::new(&[1, 1, 1, 1], seed);
            (1..4)
                .for_each(|server| world.times[server].answered(Duration::from_millis(1), false, world.now));
            assert_eq!(world.stuck_after(&behaviours, time), 1, "one probes it, seed {seed}");
            all_new += World::new(&[1, 1, 1, 1], seed).stuck_after(&behaviours, time);
            let mut world = World::new(&[1, 1, 1, 1], seed);
            world.ask(&[others; 4]);
            let stuck = world.stuck_after(&behaviours, time);
            assert!(stuck < CLIENTS as u32, "seed {seed}");
            known += stuck;
        }
        assert!(all_new <= 20 * 6 && known <= 20 * 10, "{all_new} and {known} of 20 times {CLIENTS}");
    }
}
