//! The threads: capture, workers, transmit, and the channels between them.
//!
//! ```text
//!  capture (one for each interface) ==> one bounded channel for each worker ==> worker ==> one bounded channel ==> transmit
//!         ^--------------------------------- buffers come back -------------------'-----------------------------------'
//! ```
//!
//! A channel for each worker stands in for one that all share: packets of a flow must stay in order, and a worker
//! owns its flows.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};

use super::queues::{Batch, PATIENCE, Parcel, QUEUE, Room, SPARES};
use super::sorter::Sorter;
use super::waiting::Waiting;
use super::worker::Worker;
use super::{Capture, CaptureHandle, Filter, Spares, Tally, Transmit, Wake};
use crate::forward::{Dispatch, Forwarder, Ids};
use crate::model::{DropReason, Timestamp};
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// What the pipeline is made of.
pub struct Plan {
    /// Indices of the interfaces to capture on.
    pub interfaces: Vec<u32>,
    /// What is captured.
    pub filter: Filter,
    /// The flow cache, if there is one.
    pub cache: Option<PlannedCache>,
    /// Whose frames are whose.
    pub dispatch: Dispatch,
    /// One for each worker.
    pub forwarders: Vec<Forwarder>,
    /// The state that is forwarded by.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Counters for [`Plan::threads`] threads.
    pub stats: Arc<PacketStats>,
    /// Where neighbours are asked for.
    pub wanted: tokio::sync::mpsc::Sender<(IpAddr, u32)>,
    /// Tells the time.
    pub now: fn() -> Timestamp,
}

/// What the pipeline has to do with the flow cache.
pub struct PlannedCache {
    /// Captures in place of the filter what the cache does not forward. It follows selections by itself.
    pub filter: Option<OwnedFd>,
    /// Counts what the cache forwards.
    pub tally: Tally,
}

impl Plan {
    /// Threads that count: workers first, then transmit, then a capture thread for each interface.
    pub fn threads(workers: usize, interfaces: usize) -> usize {
        workers + 1 + interfaces
    }
}

/// The threads that run. Stop with [`Pipeline::stop`].
pub struct Pipeline {
    captures: Vec<CaptureHandle>,
    threads: Vec<JoinHandle<()>>,
    stats: Arc<PacketStats>,
    first_capture: usize,
    cache_filter: Option<OwnedFd>,
}

impl Pipeline {
    /// Opens the sockets and starts the threads, in this thread's network namespace.
    ///
    /// # Errors
    /// An interface cannot be captured on, or a thread not be started; then nothing runs.
    pub fn start(plan: Plan) -> io::Result<Pipeline> {
        let workers = plan.forwarders.len();
        let first_capture = workers + 1;
        let (cache_filter, mut tally) = match plan.cache {
            Some(PlannedCache { filter, tally }) => (filter, Some(tally)),
            None => (None, None),
        };
        let ids = |share: usize| {
            Ids::new(share as u16, (workers + plan.interfaces.len()) as u16, fastrand::u16(..))
        };
        let opened: Vec<(u32, Capture, CaptureHandle)> = plan
            .interfaces
            .iter()
            .map(|&interface| {
                let (capture, handle) = Capture::open(interface, &plan.filter)?;
                if let Some(program) = &cache_filter {
                    handle.set_program(program.as_fd())?;
                }
                Ok((interface, capture, handle))
            })
            .collect::<io::Result<_>>()?;
        let room = Room::default();
        let (spares, spare) = bounded(SPARES);
        let (out, outgoing) = bounded(QUEUE);
        let mut threads = Vec::new();
        let mut inboxes = Vec::new();
        for (core, forwarder) in plan.forwarders.into_iter().enumerate() {
            let (inbox, frames) = bounded(QUEUE);
            inboxes.push(inbox);
            let worker = Worker {
                core,
                forwarder,
                // Any worker can count for all.
                tally: tally.take(),
                ids: ids(core),
                waiting: Waiting::default(),
                snapshot: plan.snapshot.clone(),
                stats: plan.stats.clone(),
                frames,
                out: out.clone(),
                spares: spares.clone(),
                room: room.clone(),
                wanted: plan.wanted.clone(),
                now: plan.now,
            };
            threads.push(named(format!("worker-{core}"), move || worker.run())?);
        }
        drop(out);
        let stats = plan.stats.clone();
        let back = spares.clone();
        threads.push(named("transmit".to_owned(), move || transmit(&outgoing, &back, workers, &stats))?);
        let mut captures = Vec::new();
        for (n, (interface, capture, handle)) in opened.into_iter().enumerate() {
            captures.push(handle);
            let reader = Reader {
                thread: first_capture + n,
                interface,
                capture,
                sorter: Sorter::new(plan.dispatch.clone(), ids(workers + n), plan.now),
                inboxes: inboxes.clone(),
                spare: spare.clone(),
                room: room.clone(),
                stats: plan.stats.clone(),
            };
            threads.push(named(format!("capture-{interface}"), move || reader.run())?);
        }
        Ok(Pipeline { captures, threads, stats: plan.stats, first_capture, cache_filter })
    }

    /// Captures by another filter from the next frame on, unless the flow cache says what is captured.
    ///
    /// # Errors
    /// The kernel refused it; where it did, the old one stays.
    pub fn set_filter(&self, filter: &Filter) -> io::Result<()> {
        if self.cache_filter.is_some() {
            return Ok(());
        }
        self.captures.iter().try_for_each(|capture| capture.set_filter(filter))
    }

    /// What counts frames that the kernel dropped.
    pub fn overruns(&self) -> Overruns {
        Overruns {
            captures: self.captures.clone(),
            stats: self.stats.clone(),
            first_capture: self.first_capture,
        }
    }

    /// Stops capturing, lets what is queued go out, and ends the threads.
    pub fn stop(self) {
        self.captures.iter().for_each(CaptureHandle::stop);
        // Each stage ends when those before it have: nobody is left to send to it.
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Counts the frames that the kernel dropped because we were too slow.
pub struct Overruns {
    captures: Vec<CaptureHandle>,
    stats: Arc<PacketStats>,
    first_capture: usize,
}

impl Overruns {
    /// Counts those since the last call. For one thread.
    pub fn count(&self) {
        for (n, capture) in self.captures.iter().enumerate() {
            if let Ok(drops) = capture.take_drops() {
                self.stats.overrun(self.first_capture + n, drops.into());
            }
        }
    }
}

fn named(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(run)
}

/// A capture thread.
struct Reader {
    thread: usize,
    interface: u32,
    capture: Capture,
    sorter: Sorter,
    inboxes: Vec<Sender<Batch>>,
    spare: Receiver<Batch>,
    room: Room,
    stats: Arc<PacketStats>,
}

impl Reader {
    fn run(mut self) {
        let (mut spares, mut frames) = (Spares::default(), Vec::new());
        loop {
            self.refill(&mut spares);
            match self.capture.read_batch(&mut spares, &mut frames) {
                Wake::Stopped => break,
                Wake::Frames { errors } => self.stats.capture_errors(self.thread, errors.into()),
            }
            let mut batches: Vec<Vec<Parcel>> = vec![Vec::new(); self.inboxes.len()];
            for buffer in frames.drain(..) {
                self.sorter.sort(buffer, &mut |worker, buffer| {
                    batches[usize::from(worker)].push((self.interface, buffer));
                });
            }
            for (reason, lost) in self.sorter.take_lost() {
                self.stats.dropped(self.thread, reason, lost);
            }
            for (inbox, batch) in self.inboxes.iter().zip(batches) {
                if batch.is_empty() {
                    continue;
                }
                let batch = self.room.batch(batch);
                if let Err(SendTimeoutError::Timeout(lost)) = inbox.send_timeout(batch, PATIENCE) {
                    self.stats.dropped(self.thread, DropReason::WorkerQueueFull, lost.parcels.len() as u64);
                    put(lost, &mut spares);
                }
            }
        }
        self.stats.dropped(self.thread, DropReason::FragmentUnmatched, self.sorter.held());
    }

    /// Takes back buffers, and waits until there is room for what they are filled with; meanwhile frames wait in the
    /// kernel's receive buffer.
    fn refill(&self, spares: &mut Spares) {
        while spares.is_short()
            && let Ok(batch) = self.spare.try_recv()
        {
            put(batch, spares);
        }
        while self.room.is_full() {
            if let Ok(batch) = self.spare.recv_timeout(PATIENCE) {
                put(batch, spares);
            }
        }
    }
}

fn put(batch: Batch, spares: &mut Spares) {
    batch.parcels.into_iter().for_each(|(_, buffer)| spares.put(buffer));
}

fn transmit(outgoing: &Receiver<Batch>, spares: &Sender<Batch>, thread: usize, stats: &PacketStats) {
    let mut sockets = Transmit::default();
    while let Ok(batch) = outgoing.recv() {
        for (interface, buffer) in &batch.parcels {
            if sockets.send(*interface, buffer).is_err() {
                stats.dropped(thread, DropReason::TransmitFailed, 1);
            }
        }
        let _ = spares.try_send(batch); // full: nobody needs them
    }
}
