//! The life of flows under any sequence of events.

mod balancer;
#[path = "balancer/events.rs"]
mod events;

use events::EventSequence;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flows_expire_in_time_and_open_ones_are_not_evicted(bytes in prop::collection::vec(any::<u8>(), 1..600)) {
        EventSequence::run_events(&bytes);
    }
}
