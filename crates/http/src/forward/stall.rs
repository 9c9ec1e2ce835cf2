//! Upper bound for a time in which too little moves between a client and a server.

use std::time::Duration;

use convey_http_core::{BodyFraming, RequestHead};
use convey_model::Timeouts;

use crate::transfer::{Transfer, TransferEnd};

/// Period in which a client has to send enough of its request, or take enough of its response,
/// while its server is held; `timeouts.idle` may lower it.
const PERIOD: Duration = Duration::from_secs(60);

/// Lowest rate in bytes a second, over a period, at which a client may send uploads and take
/// responses while servers are held. The streams of a connection share it, unless other requests
/// wait for these servers.
const MIN_RATE: u64 = 500;

/// The bound, which depends on the side that is waited for.
pub(crate) struct StallLimit {
    idle: Duration,
    response: Duration,
    side: AwaitedSide,
    /// Whether the request has a body of known length.
    is_upload: bool,
    /// Bytes that have moved since the bound began.
    moved: u64,
    /// Bytes that were left for the client to move when the bound began; `None`: an unknown number.
    left: Option<u64>,
    /// Whether other requests have waited for the server since the bound began.
    was_wanted: bool,
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

/// State of a transfer, and the bytes that have moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransferProgress {
    side: AwaitedSide,
    from_client: u64,
    to_client: u64,
    /// Bytes that are left for the client to move; `None`: an unknown number.
    left: Option<u64>,
}

/// Other requests beside a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerLoad {
    /// Servers that streams of the same connection hold, with this one.
    pub(super) streams: usize,
    /// Whether other requests wait for the server.
    pub(super) is_wanted: bool,
}

impl StallLimit {
    /// The bound for a request with this head.
    pub(super) fn new(timeouts: &Timeouts, head: &RequestHead) -> StallLimit {
        StallLimit::of(timeouts, matches!(head.framing(), BodyFraming::Length(_)))
    }

    fn of(timeouts: &Timeouts, is_upload: bool) -> StallLimit {
        let (idle, response, side) = (timeouts.idle, timeouts.response, AwaitedSide::Server);
        StallLimit { idle, response, side, is_upload, moved: 0, left: None, was_wanted: false }
    }

    /// The bound of a response that waits for its client alone.
    pub(crate) fn of_reader(timeouts: &Timeouts) -> StallLimit {
        StallLimit { side: AwaitedSide::Reader, left: Some(u64::MAX), ..StallLimit::of(timeouts, false) }
    }

    /// Notes so many bytes that the client has taken of such a response. Returns whether the bound begins anew.
    pub(crate) fn has_taken(&mut self, bytes: u64, streams: usize) -> bool {
        let (side, left) = (AwaitedSide::Reader, Some(u64::MAX));
        let progress = TransferProgress { side, from_client: 0, to_client: bytes, left };
        self.begins_anew(&progress, ServerLoad { streams, is_wanted: false })
    }

    /// The bound at this point of a transfer.
    pub(crate) fn bound(&self) -> Duration {
        let bound = match self.side {
            AwaitedSide::Sender | AwaitedSide::Reader => PERIOD,
            AwaitedSide::Server => self.response,
            AwaitedSide::Both => self.idle,
        };
        bound.min(self.idle)
    }

    /// State of this transfer, in which so many bytes have moved from the client and to it.
    pub(super) fn progress(
        &self,
        transfer: &Transfer<'_>,
        (from_client, to_client): (u64, u64),
    ) -> TransferProgress {
        let waiting = transfer.waiting_for_client();
        let side = match transfer.status {
            None if transfer.awaits_client => AwaitedSide::Sender,
            // It has read as often as it may at once: small pieces are no reason to begin anew.
            None if transfer.has_more => self.side,
            None => AwaitedSide::Server,
            Some(_) if waiting > 0 && !transfer.exchange.has_changed() => AwaitedSide::Reader,
            Some(_) => AwaitedSide::Both,
        };
        let left = match side {
            AwaitedSide::Sender => self.is_upload.then(|| transfer.exchange.opaque_from_client()),
            _ => Some(waiting),
        };
        TransferProgress { side, from_client, to_client, left }
    }

    /// Notes bytes that have moved. Returns whether the bound begins anew: another side is waited
    /// for now, or enough has moved.
    pub(super) fn begins_anew(&mut self, progress: &TransferProgress, load: ServerLoad) -> bool {
        let has_changed = std::mem::replace(&mut self.side, progress.side) != progress.side;
        // An interim response lets the client begin with its body.
        let is_asked = progress.side == AwaitedSide::Sender && progress.to_client > 0;
        self.moved += progress.from_client + progress.to_client;
        self.was_wanted |= load.is_wanted;
        let begins_anew = has_changed || is_asked || self.moved >= self.needed(load.streams, self.was_wanted);
        if begins_anew {
            (self.moved, self.left, self.was_wanted) = (0, progress.left, load.is_wanted);
        }
        begins_anew
    }

    /// Whether a bound that is over begins anew: too little has moved only for a server that other
    /// requests wait for, and none waits any more.
    pub(super) fn is_spared(&mut self, load: ServerLoad) -> bool {
        let is_spared = !load.is_wanted && self.moved >= self.needed(load.streams, false);
        if is_spared {
            (self.moved, self.was_wanted) = (0, false);
        }
        is_spared
    }

    /// Bytes that have to move within the bound. Any byte is enough, except of a client that sends
    /// an upload or does not take its response: that needs its part of [`MIN_RATE`], or all that
    /// was left. A body of unknown length may be a stream of messages, with pauses: it needs the
    /// rate only where other requests wait for the server.
    fn needed(&self, streams: usize, is_wanted: bool) -> u64 {
        let sharing = if is_wanted { 1 } else { streams.max(1) as u64 };
        let of_period = MIN_RATE * self.bound().as_secs() / sharing;
        let needed = match (self.side, self.left) {
            (AwaitedSide::Sender | AwaitedSide::Reader, Some(left)) => of_period.min(left),
            (AwaitedSide::Sender, None) if is_wanted => of_period,
            _ => 1,
        };
        needed.max(1)
    }

    /// The end of a transfer whose bound is over. `None`: it waits for no reader.
    pub(super) fn end(&self) -> Option<TransferEnd> {
        (self.side == AwaitedSide::Reader).then_some(TransferEnd::ClientTooSlow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: ServerLoad = ServerLoad { streams: 1, is_wanted: false };

    const WANTED: ServerLoad = ServerLoad { streams: 20, is_wanted: true };

    const WAITING: u64 = 64 * 1024;

    fn among(streams: usize) -> ServerLoad {
        ServerLoad { streams, is_wanted: false }
    }

    fn limit(idle: u64, side: AwaitedSide) -> StallLimit {
        let timeouts = Timeouts { idle: Duration::from_secs(idle), ..Timeouts::default() };
        StallLimit { side, ..StallLimit::of(&timeouts, true) }
    }

    fn progress(side: AwaitedSide, bytes: u64, left: Option<u64>) -> TransferProgress {
        let is_sender = side == AwaitedSide::Sender;
        let (from_client, to_client) = if is_sender { (bytes, 0) } else { (0, bytes) };
        TransferProgress { side, from_client, to_client, left }
    }

    #[test]
    fn client_that_takes_nothing_holds_a_server_for_a_minute() {
        let bound = |idle, side| limit(idle, side).bound().as_secs();
        assert_eq!(bound(600, AwaitedSide::Reader), 60);
        assert_eq!(bound(600, AwaitedSide::Sender), 60);
        assert_eq!(bound(600, AwaitedSide::Both), 600);
        assert_eq!(bound(7, AwaitedSide::Reader), 7);
    }

    /// Seconds for which a client holds a server, up to an hour, that moves so many bytes in each
    /// second in which it `moves`.
    fn held_while(
        limit: &mut StallLimit,
        step: TransferProgress,
        moves: impl Fn(u64) -> bool,
        load: impl Fn(u64) -> ServerLoad,
    ) -> u64 {
        let mut since = 0;
        for second in 0..3_600 {
            if moves(second) && limit.begins_anew(&step, load(second)) {
                since = second;
            } else if second - since >= limit.bound().as_secs() {
                if !limit.is_spared(load(second)) {
                    return second;
                }
                since = second;
            }
        }
        3_600
    }

    fn held(idle: u64, side: AwaitedSide, rate: u64, left: Option<u64>, load: ServerLoad) -> u64 {
        let mut limit = limit(idle, AwaitedSide::Both);
        held_while(&mut limit, progress(side, rate, left), |_| true, |_| load)
    }

    #[test]
    fn client_that_takes_too_little_holds_a_server_for_a_minute() {
        let held = |idle, rate, load| held(idle, AwaitedSide::Reader, rate, Some(WAITING), load);
        assert_eq!(held(600, 1, ALONE), 60);
        assert_eq!(held(600, 490, ALONE), 60);
        // A modem of 56 kbit/s, and its share of many streams.
        assert_eq!(held(600, 7_000, ALONE), 3_600);
        assert_eq!(held(600, 7_000 / 100, among(100)), 3_600);
        assert_eq!(held(600, 1, among(100)), 60);
        assert_eq!(held(7, 490, ALONE), 7);
        assert_eq!(held(7, 600, ALONE), 3_600);
    }

    #[test]
    fn client_that_sends_its_upload_too_slowly_holds_a_server_for_a_minute() {
        let held = |idle, rate, load| held(idle, AwaitedSide::Sender, rate, Some(1 << 20), load);
        assert_eq!(held(600, 1, ALONE), 60);
        assert_eq!(held(600, 490, ALONE), 60);
        assert_eq!(held(600, 510, ALONE), 3_600);
        assert_eq!(held(600, 70, among(100)), 3_600);
        assert_eq!(held(7, 490, ALONE), 7);
    }

    #[test]
    fn streams_share_no_rate_while_other_requests_wait() {
        for side in [AwaitedSide::Reader, AwaitedSide::Sender] {
            // 600 bytes a second in all.
            assert_eq!(held(600, side, 600 / 20, Some(1 << 20), among(20)), 3_600);
            assert_eq!(held(600, side, 600 / 20, Some(1 << 20), WANTED), 60);
            assert_eq!(held(600, side, 510, Some(1 << 20), WANTED), 3_600);
        }
    }

    #[test]
    fn stream_of_messages_may_pause_while_no_other_request_waits() {
        let calls = |load: fn(u64) -> ServerLoad| {
            let step = progress(AwaitedSide::Sender, 100, None);
            held_while(&mut limit(600, AwaitedSide::Both), step, |second| second % 50 == 0, load)
        };
        assert_eq!(calls(|_| among(20)), 3_600);
        assert_eq!(calls(|_| WANTED), 60);
        // Another request waits for a second, and later ones all the time.
        assert_eq!(calls(|second| if second == 100 { WANTED } else { ALONE }), 3_600);
        assert_eq!(calls(|second| if second >= 120 { WANTED } else { ALONE }), 160);
    }

    #[test]
    fn interim_response_gives_the_client_its_time() {
        let mut limit = limit(600, AwaitedSide::Sender);
        let interim = TransferProgress { to_client: 25, ..progress(AwaitedSide::Sender, 0, Some(1 << 20)) };
        assert!(limit.begins_anew(&interim, ALONE));
        assert!(!limit.begins_anew(&progress(AwaitedSide::Sender, 25, Some(1 << 20)), ALONE));
    }

    #[test]
    fn client_that_takes_too_little_of_a_file_is_given_up() {
        let timeouts = Timeouts { idle: Duration::from_secs(600), ..Timeouts::default() };
        for (rate, streams, is_enough) in [(499, 1, false), (500, 1, true), (4, 100, false), (5, 100, true)] {
            let mut limit = StallLimit::of_reader(&timeouts);
            assert_eq!(limit.bound().as_secs(), 60);
            let begins_anew = (0..60).filter(|_| limit.has_taken(rate, streams)).count();
            assert_eq!(begins_anew > 0, is_enough, "{rate} bytes a second on {streams} streams");
        }
    }

    #[test]
    fn client_of_a_slow_server_needs_no_rate() {
        // It takes all that waits, though that is little.
        assert_eq!(held(600, AwaitedSide::Reader, 10, Some(100), ALONE), 3_600);
        let mut limit = limit(600, AwaitedSide::Both);
        let mut begins_anew =
            |side, moved, left| limit.begins_anew(&progress(side, moved, Some(left)), ALONE);
        assert!(begins_anew(AwaitedSide::Both, 1, 0));
        assert!(!begins_anew(AwaitedSide::Both, 0, 0));
        assert!(begins_anew(AwaitedSide::Reader, 0, 10));
        assert!(begins_anew(AwaitedSide::Both, 10, 0), "it has taken all");
    }
}
