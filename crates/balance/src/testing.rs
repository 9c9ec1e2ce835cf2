//! Servers and clients for the tests of all algorithms.

use std::net::{Ipv4Addr, SocketAddr};

use super::{Balancer, FlowHash, Loads, Member, flow_hash};
use convey_model::HashOn;

const VIP: ([u8; 4], u16) = ([198, 51, 100, 7], 443);

/// Loads of the servers, set by the test.
pub(super) struct TestLoads {
    pub unusable: Vec<bool>,
    pub active: Vec<u32>,
}

impl TestLoads {
    /// Loads of idle, usable servers.
    pub(super) fn idle(servers: usize) -> Self {
        TestLoads { unusable: vec![false; servers], active: vec![0; servers] }
    }
}

impl Loads for TestLoads {
    fn usable(&self, index: usize) -> bool {
        !self.unusable[index]
    }

    fn active(&self, index: usize) -> u32 {
        self.active[index]
    }
}

/// Eligible servers with these weights, at addresses of one network.
pub(super) fn members(weights: &[u16]) -> Vec<Member> {
    let addr = |n: usize| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 80)).into();
    weights
        .iter()
        .enumerate()
        .map(|(n, &weight)| Member { identity: addr(n), weight, percent: 100, eligible: true })
        .collect()
}

/// One flow of each client address in a /16 network.
pub(super) fn sixteen() -> impl Iterator<Item = FlowHash> {
    (0..=u16::MAX).map(|host| {
        let client = SocketAddr::from((Ipv4Addr::from(0xac10_0000 + u32::from(host)), 40_000));
        flow_hash(HashOn::Source, client, VIP.into())
    })
}

/// Flows of 28,000 connections of one client, each from another port.
pub(super) fn ports() -> impl Iterator<Item = FlowHash> {
    (32_768..60_768).map(|port| flow_hash(HashOn::Tuple, ([192, 0, 2, 1], port).into(), VIP.into()))
}

/// Asserts that each server's share of the flows differs from its share of the weights by at most
/// `tolerance` (0.1: 10 % of its share of the weights).
pub(super) fn shares_are_within(
    tolerance: f64,
    weights: &[u16],
    balancer: &dyn Balancer,
    flows: impl Iterator<Item = FlowHash>,
) {
    let now = TestLoads::idle(weights.len());
    let mut counts = vec![0u32; weights.len()];
    flows.for_each(|flow| counts[balancer.pick(flow, &now).unwrap()] += 1);
    let flows: u32 = counts.iter().sum();
    let sum: u32 = weights.iter().map(|&weight| u32::from(weight)).sum();
    for (&count, &weight) in counts.iter().zip(weights) {
        let expected = f64::from(flows) * f64::from(weight) / f64::from(sum);
        let off = f64::from(count) / expected - 1.0;
        assert!(off.abs() <= tolerance, "weight {weight} of {weights:?} has {count} flows: off by {off:.3}");
    }
}

/// Previous and current servers of the flows that moved.
pub(super) fn moved(
    before: &dyn Balancer,
    after: &dyn Balancer,
    flows: impl Iterator<Item = FlowHash>,
) -> Vec<(usize, usize)> {
    let now = TestLoads::idle(1_000);
    flows
        .map(|flow| (before.pick(flow, &now).unwrap(), after.pick(flow, &now).unwrap()))
        .filter(|(from, to)| from != to)
        .collect()
}
