//! What the access log and a trace tell of a connection or session, as it grows.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::context::WorkersShared;
use super::tls_hello::Routed;
use convey_access_log::{AccessLog, LoggedTls, Record, ServedBy, Termination};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;
use convey_upstream::{Permit, PickContext};

/// Kept while a connection is open, if it is logged or somebody watched its beginning. Apart from the connection, which needs no memory for it else.
#[derive(Debug)]
pub(super) struct Tally {
    /// `None`: it is not logged.
    log: Option<Arc<AccessLog>>,
    bytes_rx: AtomicU64,
    bytes_tx: AtomicU64,
    /// Since when it waits for a connection slot or a server.
    waits_since: Instant,
    /// When the first server was tried.
    tried: Option<Instant>,
    connect: Option<Duration>,
    retries: u32,
    /// The backend, and who was tried last.
    server: Option<(Arc<str>, ServedBy)>,
}

impl Tally {
    /// One for a client that came at `began`; `None`: nobody wants it.
    pub(super) fn begin(shared: &WorkersShared, began: Instant) -> Option<Box<Tally>> {
        let log = shared.access_log.chooses_one().then(|| shared.access_log.clone());
        (log.is_some() || shared.trace.is_watched()).then(|| {
            Box::new(Tally {
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

    /// Its PROXY header has come: it waits for a server only now.
    pub(super) fn has_header(&mut self) {
        self.waits_since = Instant::now();
    }

    /// Counts bytes from and to the client. One task has it: plain loads and stores.
    pub(super) fn count(&self, rx: u64, tx: u64) {
        for (bytes, n) in [(&self.bytes_rx, rx), (&self.bytes_tx, tx)] {
            bytes.store(bytes.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }

    /// Bytes from and to the client so far.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes_rx.load(Ordering::Relaxed), self.bytes_tx.load(Ordering::Relaxed))
    }

    /// The server of a permit is tried at `addr`.
    pub(super) fn tries(&mut self, permit: &Permit, addr: SocketAddr, at: Instant) {
        self.retries += u32::from(self.tried.is_some());
        self.tried.get_or_insert(at);
        self.moves_to(permit, addr);
    }

    /// The server has accepted at last.
    pub(super) fn connected(&mut self) {
        self.connect = self.tried.map(|tried| tried.elapsed());
    }

    /// A session goes on with the server of this permit.
    pub(super) fn moves_to(&mut self, permit: &Permit, addr: SocketAddr) {
        let (backend, name) = permit.names();
        self.server = Some((backend, ServedBy { name, addr }));
    }

    /// Logs the connection, if it is logged. It ends now. What its TLS handshake has agreed on, and by what it was routed, goes into its line.
    pub(super) fn end(
        self,
        downstream: &PickContext,
        frontend: &Frontend,
        (tls, routed): (Option<Arc<LoggedTls>>, Option<&Routed>),
        (termination, reason): (Termination, Option<&'static str>),
    ) {
        let Tally { log, bytes_rx, bytes_tx, waits_since, tried, connect, retries, server } = self;
        let Some(log) = log else { return };
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
                termination,
                reason,
                tls,
                hello: routed.map(|routed| Box::new(routed.logged())),
                request: None,
            })
        };
        log.put(make);
    }
}

/// How a connection ends for this reason; `usual` is how it ends without one.
pub(super) fn termination_for(
    reason: Option<Counter>,
    usual: Termination,
) -> (Termination, Option<&'static str>) {
    let Some(reason) = reason else { return (usual, None) };
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
    (termination, Some(reason.label()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_logged_takes_150_bytes_more() {
        assert!(size_of::<Tally>() <= 150, "{}", size_of::<Tally>());
    }
}
