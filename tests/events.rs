//! The life of flows under any sequence of events.

mod balancer;
#[path = "balancer/events.rs"]
mod events;

use events::EventSequence;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_flow_outlives_its_deadline_and_no_open_one_gives_way(bytes in prop::collection::vec(any::<u8>(), 1..600)) {
        EventSequence::tell(&bytes);
    }
}
