//! Counters and log entry of one request.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_access_log::{LoggedRequest, Record, ServedBy, Termination};
use convey_http_core::{ContentCoding, RequestHead, TraceParent};
use convey_proxy::ClientStream;
use convey_snapshot::HttpRoute;
use convey_snapshot::stats::Counter;
use convey_upstream::Permit;
use tokio::time::Instant;

use crate::answer::AnswerReason;
use crate::request::HttpRequest;

/// Most letters of a host or of a target in the log.
const MAX_LOGGED: usize = 2_048;

/// A request, as it goes on.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    /// When its head had come.
    pub(crate) began: Instant,
    /// Whether it is logged.
    is_logged: bool,
    /// Bytes of bodies and heads, from and to the client.
    bytes: (u64, u64),
    status: Option<u16>,
    /// Why convey has answered itself.
    answered: Option<AnswerReason>,
    /// It has answered with a file.
    is_file: bool,
    /// Why the client's connection ended within it.
    broken: Option<Counter>,
    /// How long it took until a server had accepted; zero for a connection that was kept.
    connect: Option<Duration>,
    retries: u32,
    /// The backend, and who was tried last.
    server: Option<(Arc<str>, ServedBy)>,
    /// The backend whose files it is about.
    of_files: Option<Arc<str>>,
    route: Option<Arc<HttpRoute>>,
    core: usize,
    version: &'static str,
    trace: Option<TraceParent>,
    /// The client that trusted proxies name.
    named: Option<SocketAddr>,
    /// How the response is compressed.
    compression: Option<ContentCoding>,
}

impl RequestRecord {
    /// Begins the record of a request whose head has just arrived.
    ///
    /// `version`: HTTP version, unless the head names one.
    pub(crate) fn begin(client: &ClientStream, version: &'static str) -> RequestRecord {
        RequestRecord {
            began: Instant::now(),
            is_logged: client.access_log().chooses_one(),
            bytes: (0, 0),
            status: None,
            answered: None,
            is_file: false,
            broken: None,
            connect: None,
            retries: 0,
            server: None,
            of_files: None,
            route: None,
            core: client.core(),
            version,
            trace: None,
            named: None,
            compression: None,
        }
    }

    /// It comes from this client, which trusted proxies name; `None`: from the peer.
    pub(crate) fn comes_from(&mut self, named: Option<SocketAddr>) {
        self.named = named;
    }

    /// It is answered before it takes this route.
    pub(crate) fn is_answered_on_its_route(&mut self, route: Option<Arc<HttpRoute>>) {
        self.route = route;
    }

    /// It is this request, and takes this route.
    pub(crate) fn takes(&mut self, route: &Arc<HttpRoute>, request: &HttpRequest) {
        self.route = Some(route.clone());
        if self.is_logged {
            self.trace = request.trace();
        }
    }

    /// A server is tried.
    pub(crate) fn tries(&mut self, permit: &Permit, addr: SocketAddr) {
        if !self.is_logged {
            return;
        }
        self.retries += u32::from(self.server.is_some());
        let (backend, name) = permit.names();
        self.server = Some((backend, ServedBy { name, addr }));
    }

    /// The server has accepted, or had before.
    pub(crate) fn connected(&mut self) {
        if self.is_logged {
            self.connect = Some(self.began.elapsed());
        }
    }

    /// Whether the response has begun.
    pub(crate) fn has_begun_response(&self) -> bool {
        self.status.is_some()
    }

    /// Bytes have moved.
    pub(crate) fn count(&mut self, rx: u64, tx: u64) {
        self.bytes.0 += rx;
        self.bytes.1 += tx;
    }

    /// So many bytes of the client's are counted anew.
    pub(crate) fn took_back(&mut self, rx: u64) {
        self.bytes.0 = self.bytes.0.saturating_sub(rx);
    }

    /// A server has answered with this status.
    pub(crate) fn has_status(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// It is about a file of this backend.
    pub(crate) fn asks_for_file_of(&mut self, backend: &Arc<str>) {
        if self.is_logged {
            self.of_files = Some(backend.clone());
        }
    }

    /// convey has answered with a file, or a part of one.
    pub(crate) fn has_file(&mut self, status: u16) {
        (self.status, self.is_file) = (Some(status), true);
    }

    /// Its response is compressed with this.
    pub(crate) fn is_compressed(&mut self, coding: ContentCoding) {
        self.compression = Some(coding);
    }

    /// convey has answered.
    pub(crate) fn answered(&mut self, status: u16, reason: AnswerReason) {
        (self.status, self.answered) = (Some(status), Some(reason));
    }

    /// convey has refused the request, and could not answer.
    fn refused(&mut self, reason: AnswerReason) {
        self.answered = Some(reason);
    }

    /// The client's connection ends before it has the whole response.
    pub(crate) fn broke(&mut self, reason: Counter) {
        self.broken = Some(reason);
    }

    /// convey refuses a request whose head it has not got, and cannot answer.
    pub(crate) fn end_refused(mut self, client: &ClientStream, reason: AnswerReason) {
        client.count(Counter::Requests, 1);
        client.count(reason.counter(), 1);
        self.refused(reason);
        self.end(client, None);
    }

    /// The request is over: it is counted, and logged if it is. `head` is `None` if it never came whole.
    pub(crate) fn end(self, client: &ClientStream, head: Option<&RequestHead>) {
        let total = self.began.elapsed();
        self.count_for_route(total);
        if !self.is_logged {
            return;
        }
        let log = client.access_log().clone();
        let at = client.pick_context(self.began);
        let frontend = client.frontend();
        log.put(|| {
            let (termination, reason) = self.ending();
            let (backend, server) = self.server.unzip();
            let of_files = self.of_files;
            Some(Record {
                ended: log.now(),
                total,
                queued: None,
                connect: self.connect,
                mode: frontend.config.mode,
                protocol: at.protocol,
                client: self.named.unwrap_or(at.client),
                proxy: self.named.map(|_| at.client).or(at.proxy),
                listen: at.vip,
                frontend: frontend.live.name.clone(),
                backend: backend.or(of_files).unwrap_or_else(|| frontend.pool.live.name.clone()),
                server,
                bytes_rx: Some(self.bytes.0),
                bytes_tx: Some(self.bytes.1),
                retries: self.retries,
                termination,
                reason,
                tls: client.tls().cloned(),
                hello: None,
                request: Some(Box::new(LoggedRequest {
                    method: text(head.map_or(b"", |head| head.method_token())),
                    host: text(head.map_or(b"", |head| head.host())),
                    target: text(head.map_or(b"", |head| head.path_and_query())),
                    route: self.route.map(|route| route.name.clone()),
                    status: self.status,
                    is_answered_here: self.is_file || self.answered.is_some(),
                    version: match (self.version, head.is_none_or(RequestHead::is_http11)) {
                        ("", true) => "1.1",
                        ("", false) => "1.0",
                        (version, _) => version,
                    },
                    trace_id: self.trace.map(|trace| trace.trace_id().into()),
                    compression: self.compression.map(ContentCoding::name),
                })),
            })
        });
    }

    /// A request that has taken so long is counted for its route.
    fn count_for_route(&self, total: Duration) {
        let Some(route) = &self.route else { return };
        route.live.traffic.add(self.core, Counter::Requests, 1);
        if let Some(status) = self.status {
            route.live.traffic.add(self.core, Counter::of_status(status), 1);
        }
        route.live.times.record(self.core, total);
    }

    fn ending(&self) -> (Termination, Option<&'static str>) {
        match (self.broken, self.answered) {
            (Some(reason @ (Counter::IdleTimeout | Counter::ClientTooSlow)), _) => {
                (Termination::Timeout, Some(reason.label()))
            }
            (Some(reason), _) => (Termination::Reset, Some(reason.label())),
            (None, Some(reason)) => (Termination::Refused, Some(reason.label())),
            (None, None) => (Termination::Closed, None),
        }
    }
}

fn text(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LOGGED)]).into()
}
