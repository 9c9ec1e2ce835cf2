//! What happens to a balancer in any order, held against a model of the connections: nothing outlives its deadline, slots
//! and ports that are held are flows alive, and no open flow gives way to one that is not.

#![no_main]

use events::EventSequence;
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/balancer/mod.rs"]
mod balancer;
#[path = "../../tests/balancer/events.rs"]
mod events;

fuzz_target!(|input: &[u8]| EventSequence::tell(input));
