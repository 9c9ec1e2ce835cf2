//! Trace events of TCP connections, UDP sessions and requests.

use std::io;
use std::net::SocketAddr;

use super::context::WorkerContext;
use super::session::TcpSession;
use convey_access_log::{Ending, Termination};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;
use convey_tls::{TlsError, handshake_fault};
use convey_trace::{ConnectionStep, TraceEvent, TraceStep, TracedRequest};
use convey_upstream::PickContext;

/// Sends a step of a connection or session to the trace subscribers, if there are any.
#[inline]
pub(super) fn publish(
    context: &WorkerContext,
    downstream: &PickContext,
    frontend: &Frontend,
    server: Option<u32>,
    step: ConnectionStep,
) {
    context.shared.trace.publish(|| TraceEvent {
        at: context.shared.access_log.now(),
        protocol: Some(downstream.protocol),
        client: Some(downstream.client),
        proxy: downstream.proxy,
        vip: Some(downstream.vip),
        frontend: Some(frontend.live.id),
        server,
        step: TraceStep::Connection(step),
    });
}

/// Trace step of a datagram that was dropped for this reason.
pub(super) fn drops(reason: Counter) -> ConnectionStep {
    let label = if reason.label().is_empty() { reason.drop_label() } else { reason.label() };
    ConnectionStep::Dropped { reason: label }
}

/// Trace step of the end of a connection.
pub(super) fn end(ending: Ending, bytes: Option<(u64, u64)>, downstream: &PickContext) -> ConnectionStep {
    match (ending.termination, ending.reason) {
        (Termination::Refused, Some(reason)) => ConnectionStep::Refused { reason },
        (_, reason) => ConnectionStep::Ended { reason, bytes, after: downstream.began.elapsed() },
    }
}

/// Trace step of a failed connect to a server.
pub(super) fn connect_failed(error: &io::Error) -> ConnectionStep {
    ConnectionStep::ConnectFailed { errno: error.raw_os_error(), fault: tls_fault(error) }
}

/// Returns the reason of a failed TLS handshake with a server, as readable text. `None` if the
/// connect failed for another cause.
pub fn tls_fault(error: &io::Error) -> Option<&'static str> {
    error.get_ref().and_then(|error| error.downcast_ref::<TlsError>()).map(handshake_fault)
}

impl TcpSession {
    /// Sends a step of this connection to the trace subscribers. `server` is the id of the server
    /// that the step concerns, if any.
    #[inline]
    pub(super) fn trace(&self, server: Option<u32>, step: ConnectionStep) {
        if self.context.shared.trace.is_watched() {
            publish(&self.context, &self.downstream(), &self.frontend, server, step);
        }
    }

    /// Sends a step of a request on this connection to the trace subscribers. `named` is the client
    /// that a trusted proxy named.
    #[inline]
    pub(super) fn trace_request(
        &self,
        named: Option<SocketAddr>,
        server: Option<u32>,
        request: impl FnOnce() -> TracedRequest,
    ) {
        let shared = &self.context.shared;
        shared.trace.publish(|| {
            let PickContext { client, proxy, vip, protocol, .. } = self.downstream();
            TraceEvent {
                at: shared.access_log.now(),
                protocol: Some(protocol),
                client: Some(named.unwrap_or(client)),
                proxy: proxy.or(named.map(|_| client)),
                vip: Some(vip),
                frontend: Some(self.frontend.live.id),
                server,
                step: TraceStep::Request(request()),
            }
        });
    }
}
