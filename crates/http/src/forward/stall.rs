//! Upper bound for a time in which nothing moves between a client and a server.

use std::time::Duration;

use convey_model::Timeouts;

use crate::transfer::Transfer;

/// Upper bound for a pause of a client within the body of its request; `timeouts.idle` may lower it.
const BODY_PAUSE: Duration = Duration::from_secs(60);

/// The bound, which depends on who is waited for.
pub(super) struct StallLimit {
    idle: Duration,
    response: Duration,
    awaits_client: bool,
}

impl StallLimit {
    pub(super) fn new(timeouts: &Timeouts) -> StallLimit {
        StallLimit { idle: timeouts.idle, response: timeouts.response, awaits_client: false }
    }

    /// The bound at this point of a transfer.
    pub(super) fn of(&self, transfer: &Transfer<'_>) -> Duration {
        match (transfer.status, self.awaits_client) {
            (Some(_), _) => self.idle,
            (None, true) => BODY_PAUSE.min(self.idle),
            (None, false) => self.response.min(self.idle),
        }
    }

    /// Whether the other side is waited for now.
    pub(super) fn has_changed(&mut self, transfer: &Transfer<'_>) -> bool {
        std::mem::replace(&mut self.awaits_client, transfer.awaits_client) != transfer.awaits_client
    }
}
