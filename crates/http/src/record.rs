//! Counters, trace events and log entry of one request.

mod logged;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_access_log::{Ending, LoggedResponse, Termination};
use convey_http_core::{
    ContentCoding, ExchangePhase, ExchangeState, Malformed, RequestHead, RetryCause, TraceParent,
};
use convey_proxy::{ClientStream, tls_fault};
use convey_snapshot::WorkerRoute;
use convey_snapshot::stats::Counter;
use convey_stream::PollClock;
use convey_trace::{EarlyEnd, ReplyReason, RequestStep, TracedHead, TracedRequest};
use convey_upstream::Permit;
use tokio::time::Instant;

use self::logged::{HeadFields, LoggedFacts, cut};
use crate::hooks::ExchangeSummary;
use crate::local_reply::LocalReplyReason;
use crate::request::HttpRequest;
use crate::response_log::ResponseLog;

/// Record of a request in progress.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    /// Time at which the request's head was complete.
    pub(crate) began: Instant,
    /// Facts for the log; `None`: the request is not logged.
    logged: Option<Box<LoggedFacts>>,
    /// Phase that the request has reached.
    phase: ExchangePhase,
    /// Bytes of bodies and heads, from and to the client.
    bytes: (u64, u64),
    status: Option<u16>,
    /// Reason for a local reply.
    answered: Option<LocalReplyReason>,
    /// Whether the response is a file.
    is_file: bool,
    /// Reason for the end of the client's connection during the request.
    broken: Option<Counter>,
    /// Number of servers that were tried.
    attempts: u32,
    /// Number of the server that was tried last.
    server_id: Option<u32>,
    route: Option<Arc<WorkerRoute>>,
    version: &'static str,
    /// Number of the request's stream.
    stream: Option<u64>,
    /// Client that trusted proxies name.
    named: Option<SocketAddr>,
    /// Content coding of the response's body, if convey compresses it.
    compression: Option<ContentCoding>,
    /// Head for the traces, if any ran when it arrived.
    traced: Option<Arc<TracedHead>>,
    /// Id of the request; `None`: no header and no redirect has it.
    request_id: Option<Arc<str>>,
    /// Trace that convey has begun for the request.
    begun_trace: Option<TraceParent>,
}

impl RequestRecord {
    /// Begins the record of a request whose head has just arrived.
    ///
    /// `version`: HTTP version; empty if the head contains it.
    pub(crate) fn begin(client: &ClientStream, version: &'static str) -> RequestRecord {
        RequestRecord {
            began: PollClock::now(),
            logged: client.access_log().chooses_one().then(Box::default),
            phase: ExchangePhase::RequestHead,
            bytes: (0, 0),
            status: None,
            answered: None,
            is_file: false,
            broken: None,
            attempts: 0,
            server_id: None,
            route: None,
            version,
            stream: None,
            named: None,
            compression: None,
            traced: None,
            request_id: None,
            begun_trace: None,
        }
    }

    /// Sets the number of the request's stream (HTTP/2 and HTTP/3).
    pub(crate) fn on_stream(self, stream: u64) -> RequestRecord {
        RequestRecord { stream: Some(stream), ..self }
    }

    /// Notes that the head has arrived, and the client that trusted proxies name.
    pub(crate) fn arrives(&mut self, client: &ClientStream, request: &HttpRequest) {
        self.named = request.named();
        self.request_id = request.request_id().cloned();
        self.phase = ExchangePhase::Access;
        if client.is_traced() {
            let head = request.head();
            self.traced = Some(Arc::new(TracedHead {
                method: text(head.method_token()),
                host: text(head.host()),
                target: text(head.path_and_query()),
                version: version_of(self.version, Some(head)),
            }));
            self.trace_step(client, || RequestStep::Arrived);
        }
    }

    /// Id of the request; empty: it has none.
    pub(crate) fn request_id(&self) -> &str {
        self.request_id.as_deref().unwrap_or_default()
    }

    /// Trace of the request with this head. A trace that convey has begun replaces the client's.
    pub(crate) fn trace(&self, head: &RequestHead) -> Option<TraceParent> {
        self.begun_trace.or_else(|| TraceParent::of(head))
    }

    /// Name of the request's route; empty: none is known.
    pub(crate) fn route_name(&self) -> &str {
        self.route.as_ref().map_or("", |route| &route.name)
    }

    /// HTTP version of the request with this head.
    pub(crate) fn version(&self, head: &RequestHead) -> &'static str {
        version_of(self.version, Some(head))
    }

    /// HTTP version as known without the head; empty: the head contains it.
    pub(crate) fn known_version(&self) -> &'static str {
        self.version
    }

    /// Sets the route and the trace of a request that gets a local reply before it is forwarded.
    pub(crate) fn is_answered_on_its_route(&mut self, request: &HttpRequest) {
        self.route = request.route_in_frontend().cloned();
        self.begun_trace = request.begun_trace();
    }

    /// Sets the route and the trace of a request that is forwarded.
    pub(crate) fn takes(&mut self, client: &ClientStream, route: &Arc<WorkerRoute>, request: &HttpRequest) {
        self.route = Some(route.clone());
        self.phase = ExchangePhase::Pick;
        self.trace_step(client, || RequestStep::Routed { route: route.name.clone() });
        self.trace_step(client, || RequestStep::Admitted);
        self.begun_trace = request.begun_trace();
    }

    /// Notes an attempt at a server. `failed` is the reason for which the last attempt failed.
    pub(crate) fn tries(&mut self, client: &ClientStream, permit: &Permit, failed: Option<LocalReplyReason>) {
        if let Some(reason) = failed {
            self.trace_step(client, || RequestStep::Retried { reason: reason.label() });
        }
        self.phase = ExchangePhase::Connect;
        self.attempts += 1;
        self.server_id = Some(permit.server().live.id);
        self.trace_step(client, || RequestStep::Chosen { attempt: self.attempts });
        if let Some(logged) = &mut self.logged {
            let (backend, name) = permit.names();
            logged.server = Some((backend, name, client.address_of(permit)));
        }
    }

    /// Notes that the response of a server is discarded, because another server gets the request.
    pub(crate) fn discards(&mut self, client: &ClientStream, status: u16) {
        self.phase = ExchangePhase::ResponseHead;
        self.trace_step(client, || RequestStep::Responded { status });
        self.phase = ExchangePhase::Pick;
        let reason = RetryCause::Status(status).label();
        self.trace_step(client, || RequestStep::Retried { reason });
    }

    /// Notes that the connect to the server failed.
    pub(crate) fn connect_failed(&self, client: &ClientStream, error: &io::Error) {
        let (errno, fault) = (error.raw_os_error(), tls_fault(error));
        self.trace_step(client, || RequestStep::ConnectFailed { errno, fault });
    }

    /// Notes that there is a connection to the server, new or reused.
    pub(crate) fn connected(&mut self, client: &ClientStream, is_reused: bool) {
        self.phase = ExchangePhase::UpstreamRequest;
        self.trace_step(client, || RequestStep::Connected {
            after: PollClock::now() - self.began,
            is_reused,
        });
        if let Some(logged) = &mut self.logged {
            logged.connect = Some(PollClock::now() - self.began);
        }
    }

    /// Notes the progress of the exchange with the server. `status` is that of the final response,
    /// once its head has arrived.
    pub(crate) fn progresses(&mut self, client: &ClientStream, state: &ExchangeState, status: Option<u16>) {
        let last = std::mem::replace(&mut self.phase, state.phase());
        if let Some(status) = status.filter(|_| self.phase > last && last < ExchangePhase::Bodies) {
            self.trace_step(client, || RequestStep::Responded { status });
        }
    }

    /// Whether the response has begun.
    pub(crate) fn has_begun_response(&self) -> bool {
        self.status.is_some()
    }

    /// Counts bytes received from the client (`rx`) and sent to the client (`tx`).
    pub(crate) fn count(&mut self, rx: u64, tx: u64) {
        self.bytes.0 += rx;
        self.bytes.1 += tx;
    }

    /// Subtracts bytes of the client that will be counted again.
    pub(crate) fn took_back(&mut self, rx: u64) {
        self.bytes.0 = self.bytes.0.saturating_sub(rx);
    }

    /// Facts about the response that the line of this request needs.
    #[inline]
    pub(crate) fn response_log(&self, client: &ClientStream) -> ResponseLog {
        let wanted = self.logged.as_ref().and_then(|_| client.access_log().wanted_of_response());
        wanted.map_or(ResponseLog::Unwanted, ResponseLog::Wanted)
    }

    /// Sets facts about the response for the line of this request.
    pub(crate) fn has_response(&mut self, response: Option<Box<LoggedResponse>>) {
        if let Some(logged) = self.logged.as_mut().filter(|_| response.is_some()) {
            logged.response = response;
        }
    }

    /// Notes the status of a server's response.
    pub(crate) fn has_status(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Notes that the request is for a file of this backend.
    pub(crate) fn asks_for_file_of(&mut self, backend: &Arc<str>) {
        if let Some(logged) = &mut self.logged {
            logged.of_files = Some(backend.clone());
        }
    }

    /// Notes a response with a file, or a part of one.
    pub(crate) fn has_file(&mut self, client: &ClientStream, status: u16) {
        (self.status, self.is_file) = (Some(status), true);
        self.phase = ExchangePhase::Bodies;
        self.trace_step(client, || RequestStep::File { status });
    }

    /// Notes the coding of the compressed response.
    pub(crate) fn is_compressed(&mut self, coding: ContentCoding) {
        self.compression = Some(coding);
    }

    /// Notes a local reply.
    pub(crate) fn answered(&mut self, client: &ClientStream, status: u16, reason: LocalReplyReason) {
        (self.status, self.answered) = (Some(status), Some(reason));
        if status >= 500 {
            client.count(Counter::Answered5xx, 1);
        }
        if self.phase == ExchangePhase::Access {
            self.phase = deciding_phase(reason);
            if let Some(route) = self.route.as_ref().filter(|_| self.phase > ExchangePhase::Access) {
                self.trace_step(client, || RequestStep::Routed { route: route.name.clone() });
            }
        }
        let (reason, phase) = (traced(reason), self.phase.label());
        self.trace_step(client, || RequestStep::Replied { status, reason, phase });
    }

    /// Notes that convey has refused the request, and could not reply.
    pub(crate) fn refused(&mut self, reason: LocalReplyReason) {
        self.answered = Some(reason);
    }

    /// Notes that the client's connection ended before the client had the whole response.
    pub(crate) fn broke(&mut self, reason: Counter) {
        self.broken = Some(reason);
    }

    /// Ends the record of a request without a head, which convey refuses and cannot reply to.
    pub(crate) fn end_refused(mut self, client: &ClientStream, reason: LocalReplyReason) {
        self.refused(reason);
        self.end_undecided(client, None);
    }

    /// Ends the record of a request that ends before convey decides on it. The cause of the end has
    /// been noted.
    pub(crate) fn end_undecided(mut self, client: &ClientStream, head: Option<&RequestHead>) {
        client.count(Counter::Requests, 1);
        if let Some(reason) = self.answered {
            client.count(reason.counter(), 1);
        }
        self.end(client, head, PollClock::now() - self.began);
    }

    /// Ends the record: counts the request, and logs it if it is selected. `head` is `None` if the
    /// head never arrived completely. `total` is the time since the head was complete. Call this
    /// once.
    pub(crate) fn end(&mut self, client: &ClientStream, head: Option<&RequestHead>, total: Duration) {
        client.frontend().live.request_times.record(client.core(), total);
        self.count_for_route(client.core(), total);
        let phase = self.early_phase();
        if let Some(counter) = phase.and_then(Counter::of_early_end) {
            client.count(counter, 1);
        }
        self.trace_step(client, || self.last_step(total));
        if let Some(logged) = self.logged.take() {
            let head = head.map(HeadFields);
            client.access_log().put(|| Some(self.logged_record(&logged, client, head.as_ref(), total)));
        }
    }

    /// Sends a step of the request to the traces, if any runs.
    #[inline]
    fn trace_step(&self, client: &ClientStream, step: impl FnOnce() -> RequestStep) {
        client.trace(self.named, self.server_id, || {
            let step = step();
            TracedRequest {
                stream: self.stream,
                phase: self.phase_of(&step).label(),
                head: self.traced.clone(),
                route: self.route.as_ref().map(|route| route.name.clone()),
                step,
            }
        });
    }

    /// Phase that a step of the trace belongs to.
    fn phase_of(&self, step: &RequestStep) -> ExchangePhase {
        match step {
            RequestStep::Arrived => ExchangePhase::RequestHead,
            RequestStep::Routed { .. } => ExchangePhase::Route,
            RequestStep::Admitted => ExchangePhase::Limits,
            RequestStep::Chosen { .. } => ExchangePhase::Pick,
            RequestStep::ConnectFailed { .. } | RequestStep::Connected { .. } => ExchangePhase::Connect,
            RequestStep::Responded { .. } | RequestStep::File { .. } => ExchangePhase::ResponseHead,
            RequestStep::Ended { early: None, .. } => ExchangePhase::End,
            _ => self.phase,
        }
    }

    /// Last step of a request that took `after`.
    fn last_step(&self, after: Duration) -> RequestStep {
        let phase = self.phase.label();
        match (self.answered, self.status) {
            (Some(reason), None) => RequestStep::Refused { reason: traced(reason), phase },
            (_, status) => RequestStep::Ended {
                status,
                early: self.broken.map(|reason| EarlyEnd { reason: reason.label(), phase }),
                bytes: self.bytes,
                after,
            },
        }
    }

    /// Counts the request and its duration for its route.
    fn count_for_route(&self, core: usize, total: Duration) {
        let Some(route) = &self.route else { return };
        let traffic = &route.live.traffic;
        traffic.add(core, Counter::Requests, 1);
        if let Some(status) = self.status {
            traffic.add(core, Counter::of_status(status), 1);
        }
        if let Some(reason) = self.answered {
            traffic.add(core, reason.counter(), 1);
            if self.status.is_some_and(|status| status >= 500) {
                traffic.add(core, Counter::Answered5xx, 1);
            }
        }
        route.live.times.record(core, total);
    }

    /// Returns how a request that took `took` has ended.
    pub(crate) fn summary(&self, took: Duration) -> ExchangeSummary {
        ExchangeSummary {
            status: self.status,
            bytes_rx: self.bytes.0,
            bytes_tx: self.bytes.1,
            took,
            reason: self.ending().reason,
            phase: self.early_phase(),
        }
    }

    /// Phase in which the request ended early or got a local reply.
    fn early_phase(&self) -> Option<ExchangePhase> {
        (self.broken.is_some() || self.answered.is_some()).then_some(self.phase)
    }

    /// How the request ended, for the log and for hooks. The first cause counts, as in the
    /// counters: a client that leaves before it has its local reply does not change the reason.
    /// Only a cut of the connection by convey does.
    fn ending(&self) -> Ending {
        match (self.broken, self.answered) {
            (
                Some(
                    reason
                    @ (Counter::Cut | Counter::Killed | Counter::AccessDenied | Counter::UnprovenPaths),
                ),
                _,
            ) => Ending::early(Termination::Cut, reason.label()),
            (_, Some(reason)) => Ending::early(Termination::Refused, reason.label()),
            (
                Some(reason @ (Counter::IdleTimeout | Counter::ClientTooSlow | Counter::RequestDeadline)),
                None,
            ) => Ending::early(Termination::Timeout, reason.label()),
            (Some(reason), None) => Ending::early(Termination::Reset, reason.label()),
            (None, None) => Ending::usual(Termination::Closed),
        }
    }
}

/// Phase of a request that gets a local reply for this reason before it is forwarded.
fn deciding_phase(reason: LocalReplyReason) -> ExchangePhase {
    match reason {
        // A redirect needs a host.
        LocalReplyReason::NoRoute
        | LocalReplyReason::Redirect
        | LocalReplyReason::Respond
        | LocalReplyReason::Maintenance
        | LocalReplyReason::Malformed(Malformed::Host) => ExchangePhase::Route,
        LocalReplyReason::RateLimit
        | LocalReplyReason::TotalRateLimit
        | LocalReplyReason::BackendRateLimit
        | LocalReplyReason::Malformed(_) => ExchangePhase::Limits,
        LocalReplyReason::Layer => ExchangePhase::Layers,
        _ => ExchangePhase::Access,
    }
}

fn traced(reason: LocalReplyReason) -> ReplyReason {
    ReplyReason { label: reason.counter().answer_label(), detail: reason.label() }
}

/// HTTP version of a request: `version`, or that of the head if `version` is empty.
pub(crate) fn version_of(version: &'static str, head: Option<&RequestHead>) -> &'static str {
    match (version, head.is_none_or(RequestHead::is_http11)) {
        ("", true) => "1.1",
        ("", false) => "1.0",
        (version, _) => version,
    }
}

fn text(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(cut(bytes)).into()
}
