//! Slot of a UDP session: its place at its frontend, in its client's share, and among all sessions.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clients::Counted;
use crate::context::WorkerContext;
use crate::own_sockets::{FrontendPath, OwnSocket};
use crate::session_record::SessionRecord;
use crate::source;
use crate::traced;
use convey_model::{ConnectFailures, CountedSource, Endpoint};
use convey_snapshot::Frontend;
use convey_snapshot::stats::{Counter, Traffic};
use convey_trace::ConnectionStep;
use convey_upstream::PickContext;

/// Slot of a session, released by the drop.
pub(crate) struct SessionSlot {
    pub(super) frontend: Arc<Frontend>,
    totals: Arc<Traffic>,
    context: Arc<WorkerContext>,
    is_open: bool,
    /// Frontends that the client has come through, if it is one of convey's own sockets.
    path: Option<Arc<FrontendPath>>,
    /// Count among its client's sessions.
    counted: Counted,
    /// Count among its source's sessions, where these have a limit.
    source: Option<CountedSource>,
    /// Whether any new session may evict it.
    is_question: bool,
}

impl SessionSlot {
    /// Creates the slot, which the caller has taken at the frontend and among all sessions; it
    /// begins as a question. The client came by `path`, and `counted` and `source` hold its counts.
    pub(crate) fn taken(
        frontend: Arc<Frontend>,
        totals: Arc<Traffic>,
        context: Arc<WorkerContext>,
        (path, counted): (Option<Arc<FrontendPath>>, Counted),
        source: Option<CountedSource>,
    ) -> SessionSlot {
        frontend.live.questions.try_take(None);
        context.shared.udp_sessions.questions.try_take(None);
        SessionSlot { frontend, totals, context, is_open: false, path, counted, source, is_question: true }
    }

    /// Remembers a socket towards a server.
    pub(super) fn remember(&self, socket: &UdpSocket, server: SocketAddr) -> Option<OwnSocket> {
        let (own, frontend) = (&self.context.shared.own_sockets, self.frontend.live.id);
        own.note(socket, Endpoint::udp(server), frontend, self.path.as_ref())
    }

    /// Begins the record of the session, if the access log or a trace wants it.
    pub(super) fn record(&self, began: Instant) -> Option<Box<SessionRecord>> {
        SessionRecord::begin(&self.context.shared, began)
    }

    /// Sends a step of the session to the subscribers of traces.
    pub(super) fn trace(&self, downstream: &PickContext, server: u32, step: ConnectionStep) {
        traced::tell(&self.context, downstream, &self.frontend, Some(server), step);
    }

    /// Whether traces have subscribers.
    pub(super) fn is_traced(&self) -> bool {
        self.context.shared.trace.is_watched()
    }

    /// Channel for reports of server failures.
    pub(super) fn failures(&self) -> &mpsc::Sender<ConnectFailures> {
        &self.context.shared.failures
    }

    /// Whether the session counts at its source.
    pub(super) fn is_counted_at_source(&self) -> bool {
        self.source.is_some()
    }

    /// Counts the session at its client's source, in the frontend's current table. Returns whether
    /// it is counted.
    pub(super) fn count_at_source(&mut self, frontend: &Frontend, client: IpAddr) -> bool {
        self.source = source::count_open(frontend, client);
        self.source.is_some()
    }

    /// Notes that the client has sent again after an answer.
    pub(super) fn become_stream(&mut self) {
        if std::mem::take(&mut self.is_question) {
            self.frontend.live.questions.release();
            self.context.shared.udp_sessions.questions.release();
            self.counted.become_stream();
        }
    }

    /// Notes that the session has begun.
    pub(super) fn opened(&mut self) {
        self.is_open = true;
        self.count(Counter::Opened, 1);
    }

    /// Adds to a counter of the frontend and to that of all traffic.
    pub(super) fn count(&self, counter: Counter, n: u64) {
        self.frontend.live.traffic.add(self.context.core, counter, n);
        self.totals.add(self.context.core, counter, n);
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        if self.is_open {
            self.count(Counter::Closed, 1);
        }
        if self.is_question {
            self.frontend.live.questions.release();
            self.context.shared.udp_sessions.questions.release();
        }
        self.frontend.live.slots.release();
        self.context.shared.udp_sessions.close();
    }
}
