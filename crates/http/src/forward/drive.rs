//! Drives a transfer: applies its time limits, counts its bytes, and watches the health of its
//! server.

use std::task::{Context, Poll};

use convey_proxy::{ClientStream, HeldResource, RegisteredRequest};
use convey_snapshot::stats::Counter;
use convey_stream::PollClock;
use convey_upstream::Permit;
use tokio::time::Instant;

use super::answer_now;
use super::deadline::Deadline;
use super::stall::StallLimit;
use super::timeouts::RequestTimeouts;
use super::unread::UnreadCheck;
use crate::pace::BodyPace;
use crate::record::RequestRecord;
use crate::request::HttpRequest;
use crate::time_limit::TimeLimit;
use crate::transfer::{RunningTransfer, TransferEnd};

/// What drives a transfer, during a poll.
pub(super) struct Driver<'d> {
    pub(super) client: &'d ClientStream,
    pub(super) time_limit: &'d mut TimeLimit,
    pub(super) record: &'d mut RequestRecord,
    pub(super) permit: &'d Permit,
    /// Server that a client's stream holds; `None`: the client uses no stream.
    pub(super) held: Option<&'d HeldResource>,
}

/// State of a driven transfer between two polls.
pub(super) struct DriveState {
    /// Time at which the transfer began.
    pub(super) sent: Instant,
    /// Whether the status of the response is noted.
    is_noted: bool,
    /// Minimum rate of the request's body; `None`: no minimum.
    pace: Option<Box<BodyPace>>,
    stall: StallLimit,
    unread: UnreadCheck,
    /// Time at which the request has to be over; `None`: it may take any time.
    deadline: Option<Deadline>,
    /// Entry through which the transfer ends when its server goes down.
    watch: Option<RegisteredRequest>,
}

impl DriveState {
    /// Begins to drive the transfer of a request to the server of the permit.
    pub(super) fn begin(
        client: &ClientStream,
        request: &HttpRequest,
        timeouts: &RequestTimeouts,
        permit: &Permit,
        time_limit: &mut TimeLimit,
    ) -> DriveState {
        let slowest = request.frontend().config.http_limits().body_rate;
        let stall = StallLimit::new(timeouts, request.head());
        time_limit.renew(stall.bound());
        DriveState {
            sent: PollClock::now(),
            is_noted: false,
            pace: slowest.map(BodyPace::new).map(Box::new),
            stall,
            unread: UnreadCheck::default(),
            deadline: timeouts.deadline.map(Deadline::new),
            watch: client.register_request(permit),
        }
    }

    /// Moves the request and its response. `Ready`: the transfer has ended, or too few bytes have
    /// moved for too long (`None`).
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        transfer: &mut impl RunningTransfer,
        driver: &mut Driver<'_>,
    ) -> Poll<Option<TransferEnd>> {
        let polled = transfer.poll(cx);
        let status = transfer.meter().status;
        driver.record.progresses(driver.client, transfer.state(), status);
        if let Some(status) = status.filter(|_| !self.is_noted) {
            self.is_noted = true;
            driver.note_status(status, self.sent);
        }
        let body = self.count(transfer, driver);
        let is_awaited = transfer.meter().awaits_client && status.is_none();
        if let Poll::Ready(end) = polled {
            return Poll::Ready(Some(end));
        }
        if self.is_over_time(cx) && !transfer.state().has_changed() {
            return Poll::Ready(Some(TransferEnd::OverTime));
        }
        if self.is_down(cx) {
            return Poll::Ready(Some(TransferEnd::ServerDown));
        }
        if self.pace.as_mut().is_some_and(|pace| pace.is_too_slow(body, is_awaited, PollClock::now())) {
            return Poll::Ready(None);
        }
        if let Poll::Ready(end) = self.unread.poll(cx, transfer) {
            return Poll::Ready(Some(end));
        }
        let Driver { client, time_limit, permit, held, .. } = driver;
        let wanted = || permit.is_wanted().then(|| held.map_or(1, HeldResource::count_of_connection));
        self.stall.poll_over(cx, time_limit, client, wanted).map(|()| self.stall.end())
    }

    /// Counts the bytes that have moved since the last poll. Returns those of the request's body.
    fn count(&mut self, transfer: &mut impl RunningTransfer, driver: &mut Driver<'_>) -> u64 {
        let meter = transfer.meter_mut();
        let (rx, tx) = std::mem::take(&mut meter.moved);
        let body = std::mem::take(&mut meter.body);
        if self.stall.begins_anew(&self.stall.progress(transfer, (rx.max(body), tx))) {
            driver.time_limit.renew(self.stall.bound());
        }
        if (rx, tx, body) != (0, 0, 0) {
            // The connection of a stream counts the bytes itself.
            if driver.held.is_none() {
                driver.client.count_bytes(rx, tx);
            }
            driver.record.count(body, tx);
            driver.permit.count(Counter::BytesRx, body);
            driver.permit.count(Counter::BytesTx, tx);
        }
        transfer.count_compression(driver.client, driver.record);
        body
    }

    fn is_over_time(&mut self, cx: &mut Context<'_>) -> bool {
        self.deadline.as_mut().is_some_and(|deadline| deadline.poll_over(cx).is_ready())
    }

    /// Whether the watched server has gone down.
    fn is_down(&self, cx: &mut Context<'_>) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.poll_down(cx).is_ready())
    }
}

impl Driver<'_> {
    /// Notes the status of the response to a request that was sent at `sent`. Notes it at once,
    /// because a cut drops the transfer.
    fn note_status(&mut self, status: u16, sent: Instant) {
        self.record.has_status(status);
        self.permit.count(Counter::of_status(status), 1);
        self.client.count(Counter::of_status(status), 1);
        self.permit.answered_with(answer_now(self.client, Some(status), sent), self.client.failures());
    }
}
