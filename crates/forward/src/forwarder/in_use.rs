//! Where flows are wanted that may give way, and all are in use: for a moment nobody looks again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::Share;
use crate::flow::Class;
use crate::queues::Resource;
use convey_model::Timestamp;

/// A look costs 64 flows. In a shortage every packet would take one, and none would find more than the last.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Searches that are remembered; of two at the same place the last.
const REMEMBERED_SEARCHES: usize = 256;

/// Searches that have found nothing, and when.
#[derive(Debug)]
pub(super) struct InUse(Box<[Option<(Search, Timestamp)>]>);

/// What was wanted, of which kind and class.
type Search = (Resource, Share, Class);

impl InUse {
    pub(super) fn new() -> InUse {
        InUse(vec![None; REMEMBERED_SEARCHES].into())
    }

    /// Notes that all flows that could give way for this are in use.
    pub(super) fn note(&mut self, held: Resource, share: Share, class: Class, now: Timestamp) {
        let search = (held, share, class);
        self.0[place(&search)] = Some((search, now));
    }

    /// Whether all were a moment ago.
    pub(super) fn are_all(&self, held: Resource, share: Share, class: Class, now: Timestamp) -> bool {
        let search = (held, share, class);
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
    fn what_was_not_found_is_looked_for_again_after_a_moment() {
        let share = Share::new(View::BothSides, UDP);
        let (slot, other) = (Resource::ServerSlot(1), Resource::ServerSlot(2));
        let at = |millis: u64| Timestamp(millis * 1_000_000);
        let mut in_use = InUse::new();
        in_use.note(slot, share, Class::Doubtful, at(1_000));
        let are_all = |held, class, millis| in_use.are_all(held, share, class, at(millis));
        assert!(are_all(slot, Class::Doubtful, 1_049) && !are_all(slot, Class::Doubtful, 1_050));
        assert!(!are_all(other, Class::Doubtful, 1_000) && !are_all(slot, Class::Closing, 1_000));
    }
}
