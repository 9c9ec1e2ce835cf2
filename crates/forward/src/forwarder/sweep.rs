//! The look at every flow that a new plan asks for, a slice of the table at a time.

mod awaited;

use self::awaited::AwaitedNeighbours;
use super::tracker::ForwarderEvents;
use convey_model::{NextHops, Timestamp};

/// Progress of the look at every flow, and the neighbours that the last one has found flows to wait
/// for.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Next place of the table; `None` when no look is under way.
    next_place: Option<u32>,
    /// Whether another look has to follow, for a plan that came meanwhile.
    is_due_again: bool,
    /// Once one of them is resolved, another look is due.
    awaited: AwaitedNeighbours,
}

impl Sweep {
    /// Asks for a look at every flow. One that is under way ends first: with plan upon plan, it
    /// would never.
    pub(super) fn request(&mut self) {
        match self.next_place {
            None => self.next_place = Some(0),
            Some(_) => self.is_due_again = true,
        }
    }

    /// Next place of the table to look at, if a look is under way.
    pub(super) fn next_place(&self) -> Option<u32> {
        self.next_place
    }

    /// Begins a slice of the look at this place. Returns the neighbours that flows wait for, to add
    /// those of the slice.
    pub(super) fn begin_slice(&mut self, place: u32) -> &mut AwaitedNeighbours {
        if place == 0 {
            self.awaited.clear();
        }
        &mut self.awaited
    }

    /// Ends a slice of the look, which goes on at this place. Returns whether every flow has been
    /// looked at for the latest plan.
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

    /// Requests routers and servers that flows wait for again, if the last requests are old enough.
    pub(super) fn ask_again(&mut self, events: &mut ForwarderEvents, now: Timestamp) {
        self.awaited.ask_again(events, now);
    }
}
