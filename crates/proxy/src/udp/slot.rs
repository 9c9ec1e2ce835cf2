//! Slot of a UDP session: its counts at the frontend, in the client's shares, and among all
//! sessions.

use std::io;
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
use convey_snapshot::stats::{Counter, Traffic};
use convey_snapshot::{Frontend, Pool, WorkerArc};
use convey_trace::ConnectionStep;
use convey_upstream::{Permit, PickContext};

/// Slot of a UDP session. The drop releases the slot.
pub(crate) struct SessionSlot {
    pub(super) frontend: Arc<Frontend>,
    totals: Arc<Traffic>,
    context: Arc<WorkerContext>,
    is_open: bool,
    /// Frontends that the client's datagrams have passed through, if the client is one of convey's
    /// own sockets.
    path: Option<Arc<FrontendPath>>,
    /// Guard that counts the session in its client's shares.
    counted: Counted,
    /// Guard that counts the session at its source; `None` if the source has no limits.
    source: Option<CountedSource>,
    /// Whether the session is a question, which any new session may evict.
    is_question: bool,
}

impl SessionSlot {
    /// Creates the slot of a session, which begins as a question. The caller has already taken a
    /// slot of the frontend and one of `Sessions`; the drop releases both.
    pub(crate) fn taken(
        frontend: Arc<Frontend>,
        totals: Arc<Traffic>,
        context: Arc<WorkerContext>,
        (path, counted): (Option<Arc<FrontendPath>>, Counted),
        source: Option<CountedSource>,
    ) -> SessionSlot {
        context.clients.take_place();
        frontend.live.questions.try_take(None);
        context.shared.udp_sessions.questions.try_take(None);
        SessionSlot { frontend, totals, context, is_open: false, path, counted, source, is_question: true }
    }

    /// Records a socket towards a server in `OwnSockets`, to detect loops.
    pub(super) fn record_own_socket(&self, socket: &UdpSocket, server: SocketAddr) -> Option<OwnSocket> {
        let (own, frontend) = (&self.context.shared.own_sockets, self.frontend.live.id);
        own.note(socket, Endpoint::udp(server), frontend, self.path.as_ref())
    }

    /// Backend of this version of the frontend, as the worker refers to it.
    pub(super) fn pool_of(&self, frontend: &Arc<Frontend>) -> WorkerArc<Pool> {
        self.context.frontends.get(frontend).default_pool().clone()
    }

    /// Creates the record of the session. Returns `None` if neither the access log nor a trace
    /// needs it.
    pub(super) fn record(&self, began: Instant) -> Option<Box<SessionRecord>> {
        SessionRecord::begin(&self.context.shared, began)
    }

    /// Sends a step of the session to the trace subscribers.
    pub(super) fn trace(&self, downstream: &PickContext, server: u32, step: ConnectionStep) {
        traced::publish(&self.context, downstream, &self.frontend, Some(server), step);
    }

    /// Whether there are trace subscribers.
    pub(super) fn is_traced(&self) -> bool {
        self.context.shared.trace.is_watched()
    }

    /// Channel for reports of server failures.
    pub(super) fn failures(&self) -> &mpsc::Sender<ConnectFailures> {
        &self.context.shared.failures
    }

    /// Logs a failed connect to the server of the permit, if the `source` of its backend is the
    /// cause.
    pub(super) fn log_source_error(&self, permit: &Permit, error: &io::Error) {
        self.context.shared.lines.log_source_error(self.frontend.live.id, permit, error);
    }

    /// Whether the session is counted at its source.
    pub(super) fn is_counted_at_source(&self) -> bool {
        self.source.is_some()
    }

    /// Counts the session in the frontend's current table of sources. Returns whether it is counted
    /// there.
    pub(super) fn count_at_source(&mut self, frontend: &Frontend, client: IpAddr) -> bool {
        self.source = source::count_open(frontend, client);
        self.source.is_some()
    }

    /// Turns the session from a question into a stream, because the client has sent again after an
    /// answer.
    pub(super) fn become_stream(&mut self) {
        if std::mem::take(&mut self.is_question) {
            self.frontend.live.questions.release();
            self.context.shared.udp_sessions.questions.release();
            self.counted.become_stream();
        }
    }

    /// Counts the session as open.
    pub(super) fn opened(&mut self) {
        self.is_open = true;
        self.count(Counter::Opened, 1);
    }

    /// Adds `n` to a counter of the frontend, and to the same counter of all traffic.
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
        self.context.clients.put_place();
    }
}
