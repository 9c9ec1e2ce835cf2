//! Random events for a balancer, checked against a model of the connections: nothing outlives its
//! deadline, slots and ports in use match the live flows, and no open flow is evicted for one that
//! is not open.

#![no_main]

use events::EventSequence;
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/balancer/mod.rs"]
mod balancer;
#[path = "../../tests/balancer/events.rs"]
mod events;

fuzz_target!(|input: &[u8]| EventSequence::run_events(input));
