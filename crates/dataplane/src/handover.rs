//! Orders to the workers: handover of flows to or from another process during an upgrade, and
//! events of the flow cache.
//!
//! The pipeline sends orders to the workers and receives their answers. After `Order::Hold`, a
//! worker handles no frames until `Order::Release`, or until it ends. A worker that waits for
//! another process's flows stores the newest frames meanwhile.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};

use super::accounting::Accounting;
use super::queues::Batch;
use super::worker::Worker;
use super::{Buffer, PacketState, Pipeline};
use convey_forward::{CacheEvent, KnownFlow};
use convey_model::{DropReason, FlowKey, Timestamp};
use convey_snapshot::stats::Counter;

/// Maximum wait for a worker's answer to an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum age of a frame that waits for another process's flows. The sender of an older frame has
/// already retransmitted it.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Time resolution of `LostFrames`.
const LOST_STEP: Duration = Duration::from_millis(10);

/// Maximum number of steps in `LostFrames`: together they are longer than any handover.
const MAX_LOST_STEPS: usize = 8_192;

/// Maximum time that a datagram waits in the other process's queue. A datagram that arrived less
/// than this time before the other process stopped may still have been in the queue. So this
/// process handles the datagram, perhaps for the second time. TCP segments need no such treatment,
/// because TCP retransmits them.
const IN_QUEUE: Duration = Duration::from_millis(5);

/// Order to a worker. Workers carry out orders between two batches of frames.
pub(super) enum Order {
    /// Stop handling frames, and return all flows.
    Hold(Sender<WorkerFlows>),
    /// While frames are held: return the flow cache's events since the last answer.
    TellEvents(Sender<Vec<CacheEvent>>),
    /// Handle frames again, the waiting ones first.
    Release,
    /// Continue these flows of another process. Keep the waiting frames that arrived since the
    /// given time, and handle them after [`Order::Release`].
    Restore(Vec<KnownFlow>, Timestamp, Arc<PacketState>, Sender<LostFlows>),
    /// Apply these events of another process's flow cache. Sent before [`Order::Release`].
    Hear(Vec<CacheEvent>),
    /// Apply the pending events of the flow cache, and update the gauges of flows.
    ApplyEvents(Sender<()>),
}

/// Flows of one worker that has stopped handling frames.
pub struct WorkerFlows {
    /// Time when the worker stopped handling frames.
    pub since: Timestamp,
    /// Flows in the order of their last change, oldest first.
    pub flows: Vec<KnownFlow>,
}

/// Number of open flows that could not be restored in this process.
pub type LostFlows = usize;

/// Pending answers of the workers to an order.
pub struct Answers<T>(Vec<Receiver<T>>);

impl<T> Answers<T> {
    /// Waits for the answers of all workers. `None` if a worker does not answer in time.
    pub fn wait(self) -> Option<Vec<T>> {
        self.0.into_iter().map(|answer| answer.recv_timeout(ORDER_TIMEOUT).ok()).collect()
    }
}

impl Pipeline {
    /// Stops the workers until [`Pipeline::release_workers`], and collects their flows. Meanwhile
    /// frames wait, and the flow cache continues to forward.
    pub fn pause_workers(&self) -> Answers<WorkerFlows> {
        self.query_workers(|_| (), |(), answer| Order::Hold(answer))
    }

    /// Collects the flow cache's events since the last collection, while the workers are stopped.
    pub fn cache_events(&self) -> Answers<Vec<CacheEvent>> {
        self.query_workers(|_| (), |(), answer| Order::TellEvents(answer))
    }

    /// Applies the pending events of the flow cache. Once all answers have arrived, the gauges of
    /// flows include the connections that the cache opened before this call.
    pub fn apply_cache_events(&self) -> Answers<()> {
        self.query_workers(|_| (), |(), answer| Order::ApplyEvents(answer))
    }

    /// Lets the workers handle frames again: after a failed handover, or after the flows of another
    /// process were restored.
    pub fn release_workers(&self) {
        self.orders.iter().for_each(|orders| _ = orders.send(Order::Release));
    }

    /// Restores the flows of another process. The owner numbers in the flows are those of
    /// `packet_state`.
    ///
    /// After [`Pipeline::release_workers`], the workers handle the frames that arrived after the
    /// time `since`. If flows are lost, the caller must prevent answers to packets of these flows.
    pub fn restore(
        &self,
        flows: Vec<KnownFlow>,
        since: Timestamp,
        packet_state: &Arc<PacketState>,
    ) -> Answers<LostFlows> {
        let mut shares = self.by_worker(flows, |flow| &flow.client);
        self.query_workers(
            |worker| std::mem::take(&mut shares[worker]),
            |share, answer| Order::Restore(share, since, packet_state.clone(), answer),
        )
    }

    /// Passes the flow cache events of another process to the workers that continue its flows. The
    /// workers apply them before they handle frames, and before the events of their own cache.
    pub fn apply_handed_events(&self, events: Vec<CacheEvent>) {
        for (orders, share) in self.orders.iter().zip(self.by_worker(events, |event| &event.key)) {
            let _ = orders.send(Order::Hear(share));
        }
        self.wake_workers();
    }

    fn by_worker<T>(&self, items: Vec<T>, key: impl Fn(&T) -> &FlowKey) -> Vec<Vec<T>> {
        let mut shares: Vec<Vec<T>> = self.orders.iter().map(|_| Vec::new()).collect();
        for item in items {
            if let Some(share) = shares.get_mut(usize::from(self.dispatch().worker(key(&item)))) {
                share.push(item);
            }
        }
        shares
    }

    fn query_workers<P, T>(
        &self,
        mut part: impl FnMut(usize) -> P,
        order: impl Fn(P, Sender<T>) -> Order,
    ) -> Answers<T> {
        let ask = |(worker, orders): (usize, &Sender<Order>)| {
            let (tell, answer) = bounded(1);
            let _ = orders.send(order(part(worker), tell));
            answer
        };
        let answers = self.orders.iter().enumerate().map(ask).collect();
        self.wake_workers();
        Answers(answers)
    }
}

/// Frames that wait for the flows of another process. Only the newest are kept.
#[derive(Default)]
pub(super) struct Backlog {
    awaits_flows: bool,
    frames: VecDeque<WaitingBatch>,
    lost: LostFrames,
    /// Time and state at which the other process stopped handling frames; `None` until they are
    /// known.
    predecessor: Option<PredecessorEnd>,
}

/// Batch of waiting frames, with its arrival time.
struct WaitingBatch {
    since: Timestamp,
    batch: Batch,
}

/// Time and state at which another process stopped handling frames.
struct PredecessorEnd {
    /// Time at which the other process stopped handling frames.
    at: Timestamp,
    /// Whether the other process had flows in its flow cache.
    were_cached: bool,
}

/// Numbers of frames that were dropped while they waited, by arrival time. They are counted by
/// time, because this process learns only later when the other process stopped.
#[derive(Default)]
struct LostFrames(VecDeque<LostStep>);

struct LostStep {
    begin: Timestamp,
    /// Number of TCP segments that the other process's flow cache may have forwarded.
    plain: u64,
    others: u64,
}

impl LostFrames {
    fn add(&mut self, at: Timestamp, plain: u64, others: u64) {
        if let Some(step) = self.0.back_mut().filter(|step| at < step.begin.after(LOST_STEP)) {
            (step.plain, step.others) = (step.plain + plain, step.others + others);
            return;
        }
        if self.0.len() >= MAX_LOST_STEPS {
            self.0.pop_front();
        }
        self.0.push_back(LostStep { begin: at, plain, others });
    }

    /// Estimated number of frames that were dropped since this time and that no process has
    /// handled.
    fn since(&self, since: Timestamp, were_cached: bool) -> u64 {
        let steps = self.0.iter().filter(|step| step.begin >= since);
        steps.map(|step| step.others + if were_cached { 0 } else { step.plain }).sum()
    }
}

impl Backlog {
    pub(super) fn new(awaits_flows: bool) -> Backlog {
        Backlog { awaits_flows, ..Backlog::default() }
    }

    #[inline]
    pub(super) fn awaits_flows(&self) -> bool {
        self.awaits_flows
    }

    /// Takes the oldest batch of waiting frames.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Batch> {
        self.frames.pop_front().map(|waiting| waiting.batch)
    }

    /// Drops the oldest batch of waiting frames, counts it as lost, and returns it for reuse.
    fn drop_next(&mut self) -> Option<Batch> {
        let WaitingBatch { since: at, batch } = self.frames.pop_front()?;
        let all = batch.parcels.len() as u64;
        let plain = batch.parcels.iter().filter(|parcel| is_plain_segment(&parcel.buffer)).count() as u64;
        self.lost.add(at, plain, all - plain);
        Some(batch)
    }

    /// Takes the estimated number of dropped frames that no process has handled.
    fn take_lost(&mut self) -> u64 {
        let lost = std::mem::take(&mut self.lost);
        self.predecessor.take().map_or(0, |end| lost.since(end.at, end.were_cached))
    }
}

/// Whether a flow cache may forward this frame without an event: a TCP segment without SYN, FIN and
/// RST.
fn is_plain_segment(frame: &Buffer) -> bool {
    let headers = frame.headers.as_ref().ok().filter(|headers| headers.is_tcp());
    headers.is_some_and(|headers| !(headers.flags.syn() || headers.flags.fin() || headers.flags.rst()))
}

impl Worker {
    /// Carries out orders until the worker may handle frames. Breaks if the pipeline has ended.
    pub(super) fn execute_orders(&mut self, accounting: &mut Accounting) -> ControlFlow<()> {
        let mut holds = false;
        while holds || self.backlog.awaits_flows || !self.orders.is_empty() {
            let order =
                if self.backlog.awaits_flows { self.order_or_frames() } else { self.orders.recv().ok() };
            let Some(order) = order else { return ControlFlow::Break(()) };
            match order {
                Order::Hold(answer) => {
                    holds = true;
                    let since = (self.now)();
                    self.apply_pending_events(since);
                    let flows = self.forwarder.known_flows();
                    // Also release the slots of flows that have just ended: this process may end
                    // before the next opportunity.
                    self.release_slots(accounting);
                    let _ = answer.send(WorkerFlows { since, flows });
                }
                Order::TellEvents(answer) => {
                    let seen: Vec<CacheEvent> = self.events.take().collect();
                    let mut events = self.forwarder.progress_in_cache();
                    events.extend(seen);
                    let _ = answer.send(events);
                }
                Order::Release => {
                    (holds, self.backlog.awaits_flows) = (false, false);
                    let lost = self.backlog.take_lost();
                    self.stats.dropped(self.core, DropReason::WorkerQueueFull, lost);
                }
                Order::Restore(flows, since, packet_state, answer) => {
                    let lost = self.restore(&flows, &packet_state, accounting);
                    let were_cached = flows.iter().any(|flow| flow.was_cached);
                    self.backlog.predecessor = Some(PredecessorEnd { at: since, were_cached });
                    self.choose_frames(since, were_cached);
                    let _ = answer.send(lost);
                }
                Order::Hear(events) => {
                    self.forwarder.on_cached_elsewhere(&events, (self.now)());
                    self.forwarder.flush_cache();
                }
                Order::ApplyEvents(answer) => {
                    self.apply_pending_events((self.now)());
                    self.report(accounting);
                    let _ = answer.send(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Applies the pending events of the flow cache.
    fn apply_pending_events(&mut self, now: Timestamp) {
        for event in self.events.take() {
            self.forwarder.on_cached(event, now);
        }
    }

    /// Waits for the next order, and stores the frames that arrive before it. `None` if the
    /// pipeline has ended.
    fn order_or_frames(&mut self) -> Option<Order> {
        loop {
            select! {
                recv(self.orders) -> order => return order.ok(),
                recv(self.frames) -> batch => self.queue(batch.ok()?),
            }
        }
    }

    fn queue(&mut self, batch: Batch) {
        let now = (self.now)();
        self.backlog.frames.push_back(WaitingBatch { since: now, batch });
        while let Some(oldest) = self.backlog.frames.front()
            && (now.since(oldest.since) > MAX_WAIT || self.budget.is_short())
        {
            if let Some(batch) = self.backlog.drop_next() {
                let _ = self.free_batches.try_send(batch); // full: nobody needs them
            }
        }
    }

    /// Restores the flows of another process. Returns the number of open flows that could not be
    /// restored.
    fn restore(
        &mut self,
        flows: &[KnownFlow],
        packet_state: &PacketState,
        accounting: &mut Accounting,
    ) -> LostFlows {
        let now = (self.now)();
        accounting.use_snapshot(&packet_state.snapshot);
        self.forwarder.set_journal_enabled(self.access_log.is_on());
        let mut lost = 0;
        for flow in flows {
            match self.forwarder.restore(flow, &packet_state.plan, now) {
                Some(restored) if !restored.is_over => accounting.count(restored.owners, Counter::Opened, 1),
                Some(_) => {}
                None => lost += usize::from(flow.is_open()),
            }
        }
        self.forwarder.flush_cache();
        lost
    }

    /// Keeps only the waiting frames that this process must handle: they arrived after the other
    /// process stopped (for datagrams: or up to `IN_QUEUE` before), and neither the other process
    /// nor its flow cache has handled them.
    fn choose_frames(&mut self, since: Timestamp, were_cached: bool) {
        let forwarder = &self.forwarder;
        self.backlog.frames.retain(|waiting| waiting.since.after(IN_QUEUE) >= since);
        for WaitingBatch { since: at, batch } in &mut self.backlog.frames {
            let is_after = *at >= since;
            batch.parcels.retain(|parcel| {
                let Ok(headers) = &parcel.buffer.headers else { return is_after };
                (is_after || !headers.is_tcp()) && !forwarder.was_handled_elsewhere(headers, were_cached)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_dropped_during_an_upgrade_count_since_the_old_worker_stopped() {
        let mut lost = LostFrames::default();
        let at = |ms: u64| Timestamp(ms * 1_000_000);
        (0..100).for_each(|ms| lost.add(at(ms), 2, 1));
        assert_eq!(lost.0.len(), 10);
        assert_eq!(lost.since(at(50), false), 150);
        assert_eq!(lost.since(at(50), true), 50, "the cache may have forwarded plain segments");
        (0..100_000).for_each(|n| lost.add(at(1_000 + 10 * n), 0, 1));
        assert_eq!(lost.0.len(), MAX_LOST_STEPS);
    }
}
