//! Line of a request in the access log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_access_log::{Ending, LoggedRequest, LoggedResponse, Record, RequestHeaders, ServedBy};
use convey_http_core::{ContentCoding, ExchangePhase, RequestHead};
use convey_proxy::ClientStream;

use super::{RequestRecord, version_of};

/// Maximum number of characters of a host or of a target in the log.
const MAX_LOGGED: usize = 2_048;

/// Facts of a request that only the log has.
#[derive(Debug, Default)]
pub(super) struct LoggedFacts {
    /// Time from the head of the request until there was a connection to a server, new or reused.
    pub(super) connect: Option<Duration>,
    /// Names of the backend and of the server that was tried last, and its address.
    pub(super) server: Option<(Arc<str>, Arc<str>, SocketAddr)>,
    /// Backend of the requested file.
    pub(super) of_files: Option<Arc<str>>,
    /// Facts about the response that the format needs.
    pub(super) response: Option<Box<LoggedResponse>>,
}

/// Headers of a request for its line.
#[derive(Debug)]
pub(super) struct HeadFields<'a>(pub(super) &'a RequestHead);

impl RequestHeaders for HeadFields<'_> {
    fn each_value<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        let HeadFields(head) = self;
        let (name, mut has_value) = (name.as_bytes(), false);
        for field in head.fields().filter(|field| field.name.eq_ignore_ascii_case(name)) {
            has_value = true;
            each(field.value);
        }
        // The target of a request may have the host, and in HTTP/2 it does.
        if !has_value && name.eq_ignore_ascii_case(b"host") && !head.host().is_empty() {
            each(head.host());
        }
    }
}

impl RequestRecord {
    /// Record of the request for its line.
    pub(super) fn logged_record<'a>(
        &'a self,
        logged: &'a LoggedFacts,
        client: &'a ClientStream,
        fields: Option<&'a HeadFields<'a>>,
        total: Duration,
    ) -> Record<'a> {
        let head = fields.map(|HeadFields(head)| *head);
        let Ending { termination, reason } = self.ending();
        let (at, frontend, server) = (client.downstream(), client.frontend(), &logged.server);
        let backend = server.as_ref().map(|(backend, ..)| backend).or(logged.of_files.as_ref());
        Record {
            ended: client.access_log().timestamp((self.began + total).into_std()),
            total,
            queued: None,
            connect: logged.connect,
            mode: frontend.config.mode,
            protocol: at.protocol,
            client: self.named.unwrap_or(at.client),
            proxy: self.named.map(|_| at.client).or(at.proxy),
            listen: at.vip,
            frontend: &frontend.live.name,
            backend: backend.unwrap_or(&frontend.pool.live.name),
            server: server.as_ref().map(|(_, name, addr)| ServedBy { name, addr: *addr }),
            bytes_rx: Some(self.bytes.0),
            bytes_tx: Some(self.bytes.1),
            retries: self.attempts.saturating_sub(1),
            termination,
            reason,
            tls: client.tls().map(|tls| &**tls),
            hello: None,
            request: Some(LoggedRequest {
                method: head.map_or(b"", |head| cut(head.method_token())),
                host: head.map_or(b"", |head| cut(head.host())),
                target: head.map_or(b"", |head| cut(head.path_and_query())),
                route: self.route.as_ref().map(|route| &*route.name),
                status: self.status,
                phase: self.early_phase().map(ExchangePhase::label),
                is_answered_here: self.is_file || self.answered.is_some(),
                version: version_of(self.version, head),
                trace_id: head.and_then(|head| self.trace(head)).map(|trace| trace.id()),
                compression: self.compression.map(ContentCoding::name),
                headers: fields.map(|fields| fields as &dyn RequestHeaders),
                response: logged.response.as_deref(),
            }),
        }
    }
}

/// Returns the beginning of a long text.
pub(super) fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_LOGGED)]
}
