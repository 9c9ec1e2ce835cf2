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

/// Record of an open connection or session, which exists only if the access log or a trace wants
/// it.
#[derive(Debug)]
pub(super) struct SessionRecord {
    /// Access log; `None` if the connection is not logged.
    log: Option<Arc<AccessLog>>,
    bytes_rx: AtomicU64,
    bytes_tx: AtomicU64,
    /// Start of the wait for a connection slot or a server.
    waits_since: Instant,
    /// Time of the first attempt to connect.
    tried: Option<Instant>,
    connect: Option<Duration>,
    retries: u32,
    /// Backend, and the last server that was tried.
    server: Option<(Arc<str>, ServedBy)>,
}

/// Facts about a client that are known only at the end of its connection.
#[derive(Default)]
pub(super) struct ClientFacts<'a> {
    /// TLS handshake with the client.
    pub(super) tls: Option<Arc<LoggedTls>>,
    /// Route that the connection took.
    pub(super) routed: Option<&'a Routed>,
}

impl SessionRecord {
    /// Begins the record of a client that came at `began`, if the access log or a trace wants it.
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

    /// Notes that the PROXY header has arrived: the wait for a server begins now.
    pub(super) fn has_header(&mut self) {
        self.waits_since = Instant::now();
    }

    /// Counts bytes from and to the client. One task has the record, so plain loads and stores
    /// suffice.
    pub(super) fn count(&self, rx: u64, tx: u64) {
        for (bytes, n) in [(&self.bytes_rx, rx), (&self.bytes_tx, tx)] {
            bytes.store(bytes.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }

    /// Bytes from and to the client so far.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes_rx.load(Ordering::Relaxed), self.bytes_tx.load(Ordering::Relaxed))
    }

    /// Notes an attempt to connect to the server of a permit at `addr`.
    pub(super) fn tries(&mut self, permit: &Permit, addr: SocketAddr, at: Instant) {
        self.retries += u32::from(self.tried.is_some());
        self.tried.get_or_insert(at);
        self.moves_to(permit, addr);
    }

    /// Notes that the server has accepted the connection.
    pub(super) fn connected(&mut self) {
        self.connect = self.tried.map(|tried| tried.elapsed());
    }

    /// Notes that a session continues with the server of this permit.
    pub(super) fn moves_to(&mut self, permit: &Permit, addr: SocketAddr) {
        let (backend, name) = permit.names();
        self.server = Some((backend, ServedBy { name, addr }));
    }

    /// Logs the end of the connection.
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
            let (backend, server) = server.unzip();
            let pool = routed.map_or(&frontend.pool, Routed::pool);
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
                frontend: frontend.live.name.clone(),
                backend: backend.unwrap_or_else(|| pool.live.name.clone()),
                server,
                bytes_rx: Some(bytes_rx.into_inner()),
                bytes_tx: Some(bytes_tx.into_inner()),
                retries,
                termination: ending.termination,
                reason: ending.reason,
                tls,
                hello: routed.map(|routed| Box::new(routed.logged())),
                request: None,
            })
        };
        log.put(make);
    }
}

/// End of a connection for this reason; `usual` without a reason.
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
