//! Queries of operators for open connections and UDP sessions. A worker lists them in slices, so
//! that its other tasks run between two slices.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::registry::Registry;
use super::worker::{WorkerCommand, WorkerThread};
use super::{Workers, udp};
use convey_model::{FlowKind, FlowListing, FlowQuery, FlowsUnavailable, ListedFlow, ListedFlowId, Timestamp};

/// Number of table entries that a worker reads in one slice.
const SLICE: usize = 1_000;

/// Handle for queries of the connections and UDP sessions of all workers.
#[derive(Debug, Clone)]
pub struct ProxyFlows(Vec<mpsc::WeakUnboundedSender<WorkerCommand>>);

impl Workers {
    /// Returns a handle for queries of connections and UDP sessions.
    pub fn flows(&self) -> ProxyFlows {
        ProxyFlows(self.threads.iter().map(|WorkerThread { commands, .. }| commands.downgrade()).collect())
    }
}

impl ProxyFlows {
    /// Lists the connections and UDP sessions that match a query, from all workers.
    ///
    /// # Errors
    /// Reason why there is no answer.
    pub async fn list(&self, query: &FlowQuery) -> Result<FlowListing, FlowsUnavailable> {
        let mut answers = Vec::new();
        for worker in &self.0 {
            let (answer, listing) = oneshot::channel();
            send(worker, WorkerCommand::ListFlows { query: query.clone(), answer })?;
            answers.push(listing);
        }
        let mut all = FlowListing::new(query.clone());
        for listing in answers {
            all.merge(listing.await.map_err(|_| FlowsUnavailable::Gone)?);
        }
        Ok(all)
    }

    /// Ends a connection or UDP session, and returns it. Returns `None` if the connection or
    /// session does not exist any more.
    ///
    /// # Errors
    /// Reason why there is no answer.
    pub async fn kill(&self, id: ListedFlowId) -> Result<Option<ListedFlow>, FlowsUnavailable> {
        let Some(worker) = self.0.get(usize::from(id.worker)) else { return Ok(None) };
        let (answer, killed) = oneshot::channel();
        send(worker, WorkerCommand::KillFlow { id, answer })?;
        killed.await.map_err(|_| FlowsUnavailable::Gone)
    }
}

fn send(
    worker: &mpsc::WeakUnboundedSender<WorkerCommand>,
    command: WorkerCommand,
) -> Result<(), FlowsUnavailable> {
    let worker = worker.upgrade().ok_or(FlowsUnavailable::Gone)?;
    worker.send(command).map_err(|_| FlowsUnavailable::Gone)
}

/// Starts a task that lists the connections in this registry and the sessions of this thread.
/// `worker` is the number of the worker, and `started` is the time of `Timestamp(0)`.
pub(super) fn begin_list(
    registry: Arc<Registry>,
    (worker, started): (u16, Instant),
    query: FlowQuery,
    answer: oneshot::Sender<FlowListing>,
) {
    tokio::spawn(async move {
        let mut listing = FlowListing::new(query);
        let mut next = Some(0);
        while let Some(from) = next.filter(|_| !answer.is_closed()) {
            next = registry.list((from, SLICE), worker, Instant::now(), &mut listing);
            yield_now().await;
        }
        next = Some(0);
        while let Some(from) = next.filter(|_| !answer.is_closed()) {
            next = udp::list((from, SLICE), worker, since(started), &mut listing);
            yield_now().await;
        }
        let _ = answer.send(listing);
    });
}

/// Ends a connection in this registry or a UDP session of this thread, and returns it. Returns
/// `None` if the connection or session does not exist any more.
pub(super) fn kill(registry: &Registry, id: ListedFlowId, started: Instant) -> Option<ListedFlow> {
    match id.kind {
        FlowKind::Connection => registry.kill(id),
        FlowKind::Session => udp::kill(id, since(started)),
        FlowKind::Packets => None,
    }
}

fn since(started: Instant) -> Timestamp {
    Timestamp(started.elapsed().as_nanos() as u64)
}
