//! A client's connection: its streams, each a request, and its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use convey_http_core::{FieldRules, HeadLimits, HttpMethod, RequestHead};
use convey_proxy::{ClientStream, StreamEnd};
use convey_snapshot::stats::Counter;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::time::{Instant, sleep_until, timeout};

use super::io::Connection;
use super::{IncomingStream, heads};
use crate::answer::{AnswerReason, AnswerTo, OwnAnswer};
use crate::ends::ClientEnd;
use crate::forward::{Forwarding, RequestEnd};
use crate::record::RequestRecord;
use crate::request::{Decision, HttpRequest};
use crate::stack::{DecideRequest, decide};
use crate::time_limit::TimeLimit;

/// What a client begins with that speaks HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a client may take to the end of the preface and its settings, and to take an answer of convey's own.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// How long a connection without streams stays.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How long streams may take to end once their connection is over.
const ENDING: Duration = Duration::from_secs(2);

/// Most streams at once.
const MAX_STREAMS: u32 = 100;

/// How many streams a client may reset beyond half of those that it has begun, before it is told to calm down.
const MAX_RESETS: u64 = 100;

/// How much of a request a stream may bring before a server takes it.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same for all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Most bytes that a stream keeps on their way to the client.
const SEND_BUFFER: usize = 64 * 1024;

/// Whether a client that has sent this speaks HTTP/2; `None`: too little has come to say so.
pub(crate) fn has_preface(received: &[u8]) -> Option<bool> {
    let len = received.len().min(PREFACE.len());
    match received[..len] == PREFACE[..len] {
        false => Some(false),
        true => (len == PREFACE.len()).then_some(true),
    }
}

/// Serves a client until its connection is over. `received` begins with the preface.
pub(crate) async fn serve<S: DecideRequest>(
    client: &ClientStream,
    stack: &S,
    received: BytesMut,
) -> StreamEnd {
    let handshake = builder().handshake::<_, Bytes>(Connection::new(client, received));
    let mut connection = match timeout(HEAD_TIME, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(_)) => return StreamEnd::Early(Counter::ClientReset),
        Err(_) => return StreamEnd::Early(Counter::FirstByteTimeout),
    };
    let (mut streams, mut drains, mut is_ending) = (FuturesUnordered::new(), pin!(client.drains()), false);
    let (mut begun, mut reset) = (0_u64, 0_u64);
    let mut idle_since = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(was_reset) = streams.next(), if !streams.is_empty() => {
                idle_since = Instant::now();
                reset += u64::from(was_reset);
                if reset > MAX_RESETS + begun / 2 {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                }
            }
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    begun += 1;
                    streams.push(stream(client, stack.clone(), request, respond));
                }
                Some(Err(_)) | None => break,
            },
            () = &mut drains, if !is_ending => {
                is_ending = true;
                connection.graceful_shutdown();
            }
            () = sleep_until(idle_since + KEEP_ALIVE), if !is_ending && streams.is_empty() => {
                is_ending = true;
                connection.graceful_shutdown();
            }
        }
    }
    // They see that the connection is over, and say so in the log.
    let _ = timeout(ENDING, async { while streams.next().await.is_some() {} }).await;
    StreamEnd::Closed
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(16 * 1024)
        .max_send_buffer_size(SEND_BUFFER);
    builder
}

/// Serves a stream. Returns whether the client has reset it.
async fn stream<S: DecideRequest>(
    client: &ClientStream,
    mut stack: S,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> bool {
    let mut record = RequestRecord::begin(client);
    client.count(Counter::Requests, 1);
    let (parts, body) = request.into_parts();
    let head = heads::request_from(&parts, !body.is_end_stream(), &HeadLimits::default()).map(Arc::new);
    let mut stream = IncomingStream::new(head.as_deref().ok(), body, respond);
    let end = match &head {
        Ok(head) => forward(client, &mut stack, head.clone(), &mut stream, &mut record).await,
        Err(malformed) => RequestEnd::Unanswered(AnswerReason::Malformed(*malformed).into()),
    };
    let head = head.as_deref().ok();
    let broken = match end {
        RequestEnd::Answered { .. } => None,
        RequestEnd::Broken(reason) => Some(reason),
        RequestEnd::Unanswered(answer) => write(client, &answer, head, &mut stream, &mut record).await.err(),
    };
    match broken {
        None => stream.finish(),
        Some(reason) => {
            record.broke(reason);
            stream.reset(if reason == Counter::ClientReset {
                Reason::CANCEL
            } else {
                Reason::INTERNAL_ERROR
            });
        }
    }
    record.end(client, head);
    broken == Some(Counter::ClientReset)
}

/// Decides on a request, and has a server answer it.
async fn forward<S: DecideRequest>(
    client: &ClientStream,
    stack: &mut S,
    head: Arc<RequestHead>,
    stream: &mut IncomingStream,
    record: &mut RequestRecord,
) -> RequestEnd {
    let (frontend, timeouts) = client.newest();
    let request = match decide(stack, HttpRequest::new(head, client.client(), frontend, timeouts)).await {
        Decision::Forward(request) => request,
        Decision::Answer(answer) => return RequestEnd::Unanswered(answer),
    };
    let Some((route, pool)) = request.way() else {
        return RequestEnd::Unanswered(AnswerReason::NoRoute.into());
    };
    record.takes(&route.name);
    let (mut end, mut received) = (ClientEnd::Stream(stream), BytesMut::new());
    let mut time_limit = TimeLimit::new(HEAD_TIME);
    let (request, received, time_limit) = (&request, &mut received, &mut time_limit);
    let forwarding =
        Forwarding { client, end: &mut end, request, route, received, is_last: false, time_limit, record };
    forwarding.run(pool).await
}

/// Answers a request ourselves.
async fn write(
    client: &ClientStream,
    answer: &OwnAnswer,
    head: Option<&RequestHead>,
    stream: &mut IncomingStream,
    record: &mut RequestRecord,
) -> Result<(), Counter> {
    record.answered(answer.status(), answer.reason());
    client.count(answer.reason().counter(), 1);
    client.count(Counter::of_status(answer.status()), 1);
    let (frontend, _) = client.newest();
    let none = FieldRules::default();
    let fields = frontend.http.as_ref().map_or(&none, |http| http.response_to(head));
    let has_body = head.is_none_or(|head| head.method() != HttpMethod::Head);
    let (mut out, mut sent) = (Vec::new(), 0);
    answer.write(AnswerTo { fields, closes: false, has_body }, &mut out);
    record.count(0, out.len() as u64);
    let written = poll_fn(|cx| {
        while sent < out.len() {
            match stream.poll_write(cx, &out[sent..]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Counter::ClientReset)),
                Poll::Ready(Ok(n)) => sent += n,
            }
        }
        Poll::Ready(Ok(()))
    });
    timeout(HEAD_TIME, written).await.unwrap_or(Err(Counter::IdleTimeout))
}
