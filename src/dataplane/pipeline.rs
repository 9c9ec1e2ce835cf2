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
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};

use super::sorter::Sorter;
use super::waiting::Waiting;
use super::worker::{Parcel, Worker};
use super::{Buffer, Capture, CaptureHandle, Filter, Transmit, Wake};
use crate::forward::{Dispatch, Forwarder};
use crate::model::{DropReason, Timestamp, Wanted};
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// Batches that may wait for a worker, or for the transmit thread.
const QUEUE: usize = 64;

/// How long a thread waits for room in the next one's queue. Meanwhile frames wait in the kernel's receive buffer,
/// which is the one deep queue there is.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// What the pipeline is made of.
pub struct Plan {
    /// Indices of the interfaces to capture on.
    pub interfaces: Vec<u32>,
    /// What is captured.
    pub filter: Filter,
    /// Whose frames are whose.
    pub dispatch: Dispatch,
    /// One for each worker.
    pub forwarders: Vec<Forwarder>,
    /// The state that is forwarded by.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Counters for [`Plan::threads`] threads.
    pub stats: Arc<PacketStats>,
    /// Where neighbours are asked for.
    pub wanted: tokio::sync::mpsc::Sender<Wanted>,
    /// Tells the time.
    pub now: fn() -> Timestamp,
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
}

impl Pipeline {
    /// Opens the sockets and starts the threads, in this thread's network namespace.
    ///
    /// # Errors
    /// An interface cannot be captured on, or a thread not be started; then nothing runs.
    pub fn start(plan: Plan) -> io::Result<Pipeline> {
        let workers = plan.forwarders.len();
        let first_capture = workers + 1;
        let opened: Vec<(u32, Capture, CaptureHandle)> = plan
            .interfaces
            .iter()
            .map(|&interface| {
                let (capture, handle) = Capture::open(interface, &plan.filter)?;
                Ok((interface, capture, handle))
            })
            .collect::<io::Result<_>>()?;
        let (spares, spare) = bounded(QUEUE);
        let (out, outgoing) = bounded(QUEUE);
        let mut threads = Vec::new();
        let mut inboxes = Vec::new();
        for (core, forwarder) in plan.forwarders.into_iter().enumerate() {
            let (inbox, frames) = bounded(QUEUE);
            inboxes.push(inbox);
            let worker = Worker {
                core,
                forwarder,
                waiting: Waiting::default(),
                snapshot: plan.snapshot.clone(),
                stats: plan.stats.clone(),
                frames,
                out: out.clone(),
                spares: spares.clone(),
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
                sorter: Sorter::new(plan.dispatch.clone(), fastrand::u16(..), plan.now),
                inboxes: inboxes.clone(),
                spare: spare.clone(),
                stats: plan.stats.clone(),
            };
            threads.push(named(format!("capture-{interface}"), move || reader.run())?);
        }
        Ok(Pipeline { captures, threads, stats: plan.stats, first_capture })
    }

    /// Captures by another filter from the next frame on.
    ///
    /// # Errors
    /// The kernel refused it; where it did, the old one stays.
    pub fn set_filter(&self, filter: &Filter) -> io::Result<()> {
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
    inboxes: Vec<Sender<Vec<Parcel>>>,
    spare: Receiver<Vec<Parcel>>,
    stats: Arc<PacketStats>,
}

impl Reader {
    fn run(mut self) {
        let mut spare: Vec<Buffer> = Vec::new();
        let mut frames = Vec::new();
        loop {
            if spare.is_empty() {
                spare.extend(self.spare.try_iter().flatten().map(|(_, buffer)| buffer));
            }
            match self.capture.read_batch(&mut spare, &mut frames) {
                Wake::Stopped => return,
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
                if let Err(SendTimeoutError::Timeout(lost)) = inbox.send_timeout(batch, PATIENCE) {
                    self.stats.dropped(self.thread, DropReason::WorkerQueueFull, lost.len() as u64);
                    spare.extend(lost.into_iter().map(|(_, buffer)| buffer));
                }
            }
        }
    }
}

fn transmit(
    outgoing: &Receiver<Vec<Parcel>>,
    spares: &Sender<Vec<Parcel>>,
    thread: usize,
    stats: &PacketStats,
) {
    let mut sockets = Transmit::default();
    while let Ok(batch) = outgoing.recv() {
        for (interface, buffer) in &batch {
            if sockets.send(*interface, buffer).is_err() {
                stats.dropped(thread, DropReason::TransmitFailed, 1);
            }
        }
        let _ = spares.try_send(batch); // full: nobody needs them
    }
}
