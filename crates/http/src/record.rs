//! Counters and log entry of one request.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_access_log::{Ending, LoggedRequest, Record, ServedBy, Termination};
use convey_http_core::{ContentCoding, RequestHead, TraceParent};
use convey_proxy::ClientStream;
use convey_snapshot::HttpRoute;
use convey_snapshot::stats::Counter;
use convey_upstream::Permit;
use tokio::time::Instant;

use crate::hooks::{ExchangeSummary, Hooks};
use crate::local_reply::LocalReplyReason;
use crate::request::HttpRequest;

/// Maximum number of characters of a host or of a target in the log.
const MAX_LOGGED: usize = 2_048;

/// Record of a request in progress.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    /// Time at which the request's head was complete.
    pub(crate) began: Instant,
    /// Whether the request is logged.
    is_logged: bool,
    /// Bytes of bodies and heads, from and to the client.
    bytes: (u64, u64),
    status: Option<u16>,
    /// Reason for a local reply.
    answered: Option<LocalReplyReason>,
    /// Whether the response is a file.
    is_file: bool,
    /// Reason for the end of the client's connection during the request.
    broken: Option<Counter>,
    /// Time from the head of the request until there was a connection to a server, new or reused.
    connect: Option<Duration>,
    retries: u32,
    /// Backend, and the server that was tried last.
    server: Option<(Arc<str>, ServedBy)>,
    /// Backend of the requested file.
    of_files: Option<Arc<str>>,
    route: Option<Arc<HttpRoute>>,
    core: usize,
    version: &'static str,
    trace: Option<TraceParent>,
    /// Client that trusted proxies name.
    named: Option<SocketAddr>,
    /// Coding of a compressed response.
    compression: Option<ContentCoding>,
    /// Own code that follows the request.
    pub(crate) hooks: Hooks,
}

impl RequestRecord {
    /// Begins the record of a request whose head has just arrived.
    ///
    /// `version`: HTTP version; empty if the head contains it.
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
            hooks: Hooks::default(),
        }
    }

    /// Sets the client that trusted proxies name; `None`: the client is the peer.
    pub(crate) fn comes_from(&mut self, named: Option<SocketAddr>) {
        self.named = named;
    }

    /// Sets the route of a request that gets a local reply before it is forwarded.
    pub(crate) fn is_answered_on_its_route(&mut self, route: Option<Arc<HttpRoute>>) {
        self.route = route;
    }

    /// Sets the route of a request that is forwarded, and its trace.
    pub(crate) fn takes(&mut self, route: &Arc<HttpRoute>, request: &HttpRequest) {
        self.route = Some(route.clone());
        if self.is_logged {
            self.trace = request.trace();
        }
    }

    /// Notes an attempt at a server.
    pub(crate) fn tries(&mut self, permit: &Permit, addr: SocketAddr) {
        if !self.is_logged {
            return;
        }
        self.retries += u32::from(self.server.is_some());
        let (backend, name) = permit.names();
        self.server = Some((backend, ServedBy { name, addr }));
    }

    /// Notes that there is a connection to the server, new or reused.
    pub(crate) fn connected(&mut self) {
        if self.is_logged {
            self.connect = Some(self.began.elapsed());
        }
    }

    /// Whether the response has begun.
    pub(crate) fn has_begun_response(&self) -> bool {
        self.status.is_some()
    }

    /// Counts moved bytes.
    pub(crate) fn count(&mut self, rx: u64, tx: u64) {
        self.bytes.0 += rx;
        self.bytes.1 += tx;
    }

    /// Subtracts bytes of the client that will be counted again.
    pub(crate) fn took_back(&mut self, rx: u64) {
        self.bytes.0 = self.bytes.0.saturating_sub(rx);
    }

    /// Notes the status of a server's response.
    pub(crate) fn has_status(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Notes that the request is for a file of this backend.
    pub(crate) fn asks_for_file_of(&mut self, backend: &Arc<str>) {
        if self.is_logged {
            self.of_files = Some(backend.clone());
        }
    }

    /// Notes a response with a file, or a part of one.
    pub(crate) fn has_file(&mut self, status: u16) {
        (self.status, self.is_file) = (Some(status), true);
    }

    /// Notes the coding of the compressed response.
    pub(crate) fn is_compressed(&mut self, coding: ContentCoding) {
        self.compression = Some(coding);
    }

    /// Notes a local reply.
    pub(crate) fn answered(&mut self, status: u16, reason: LocalReplyReason) {
        (self.status, self.answered) = (Some(status), Some(reason));
    }

    /// Notes that convey has refused the request, and could not reply.
    fn refused(&mut self, reason: LocalReplyReason) {
        self.answered = Some(reason);
    }

    /// Notes that the client's connection ended before the client had the whole response.
    pub(crate) fn broke(&mut self, reason: Counter) {
        self.broken = Some(reason);
    }

    /// Ends the record of a request without a head, which convey refuses and cannot reply to.
    pub(crate) fn end_refused(mut self, client: &ClientStream, reason: LocalReplyReason) {
        client.count(Counter::Requests, 1);
        client.count(reason.counter(), 1);
        self.refused(reason);
        self.end(client, None);
    }

    /// Ends the record: counts the request, and logs it if it is selected. `head` is `None` if the
    /// head never arrived completely.
    pub(crate) fn end(mut self, client: &ClientStream, head: Option<&RequestHead>) {
        let total = self.began.elapsed();
        self.count_for_route(total);
        std::mem::take(&mut self.hooks).end(|| self.summary(total));
        if !self.is_logged {
            return;
        }
        let log = client.access_log().clone();
        let at = client.pick_context(self.began);
        let frontend = client.frontend();
        log.put(|| {
            let Ending { termination, reason } = self.ending();
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

    /// Counts the request and its duration for its route.
    fn count_for_route(&self, total: Duration) {
        let Some(route) = &self.route else { return };
        route.live.traffic.add(self.core, Counter::Requests, 1);
        if let Some(status) = self.status {
            route.live.traffic.add(self.core, Counter::of_status(status), 1);
        }
        route.live.times.record(self.core, total);
    }

    fn summary(&self, took: Duration) -> ExchangeSummary {
        let (bytes_rx, bytes_tx) = self.bytes;
        ExchangeSummary { status: self.status, bytes_rx, bytes_tx, took, reason: self.ending().reason }
    }

    fn ending(&self) -> Ending {
        match (self.broken, self.answered) {
            (Some(reason @ (Counter::IdleTimeout | Counter::ClientTooSlow)), _) => {
                Ending::early(Termination::Timeout, reason.label())
            }
            (Some(reason), _) => Ending::early(Termination::Reset, reason.label()),
            (None, Some(reason)) => Ending::early(Termination::Refused, reason.label()),
            (None, None) => Ending::usual(Termination::Closed),
        }
    }
}

fn text(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LOGGED)]).into()
}
