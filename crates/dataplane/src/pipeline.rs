//! Threads of the packet modes (capture, workers, transmit), and the channels between them.
//!
//! ```text
//!  capture (one for each interface) ==> one bounded channel for each worker ==> worker ==> one bounded channel ==> transmit
//!         ^--------------------------------- buffers come back -------------------'-----------------------------------'
//! ```
//!
//! Each worker has a channel of its own, because the worker owns its flows, and the packets of a
//! flow must stay in order.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use log::warn;

use super::captures::{self, Captures, RunningCaptures};
use super::event_queue::EventQueue;
use super::flow_queries::PacketFlows;
use super::handover::{Backlog, Order};
use super::neighbour_queue::NeighbourQueue;
use super::packet_trace::PacketTrace;
use super::queues::{Batch, FrameMemory, MAX_FREE_BATCHES, MemoryBudget, Parcel, QUEUE};
use super::transmit::drop_reason;
use super::worker::Worker;
use super::{CaptureFilter, CounterReader, PacketState, SegmentEvents, Transmit};
use convey_access_log::AccessLog;
use convey_forward::{Dispatch, Forwarder, IpIds, not_sent};
use convey_model::{ConnectFailures, DropReason, Timestamp, WantedNeighbour};
use convey_snapshot::stats::PacketStats;
use convey_trace::TraceHub;

/// Inputs for `Pipeline::start`.
pub struct PipelineParts {
    /// Filter of the capture sockets.
    pub filter: CaptureFilter,
    /// The flow cache, if there is one.
    pub cache: Option<PlannedCache>,
    /// Assigns frames to workers.
    pub dispatch: Dispatch,
    /// Forwarders, one for each worker.
    pub forwarders: Vec<Forwarder>,
    /// Maximum memory of waiting frames in bytes, at most
    /// [`MAX_FRAME_MEMORY`](super::MAX_FRAME_MEMORY).
    pub frame_memory: usize,
    /// Current snapshot and plan for forwarding.
    pub packet_state: Arc<ArcSwap<PacketState>>,
    /// Counters of all threads; there are [`PipelineParts::threads`] of them.
    pub stats: Arc<PacketStats>,
    /// Channel for requests to resolve neighbours.
    pub wanted: tokio::sync::mpsc::Sender<WantedNeighbour>,
    /// Channel for reports of servers that refuse clients' packets.
    pub failures: tokio::sync::mpsc::Sender<ConnectFailures>,
    /// Access log for records of flows.
    pub access_log: Arc<AccessLog>,
    /// Watchers of packets (`convey trace`).
    pub trace: Arc<TraceHub>,
    /// Whether frames wait until the flows of another process are restored ([`Pipeline::restore`]).
    pub awaits_flows: bool,
    /// Source of the current time.
    pub now: fn() -> Timestamp,
}

/// Parts of the flow cache for a pipeline, from [`Offloader::planned`](super::Offloader::planned).
pub struct PlannedCache {
    /// Socket filter program that replaces the capture filter and rejects packets that the cache
    /// forwards. The cache applies new selections to it.
    pub(super) filter: Option<OwnedFd>,
    /// Reader of the counters of packets that the cache forwards.
    pub(super) counters: CounterReader,
    /// Events of handshake segments and FINs that the cache has forwarded.
    pub(super) events: SegmentEvents,
}

impl PipelineParts {
    /// Number of threads with counters: the workers, the transmit thread, and one capture thread
    /// for each possible interface, in this order.
    pub fn threads(workers: usize) -> usize {
        workers + 1 + captures::MAX_INTERFACES
    }
}

/// Running threads of the packet modes. Stop them with [`Pipeline::stop`].
pub struct Pipeline {
    captures: Captures,
    threads: Vec<JoinHandle<()>>,
    /// Order channels, one for each worker.
    pub(super) orders: Vec<Sender<Order>>,
    flows: PacketFlows,
}

impl Pipeline {
    /// Starts the workers and the transmit thread. They receive no frames before
    /// [`Pipeline::capture`].
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(parts: PipelineParts) -> io::Result<Pipeline> {
        let workers = parts.forwarders.len();
        let losses = TransmitLosses::of(&parts, workers);
        let (program, mut counters, events) = match parts.cache {
            Some(PlannedCache { filter, counters, events }) => (filter, Some(counters), Some(events)),
            None => (None, None, None),
        };
        let event_queues = EventQueue::of(workers, events, &parts.dispatch);
        let (ids, budget) = (IpIds::new(fastrand::u16(..)), MemoryBudget::new(parts.frame_memory));
        let (free_batches, spare) = bounded(MAX_FREE_BATCHES);
        let (out, outgoing) = bounded(QUEUE);
        let mut threads = Vec::new();
        let (mut inboxes, mut all_orders) = (Vec::new(), Vec::new());
        let (flows, queries) = PacketFlows::new(workers);
        let each = parts.forwarders.into_iter().enumerate().zip(event_queues).zip(queries);
        for (((core, forwarder), events), queries) in each {
            let (inbox, frames) = bounded(QUEUE);
            inboxes.push(inbox);
            let (order, orders) = unbounded();
            all_orders.push(order);
            let worker = Worker {
                core,
                forwarder,
                // One worker reads the counters for all.
                counters: counters.take(),
                events,
                ids: ids.clone(),
                waiting: NeighbourQueue::default(),
                packet_state: parts.packet_state.clone(),
                stats: parts.stats.clone(),
                frames,
                orders,
                queries,
                backlog: Backlog::new(parts.awaits_flows),
                out: out.clone(),
                free_batches: free_batches.clone(),
                budget: budget.clone(),
                wanted: parts.wanted.clone(),
                failures: parts.failures.clone(),
                access_log: parts.access_log.clone(),
                trace: PacketTrace::new(parts.trace.clone()),
                now: parts.now,
            };
            threads.push(named(format!("worker-{core}"), move || worker.run())?);
        }
        threads.push(named("transmit".to_owned(), move || transmit(&outgoing, &free_batches, &losses))?);
        let captures = Captures {
            running: RunningCaptures::default(),
            filter: parts.filter,
            program,
            ids,
            dispatch: parts.dispatch,
            inboxes,
            spare,
            budget,
            stats: parts.stats,
            first: workers + 1,
            trace: parts.trace,
            now: parts.now,
        };
        Ok(Pipeline { captures, threads, orders: all_orders, flows })
    }

    /// Starts to capture on the interface with this index, in the calling thread's network
    /// namespace. If the flow cache is attached there (`is_cached`), captures only packets that the
    /// cache does not forward.
    ///
    /// # Errors
    /// If the interface cannot be captured on, or there are too many interfaces.
    pub fn capture(&mut self, interface: u32, is_cached: bool) -> io::Result<()> {
        self.captures.begin(interface, is_cached)
    }

    /// Returns the sender of flow queries to the workers.
    pub fn flows(&self) -> PacketFlows {
        self.flows.clone()
    }

    /// Assignment of frames to workers.
    pub(super) fn dispatch(&self) -> &Dispatch {
        &self.captures.dispatch
    }

    /// Wakes the workers, so that they check for orders.
    pub(super) fn wake_workers(&self) {
        self.captures.wake_workers();
    }

    /// Stops the capture on an interface, which may no longer exist.
    pub fn release(&mut self, interface: u32) {
        self.captures.end(interface);
    }

    /// Replaces the capture filter, starting with the next frame. Interfaces where the flow cache's
    /// program is the filter keep that program.
    ///
    /// # Errors
    /// If the kernel refuses the filter on an interface; this interface keeps the old filter.
    pub fn set_filter(&mut self, filter: &CaptureFilter) -> io::Result<()> {
        self.captures.set_filter(filter)
    }

    /// Returns the counter of frames that the kernel dropped.
    pub fn overruns(&self) -> Overruns {
        Overruns { captures: self.captures.running.clone(), stats: self.captures.stats.clone() }
    }

    /// Returns the detector of peaks in the memory of waiting frames.
    pub fn frame_memory(&self) -> FrameMemory {
        self.captures.budget.peaks()
    }

    /// Stops capturing, sends the queued frames, and waits until all threads have ended.
    pub fn stop(self) {
        // A worker that waits for an order ends only when this channel is closed.
        drop(self.orders);
        self.captures.stop();
        // Join in this order: each thread ends after the threads that send to it.
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Counts the frames that the kernel dropped because convey read them too slowly.
pub struct Overruns {
    captures: RunningCaptures,
    stats: Arc<PacketStats>,
}

impl Overruns {
    /// Counts the drops since the last call. Only one thread may call this.
    pub fn count(&self) {
        self.captures.count_overruns(&self.stats);
    }
}

/// Starts a thread with a name.
pub(super) fn named(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(run)
}

/// Counts, publishes and logs frames that the transmit thread could not send.
struct TransmitLosses {
    thread: usize,
    stats: Arc<PacketStats>,
    trace: Arc<TraceHub>,
    now: fn() -> Timestamp,
}

impl TransmitLosses {
    fn of(parts: &PipelineParts, thread: usize) -> TransmitLosses {
        TransmitLosses { thread, stats: parts.stats.clone(), trace: parts.trace.clone(), now: parts.now }
    }
}

fn transmit(outgoing: &Receiver<Batch>, free_batches: &Sender<Batch>, losses: &TransmitLosses) {
    let (mut sockets, mut told) = (Transmit::default(), BTreeSet::new());
    while let Ok(batch) = outgoing.recv() {
        for Parcel { interface, buffer } in &batch.parcels {
            let Err(error) = sockets.send(*interface, buffer) else { continue };
            let reason = drop_reason(&error);
            losses.stats.dropped(losses.thread, reason, 1);
            losses.trace.publish(|| not_sent(buffer.frame(), *interface, reason, (losses.now)()));
            // Such errors are rare: log each kind of error once.
            if reason == DropReason::TransmitFailed && told.insert(error.raw_os_error()) {
                let len = buffer.frame().len();
                warn!(
                    "cannot send a frame of {len} bytes on interface {interface}: {error}; further failures are only counted (transmit_failed)"
                );
            }
        }
        let _ = free_batches.try_send(batch); // full: nobody needs them
    }
}
