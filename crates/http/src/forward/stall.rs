//! Upper bound for a time in which nothing moves between a client and a server.

use std::time::Duration;

use convey_model::Timeouts;

use crate::transfer::Transfer;

/// Upper bound for a pause of a client within the body of its request; `timeouts.idle` may lower it.
const BODY_PAUSE: Duration = Duration::from_secs(60);

/// Upper bound for a time in which a client takes nothing of a response while its server is held;
/// `timeouts.idle` may lower it.
const READ_PAUSE: Duration = Duration::from_secs(60);

/// The bound, which depends on the side that is waited for.
pub(super) struct StallLimit {
    idle: Duration,
    response: Duration,
    side: AwaitedSide,
}

/// Side that a transfer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitedSide {
    /// The client, for the rest of its request.
    Sender,
    /// The server, for the head of its response.
    Server,
    /// The client, which does not take the response.
    Reader,
    /// Both, within the response or another protocol.
    Both,
}

impl AwaitedSide {
    fn of(transfer: &Transfer<'_>) -> AwaitedSide {
        match transfer.status {
            None if transfer.awaits_client => AwaitedSide::Sender,
            None => AwaitedSide::Server,
            Some(_) if transfer.is_client_behind() && !transfer.exchange.has_changed() => AwaitedSide::Reader,
            Some(_) => AwaitedSide::Both,
        }
    }
}

impl StallLimit {
    pub(super) fn new(timeouts: &Timeouts) -> StallLimit {
        StallLimit { idle: timeouts.idle, response: timeouts.response, side: AwaitedSide::Server }
    }

    /// The bound at this point of a transfer.
    pub(super) fn bound(&self) -> Duration {
        let bound = match self.side {
            AwaitedSide::Sender => BODY_PAUSE,
            AwaitedSide::Server => self.response,
            AwaitedSide::Reader => READ_PAUSE,
            AwaitedSide::Both => self.idle,
        };
        bound.min(self.idle)
    }

    /// Whether another side is waited for now.
    pub(super) fn has_changed(&mut self, transfer: &Transfer<'_>) -> bool {
        let side = AwaitedSide::of(transfer);
        std::mem::replace(&mut self.side, side) != side
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_takes_nothing_holds_a_server_for_a_minute() {
        let bound = |idle, side| {
            let timeouts = Timeouts { idle: Duration::from_secs(idle), ..Timeouts::default() };
            StallLimit { side, ..StallLimit::new(&timeouts) }.bound().as_secs()
        };
        assert_eq!(bound(600, AwaitedSide::Reader), 60);
        assert_eq!(bound(600, AwaitedSide::Both), 600);
        assert_eq!(bound(7, AwaitedSide::Reader), 7);
    }
}
