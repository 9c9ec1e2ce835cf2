//! Request of a client's stream: decision, response, and line in the access log.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use convey_http_core::{FieldRules, Frame, HttpMethod, Malformed, OutgoingResponse, RequestHead};
use convey_proxy::{ClientStream, RequestCharge};
use convey_snapshot::stats::Counter;
use tokio::time::timeout;

use super::IncomingStream;
use super::body::ResetReason;
use super::connection::is_early_reset;
use super::serving::StreamOutcome;
use crate::ends::ClientEnd;
use crate::forward::{Forwarding, RequestEnd, RequestTimeouts, StallLimit};
use crate::linger;
use crate::local_reply::{ANSWER_TIME, LocalReply, LocalReplyReason};
use crate::open_request::OpenRequest;
use crate::record::RequestRecord;
use crate::request::{Decision, HttpRequest, local_reply_fields};
use crate::server::WorkerServer;
use crate::stack::{DecideRequest, decide};
use crate::time_limit::TimeLimit;
use crate::worker::HttpWorker;

/// Serves the request of a stream. `head` is an error if the head is malformed. Returns how the
/// stream ended.
pub(crate) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    server: Arc<WorkerServer<S>>,
    head: Result<Arc<RequestHead>, Malformed>,
    stream: &mut impl IncomingStream,
    record: RequestRecord,
) -> StreamOutcome {
    client.count(Counter::Requests, 1);
    // The request counts for its client until the response has been sent.
    let mut charge = RequestCharge::default();
    let mut open = OpenRequest::new(record, client, head.as_ref().ok().cloned());
    let end = match &head {
        Ok(head) => forward(&server, head.clone(), stream, (&mut open, &mut charge)).await,
        Err(malformed) => RequestEnd::Unanswered(LocalReplyReason::Malformed(*malformed).into()),
    };
    let mut reset = None;
    let mut broken = match end {
        RequestEnd::Answered { .. } => None,
        RequestEnd::Broken(reason) => Some(reason),
        RequestEnd::ServerReset(reason) => {
            reset = Some(reason);
            Some(Counter::ServerReset)
        }
        RequestEnd::Unanswered(answer) => {
            let written = write(&server.worker, &answer, stream, &mut open).await;
            // The HTTP/2 library has already reset the stream of a malformed body.
            let is_refused = matches!(answer.reason(), LocalReplyReason::Malformed(_));
            written.err().filter(|reason| !is_refused || *reason != Counter::ClientReset)
        }
    };
    if broken.is_none() {
        broken = deliver((client, &server.worker), |cx| stream.poll_finish(cx)).await.err();
    }
    if let Some(reason) = broken {
        open.record.broke(reason);
        match reason {
            Counter::IdleTimeout => client.count(Counter::DroppedIdle, 1),
            Counter::ClientTooSlow => client.count(Counter::DroppedTooSlow, 1),
            Counter::RequestDeadline => client.count(Counter::DroppedDeadline, 1),
            _ => {}
        }
        let is_of_client = reason == Counter::ClientReset;
        let usual = if is_of_client { ResetReason::Cancelled } else { ResetReason::Internal };
        stream.reset(reset.unwrap_or(usual));
    }
    let is_early = is_early_reset(open.record.has_begun_response(), open.record.began.elapsed());
    open.end();
    if broken.is_none() {
        take_rest(stream).await;
    }
    match broken {
        Some(Counter::ClientReset) if is_early => StreamOutcome::Reset,
        _ => StreamOutcome::Served,
    }
}

/// Calls `poll`, which sends the rest of a response, until the client has accepted the response.
/// The server is no longer needed. Returns an error if the client reads nothing for too long.
async fn deliver(
    (client, worker): (&ClientStream, &HttpWorker),
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> Result<(), Counter> {
    let mut waiting = None;
    poll_fn(|cx| match poll(cx) {
        Poll::Ready(delivered) => Poll::Ready(delivered.map_err(|_| Counter::ClientReset)),
        Poll::Pending => {
            let (time_limit, stall) = waiting.get_or_insert_with(|| {
                (TimeLimit::new(&worker.clock, ANSWER_TIME), StallLimit::of_reader(ANSWER_TIME))
            });
            stall.poll_over(cx, time_limit, client, || None).map(|()| Err(Counter::ClientTooSlow))
        }
    })
    .await
}

/// Receives what the client still sends of its request, for a limited time: some clients lose a
/// response if a reset immediately follows it.
///
/// If the request is still incomplete then, the library resets the stream without an error once the
/// stream is dropped (RFC 9113, section 8.1). A reset by convey would replace the unsent rest of
/// the response.
async fn take_rest(stream: &mut impl IncomingStream) {
    let mut left = linger::MAX_OF_STREAM;
    let mut poll_rest = |cx: &mut Context<'_>| {
        while let Ok(Frame::Data(data)) = ready!(stream.body().poll_frame(cx)) {
            if data.len() >= left || stream.body().release(data.len()).is_err() {
                break;
            }
            left -= data.len();
        }
        Poll::Ready(())
    };
    // Most requests are complete, and need no timer.
    if poll_fn(|cx| Poll::Ready(poll_rest(cx).is_pending())).await {
        let _ = timeout(linger::LINGER, poll_fn(poll_rest)).await;
    }
}

/// Passes a request through the stack, and forwards it to a server.
async fn forward<S: DecideRequest>(
    server: &WorkerServer<S>,
    head: Arc<RequestHead>,
    stream: &mut impl IncomingStream,
    (open, charge): (&mut OpenRequest<'_>, &mut RequestCharge),
) -> RequestEnd {
    let client = open.client();
    let OpenRequest { record, hooks, .. } = open;
    let frontend = client.newest();
    let request =
        HttpRequest::new(head.clone(), client, frontend.clone(), (record.began, record.known_version()));
    record.arrives(client, &request);
    let decision = match request.charge(client) {
        Ok(charged) => {
            *charge = charged;
            decide(&mut server.stack.clone(), request).await
        }
        Err(reply) => Decision::Answer { reply, request },
    };
    let request = match decision {
        Decision::Forward(mut request) => {
            hooks.take_attached(request.take_hooks());
            request.expand_rules();
            request
        }
        Decision::Answer { reply, mut request } => {
            hooks.take_attached(request.take_hooks());
            record.is_answered_on_its_route(&request);
            return RequestEnd::Unanswered(reply);
        }
    };
    let Some((route, pool)) = request.way() else {
        return RequestEnd::Unanswered(LocalReplyReason::NoRoute.into());
    };
    record.takes(client, route, &request);
    let mut time_limit = time_limit_of(stream, &server.worker);
    let (mut end, mut received) = (ClientEnd::Stream(&mut *stream), BytesMut::new());
    let (request, received) = (&request, &mut received);
    let timeouts = RequestTimeouts::of(client, request, (route, pool));
    let mut forwarding = Forwarding {
        worker: &server.worker,
        client,
        end: &mut end,
        request,
        route,
        received,
        is_last: false,
        timeouts,
        time_limit: &mut time_limit,
        record,
        hooks,
    };
    let end = forwarding.run(pool).await;
    stream.keep_time_limit(time_limit);
    end
}

/// Returns the time limit of a request: one of an earlier stream of its connection, or a new one.
fn time_limit_of(stream: &mut impl IncomingStream, worker: &HttpWorker) -> TimeLimit {
    match stream.take_time_limit() {
        Some(mut kept) => {
            kept.renew(ANSWER_TIME);
            kept
        }
        None => TimeLimit::new(&worker.clock, ANSWER_TIME),
    }
}

/// Sends a local reply on a stream.
async fn write(
    worker: &HttpWorker,
    answer: &LocalReply,
    stream: &mut impl IncomingStream,
    open: &mut OpenRequest<'_>,
) -> Result<(), Counter> {
    let client = open.client();
    open.record.answered(client, answer.status(), answer.reason());
    client.count(answer.reason().counter(), 1);
    client.count(Counter::of_status(answer.status()), 1);
    let frontend = client.newest();
    let none = FieldRules::default();
    let fields = local_reply_fields(open, &frontend).unwrap_or(Cow::Borrowed(&none));
    let has_body = open.head().is_none_or(|head| head.method() != HttpMethod::Head);
    let page = frontend.config.error_page(answer.status());
    let reply = answer.with_page(&fields, page, &mut open.hooks);
    let response = OutgoingResponse::new(&reply.head, &reply.fields);
    let mut body = if has_body { reply.body } else { Bytes::new() };
    open.hooks.response_log.note(&response, response.head_len());
    open.record.count(0, (response.head_len() + body.len()) as u64);
    stream.send_head(&response, body.is_empty()).map_err(|_| Counter::ClientReset)?;
    let written = deliver((client, worker), |cx| {
        while !body.is_empty() {
            let part = body.split_to(ready!(stream.poll_room(cx, body.len()))?);
            stream.send_data(part, body.is_empty())?;
        }
        Poll::Ready(Ok(()))
    });
    written.await
}
