//! Record of a connection or session for the access log and for traces.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::context::WorkersShared;
use super::tls_hello::Routed;
use convey_access_log::{AccessLog, Ending, LoggedTls, Record, ServedBy, Termination};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;
use convey_upstream::{Permit, PickContext};

/// Record of an open connection or UDP session. It exists only if the access log or a trace needs
/// it.
#[derive(Debug)]
pub(super) struct SessionRecord {
    /// Access log; `None` if the connection is not logged.
    log: Option<Arc<AccessLog>>,
    bytes_rx: AtomicU64,
    bytes_tx: AtomicU64,
    /// Time at which the wait for a slot or a server began: accept, or the arrival of the PROXY
    /// header.
    waits_since: Instant,
    /// Time of the first attempt to connect.
    tried: Option<Instant>,
    connect: Option<Duration>,
    retries: u32,
    /// Names of the backend and of the last server that convey tried, and its address.
    server: Option<(Arc<str>, Arc<str>, SocketAddr)>,
}

/// Facts about a client connection that its record gets only at the end.
#[derive(Default)]
pub(super) struct ClientFacts<'a> {
    /// Facts of the TLS handshake with the client.
    pub(super) tls: Option<Arc<LoggedTls>>,
    /// Route that the ClientHello selected.
    pub(super) routed: Option<&'a Routed>,
}

impl SessionRecord {
    /// Creates the record of a client that arrived at `began`. Returns `None` if neither the access
    /// log nor a trace needs it.
    pub(super) fn begin(shared: &WorkersShared, began: Instant) -> Option<Box<SessionRecord>> {
        let log = shared.access_log.chooses_one().then(|| shared.access_log.clone());
        (log.is_some() || shared.trace.is_watched()).then(|| {
            Box::new(SessionRecord {
                log,
                bytes_rx: AtomicU64::new(0),
                bytes_tx: AtomicU64::new(0),
                waits_since: began,
                tried: None,
                connect: None,
                retries: 0,
                server: None,
            })
        })
    }

    /// Records that the PROXY header has arrived: the wait for a server begins now.
    pub(super) fn has_header(&mut self) {
        self.waits_since = Instant::now();
    }

    /// Counts bytes from the client (`rx`) and to the client (`tx`). Only one task writes the
    /// record, so plain loads and stores suffice.
    pub(super) fn count(&self, rx: u64, tx: u64) {
        for (bytes, n) in [(&self.bytes_rx, rx), (&self.bytes_tx, tx)] {
            bytes.store(bytes.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }

    /// Number of bytes from the client and to the client so far.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes_rx.load(Ordering::Relaxed), self.bytes_tx.load(Ordering::Relaxed))
    }

    /// Records an attempt to connect to the permit's server at `addr`.
    pub(super) fn tries(&mut self, permit: &Permit, addr: SocketAddr, at: Instant) {
        self.retries += u32::from(self.tried.is_some());
        self.tried.get_or_insert(at);
        self.moves_to(permit, addr);
    }

    /// Records that the server has accepted the connection.
    pub(super) fn connected(&mut self) {
        self.connect = self.tried.map(|tried| tried.elapsed());
    }

    /// Records that a session now uses the server of this permit.
    pub(super) fn moves_to(&mut self, permit: &Permit, addr: SocketAddr) {
        let (backend, name) = permit.names();
        self.server = Some((backend, name, addr));
    }

    /// Writes the record to the access log, if the connection is logged.
    pub(super) fn end(
        self,
        downstream: &PickContext,
        frontend: &Frontend,
        facts: ClientFacts<'_>,
        ending: Ending,
    ) {
        let SessionRecord { log, bytes_rx, bytes_tx, waits_since, tried, connect, retries, server } = self;
        let Some(log) = log else { return };
        let ClientFacts { tls, routed } = facts;
        let make = || {
            let server = server.as_ref();
            let pool = routed.map_or(&frontend.pool, |routed| routed.pool().shared());
            Some(Record {
                ended: log.now(),
                total: downstream.began.elapsed(),
                queued: tried.map(|tried| tried.duration_since(waits_since)),
                connect,
                mode: frontend.config.mode,
                protocol: downstream.protocol,
                client: downstream.client,
                proxy: downstream.proxy,
                listen: downstream.vip,
                frontend: &frontend.live.name,
                backend: server.map_or(&pool.live.name, |(backend, ..)| backend),
                server: server.map(|(_, name, addr)| ServedBy { name, addr: *addr }),
                bytes_rx: Some(bytes_rx.into_inner()),
                bytes_tx: Some(bytes_tx.into_inner()),
                retries,
                termination: ending.termination,
                reason: ending.reason,
                tls: tls.as_deref(),
                hello: routed.map(Routed::logged),
                request: None,
            })
        };
        log.put(make);
    }
}

/// Ending of a connection for the access log: the kind that matches the reason, or `usual` without
/// a reason.
pub(super) fn ending_for(reason: Option<Counter>, usual: Termination) -> Ending {
    let Some(reason) = reason else { return Ending::usual(usual) };
    let termination = match reason {
        Counter::IdleTimeout
        | Counter::ProxyHeaderTimeout
        | Counter::FirstByteTimeout
        | Counter::HelloTimeout => Termination::Timeout,
        Counter::ClientReset | Counter::ServerReset | Counter::ServerGone => Termination::Reset,
        Counter::Cut | Counter::AccessDenied | Counter::Killed | Counter::UnprovenPaths => Termination::Cut,
        Counter::Evicted => Termination::Evicted,
        _ => Termination::Refused,
    };
    Ending::early(termination, reason.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_a_logged_connection_takes_150_bytes() {
        assert!(size_of::<SessionRecord>() <= 150, "{}", size_of::<SessionRecord>());
    }
}
