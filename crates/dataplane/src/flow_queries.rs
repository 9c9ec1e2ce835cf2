//! Operator queries about flows. Workers answer them between batches of frames, and build long
//! lists in slices.

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use tokio::sync::oneshot;

use super::Buffer;
use super::accounting::{Accounting, OwnerNames};
use super::queues::Parcel;
use super::worker::{Round, Worker};
use convey_forward::{ClientShare, FlowInfo, View, VisitBudget};
use convey_model::{
    FlowActivity, FlowFacts, FlowKey, FlowKind, FlowListing, FlowQuery, FlowServer, FlowsUnavailable,
    ListedFlow, ListedFlowId, Mode, NextHop, Timestamp,
};

/// Maximum number of requests that wait for one worker.
const MAX_WAITING: usize = 16;

/// Cost limit of one slice of a list (see `docs/design/flow-lists.md`).
const SLICE: VisitBudget = VisitBudget { places: 2_000, lookups: 64 };

/// Operator's request to a worker, with the channel for its answer.
pub(super) enum FlowRequest {
    List(FlowQuery, oneshot::Sender<FlowListing>),
    /// Finds the flow that packets with this key belong to.
    Find(FlowKey, oneshot::Sender<Option<PacketFlow>>),
    /// Returns the quota use of a client that would open a flow with this key to the server with
    /// this number.
    ClientShare(FlowKey, u32, oneshot::Sender<Option<ClientShare>>),
    /// Ends the flow in a slot of the flow table, if the flow has this serial number.
    Kill(u32, u32, oneshot::Sender<Option<ListedFlow>>),
}

/// Flow of a packet mode, as stored in its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketFlow {
    /// Entry of the flow in lists.
    pub listed: ListedFlow,
    /// State of the flow in the forwarding core.
    pub info: FlowInfo,
    /// Next hop of packets to the flow's server; `None` until a packet of the flow needs it.
    pub next_hop: Option<NextHop>,
}

/// Sender of flow queries to all workers.
#[derive(Debug, Clone)]
pub struct PacketFlows(Vec<Sender<FlowRequest>>);

impl PacketFlows {
    /// Creates the sender of queries, and one receiver for each worker.
    pub(super) fn new(workers: usize) -> (PacketFlows, Vec<FlowQueries>) {
        let ends = (0..workers).map(|_| bounded(MAX_WAITING));
        let (senders, queries): (Vec<_>, _) = ends
            .map(|(sender, requests)| (sender, FlowQueries { requests, listings: VecDeque::new() }))
            .unzip();
        (PacketFlows(senders), queries)
    }

    /// Lists the flows that match a query, from all workers.
    ///
    /// # Errors
    /// If too many requests wait for a worker, or a worker has ended.
    pub async fn list(&self, query: &FlowQuery) -> Result<FlowListing, FlowsUnavailable> {
        let mut answers = Vec::new();
        for worker in &self.0 {
            let (answer, listing) = oneshot::channel();
            worker.try_send(FlowRequest::List(query.clone(), answer)).map_err(refused)?;
            answers.push(listing);
        }
        let mut all = FlowListing::new(query.clone());
        for listing in answers {
            all.merge(listing.await.map_err(|_| FlowsUnavailable::Gone)?);
        }
        Ok(all)
    }

    /// Finds the flow that packets with this key belong to. `worker` is the worker that receives
    /// these packets.
    ///
    /// # Errors
    /// If too many requests wait for the worker, or the worker has ended.
    pub async fn find(&self, worker: u16, key: FlowKey) -> Result<Option<PacketFlow>, FlowsUnavailable> {
        let worker = self.0.get(usize::from(worker)).ok_or(FlowsUnavailable::Gone)?;
        query_worker(worker, |answer| FlowRequest::Find(key, answer)).await
    }

    /// Returns the share that the client of a new flow with this key has used up, or its share of
    /// the flow table if it has not used up any share (see [`ClientShare`]). `server` is the number
    /// of the flow's server. `None` if the client has no limit.
    ///
    /// # Errors
    /// If too many requests wait for the worker, or the worker has ended.
    pub async fn share(
        &self,
        worker: u16,
        key: FlowKey,
        server: u32,
    ) -> Result<Option<ClientShare>, FlowsUnavailable> {
        let worker = self.0.get(usize::from(worker)).ok_or(FlowsUnavailable::Gone)?;
        query_worker(worker, |answer| FlowRequest::ClientShare(key, server, answer)).await
    }

    /// Ends a flow, and returns it. `None` if the flow has already ended.
    ///
    /// # Errors
    /// If too many requests wait for the worker, or the worker has ended.
    pub async fn kill(&self, id: ListedFlowId) -> Result<Option<ListedFlow>, FlowsUnavailable> {
        let Some(worker) = self.0.get(usize::from(id.worker)) else { return Ok(None) };
        query_worker(worker, |answer| FlowRequest::Kill(id.place, id.serial, answer)).await
    }
}

/// Sends a request to one worker, and waits for the answer.
async fn query_worker<T>(
    worker: &Sender<FlowRequest>,
    request: impl FnOnce(oneshot::Sender<T>) -> FlowRequest,
) -> Result<T, FlowsUnavailable> {
    let (answer, answered) = oneshot::channel();
    worker.try_send(request(answer)).map_err(refused)?;
    answered.await.map_err(|_| FlowsUnavailable::Gone)
}

/// Pending operator requests of one worker.
#[derive(Debug)]
pub(super) struct FlowQueries {
    requests: Receiver<FlowRequest>,
    /// Unfinished lists. The first one gets the next slice.
    listings: VecDeque<PendingListing>,
}

#[derive(Debug)]
struct PendingListing {
    listing: FlowListing,
    next: u32,
    answer: oneshot::Sender<FlowListing>,
}

impl FlowQueries {
    /// Whether no request and no list is pending.
    fn is_idle(&self) -> bool {
        self.listings.is_empty() && self.requests.is_empty()
    }
}

impl Worker {
    /// Handles the waiting requests: ends and finds flows, and queues lists.
    pub(super) fn take_flow_requests(&mut self, round: &mut Round<'_>) {
        while let Ok(request) = self.queries.requests.try_recv() {
            match request {
                FlowRequest::List(query, answer) => {
                    self.queries.listings.push_back(PendingListing {
                        listing: FlowListing::new(query),
                        next: 0,
                        answer,
                    });
                }
                FlowRequest::Find(key, answer) => {
                    let _ = answer.send(self.find(&key, round));
                }
                FlowRequest::ClientShare(key, server, answer) => {
                    let share =
                        self.forwarder.client_share(&key, server, &round.packet_state.plan, round.now);
                    let _ = answer.send(share);
                }
                FlowRequest::Kill(place, serial, answer) => {
                    let killed = self.kill((place, serial), round);
                    let _ = answer.send(killed);
                }
            }
        }
    }

    fn find(&mut self, key: &FlowKey, round: &Round<'_>) -> Option<PacketFlow> {
        let (info, activity) = self.forwarder.find_flow(key, round.now)?;
        let listed = ListedFlow::new(&facts(&info, self.core, round.accounting), activity);
        let next_hop = round.packet_state.plan.network.get(info.to_server).copied();
        Some(PacketFlow { listed, info, next_hop })
    }

    fn kill(&mut self, name: (u32, u32), round: &mut Round<'_>) -> Option<ListedFlow> {
        let out = &mut round.out;
        let killed = self.forwarder.kill(name, &round.packet_state.plan, round.now, |frame, interface| {
            let mut buffer = Buffer::default();
            buffer.set_frame(frame);
            out.push(Parcel { interface, buffer });
        })?;
        let facts = facts(&killed, self.core, round.accounting);
        Some(ListedFlow::new(&facts, FlowActivity::default()))
    }

    /// Adds a slice to the first unfinished list. Returns whether requests or lists remain.
    pub(super) fn advance_lists(&mut self, accounting: &Accounting, now: Timestamp) -> bool {
        let Worker { forwarder, queries, core, .. } = self;
        let Some(PendingListing { mut listing, next, answer }) = queries.listings.pop_front() else {
            return false;
        };
        if answer.is_closed() {
            return !queries.listings.is_empty();
        }
        let next = forwarder.visit_flows(next, SLICE, now, |flow, activity| {
            listing.offer(&facts(flow, *core, accounting), activity);
        });
        match next {
            // Unfinished lists take turns, so that a short list does not wait for a long one.
            Some(next) => queries.listings.push_back(PendingListing { listing, next, answer }),
            None => _ = answer.send(listing),
        }
        !queries.is_idle()
    }
}

fn refused<T>(error: TrySendError<T>) -> FlowsUnavailable {
    match error {
        TrySendError::Full(_) => FlowsUnavailable::Busy,
        TrySendError::Disconnected(_) => FlowsUnavailable::Gone,
    }
}

fn facts<'a>(flow: &FlowInfo, worker: usize, accounting: &'a Accounting) -> FlowFacts<'a> {
    let mode = match flow.view {
        View::BothSides => Mode::Passthrough,
        View::ClientSide => Mode::Dsr,
    };
    let OwnerNames { frontend, backend, server } = accounting.names(flow.owners);
    let id = ListedFlowId {
        kind: FlowKind::Packets,
        worker: worker as u16,
        place: flow.place,
        serial: flow.serial,
    };
    FlowFacts {
        id,
        mode,
        protocol: flow.client.transport().unwrap_or_default(),
        frontend: (flow.owners.frontend, frontend),
        server: Some(FlowServer {
            id: flow.owners.server,
            backend,
            name: server,
            addr: flow.server.source(),
        }),
        client: flow.client.source(),
        listen: flow.client.destination(),
        snat: mode.has_snat().then(|| flow.server.destination()),
        state: flow.state.name(),
        is_over: flow.is_over(),
        is_offloaded: flow.is_cached,
    }
}
