//! Sweep over all flows after a new plan, a slice of the table at a time.

mod awaited;

use self::awaited::AwaitedNeighbours;
use super::tracker::ForwarderEvents;
use convey_model::{NextHops, Timestamp};

/// Progress of the sweep, and the unresolved neighbours that its last pass has found.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Next place of the table; `None` while no sweep is running.
    next_place: Option<u32>,
    /// Whether another sweep has to follow, because a new plan came during this one.
    is_due_again: bool,
    /// Neighbours that flows wait for. Once one of them is resolved, another sweep is due.
    awaited: AwaitedNeighbours,
}

impl Sweep {
    /// Requests a sweep over all flows. A running sweep is finished first: if new plans restarted
    /// it, frequent plans would prevent its end.
    pub(super) fn request(&mut self) {
        match self.next_place {
            None => self.next_place = Some(0),
            Some(_) => self.is_due_again = true,
        }
    }

    /// Next place of the table to check, if a sweep is running.
    pub(super) fn next_place(&self) -> Option<u32> {
        self.next_place
    }

    /// Begins a slice of the sweep at this place. Returns the neighbours that flows wait for, to
    /// which the caller adds the neighbours of this slice.
    pub(super) fn begin_slice(&mut self, place: u32) -> &mut AwaitedNeighbours {
        if place == 0 {
            self.awaited.clear();
        }
        &mut self.awaited
    }

    /// Ends a slice of the sweep, which continues at this place. Returns whether all flows were
    /// checked against the latest plan.
    pub(super) fn end_slice(&mut self, next_place: Option<u32>) -> bool {
        self.next_place = next_place;
        if next_place.is_none() && std::mem::take(&mut self.is_due_again) {
            self.next_place = Some(0);
        }
        self.next_place.is_none()
    }

    /// Whether a neighbour that a flow waits for is resolved.
    pub(super) fn is_any_awaited_resolved(&self, network: &NextHops) -> bool {
        self.awaited.is_any_resolved(network)
    }

    /// Repeats the requests for routers and servers that flows wait for, if the last requests are
    /// old enough.
    pub(super) fn repeat_queries(&mut self, events: &mut ForwarderEvents, now: Timestamp) {
        self.awaited.repeat_queries(events, now);
    }
}
