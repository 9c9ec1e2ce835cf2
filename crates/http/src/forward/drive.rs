//! Drives a transfer: applies its time limits, counts its bytes, and watches the health of its
//! server.

use std::future::poll_fn;
use std::task::{Context, Poll};

use convey_model::Timeouts;
use convey_proxy::{ClientStream, HeldResource, RegisteredRequest};
use convey_snapshot::HttpRoute;
use convey_snapshot::stats::Counter;
use convey_stream::PollClock;
use convey_upstream::Permit;

use super::answer_now;
use super::stall::StallLimit;
use super::unread::UnreadCheck;
use crate::pace::BodyPace;
use crate::record::RequestRecord;
use crate::request::HttpRequest;
use crate::time_limit::TimeLimit;
use crate::transfer::{RunningTransfer, TransferEnd};
use crate::worker::HttpWorker;

/// Driver of a request's transfer: applies the time limits, and counts the moved bytes.
pub(super) struct Driver<'d> {
    pub(super) worker: &'d HttpWorker,
    pub(super) client: &'d ClientStream,
    pub(super) request: &'d HttpRequest,
    pub(super) route: &'d HttpRoute,
    pub(super) timeouts: Timeouts,
    pub(super) time_limit: &'d mut TimeLimit,
    pub(super) record: &'d mut RequestRecord,
    /// Whether this is the last request that convey reads from the client's connection.
    pub(super) is_last: bool,
    /// Whether the client uses a stream, so that its connection counts the bytes.
    pub(super) is_stream: bool,
}

impl Driver<'_> {
    /// Moves the request and its response, until the transfer ends or too few bytes move for too
    /// long (`None`).
    pub(super) async fn run(
        &mut self,
        transfer: &mut impl RunningTransfer,
        permit: &Permit,
        held: Option<&HeldResource>,
    ) -> Option<TransferEnd> {
        let Driver { client, request, timeouts, time_limit, record, is_stream, .. } = self;
        let (client, is_stream) = (*client, *is_stream);
        let mut pace = BodyPace::new(request.frontend().config.http_limits().body_rate);
        let (mut stall, mut unread) = (StallLimit::new(timeouts, request.head()), UnreadCheck::default());
        time_limit.renew(stall.bound());
        let (sent, mut is_noted) = (PollClock::now(), false);
        let watch = client.register_request(permit);
        let wanted = || permit.is_wanted().then(|| held.map_or(1, HeldResource::count_of_connection));
        poll_fn(|cx| {
            let polled = transfer.poll(cx);
            record.progresses(client, transfer.state(), transfer.meter().status);
            let status = transfer.meter().status;
            if let Some(status) = status.filter(|_| !is_noted) {
                is_noted = true;
                // Noted at once: a cut drops the transfer.
                record.has_status(status);
                permit.count(Counter::of_status(status), 1);
                client.count(Counter::of_status(status), 1);
                permit.answered_with(answer_now(client, Some(status), sent), client.failures());
            }
            let meter = transfer.meter_mut();
            let (rx, tx) = std::mem::take(&mut meter.moved);
            let body = std::mem::take(&mut meter.body);
            if stall.begins_anew(&stall.progress(transfer, (rx.max(body), tx))) {
                time_limit.renew(stall.bound());
            }
            if (rx, tx, body) != (0, 0, 0) {
                if !is_stream {
                    client.count_bytes(rx, tx);
                }
                record.count(body, tx);
                permit.count(Counter::BytesRx, body);
                permit.count(Counter::BytesTx, tx);
            }
            transfer.count_compression(client, record);
            let is_awaited = transfer.meter().awaits_client && status.is_none();
            match polled {
                Poll::Ready(end) => Poll::Ready(Some(end)),
                Poll::Pending if is_down(&watch, cx) => Poll::Ready(Some(TransferEnd::ServerDown)),
                Poll::Pending if pace.is_too_slow(body, is_awaited, PollClock::now) => Poll::Ready(None),
                Poll::Pending => match unread.poll(cx, transfer) {
                    Poll::Ready(end) => Poll::Ready(Some(end)),
                    Poll::Pending => stall.poll_over(cx, time_limit, client, wanted).map(|()| stall.end()),
                },
            }
        })
        .await
    }
}

/// Whether the watched server has gone down.
fn is_down(watch: &Option<RegisteredRequest>, cx: &mut Context<'_>) -> bool {
    watch.as_ref().is_some_and(|watch| watch.poll_down(cx).is_ready())
}
