//! `/v1/trace`: streams live events of clients and packets, one line of JSON each, until the client
//! closes the connection.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use convey_api::{TraceParameters, TraceRemark};
use convey_trace::{MAX_WATCHERS, TraceEnd, TraceWatch, UndecidedRequests};
use futures_util::stream;
use hyper::body::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use self::wanted::WantedTrace;
use super::super::progress::{AnswerProgress, LongAnswer};
use super::super::trace::trace_line;
use super::super::{Requester, StatsSource};
use super::{ApiContext, Failure, may_change};

mod wanted;

/// Interval between writes of events, so that a reader is not woken for every event.
const TAKE_EVERY: Duration = Duration::from_millis(50);

/// Maximum time for which a client may stop reading. After it, the trace ends.
const MAX_STALL: Duration = Duration::from_secs(30);

/// Interval between lines about events that the rate limit omitted.
const TELL_LEFT_OUT_EVERY: Duration = Duration::from_secs(1);

/// Handler of a trace request. The requester needs the right to change things, because traces
/// contain clients' packets.
pub(super) async fn trace(
    State(answers): State<Arc<ApiContext>>,
    Extension(who): Extension<Requester>,
    progress: Option<Extension<AnswerProgress>>,
    query: Result<Query<TraceParameters>, QueryRejection>,
) -> Result<Response, Failure> {
    may_change(&answers, &who)?;
    let Query(query) = query.map_err(|wrong| Failure::of_query(&wrong))?;
    let source = answers.source.clone();
    let wanted = WantedTrace::new(query, &source.snapshot.load())?;
    let filter = wanted.filter(&source.snapshot.load());
    let watch = source.trace.watch(filter, wanted.frames).ok_or_else(|| {
        if source.trace.is_ending() {
            return Failure::Gone;
        }
        Failure::Busy(format!("{MAX_WATCHERS} traces are running, which is the maximum; end a trace first"))
    })?;
    let _long = progress.map(|Extension(progress)| progress.mark_long());
    let (lines, mut written) = mpsc::channel::<Bytes>(1);
    let show = Show::new(watch, wanted, source, _long);
    tokio::spawn(show.run(lines));
    let body = stream::poll_fn(move |cx| written.poll_recv(cx).map(|text| text.map(Ok::<_, Infallible>)));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(body)).into_response())
}

/// Writes the lines of a trace for one client.
struct Show {
    watch: TraceWatch,
    wanted: WantedTrace,
    source: Arc<StatsSource>,
    /// Generation of the snapshot whose names the filter was built with.
    generation: u64,
    until: Option<Instant>,
    shown: u64,
    /// Number of events that the rate limit allows now.
    allowance: f64,
    allowed_at: Instant,
    omitted: u64,
    undecided: UndecidedRequests,
    last_notice: Instant,
    _long: Option<LongAnswer>,
}

impl Show {
    fn new(
        watch: TraceWatch,
        wanted: WantedTrace,
        source: Arc<StatsSource>,
        long: Option<LongAnswer>,
    ) -> Show {
        let now = Instant::now();
        Show {
            watch,
            generation: source.snapshot.load().generation,
            // A timeout beyond the range of the clock means no limit.
            until: wanted.timeout.and_then(|timeout| now.checked_add(timeout)),
            shown: 0,
            allowance: f64::from(wanted.rate),
            allowed_at: now,
            omitted: 0,
            undecided: UndecidedRequests::default(),
            last_notice: now,
            wanted,
            source,
            _long: long,
        }
    }

    /// Writes lines until the trace ends, or the client has gone or has stopped reading.
    async fn run(mut self, lines: mpsc::Sender<Bytes>) {
        let mut ticks = interval(TAKE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut text = line(&TraceRemark::Started);
        loop {
            let is_over = self.take(&mut text);
            if !text.is_empty() {
                let sent = timeout(MAX_STALL, lines.send(std::mem::take(&mut text).into())).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
            if is_over {
                return;
            }
            tokio::select! {
                _ = ticks.tick() => {}
                () = lines.closed() => return,
            }
        }
    }

    /// Appends the pending lines. Returns whether the trace has ended.
    fn take(&mut self, text: &mut String) -> bool {
        self.follow_names();
        self.allow();
        let mut why = self.why_now();
        let snapshot = self.source.snapshot.load();
        while let Some(event) = self.watch.take() {
            if self.is_done() {
                break;
            }
            for event in self.undecided.sort_out(self.wanted.requests(), event) {
                if self.is_done() {
                    break;
                }
                if self.allowance < 1.0 {
                    self.omitted += 1;
                    continue;
                }
                self.allowance -= 1.0;
                self.shown += 1;
                *text += &line(&trace_line(&event, &snapshot, self.source.started));
            }
        }
        if self.is_done() {
            why = why.or(Some("count"));
        }
        self.write_omitted(text, why.is_some());
        if let Some(why) = why {
            *text += &line(&TraceRemark::TraceEnded { why: why.into() });
        }
        why.is_some()
    }

    /// Rebuilds the filter after a reload, because names may have new numbers.
    fn follow_names(&mut self) {
        let snapshot = self.source.snapshot.load();
        if snapshot.generation != self.generation {
            self.generation = snapshot.generation;
            self.watch.set_filter(self.wanted.filter(&snapshot));
        }
    }

    fn allow(&mut self) {
        let (now, rate) = (Instant::now(), f64::from(self.wanted.rate));
        let more = now.duration_since(self.allowed_at).as_secs_f64() * rate;
        (self.allowance, self.allowed_at) = ((self.allowance + more).min(rate), now);
    }

    fn why_now(&self) -> Option<&'static str> {
        match self.watch.end() {
            Some(TraceEnd::Upgrade) => Some("upgrade"),
            Some(TraceEnd::Stop) => Some("stop"),
            None => self.until.filter(|until| Instant::now() >= *until).map(|_| "timeout"),
        }
    }

    fn is_done(&self) -> bool {
        self.wanted.count.is_some_and(|count| self.shown >= count)
    }

    fn write_omitted(&mut self, text: &mut String, is_last: bool) {
        let now = Instant::now();
        if !is_last && now.duration_since(self.last_notice) < TELL_LEFT_OUT_EVERY {
            return;
        }
        let unread = self.watch.take_lost() as u64;
        if unread + self.omitted > 0 {
            *text += &line(&TraceRemark::LeftOut { rate: std::mem::take(&mut self.omitted), unread });
            self.last_notice = now;
        }
    }
}

fn line(what: &impl Serialize) -> String {
    // Serializing these values does not fail.
    serde_json::to_string(what).map(|text| text + "\n").unwrap_or_default()
}
