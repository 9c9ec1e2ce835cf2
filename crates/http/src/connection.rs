//! Connection of a client: detects the HTTP version, serves requests of HTTP/1 one after the other,
//! and closes the connection.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use convey_http_core::{FieldRules, HeadReader, HttpMethod, Malformed, RequestHead};
use convey_model::HttpLimits;
use convey_proxy::{ClientBytes, ClientStream, Drain, RequestCharge, StreamEnd};
use convey_snapshot::stats::Counter;
use convey_stream::{ByteStream, More, PollClock};
use tokio::time::{Instant, timeout};

use crate::ends::ClientEnd;
use crate::forward::{Forwarding, RequestEnd, RequestTimeouts, StallLimit};
use crate::local_reply::{ANSWER_TIME, AnswerTo, LocalReply, LocalReplyReason};
use crate::open_request::OpenRequest;
use crate::record::RequestRecord;
use crate::request::{Decision, HttpRequest, local_reply_fields};
use crate::server::WorkerServer;
use crate::stack::{DecideRequest, decide};
use crate::time_limit::TimeLimit;
use crate::worker::HttpWorker;
use crate::{buffer, http2, linger};

/// Period at which convey checks whether a client has acknowledged all of its response.
const UNTAKEN_PERIOD: Duration = Duration::from_secs(1);

/// Maximum wait for a client's next request once the process stops. A request that is already on
/// its way gets its response, which announces the end of the connection.
const STOP_IDLE: Duration = Duration::from_secs(1);

/// Serves a client until its connection has ended.
pub(crate) fn serve<S: DecideRequest>(
    client: ClientStream,
    bytes: ClientBytes,
    server: Arc<WorkerServer<S>>,
) -> impl Future<Output = ()> + Send {
    let mut connection = Connection::new(client, bytes, server);
    async move {
        let end = tokio::select! {
            biased;
            reason = connection.client.over() => StreamEnd::Reset(reason),
            end = connection.run() => end,
        };
        connection.client.end(connection.bytes, end);
    }
}

/// A client's connection.
struct Connection<S> {
    client: ClientStream,
    bytes: ClientBytes,
    server: Arc<WorkerServer<S>>,
    /// Received bytes that no request has consumed.
    received: BytesMut,
    time_limit: TimeLimit,
    /// Number of requests so far.
    requests: u32,
    /// Whether a stop of the process shortens the present wait: the connection is between two
    /// requests.
    yields_to_stop: bool,
    /// The last request, counted against its client's share until the client has received the whole
    /// response.
    charge: RequestCharge,
}

/// Socket of a client's connection of HTTP/1, while a request runs.
struct ClientSocket<'a> {
    worker: &'a HttpWorker,
    bytes: &'a mut ByteStream,
    received: &'a mut BytesMut,
    time_limit: &'a mut TimeLimit,
}

/// Version of HTTP at the beginning of a connection.
enum BeginningVersion {
    /// HTTP/1, or no byte so far shows another version.
    Http1,
    Http2,
    /// A version other than the one agreed within TLS.
    Unagreed,
}

/// Next input from a client.
enum Next {
    /// A request, and whether it is the last one that convey reads from the connection.
    Request(HttpRequest, bool),
    /// A request that convey refuses.
    Refused(LocalReplyReason),
    /// No request: the connection is over.
    Over(StreamEnd),
}

/// State of a connection after a request.
enum After {
    /// The connection stays open for another request.
    Stays,
    /// convey closes the connection with a delay, so that the client receives the last response.
    Closes,
    /// The connection is over.
    Ends(StreamEnd),
}

/// Outcome of a read.
enum Read {
    Some,
    Closed,
    Reset,
    Late,
}

impl<S: DecideRequest> Connection<S> {
    fn new(mut client: ClientStream, bytes: ClientBytes, server: Arc<WorkerServer<S>>) -> Connection<S> {
        let received = BytesMut::from(&client.take_early()[..]);
        let config = &client.frontend().config;
        let head_timeout = config.http_limits().head_timeout;
        let first_byte = config.limits.first_byte_timeout.filter(|_| received.is_empty());
        let within = first_byte.map_or(head_timeout, |time| time.min(head_timeout));
        let time_limit = TimeLimit::new(&server.worker.clock, within);
        let charge = RequestCharge::default();
        Connection { client, bytes, server, received, time_limit, requests: 0, yields_to_stop: false, charge }
    }

    /// Serves requests until the connection is over.
    #[expect(clippy::manual_async_fn, reason = "it would have a second place for `self`")]
    fn run(&mut self) -> impl Future<Output = StreamEnd> + Send {
        async move {
            let mut is_first = true;
            loop {
                // The future is boxed, so that an idle connection does not reserve memory for it.
                if let Some(end) = Box::pin(self.serve_until_rest(is_first)).await {
                    return end;
                }
                self.begin_rest();
                let read = match self.charge.is_counted() {
                    true => Box::pin(self.read_while_charged()).await,
                    false => poll_fn(|cx| self.poll_read_in_time(cx)).await,
                };
                if !matches!(read, Read::Some) {
                    return StreamEnd::Closed;
                }
                is_first = false;
            }
        }
    }

    /// Serves requests until the connection is idle between two requests (`None`), or is over.
    async fn serve_until_rest(&mut self, mut is_first: bool) -> Option<StreamEnd> {
        if is_first {
            match self.version().await {
                BeginningVersion::Http1 => {}
                BeginningVersion::Http2 => {
                    let received = std::mem::take(&mut self.received);
                    let bytes = self.bytes.stream();
                    let served =
                        http2::serve(&self.client, bytes, &self.server, received, &mut self.time_limit);
                    return Some(Box::pin(served).await);
                }
                BeginningVersion::Unagreed => {
                    let refused = self.refuse(LocalReplyReason::Malformed(Malformed::Version)).await;
                    return Some(self.end_after(refused).await);
                }
            }
        }
        loop {
            let after = match self.next(is_first).await {
                Next::Request(request, is_last) => self.serve(request, is_last).await,
                Next::Refused(reason) => self.refuse(reason).await,
                Next::Over(end) => After::Ends(end),
            };
            match after {
                After::Stays if self.received.is_empty() => return None,
                After::Stays => is_first = false,
                over => return Some(self.end_after(over).await),
            }
        }
    }

    /// Ends the connection after its last response, and returns how it ended.
    async fn end_after(&mut self, last: After) -> StreamEnd {
        if let After::Ends(end) = last {
            return end;
        }
        linger::close(self.bytes.stream(), &mut self.time_limit).await;
        StreamEnd::Closed
    }

    /// Begins the wait for the next request, which ends after the keep-alive timeout.
    fn begin_rest(&mut self) {
        // An idle connection keeps no buffer.
        self.received = BytesMut::new();
        let keep_alive = self.client.frontend().config.http_limits().keep_alive;
        self.time_limit.renew(keep_alive);
        self.yields_to_stop = true;
    }

    /// Reads bytes of the next request. Meanwhile, the last request counts against its client's
    /// share until the client has acknowledged the whole response.
    async fn read_while_charged(&mut self) -> Read {
        while self.bytes.stream().has_untaken() {
            if let Ok(read) = timeout(UNTAKEN_PERIOD, self.read(true)).await {
                return read;
            }
        }
        self.charge = RequestCharge::default();
        self.read(true).await
    }

    /// Detects the HTTP version by the connection's first bytes. A protocol agreed within TLS
    /// (ALPN) is binding; without one, the HTTP/2 preface decides.
    async fn version(&mut self) -> BeginningVersion {
        let (is_http2_agreed, is_agreed) = match self.bytes.stream().protocol() {
            Some(protocol) => (protocol == b"h2", true),
            None => (false, false),
        };
        loop {
            match http2::has_preface(&self.received) {
                Some(is_http2) if is_agreed && is_http2 != is_http2_agreed => {
                    return BeginningVersion::Unagreed;
                }
                Some(true) => return BeginningVersion::Http2,
                Some(false) => return BeginningVersion::Http1,
                None => {
                    let begins = self.received.is_empty();
                    if !matches!(self.read(false).await, Read::Some) {
                        return BeginningVersion::Http1;
                    }
                    if begins {
                        self.time_limit.renew(self.client.frontend().config.http_limits().head_timeout);
                    }
                }
            }
        }
    }

    /// Replies to a request whose head is malformed, or does not arrive in time.
    async fn refuse(&mut self, reason: LocalReplyReason) -> After {
        let record = RequestRecord::begin(&self.client, "");
        self.client.refresh();
        self.client.count(Counter::Requests, 1);
        let Connection { client, bytes, server, received, time_limit, .. } = self;
        let mut open = OpenRequest::new(record, client, None);
        let worker = &server.worker;
        let mut socket = ClientSocket { worker, bytes: bytes.stream(), received, time_limit };
        let after = socket.answer(&reason.into(), true, &mut open).await;
        open.end();
        after
    }

    /// Reads the head of the next request. The timeout of the connection's first request is already
    /// running.
    async fn next(&mut self, is_first: bool) -> Next {
        let mut reader = HeadReader::default();
        let mut has_begun = is_first;
        let mut first_byte = PollClock::now();
        let HttpLimits { head: head_limits, head_timeout, keep_alive, .. } =
            *self.client.frontend().config.http_limits();
        if !is_first {
            self.time_limit.renew(keep_alive);
        }
        loop {
            match reader.request(&mut self.received, &head_limits) {
                Ok(Some(head)) => return self.begin(head, first_byte),
                Ok(None) => {}
                Err(malformed) => return Next::Refused(LocalReplyReason::Malformed(malformed)),
            }
            if !self.received.is_empty() && !has_begun {
                has_begun = true;
                self.time_limit.renew(head_timeout);
            }
            let is_between = self.received.is_empty();
            if is_between {
                // An idle connection keeps no buffer.
                self.received = BytesMut::new();
            }
            match self.read(is_between && !is_first).await {
                Read::Some if is_between => first_byte = PollClock::now(),
                Read::Some => {}
                Read::Closed if is_between => return Next::Over(StreamEnd::Closed),
                Read::Closed => return Next::Over(StreamEnd::Early(Counter::ClientReset)),
                Read::Reset if is_between && !is_first => return Next::Over(StreamEnd::Closed),
                Read::Reset => return Next::Over(StreamEnd::Reset(Counter::ClientReset)),
                Read::Late if is_between && is_first => {
                    return Next::Over(StreamEnd::Early(Counter::FirstByteTimeout));
                }
                Read::Late if is_between => return Next::Over(StreamEnd::Closed),
                Read::Late => return Next::Refused(LocalReplyReason::RequestTimeout),
            }
        }
    }

    /// Waits for bytes, and reads them. `is_between`: the connection is between two requests, so a
    /// stop of the process limits the wait.
    async fn read(&mut self, is_between: bool) -> Read {
        self.yields_to_stop = is_between;
        poll_fn(|cx| self.poll_read_in_time(cx)).await
    }

    /// Reads bytes, unless the time limit is over.
    fn poll_read_in_time(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        if let Poll::Ready(read) = self.poll_read(cx) {
            return Poll::Ready(read);
        }
        if self.yields_to_stop && self.client.drain() == Some(Drain::Stop) {
            self.yields_to_stop = false;
            self.time_limit.shorten(STOP_IDLE);
        }
        self.time_limit.poll_over(cx).map(|()| Read::Late)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        buffer::with(|buffer| {
            self.bytes.stream().poll_read(cx, buffer).map(|read| match read {
                Ok(0) => Read::Closed,
                Ok(n) => {
                    self.client.count_bytes(n as u64, 0);
                    self.received.extend_from_slice(&buffer[..n]);
                    Read::Some
                }
                Err(_) => Read::Reset,
            })
        })
    }

    /// Begins a request whose head has just arrived.
    fn begin(&mut self, head: RequestHead, first_byte: Instant) -> Next {
        self.requests = self.requests.saturating_add(1);
        let is_served = self.client.refresh() && !self.client.ends_with_response();
        let is_last = !is_served || self.requests >= self.client.frontend().config.http_limits().requests;
        let (client, frontend) = (&self.client, self.client.frontend().clone());
        let mut request = HttpRequest::new(Arc::new(head), client, frontend, (PollClock::now(), ""));
        request.begins_at(first_byte);
        Next::Request(request, is_last)
    }

    /// Serves a request whose head has just arrived.
    async fn serve(&mut self, request: HttpRequest, is_last: bool) -> After {
        let record = RequestRecord::begin(&self.client, "");
        self.client.count(Counter::Requests, 1);
        let Connection { client, bytes, server, received, time_limit, charge, .. } = self;
        let client = &*client;
        let mut open = OpenRequest::new(record, client, Some(request.shared_head().clone()));
        open.record.arrives(client, &request);
        // This request replaces the previous one in the client's charge.
        *charge = RequestCharge::default();
        let decision = match request.charge(client) {
            Ok(charged) => {
                *charge = charged;
                decide(&mut server.stack.clone(), request).await
            }
            Err(reply) => Decision::Answer { reply, request },
        };
        let worker = &server.worker;
        let mut socket = ClientSocket { worker, bytes: bytes.stream(), received, time_limit };
        let end = match decision {
            Decision::Forward(request) => socket.forward(request, is_last, &mut open).await,
            Decision::Answer { reply, mut request } => {
                open.hooks.take_attached(request.take_hooks());
                open.record.is_answered_on_its_route(&request);
                RequestEnd::Unanswered(reply)
            }
        };
        let after = match end {
            RequestEnd::Answered { client_stays: true, .. } => After::Stays,
            // The connection can close immediately: an unread byte of the client would cause a
            // reset, but there is none.
            RequestEnd::Answered { is_silent: true, .. } => After::Ends(StreamEnd::Closed),
            RequestEnd::Answered { .. } => After::Closes,
            RequestEnd::Broken(reason) => reset_within(&mut open, reason),
            RequestEnd::ServerReset(_) => reset_within(&mut open, Counter::ServerReset),
            RequestEnd::Unanswered(answer) => {
                let may_stay =
                    |head: &RequestHead| head.framing().is_empty() && head.keeps_alive() && head.is_http11();
                let closes = is_last || !open.head().is_some_and(may_stay);
                socket.answer(&answer, closes, &mut open).await
            }
        };
        open.end();
        after
    }
}

/// Counts a local reply, and returns it as bytes for the client.
fn written(answer: &LocalReply, closes: bool, open: &mut OpenRequest<'_>) -> Vec<u8> {
    let client = open.client();
    open.record.answered(client, answer.status(), answer.reason());
    client.count(answer.reason().counter(), 1);
    client.count(Counter::of_status(answer.status()), 1);
    let (mut out, none) = (Vec::new(), FieldRules::default());
    let fields = local_reply_fields(open, client.frontend()).unwrap_or(Cow::Borrowed(&none));
    let has_body = open.head().is_none_or(|head| head.method() != HttpMethod::Head);
    let page = client.frontend().config.error_page(answer.status());
    let to = AnswerTo { fields: &fields, page, closes, has_body };
    answer.write(to, &mut open.hooks, &mut out);
    out
}

/// Ends a connection within the response to a request.
fn reset_within(open: &mut OpenRequest<'_>, reason: Counter) -> After {
    open.record.broke(reason);
    After::Ends(StreamEnd::Reset(reason))
}

impl ClientSocket<'_> {
    /// Forwards a request to a server.
    async fn forward(
        &mut self,
        mut request: HttpRequest,
        is_last: bool,
        open: &mut OpenRequest<'_>,
    ) -> RequestEnd {
        let client = open.client();
        let OpenRequest { record, hooks, .. } = open;
        hooks.take_attached(request.take_hooks());
        request.expand_rules();
        let Some((route, pool)) = request.way() else {
            return RequestEnd::Unanswered(LocalReplyReason::NoRoute.into());
        };
        record.takes(client, route, &request);
        let ClientSocket { worker, bytes, received, time_limit } = self;
        let request = &request;
        let mut end = ClientEnd::Socket(bytes);
        let end = &mut end;
        let timeouts = RequestTimeouts::of(client, request, (route, pool));
        let mut forwarding = Forwarding {
            worker,
            client,
            end,
            request,
            route,
            received,
            is_last,
            timeouts,
            time_limit,
            record,
            hooks,
        };
        forwarding.run(pool).await
    }

    /// Sends a local reply.
    async fn answer(&mut self, answer: &LocalReply, closes: bool, open: &mut OpenRequest<'_>) -> After {
        let client = open.client();
        let out = written(answer, closes, open);
        self.time_limit.renew(ANSWER_TIME);
        let (bytes, limit, mut sent) = (&mut *self.bytes, &mut *self.time_limit, 0);
        let mut stall = StallLimit::of_reader(ANSWER_TIME);
        let sending = poll_fn(|cx| {
            while sent < out.len() {
                match bytes.poll_write(cx, &out[sent..], More::No) {
                    Poll::Pending => {
                        let over = stall.poll_over(cx, limit, client, || None);
                        return over.map(|()| Err(Counter::ClientTooSlow));
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Counter::ClientReset)),
                    Poll::Ready(Ok(n)) => sent += n,
                }
            }
            Poll::Ready(Ok(()))
        });
        if let Err(reason) = sending.await {
            open.record.broke(reason);
            return After::Ends(StreamEnd::Reset(reason));
        }
        client.count_bytes(0, out.len() as u64);
        open.record.count(0, out.len() as u64);
        if closes { After::Closes } else { After::Stays }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::EXCHANGE_SIZE;
    use crate::request::REQUEST_SIZE;
    use crate::stack::UsualStack;

    /// Maximum size of the future of an idle connection. The session, the timer and the socket have
    /// allocations of their own.
    const IDLE: usize = 288;

    /// Size of the future that `begin` returns.
    fn size_of_future<A, F: Future>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn idle_http1_connection_takes_few_bytes_beside_its_session() {
        type Parts = (ClientStream, ClientBytes, Arc<WorkerServer<UsualStack>>);
        let size = size_of_future(|(client, bytes, server): Parts| serve(client, bytes, server));
        assert!(size <= IDLE, "{size}");
    }

    #[test]
    fn request_in_flight_takes_two_kilobytes_with_its_head() {
        type UsualConnection = Connection<UsualStack>;
        let serving =
            size_of_future(|connection: &'static mut UsualConnection| connection.serve_until_rest(false));
        let of_head = size_of::<RequestHead>() + 192;
        let sum = serving + EXCHANGE_SIZE + REQUEST_SIZE + of_head;
        assert!(sum <= 2048, "{serving} + {EXCHANGE_SIZE} + {REQUEST_SIZE} + {of_head} = {sum}");
    }
}
