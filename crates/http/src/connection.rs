//! A client's connection: one request after the other, and its end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use convey_http_core::{BodyFraming, FieldRules, HeadLimits, HeadReader, HttpMethod, RequestHead};
use convey_model::Redirect;
use convey_proxy::{ClientStream, More, ServeStream, StreamEnd, poll_read, poll_write};
use convey_snapshot::HttpAction;
use convey_snapshot::stats::Counter;
use rustix::net::{Shutdown, shutdown};

use crate::answer::{AnswerReason, AnswerTo, OwnAnswer};
use crate::forward::{Forwarding, RequestEnd};
use crate::record::RequestRecord;
use crate::time_limit::TimeLimit;
use crate::{buffer, idle, time_limit};

/// How long the head of a request may take from its first byte, or from accept.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// How long a connection waits for another request.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How long a connection that convey ends is still read from, so that the answer arrives.
const LINGER: Duration = Duration::from_secs(2);

/// Most bytes that are read then.
const MAX_LINGERING: usize = 256 * 1024;

/// Serves the clients of frontends in mode http.
#[derive(Debug, Default)]
pub struct HttpServer {
    _private: (),
}

impl ServeStream for HttpServer {
    fn serve(&self, client: ClientStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let over = client.over();
            let mut connection = Connection::new(client);
            let end = tokio::select! {
                biased;
                reason = over => StreamEnd::Reset(reason),
                end = connection.run() => end,
            };
            connection.client.end(end);
        })
    }

    fn each_second(&self) {
        time_limit::tell_time();
        idle::sweep();
    }
}

/// A client's connection.
struct Connection {
    client: ClientStream,
    /// What has come and nobody has taken.
    received: BytesMut,
    time_limit: TimeLimit,
}

/// What comes from a client next.
#[expect(clippy::large_enum_variant, reason = "it is there for a moment, and a box would cost each request")]
enum Next {
    Request(RequestHead),
    /// A request that convey does not take.
    Refused(AnswerReason),
    /// None: the connection is over.
    Over(StreamEnd),
}

/// What becomes of a connection after a request.
enum After {
    /// Another request may come.
    Stays,
    /// It is closed so that the last answer arrives.
    Closes,
    /// It is over.
    Ends(StreamEnd),
}

/// What a read has brought.
enum Read {
    Some,
    Closed,
    Reset,
    Late,
    Drains,
}

impl Connection {
    fn new(mut client: ClientStream) -> Connection {
        let received = BytesMut::from(&client.take_early()[..]);
        Connection { client, received, time_limit: TimeLimit::new(HEAD_TIME) }
    }

    /// Serves requests until the connection is over.
    async fn run(&mut self) -> StreamEnd {
        let mut is_first = true;
        loop {
            let after = match self.next(is_first).await {
                Next::Request(head) => self.serve(&head).await,
                Next::Refused(reason) => self.refuse(reason).await,
                Next::Over(end) => After::Ends(end),
            };
            match after {
                After::Stays => is_first = false,
                After::Closes => return self.close().await,
                After::Ends(end) => return end,
            }
        }
    }

    /// Answers a request whose head cannot be read, or does not come.
    async fn refuse(&mut self, reason: AnswerReason) -> After {
        let mut record = RequestRecord::begin(&self.client);
        self.client.refresh();
        self.client.count(Counter::Requests, 1);
        let after = self.answer(&reason.into(), None, true, &mut record).await;
        record.end(&self.client, None);
        after
    }

    /// The head of the next request.
    async fn next(&mut self, is_first: bool) -> Next {
        let mut reader = HeadReader::default();
        let mut has_begun = is_first;
        let first_byte = self.client.frontend().config.limits.first_byte_timeout.unwrap_or(HEAD_TIME);
        self.time_limit.renew(if is_first { first_byte.min(HEAD_TIME) } else { KEEP_ALIVE });
        loop {
            match reader.request(&mut self.received, &HeadLimits::default()) {
                Ok(Some(head)) => return Next::Request(head),
                Ok(None) => {}
                Err(malformed) => return Next::Refused(AnswerReason::Malformed(malformed)),
            }
            if !self.received.is_empty() && !has_begun {
                has_begun = true;
                self.time_limit.renew(HEAD_TIME);
            }
            let is_between = self.received.is_empty();
            if is_between {
                // Its memory is worth more to others.
                self.received = BytesMut::new();
            }
            match self.read(is_between && !is_first).await {
                Read::Some => {}
                Read::Closed | Read::Drains if is_between => return Next::Over(StreamEnd::Closed),
                Read::Closed | Read::Drains => return Next::Over(StreamEnd::Early(Counter::ClientReset)),
                Read::Reset if is_between && !is_first => return Next::Over(StreamEnd::Closed),
                Read::Reset => return Next::Over(StreamEnd::Reset(Counter::ClientReset)),
                Read::Late if is_between && is_first => {
                    return Next::Over(StreamEnd::Early(Counter::FirstByteTimeout));
                }
                Read::Late if is_between => return Next::Over(StreamEnd::Closed),
                Read::Late => return Next::Refused(AnswerReason::RequestTimeout),
            }
        }
    }

    /// Reads what there is. `is_between`: the connection stands between two requests, so it ends when the worker drains.
    async fn read(&mut self, is_between: bool) -> Read {
        if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(self.poll_read(cx))).await {
            return read;
        }
        let mut drains = pin!(self.client.drains());
        poll_fn(|cx| {
            if is_between && drains.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Read::Drains);
            }
            match self.poll_read(cx) {
                Poll::Pending => self.time_limit.poll_over(cx).map(|()| Read::Late),
                read => read,
            }
        })
        .await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        buffer::with(|buffer| {
            poll_read(self.client.stream(), cx, buffer).map(|read| match read {
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

    /// Serves a request.
    async fn serve(&mut self, head: &RequestHead) -> After {
        let mut record = RequestRecord::begin(&self.client);
        let is_last = !self.client.refresh() || self.client.is_draining();
        self.client.count(Counter::Requests, 1);
        let after = match self.forward(head, is_last, &mut record).await {
            RequestEnd::Answered { client_stays: true, .. } => After::Stays,
            // Nothing is on its way that could have the client reset before it has read the response.
            RequestEnd::Answered { is_silent: true, .. } => After::Ends(StreamEnd::Closed),
            RequestEnd::Answered { .. } => After::Closes,
            RequestEnd::Broken(reason) => {
                record.broke(reason);
                After::Ends(StreamEnd::Reset(reason))
            }
            RequestEnd::Unanswered(reason) => {
                let has_body = !matches!(head.framing(), BodyFraming::Empty | BodyFraming::Length(0));
                let closes = is_last || has_body || !head.keeps_alive() || !head.is_http11();
                let mut answer = OwnAnswer::from(reason);
                if reason == AnswerReason::Redirect {
                    answer.location = Some(https_location(head));
                }
                self.answer(&answer, Some(head), closes, &mut record).await
            }
        };
        record.end(&self.client, Some(head));
        after
    }

    /// Finds the route of a request, and has a server answer it.
    async fn forward(&mut self, head: &RequestHead, is_last: bool, record: &mut RequestRecord) -> RequestEnd {
        let frontend = self.client.frontend().clone();
        let found =
            frontend.http.as_ref().and_then(|http| Some((http, http.route(head.host(), head.path())?)));
        let Some((http, (route, prefix))) = found else {
            return RequestEnd::Unanswered(AnswerReason::NoRoute);
        };
        record.takes(&route.name);
        let pool = match &route.action {
            HttpAction::Redirect(Redirect::Https) => return RequestEnd::Unanswered(AnswerReason::Redirect),
            HttpAction::Forward(pool) => pool,
        };
        let Connection { client, received, time_limit } = self;
        let forwarding =
            Forwarding { client, head, received, http, route, prefix, is_last, time_limit, record };
        forwarding.run(pool).await
    }

    /// Answers a request ourselves.
    async fn answer(
        &mut self,
        answer: &OwnAnswer,
        head: Option<&RequestHead>,
        closes: bool,
        record: &mut RequestRecord,
    ) -> After {
        record.answered(answer.status, answer.reason);
        self.client.count(answer.reason.counter(), 1);
        self.client.count(Counter::of_status(answer.status), 1);
        let (mut out, none) = (Vec::new(), FieldRules::default());
        let fields = self.client.frontend().http.as_ref().map_or(&none, |http| http.response_to(head));
        let has_body = head.is_none_or(|head| head.method() != HttpMethod::Head);
        answer.write(AnswerTo { fields, closes, has_body }, &mut out);
        self.time_limit.renew(HEAD_TIME);
        let (client, limit, mut sent) = (&self.client, &mut self.time_limit, 0);
        let written = poll_fn(|cx| {
            while sent < out.len() {
                match poll_write(client.stream(), cx, &out[sent..], More::No) {
                    Poll::Pending => return limit.poll_over(cx).map(|()| Err(Counter::IdleTimeout)),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Counter::ClientReset)),
                    Poll::Ready(Ok(n)) => sent += n,
                }
            }
            Poll::Ready(Ok(()))
        });
        if let Err(reason) = written.await {
            record.broke(reason);
            return After::Ends(StreamEnd::Reset(reason));
        }
        self.client.count_bytes(0, out.len() as u64);
        record.count(0, out.len() as u64);
        if closes { After::Closes } else { After::Stays }
    }

    /// Ends the connection so that the last answer arrives: a client that still sends would be reset else, and might lose it.
    async fn close(&mut self) -> StreamEnd {
        if shutdown(self.client.stream(), Shutdown::Write).is_err() {
            return StreamEnd::Closed;
        }
        self.time_limit.renew(LINGER);
        let mut left = MAX_LINGERING;
        poll_fn(|cx| {
            loop {
                let read = buffer::with(|buffer| poll_read(self.client.stream(), cx, buffer));
                match read {
                    Poll::Ready(Ok(n)) if n > 0 && n < left => left -= n,
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return self.time_limit.poll_over(cx),
                }
            }
        })
        .await;
        StreamEnd::Closed
    }
}

/// The same place by HTTPS.
fn https_location(head: &RequestHead) -> Vec<u8> {
    let host = head.host();
    // Of a host with a port the port is that of HTTP.
    let end = match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host[colon..].contains(&b']') => colon,
        _ => host.len(),
    };
    [b"https://", &host[..end], head.path_and_query()].concat()
}
