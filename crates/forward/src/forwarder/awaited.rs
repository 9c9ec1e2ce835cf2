//! Neighbours that flows are to be sent to once they are resolved.

use std::time::Duration;

use super::Forwarder;
use super::events::add_wanted;
use convey_model::{Timestamp, WantedNeighbour};

/// Time between two requests for the same router or server: no packet asks for it meanwhile.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Neighbours on the new ways of flows that go on by a former way, as the last look at every flow has found them: as many as
/// [`add_wanted`] allows.
#[derive(Debug, Default)]
pub(super) struct AwaitedNeighbours {
    neighbours: Vec<WantedNeighbour>,
    asked: Timestamp,
}

impl AwaitedNeighbours {
    /// Whether no flow waits for a neighbour.
    pub(super) fn is_empty(&self) -> bool {
        self.neighbours.is_empty()
    }

    /// Forgets all of them, before another look at every flow.
    pub(super) fn clear(&mut self) {
        self.neighbours.clear();
    }

    /// Notes a neighbour that a flow waits for.
    pub(super) fn add(&mut self, neighbour: WantedNeighbour) {
        add_wanted(&mut self.neighbours, neighbour);
    }
}

impl Forwarder {
    /// Asks again for routers and servers that flows wait for.
    pub(super) fn ask_for_awaited(&mut self, now: Timestamp) {
        let AwaitedNeighbours { neighbours, asked } = &mut self.awaited;
        if neighbours.is_empty() || now.since(*asked) < ASK_AGAIN_AFTER {
            return;
        }
        *asked = now;
        neighbours.iter().filter(|wanted| wanted.is_ours).for_each(|wanted| self.events.want(*wanted));
    }
}
