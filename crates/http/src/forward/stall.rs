//! Upper bound for a time in which too little moves between a client and a server.

use std::time::Duration;

use convey_model::Timeouts;

use crate::transfer::{Transfer, TransferEnd};

/// Upper bound for a pause of a client within the body of its request; `timeouts.idle` may lower it.
const BODY_PAUSE: Duration = Duration::from_secs(60);

/// Period in which a client has to take enough of a response while its server is held;
/// `timeouts.idle` may lower it.
const READ_PERIOD: Duration = Duration::from_secs(60);

/// Lowest rate in bytes a second, over a period, at which a client may take responses while servers
/// are held. The streams of a connection share it.
const MIN_READ_RATE: u64 = 500;

/// The bound, which depends on the side that is waited for.
pub(super) struct StallLimit {
    idle: Duration,
    response: Duration,
    side: AwaitedSide,
    /// Bytes that have moved since the bound began.
    moved: u64,
    /// Bytes that waited for the client when the bound began.
    waiting: u64,
}

/// Side that a transfer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitedSide {
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
    pub(super) fn of(transfer: &Transfer<'_>) -> AwaitedSide {
        let is_client_behind = transfer.waiting_for_client() > 0 && !transfer.exchange.has_changed();
        match transfer.status {
            None if transfer.awaits_client => AwaitedSide::Sender,
            None => AwaitedSide::Server,
            Some(_) if is_client_behind => AwaitedSide::Reader,
            Some(_) => AwaitedSide::Both,
        }
    }
}

impl StallLimit {
    pub(super) fn new(timeouts: &Timeouts) -> StallLimit {
        let (idle, response) = (timeouts.idle, timeouts.response);
        StallLimit { idle, response, side: AwaitedSide::Server, moved: 0, waiting: 0 }
    }

    /// The bound at this point of a transfer.
    pub(super) fn bound(&self) -> Duration {
        let bound = match self.side {
            AwaitedSide::Sender => BODY_PAUSE,
            AwaitedSide::Server => self.response,
            AwaitedSide::Reader => READ_PERIOD,
            AwaitedSide::Both => self.idle,
        };
        bound.min(self.idle)
    }

    /// Notes so many bytes that have `moved`. Returns whether the bound begins anew: another side is
    /// waited for now, or enough has moved. Any byte is enough, except of a client that does not
    /// take its response: that needs its part of [`MIN_READ_RATE`], or all that was `waiting`.
    pub(super) fn begins_anew(
        &mut self,
        side: AwaitedSide,
        moved: u64,
        waiting: u64,
        streams: usize,
    ) -> bool {
        let has_changed = std::mem::replace(&mut self.side, side) != side;
        self.moved += moved;
        let needed = match side {
            AwaitedSide::Reader => {
                let of_period = MIN_READ_RATE * self.bound().as_secs();
                (of_period / (streams.max(1) as u64)).min(self.waiting).max(1)
            }
            _ => 1,
        };
        let begins_anew = has_changed || self.moved >= needed;
        if begins_anew {
            (self.moved, self.waiting) = (0, waiting);
        }
        begins_anew
    }

    /// The end of a transfer whose bound is over. `None`: it waits for no reader.
    pub(super) fn end(&self) -> Option<TransferEnd> {
        (self.side == AwaitedSide::Reader).then_some(TransferEnd::ClientTooSlow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(idle: u64, side: AwaitedSide) -> StallLimit {
        let timeouts = Timeouts { idle: Duration::from_secs(idle), ..Timeouts::default() };
        StallLimit { side, ..StallLimit::new(&timeouts) }
    }

    #[test]
    fn client_that_takes_nothing_holds_a_server_for_a_minute() {
        let bound = |idle, side| limit(idle, side).bound().as_secs();
        assert_eq!(bound(600, AwaitedSide::Reader), 60);
        assert_eq!(bound(600, AwaitedSide::Both), 600);
        assert_eq!(bound(7, AwaitedSide::Reader), 7);
    }

    /// Seconds for which a client holds a server, up to an hour, that takes so many bytes each
    /// second while so many wait.
    fn held(idle: u64, rate: u64, waiting: u64, streams: usize) -> u64 {
        let (mut limit, mut since) = (limit(idle, AwaitedSide::Both), 0);
        (0..3_600)
            .find(|second| {
                if limit.begins_anew(AwaitedSide::Reader, rate, waiting, streams) {
                    since = *second;
                }
                second - since >= limit.bound().as_secs()
            })
            .unwrap_or(3_600)
    }

    #[test]
    fn client_that_takes_too_little_holds_a_server_for_a_minute() {
        const WAITING: u64 = 64 * 1024;
        assert_eq!(held(600, 1, WAITING, 1), 60);
        assert_eq!(held(600, 490, WAITING, 1), 60);
        // A modem of 56 kbit/s, and its share of many streams.
        assert_eq!(held(600, 7_000, WAITING, 1), 3_600);
        assert_eq!(held(600, 7_000 / 100, WAITING, 100), 3_600);
        assert_eq!(held(600, 1, WAITING, 100), 60);
        assert_eq!(held(7, 490, WAITING, 1), 7);
        assert_eq!(held(7, 600, WAITING, 1), 3_600);
    }

    #[test]
    fn client_of_a_slow_server_needs_no_rate() {
        // It takes all that waits, though that is little.
        assert_eq!(held(600, 10, 100, 1), 3_600);
        let mut limit = limit(600, AwaitedSide::Both);
        assert!(limit.begins_anew(AwaitedSide::Both, 1, 0, 1));
        assert!(!limit.begins_anew(AwaitedSide::Both, 0, 0, 1));
        assert!(limit.begins_anew(AwaitedSide::Reader, 0, 10, 1));
        assert!(limit.begins_anew(AwaitedSide::Both, 10, 0, 1), "it has taken all");
    }
}
