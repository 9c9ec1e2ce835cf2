//! Mock of the kernel's flow cache, checked against the cases of the kernel's own programs
//! (`tests/kernel_cache`): results of tests with the mock hold for the kernel, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../balancer/mod.rs"]
mod balancer;
mod cases;
mod ends;
mod tunnels;

use balancer::{BalancerSetup, TestBalancer};
use convey_forward::testing::MockKernel;
use convey_forward::{CacheEvent, FlowCache, Frame};
use convey_model::{FlowKey, NextHop};
use convey_wire::Headers;

impl cases::Cache for MockKernel {
    fn new(_setup: &BalancerSetup, _balancer: &TestBalancer) -> MockKernel {
        MockKernel::default()
    }

    fn writer(&self) -> Box<dyn FlowCache> {
        self.cache()
    }

    fn forward(&mut self, frame: &[u8], balancer: &TestBalancer) -> Option<Vec<u8>> {
        let (mut bytes, headers) = (frame.to_vec(), convey_wire::parse(frame));
        let mut frame = Frame { interface: Some(cases::HERE), ..Frame::new(&mut bytes, &headers) };
        let fits =
            |_: &Frame<'_>, headers: &Headers, hop: &NextHop| headers.end - headers.l3 <= hop.mtu as usize;
        let (_, envelope) = MockKernel::forward(self, &mut frame, fits, &balancer.plan, balancer.now)?;
        Some(tunnels::within(bytes, envelope))
    }

    fn events(&mut self) -> Vec<CacheEvent> {
        MockKernel::events(self)
    }

    fn counted(&mut self, keys: &[FlowKey; 2]) -> [u64; 2] {
        keys.map(|key| self.forwarded(&key).unwrap_or(0).into())
    }

    fn end(self) {}
}

#[test]
fn the_mock_makes_of_packets_what_the_cases_say() {
    cases::run::<MockKernel>();
}

#[test]
fn mock_kernel_forwards_damaged_headers_like_the_core() {
    cases::run_on_damaged_headers::<MockKernel>();
}
