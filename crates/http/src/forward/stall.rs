//! Time limit for transfers in which too few bytes move between a client and a server.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use convey_http_core::{BodyFraming, RequestHead};
use convey_proxy::{ClientStream, ConnectionBytes};

use super::timeouts::RequestTimeouts;
use crate::time_limit::TimeLimit;
use crate::transfer::{RunningTransfer, TransferEnd};

/// Period in which a client's connection has to send enough bytes while the client holds a server;
/// `timeouts.idle` may shorten the period. While convey waits for the client to accept the
/// response, the period is `timeouts.send` instead.
const PERIOD: Duration = Duration::from_secs(60);

/// Minimum rate of a client's connection in bytes a second, over a period. The bytes of a single
/// stream are a poor measure: they move in steps, whenever buffers of the kernel, of TLS and of
/// libraries have room again.
const MIN_RATE: u64 = 500;

/// Periods in a row for which a stream may move nothing while other streams keep its connection
/// busy.
const MAX_STILL_PERIODS: u32 = 10;

/// Time limit of a transfer without progress. It depends on the side that the transfer waits for.
pub(crate) struct StallLimit {
    idle: Duration,
    response: Duration,
    /// Upper bound while the transfer waits for a client that takes the response.
    take_period: Duration,
    side: AwaitedSide,
    /// Whether the request has a body of known length.
    is_upload: bool,
    /// Bytes that have moved since the bound began.
    moved: u64,
    /// Bytes of the response that waited for the client when the bound began.
    left: u64,
    /// Bytes of the client's connection when a period began; `None`: none has begun.
    connection: Option<ConnectionBytes>,
    /// Periods in a row in which no byte has moved.
    still_periods: u32,
}

/// Side that a transfer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitedSide {
    /// The client, for the rest of its request.
    Sender,
    /// The server, for the head of its response.
    Server,
    /// The client, which does not read the response.
    Reader,
    /// Both, during the response or after a change of protocol.
    Both,
}

/// State of a transfer, and the bytes that have moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct TransferProgress {
    side: AwaitedSide,
    from_client: u64,
    to_client: u64,
    /// Bytes of the response that wait for the client.
    waiting: u64,
}

impl StallLimit {
    /// Returns the bound for a request with this head.
    pub(super) fn new(timeouts: &RequestTimeouts, head: &RequestHead) -> StallLimit {
        StallLimit::of(timeouts, matches!(head.framing(), BodyFraming::Length(_)))
    }

    fn of(timeouts: &RequestTimeouts, is_upload: bool) -> StallLimit {
        let (idle, response, side) = (timeouts.idle, timeouts.response, AwaitedSide::Server);
        let of_reader = StallLimit::of_reader(timeouts.send);
        StallLimit { idle, response, side, is_upload, ..of_reader }
    }

    /// Returns the bound for a file.
    pub(crate) fn of_file(timeouts: &RequestTimeouts) -> StallLimit {
        StallLimit::of_reader(timeouts.send)
    }

    /// Returns the bound for a response that waits only for its client, with this period.
    pub(crate) fn of_reader(period: Duration) -> StallLimit {
        StallLimit {
            idle: period,
            response: period,
            take_period: period,
            side: AwaitedSide::Reader,
            is_upload: false,
            moved: 0,
            left: u64::MAX,
            connection: None,
            still_periods: 0,
        }
    }

    /// Notes that the client has accepted bytes of a response that waits only for the client.
    pub(crate) fn has_taken(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// Returns the bound at this point of a transfer.
    pub(crate) fn bound(&self) -> Duration {
        match self.side {
            AwaitedSide::Sender => PERIOD.min(self.idle),
            AwaitedSide::Reader => self.take_period,
            AwaitedSide::Server => self.response.min(self.idle),
            AwaitedSide::Both => self.idle,
        }
    }

    /// Returns the state of this transfer. `from_client` and `to_client` are the numbers of bytes
    /// that have moved since the last call.
    pub(super) fn progress(
        &self,
        transfer: &impl RunningTransfer,
        (from_client, to_client): (u64, u64),
    ) -> TransferProgress {
        let waiting = transfer.waiting_for_client();
        let meter = transfer.meter();
        let side = match meter.status {
            None if meter.awaits_client => AwaitedSide::Sender,
            // The transfer has used up its turn, and more bytes are available. The side stays the
            // same, so that small pieces do not renew the bound.
            None if meter.has_more => self.side,
            None => AwaitedSide::Server,
            Some(_) if waiting > 0 && !transfer.state().has_changed() => AwaitedSide::Reader,
            Some(_) => AwaitedSide::Both,
        };
        TransferProgress { side, from_client, to_client, waiting }
    }

    /// Notes bytes that have moved. Returns whether the bound begins again: the transfer now waits
    /// for another side, or the awaited side has done all that it could.
    pub(super) fn begins_anew(&mut self, progress: &TransferProgress) -> bool {
        let TransferProgress { side, from_client, to_client, waiting } = *progress;
        let has_changed = std::mem::replace(&mut self.side, side) != side;
        self.moved += match side {
            AwaitedSide::Sender => from_client,
            AwaitedSide::Reader => to_client,
            AwaitedSide::Server | AwaitedSide::Both => from_client + to_client,
        };
        let begins_anew = has_changed
            || match side {
                // An interim response lets the client begin with its body.
                AwaitedSide::Sender => to_client > 0,
                AwaitedSide::Reader => self.moved >= self.left,
                AwaitedSide::Server | AwaitedSide::Both => self.moved > 0,
            };
        if begins_anew {
            (self.moved, self.left, self.still_periods) = (0, waiting, 0);
        }
        begins_anew
    }

    /// Waits until the bound expires. The bound begins again for a client whose connection is fast
    /// enough; `wanted`: see [`StallLimit::is_fast_enough`].
    pub(crate) fn poll_over(
        &mut self,
        cx: &mut Context<'_>,
        time_limit: &mut TimeLimit,
        client: &ClientStream,
        wanted: impl Fn() -> Option<usize>,
    ) -> Poll<()> {
        let awaits_client = matches!(self.side, AwaitedSide::Sender | AwaitedSide::Reader);
        if awaits_client && self.connection.is_none() {
            self.connection = Some(client.connection_bytes());
            time_limit.renew(self.bound());
        }
        loop {
            ready!(time_limit.poll_over(cx));
            if !awaits_client || !self.is_fast_enough(client.connection_bytes(), wanted()) {
                return Poll::Ready(());
            }
            time_limit.renew(self.bound());
        }
    }

    /// Whether a client that convey waits for gets another period: its connection has moved enough
    /// bytes. `now` are the byte counts of the connection.
    ///
    /// If other requests wait for the server, `wanted` is the number of servers that the connection
    /// holds, and the connection needs the minimum rate for each of them. A request body of unknown
    /// length may be a stream of messages with pauses. It needs the minimum rate only if `wanted`
    /// is set.
    fn is_fast_enough(&mut self, now: ConnectionBytes, wanted: Option<usize>) -> bool {
        let before = self.connection.replace(now).unwrap_or(now);
        let has_moved = std::mem::take(&mut self.moved) > 0;
        self.still_periods = if has_moved { 0 } else { self.still_periods + 1 };
        let is_sender = self.side == AwaitedSide::Sender;
        if is_sender && !self.is_upload && wanted.is_none() && has_moved {
            return true;
        }
        let bytes = match is_sender {
            true => now.received.saturating_sub(before.received),
            false => now.acknowledged.saturating_sub(before.acknowledged),
        };
        let rate = MIN_RATE * wanted.unwrap_or(1) as u64;
        bytes >= (rate * self.bound().as_secs()).max(1) && self.still_periods < MAX_STILL_PERIODS
    }

    /// Returns the end of a transfer whose bound has expired; `None` if the transfer does not wait
    /// for a reader.
    pub(super) fn end(&self) -> Option<TransferEnd> {
        (self.side == AwaitedSide::Reader).then_some(TransferEnd::ClientTooSlow)
    }
}

#[cfg(test)]
mod tests {
    use convey_model::Timeouts;
    use proptest::prelude::*;

    use super::*;

    const WAITING: u64 = 64 * 1024;

    /// Number of servers that the streams of a connection hold while other requests wait.
    const WANTED: Option<usize> = Some(20);

    fn limit(idle: u64, side: AwaitedSide, is_upload: bool) -> StallLimit {
        let timeouts = Timeouts { idle: Duration::from_secs(idle), ..Timeouts::default() };
        StallLimit { side, ..StallLimit::of(&RequestTimeouts::new(&timeouts, None), is_upload) }
    }

    #[derive(Clone, Copy)]
    struct Second {
        /// Bytes that move in the transfer itself.
        own: u64,
        /// Bytes of the connection, in the awaited direction.
        connection: u64,
        wanted: Option<usize>,
    }

    /// Bytes that move in each second over a connection with no other stream.
    fn alone(rate: u64) -> Second {
        Second { own: rate, connection: rate, wanted: None }
    }

    /// Seconds for which a client holds a server, up to two hours.
    fn held_while(limit: &mut StallLimit, side: AwaitedSide, seconds: impl Fn(u64) -> Second) -> u64 {
        let (mut since, mut bytes) = (0, ConnectionBytes::default());
        limit.connection = Some(bytes);
        for at in 1..=7_200 {
            let second = seconds(at);
            let is_sender = side == AwaitedSide::Sender;
            let (from_client, to_client) = if is_sender { (second.own, 0) } else { (0, second.own) };
            let moved = if is_sender { &mut bytes.received } else { &mut bytes.acknowledged };
            *moved += second.connection;
            if limit.begins_anew(&TransferProgress { side, from_client, to_client, waiting: WAITING }) {
                since = at;
            } else if at - since >= limit.bound().as_secs() {
                if !limit.is_fast_enough(bytes, second.wanted) {
                    return at;
                }
                since = at;
            }
        }
        7_200
    }

    fn held(idle: u64, side: AwaitedSide, second: Second) -> u64 {
        held_while(&mut limit(idle, side, true), side, |_| second)
    }

    #[test]
    fn client_that_takes_nothing_holds_a_server_for_a_minute() {
        let bound = |idle, side| limit(idle, side, true).bound().as_secs();
        assert_eq!(bound(600, AwaitedSide::Reader), 60);
        assert_eq!(bound(600, AwaitedSide::Sender), 60);
        assert_eq!(bound(600, AwaitedSide::Both), 600);
        assert_eq!(bound(7, AwaitedSide::Reader), 7);
        assert_eq!(held(600, AwaitedSide::Reader, alone(0)), 60);
    }

    #[test]
    fn timeouts_send_limits_a_client_that_takes_nothing_and_no_upload() {
        let timeouts = Timeouts { send: Duration::from_secs(5), ..Timeouts::default() };
        let held = |side| {
            let mut limit =
                StallLimit { side, ..StallLimit::of(&RequestTimeouts::new(&timeouts, None), true) };
            held_while(&mut limit, side, |_| alone(0))
        };
        assert_eq!((held(AwaitedSide::Reader), held(AwaitedSide::Sender)), (5, 60));
    }

    #[test]
    fn client_that_moves_too_little_holds_a_server_for_a_minute() {
        for side in [AwaitedSide::Reader, AwaitedSide::Sender] {
            assert_eq!(held(600, side, alone(1)), 60);
            assert_eq!(held(600, side, alone(490)), 60);
            assert_eq!(held(600, side, alone(500)), 7_200);
            assert_eq!(held(7, side, alone(490)), 7);
            assert_eq!(held(7, side, alone(500)), 7_200);
        }
    }

    #[test]
    fn slow_connection_may_have_many_streams() {
        for side in [AwaitedSide::Reader, AwaitedSide::Sender] {
            // A stream of a connection with 2 kB/s moves once in five minutes.
            let step = |at| Second { own: u64::from(at % 300 == 0) * 16_384, ..alone(2_000) };
            assert_eq!(held_while(&mut limit(600, side, true), side, step), 7_200);
        }
    }

    #[test]
    fn stalled_stream_on_a_busy_connection_holds_a_server_for_ten_periods() {
        for side in [AwaitedSide::Reader, AwaitedSide::Sender] {
            assert_eq!(held(600, side, Second { own: 0, ..alone(1 << 20) }), 600);
            assert_eq!(held(7, side, Second { own: 0, ..alone(1 << 20) }), 70);
        }
    }

    #[test]
    fn each_server_needs_the_rate_while_other_requests_wait() {
        for side in [AwaitedSide::Reader, AwaitedSide::Sender] {
            assert_eq!(held(600, side, Second { own: 600, connection: 9_900, wanted: None }), 7_200);
            assert_eq!(held(600, side, Second { own: 600, connection: 9_900, wanted: WANTED }), 60);
            assert_eq!(held(600, side, Second { own: 600, connection: 10_000, wanted: WANTED }), 7_200);
        }
    }

    #[test]
    fn stream_of_messages_may_pause_while_no_other_request_waits() {
        let calls = |wanted: fn(u64) -> Option<usize>| {
            let message = |at| {
                let bytes = u64::from(at % 50 == 0) * 100;
                Second { wanted: wanted(at), ..alone(bytes) }
            };
            held_while(&mut limit(600, AwaitedSide::Sender, false), AwaitedSide::Sender, message)
        };
        assert_eq!(calls(|_| None), 7_200);
        assert_eq!(calls(|_| Some(1)), 60);
        // Another request waits for a second, and later ones all the time.
        assert_eq!(calls(|at| (at == 100).then_some(1)), 7_200);
        assert_eq!(calls(|at| (at >= 121).then_some(1)), 180);
    }

    #[test]
    fn interim_response_gives_the_client_its_time() {
        let mut limit = limit(600, AwaitedSide::Sender, true);
        let interim =
            TransferProgress { side: AwaitedSide::Sender, from_client: 0, to_client: 25, waiting: 0 };
        assert!(limit.begins_anew(&interim));
        assert!(!limit.begins_anew(&TransferProgress { from_client: 25, to_client: 0, ..interim }));
    }

    #[test]
    fn client_that_takes_too_little_of_a_file_is_given_up() {
        let timeouts = Timeouts { idle: Duration::from_secs(600), ..Timeouts::default() };
        for (bytes, is_enough) in [(29_999, false), (30_000, true)] {
            let mut limit = StallLimit::of_file(&RequestTimeouts::new(&timeouts, None));
            limit.connection = Some(ConnectionBytes::default());
            limit.has_taken(bytes);
            let taken = ConnectionBytes { received: 0, acknowledged: bytes };
            assert_eq!(limit.is_fast_enough(taken, None), is_enough);
        }
    }

    #[test]
    fn client_of_a_slow_server_needs_no_rate() {
        // The client accepts all waiting bytes, though they are few.
        let (side, second) = (AwaitedSide::Reader, Second { own: WAITING / 50, ..alone(10) });
        assert_eq!(held_while(&mut limit(600, AwaitedSide::Both, true), side, |_| second), 7_200);
        let mut limit = limit(600, AwaitedSide::Both, true);
        let mut begins_anew = |side, to_client, waiting| {
            limit.begins_anew(&TransferProgress { side, from_client: 0, to_client, waiting })
        };
        assert!(begins_anew(AwaitedSide::Both, 1, 0));
        assert!(!begins_anew(AwaitedSide::Both, 0, 0));
        assert!(begins_anew(side, 0, 10));
        assert!(!begins_anew(side, 9, 90));
        assert!(begins_anew(side, 1, 90), "it has taken all that waited");
        assert!(begins_anew(AwaitedSide::Both, 90, 0), "nothing waits");
    }

    #[test]
    fn upload_is_no_progress_of_a_client_that_reads_nothing() {
        let mut limit = limit(600, AwaitedSide::Reader, false);
        (limit.left, limit.connection) = (10, Some(ConnectionBytes::default()));
        for _ in 0..60 {
            let uploads = TransferProgress {
                side: AwaitedSide::Reader,
                from_client: 1 << 20,
                to_client: 0,
                waiting: 10,
            };
            assert!(!limit.begins_anew(&uploads));
        }
        assert!(!limit.is_fast_enough(ConnectionBytes { received: 60 << 20, acknowledged: 400 }, None));
    }

    proptest! {
        #[test]
        fn server_is_not_held_below_the_rate_or_without_progress(
            is_reader in any::<bool>(),
            periods in prop::collection::vec((0..40_000_u64, 0..5_u64, prop::option::of(1..4_usize)), 1..60),
        ) {
            let side = if is_reader { AwaitedSide::Reader } else { AwaitedSide::Sender };
            let second = |at: u64| {
                let (connection, own, wanted) = periods[(at as usize - 1) / 60 % periods.len()];
                // All bytes move at the beginning of a period.
                let is_first = at % 60 == 1;
                Second { own: u64::from(is_first) * u64::from(own == 4), connection: u64::from(is_first) * connection, wanted }
            };
            let held = held_while(&mut limit(600, side, true), side, second);
            let is_slow = |n: usize| {
                let (connection, _, wanted) = periods[n % periods.len()];
                connection < 30_000 * wanted.unwrap_or(1) as u64
            };
            let is_still = |n: usize| n >= 9 && (n - 9..=n).all(|n| periods[n % periods.len()].1 < 4);
            let last = (0..120).find(|n| is_slow(*n) || is_still(*n));
            prop_assert_eq!(held, last.map_or(7_200, |last| 60 * (last as u64 + 1)));
        }
    }
}
