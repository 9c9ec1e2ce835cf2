//! Capture threads, one for each interface. Interfaces may be added and removed at run time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, SendTimeoutError, Sender};

use super::pipeline::named;
use super::queues::{Batch, MemoryBudget, Parcel, QUEUE_TIMEOUT};
use super::steering::Steering;
use super::{BufferPool, Capture, CaptureFilter, CaptureHandle, Wake};
use convey_forward::{Dispatch, IpIds};
use convey_model::{DropReason, Timestamp};
use convey_snapshot::stats::PacketStats;
use convey_trace::TraceHub;

/// Maximum number of interfaces to capture on at the same time; each has a thread with its own
/// counters.
pub(super) const MAX_INTERFACES: usize = 256;

/// Running capture threads, and the shared parts that each new capture thread needs.
pub(super) struct Captures {
    pub(super) running: RunningCaptures,
    pub(super) filter: CaptureFilter,
    /// Program of the flow cache. It replaces the filter on interfaces to which the cache is
    /// attached. The cache applies new selections to the program itself.
    pub(super) program: Option<OwnedFd>,
    pub(super) ids: IpIds,
    pub(super) dispatch: Dispatch,
    /// Input channels of the workers, one for each.
    pub(super) inboxes: Vec<Sender<Batch>>,
    pub(super) spare: Receiver<Batch>,
    pub(super) budget: MemoryBudget,
    pub(super) stats: Arc<PacketStats>,
    /// Index of the first capture thread's counters, the first of [`MAX_INTERFACES`] indexes.
    pub(super) first: usize,
    pub(super) trace: Arc<TraceHub>,
    pub(super) now: fn() -> Timestamp,
}

/// Running capture threads, shared with the code that counts the kernel's drops.
#[derive(Clone, Default)]
pub(super) struct RunningCaptures(Arc<Mutex<Vec<CaptureThread>>>);

struct CaptureThread {
    interface: u32,
    /// Index of the thread's counters.
    number: usize,
    handle: CaptureHandle,
    /// Whether the flow cache's program filters the frames of this thread.
    by_program: bool,
    thread: JoinHandle<()>,
}

impl Captures {
    /// Starts a capture thread for an interface, in the calling thread's network namespace. If the
    /// flow cache is attached there, the thread captures only the packets that the cache does not
    /// forward.
    pub(super) fn begin(&mut self, interface: u32, is_cached: bool) -> io::Result<()> {
        let mut running = self.running.lock();
        let mut numbers = self.first..self.first + MAX_INTERFACES;
        let Some(number) = numbers.find(|number| running.iter().all(|thread| thread.number != *number))
        else {
            return Err(io::Error::other(format!("convey captures on at most {MAX_INTERFACES} interfaces")));
        };
        let (capture, handle) = Capture::open(interface, &self.filter)?;
        let program = self.program.as_ref().filter(|_| is_cached);
        if let Some(program) = program {
            handle.set_program(program.as_fd())?;
        }
        let reader = Reader {
            thread: number,
            interface,
            capture,
            steering: Steering::new(
                self.dispatch.clone(),
                self.ids.clone(),
                (interface, self.trace.clone()),
                self.now,
            ),
            inboxes: self.inboxes.clone(),
            spare: self.spare.clone(),
            budget: self.budget.clone(),
            stats: self.stats.clone(),
        };
        let thread = named(format!("capture-{interface}"), move || reader.run())?;
        let by_program = program.is_some();
        running.push(CaptureThread { interface, number, handle, by_program, thread });
        Ok(())
    }

    /// Stops the capture on an interface.
    pub(super) fn end(&mut self, interface: u32) {
        let mut running = self.running.lock();
        if let Some(at) = running.iter().position(|thread| thread.interface == interface) {
            running.swap_remove(at).end();
        }
    }

    /// Replaces the filter of the threads that the flow cache's program does not filter, starting
    /// with the next frame. If the kernel refuses, the old filter stays.
    pub(super) fn set_filter(&mut self, filter: &CaptureFilter) -> io::Result<()> {
        self.filter = filter.clone();
        let running = self.running.lock();
        let mut by_filter = running.iter().filter(|thread| !thread.by_program);
        by_filter.try_for_each(|thread| thread.handle.set_filter(filter))
    }

    /// Wakes each worker with an empty batch. A worker whose channel is full is awake already.
    pub(super) fn wake_workers(&self) {
        for inbox in &self.inboxes {
            let _ = inbox.try_send(self.budget.batch(Vec::new()));
        }
    }

    /// Stops all capture threads, which closes the workers' input channels.
    pub(super) fn stop(self) {
        let threads: Vec<CaptureThread> = self.running.lock().drain(..).collect();
        threads.iter().for_each(|thread| thread.handle.stop());
        threads.into_iter().for_each(CaptureThread::end);
    }
}

impl RunningCaptures {
    /// Counts the frames that the kernel has dropped since the last call.
    pub(super) fn count_overruns(&self, stats: &PacketStats) {
        for thread in self.lock().iter() {
            if let Ok(drops) = thread.handle.take_drops() {
                stats.overrun(thread.number, drops.into());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CaptureThread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CaptureThread {
    fn end(self) {
        self.handle.stop();
        let _ = self.thread.join();
    }
}

/// State of a capture thread.
struct Reader {
    thread: usize,
    interface: u32,
    capture: Capture,
    steering: Steering,
    inboxes: Vec<Sender<Batch>>,
    spare: Receiver<Batch>,
    budget: MemoryBudget,
    stats: Arc<PacketStats>,
}

impl Reader {
    fn run(mut self) {
        let (mut pool, mut frames) = (BufferPool::default(), Vec::new());
        loop {
            self.refill(&mut pool);
            match self.capture.read_batch(&mut pool, &mut frames) {
                Wake::Stopped => break,
                Wake::Frames { errors } => self.stats.capture_errors(self.thread, errors.into()),
            }
            let mut batches: Vec<Vec<Parcel>> = vec![Vec::new(); self.inboxes.len()];
            for buffer in frames.drain(..) {
                self.steering.steer(buffer, &mut |worker, buffer| {
                    batches[usize::from(worker)].push(Parcel { interface: self.interface, buffer });
                });
            }
            for (reason, lost) in self.steering.take_lost() {
                self.stats.dropped(self.thread, reason, lost);
            }
            for (inbox, batch) in self.inboxes.iter().zip(batches) {
                if batch.is_empty() {
                    continue;
                }
                let batch = self.budget.batch(batch);
                if let Err(SendTimeoutError::Timeout(lost)) = inbox.send_timeout(batch, QUEUE_TIMEOUT) {
                    self.stats.dropped(self.thread, DropReason::WorkerQueueFull, lost.parcels.len() as u64);
                    lost.parcels.iter().for_each(|parcel| {
                        self.steering.show_lost(&parcel.buffer, DropReason::WorkerQueueFull)
                    });
                    put(lost, &mut pool);
                }
            }
        }
        self.stats.dropped(self.thread, DropReason::FragmentUnmatched, self.steering.held());
    }

    /// Takes buffers back from the workers. While the memory budget is used up, waits; frames then
    /// wait in the kernel's receive buffer.
    fn refill(&self, pool: &mut BufferPool) {
        while pool.is_short()
            && let Ok(batch) = self.spare.try_recv()
        {
            put(batch, pool);
        }
        while self.budget.is_full() {
            if let Ok(batch) = self.spare.recv_timeout(QUEUE_TIMEOUT) {
                put(batch, pool);
            }
        }
    }
}

fn put(batch: Batch, pool: &mut BufferPool) {
    batch.parcels.into_iter().for_each(|parcel| pool.put(parcel.buffer));
}
