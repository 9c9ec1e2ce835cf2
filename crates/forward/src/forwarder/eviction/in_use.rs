//! Searches that have found only flows in use, and are not repeated for a short time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::TrafficKind;
use crate::flow::Class;
use crate::forwarder::tracker::FlowTracker;
use crate::queues::Resource;
use convey_model::Timestamp;

/// Pause after a search that has found only flows in use. A search examines 64 flows; in a shortage
/// every packet would start a search, and none would find more than the previous one.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Upper bound for the searches that are remembered; a newer search replaces an older one in the
/// same place.
const REMEMBERED_SEARCHES: usize = 256;

/// Searches that have found only flows in use, each with its time.
#[derive(Debug)]
pub(super) struct InUse(Box<[Option<(Search, Timestamp)>]>);

/// A search among the flows of one kind and class that hold a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Search {
    pub(super) resource: Resource,
    pub(super) kind: TrafficKind,
    pub(super) class: Class,
}

impl Search {
    /// Number of flows that the search covers.
    pub(super) fn count(self, tracker: &FlowTracker) -> u32 {
        tracker.table().count_of(self.resource, self.kind, self.class)
    }
}

impl InUse {
    pub(super) fn new() -> InUse {
        InUse(vec![None; REMEMBERED_SEARCHES].into())
    }

    /// Notes that the search has found only flows in use.
    pub(super) fn note(&mut self, search: Search, now: Timestamp) {
        self.0[place(&search)] = Some((search, now));
    }

    /// Whether the search has found only flows in use, less than `LOOK_PAUSE` ago.
    pub(super) fn are_all(&self, search: Search, now: Timestamp) -> bool {
        self.0[place(&search)].is_some_and(|(known, at)| known == search && now.since(at) < LOOK_PAUSE)
    }
}

fn place(search: &Search) -> usize {
    let mut hasher = DefaultHasher::new();
    search.hash(&mut hasher);
    hasher.finish() as usize % REMEMBERED_SEARCHES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::View;
    use convey_model::UDP;

    #[test]
    fn search_that_found_all_in_use_is_not_repeated_for_50_ms() {
        let kind = TrafficKind::new(View::BothSides, UDP);
        let (slot, other) = (Resource::ServerSlot(1), Resource::ServerSlot(2));
        let at = |millis: u64| Timestamp(millis * 1_000_000);
        let mut in_use = InUse::new();
        in_use.note(Search { resource: slot, kind, class: Class::Doubtful }, at(1_000));
        let are_all = |resource, class, millis| in_use.are_all(Search { resource, kind, class }, at(millis));
        assert!(are_all(slot, Class::Doubtful, 1_049) && !are_all(slot, Class::Doubtful, 1_050));
        assert!(!are_all(other, Class::Doubtful, 1_000) && !are_all(slot, Class::Closing, 1_000));
    }
}
