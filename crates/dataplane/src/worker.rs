//! Worker thread: owns its flows, rewrites frames, and counts verdicts.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender};

use super::accounting::{self, Accounting};
use super::event_queue::EventQueue;
use super::flow_queries::FlowQueries;
use super::handover::{Backlog, Order};
use super::neighbour_queue::{NeighbourQueue, QueuedFrame};
use super::packet_trace::{HandledFrame, PacketTrace};
use super::queues::{Batch, MemoryBudget, Parcel, QUEUE_TIMEOUT};
use super::{Buffer, CounterReader, PacketState};
use convey_access_log::AccessLog;
use convey_forward::{
    Cut, Direction, FlowState, Forwarded, Forwarder, IpIds, PacketRole, Verdict, cut, number_segments,
};
use convey_model::{ConnectFailures, DropReason, Shortage, Timestamp, WantedNeighbour};
use convey_snapshot::stats::{Counter, Gauge, PacketStats, STATES};

const _: () = assert!(FlowState::ALL.len() <= STATES, "every state has a gauge");

/// Maximum time until a worker's timers run if no frames arrive.
const TICK: Duration = Duration::from_millis(50);

/// Maximum time until a worker's timers run while the worker has flows in the flow cache. Events of
/// the cache do not wake a worker, but another worker may wait for the slots that these flows
/// release.
const HEARING: Duration = Duration::from_millis(10);

/// Interval at which packets that the flow cache forwarded are added to the counters.
const COUNT_EVERY: Duration = Duration::from_millis(250);

/// Maximum number of waiting neighbour requests.
pub const MAX_WANTED_NEIGHBOURS: usize = 512;

/// Number of waiting requests that is reserved for servers and routers, because any host on the
/// link can forge clients.
const WANTED_OURS: usize = 256;

/// State of a worker thread.
pub(super) struct Worker {
    /// Index of the worker's counters.
    pub(super) core: usize,
    pub(super) forwarder: Forwarder,
    /// Reader of the flow cache's counters. Only one worker has it.
    pub(super) counters: Option<CounterReader>,
    pub(super) events: EventQueue,
    /// IP ids for the fragments and segments into which the worker cuts packets.
    pub(super) ids: IpIds,
    pub(super) waiting: NeighbourQueue,
    pub(super) packet_state: Arc<ArcSwap<PacketState>>,
    pub(super) stats: Arc<PacketStats>,
    pub(super) frames: Receiver<Batch>,
    pub(super) orders: Receiver<Order>,
    /// Operator queries about this worker's flows.
    pub(super) queries: FlowQueries,
    /// Frames that wait for the flows of another process.
    pub(super) backlog: Backlog,
    pub(super) out: Sender<Batch>,
    pub(super) free_batches: Sender<Batch>,
    pub(super) budget: MemoryBudget,
    pub(super) wanted: tokio::sync::mpsc::Sender<WantedNeighbour>,
    pub(super) failures: tokio::sync::mpsc::Sender<ConnectFailures>,
    pub(super) access_log: Arc<AccessLog>,
    pub(super) trace: PacketTrace,
    pub(super) now: fn() -> Timestamp,
}

/// Context of one batch of frames.
pub(super) struct Round<'a> {
    pub(super) packet_state: &'a PacketState,
    pub(super) now: Timestamp,
    pub(super) accounting: &'a Accounting,
    pub(super) out: Vec<Parcel>,
    /// Handled frames whose buffers can be reused.
    spare: Vec<Parcel>,
}

impl Worker {
    /// Runs until all capture threads have ended.
    pub(super) fn run(mut self) {
        let mut accounting = Accounting::new(self.core);
        let mut is_behind = false;
        let mut counted = Timestamp::default();
        loop {
            let patience = match self.forwarder.cached_flows() {
                _ if is_behind => Duration::ZERO,
                0 => TICK,
                _ => HEARING,
            };
            let has_orders = !self.orders.is_empty() || self.backlog.awaits_flows();
            if has_orders && self.execute_orders(&mut accounting).is_break() {
                break;
            }
            let Some(Batch { parcels, charge }) = self.next_batch(patience) else { break };
            let packet_state = self.packet_state.load();
            let now = (self.now)();
            accounting.use_snapshot(&packet_state.snapshot);
            self.trace.update_watchers(&mut self.forwarder);
            self.forwarder.set_journal_enabled(self.access_log.is_on() || self.trace.is_on());
            let mut round = Round {
                packet_state: &packet_state,
                now,
                accounting: &accounting,
                out: Vec::with_capacity(parcels.len()),
                spare: Vec::new(),
            };
            // Handle events before timers: an event may keep a flow from expiring.
            for event in self.events.take() {
                self.forwarder.on_cached(event, now);
            }
            self.release_slots(&accounting);
            is_behind = self.forwarder.handle_timeout(&packet_state.plan, now, |frame, interface| {
                let mut buffer = Buffer::default();
                buffer.set_frame(frame);
                round.out.push(Parcel { interface, buffer });
            });
            self.send_server_resets(&mut round);
            for QueuedFrame { since, parcel, .. } in self.waiting.due(packet_state.snapshot.generation, now) {
                self.handle(parcel, since, &mut round);
            }
            self.forwarder.prefetch(parcels.iter().filter_map(|parcel| parcel.buffer.key()));
            for parcel in parcels {
                self.handle(parcel, now, &mut round);
            }
            self.take_flow_requests(&mut round);
            let Round { out, spare, .. } = round;
            // Write the cache entries before a SYN is sent: if the server is on this machine, its
            // answer may arrive before the call returns.
            self.forwarder.flush_cache();
            self.send(out, spare);
            drop(charge);
            self.report(&accounting);
            is_behind |= self.advance_lists(&accounting, now);
            if let Some(counters) = self.counters.as_mut().filter(|_| now.since(counted) >= COUNT_EVERY) {
                counters.read(&self.stats, |owners, counter, n| accounting.count_cached(owners, counter, n));
                counted = now;
            }
        }
        self.stats.dropped(self.core, DropReason::NextHopUnresolved, self.waiting.len() as u64);
    }

    /// Receives the next batch of frames. The batch is empty if none arrives within `patience`.
    /// `None`: all capture threads have ended.
    fn next_batch(&mut self, patience: Duration) -> Option<Batch> {
        if let Some(batch) = self.backlog.next() {
            return Some(batch);
        }
        match self.frames.recv_timeout(patience) {
            Ok(batch) => Some(batch),
            Err(RecvTimeoutError::Timeout) => Some(self.budget.batch(Vec::new())),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Handles a frame that arrived at the time `since`.
    fn handle(&mut self, Parcel { interface, mut buffer }: Parcel, since: Timestamp, round: &mut Round<'_>) {
        let before = if self.trace.is_on() { self.trace.before(buffer.frame()) } else { None };
        let mut frame = buffer.as_frame(interface);
        let (plan, now) = (&round.packet_state.plan, round.now);
        let verdict = self.forwarder.handle_frame(&mut frame, plan, now);
        if self.trace.is_on() {
            let waits = matches!(verdict, Verdict::Drop(DropReason::NextHopUnresolved));
            let handled = HandledFrame { verdict, waits, plan, now };
            self.trace.publish(&self.forwarder, &frame, handled, before);
        }
        self.send_server_resets(round);
        match verdict {
            Verdict::Transmit(forwarded) => {
                self.count(forwarded, interface, &buffer, round);
                self.transmit(forwarded, Parcel { interface, buffer }, round);
            }
            Verdict::Reply(reason) => {
                self.count_dropped(reason, round.accounting);
                buffer.set_frame(self.forwarder.answer());
                round.out.push(Parcel { interface, buffer });
            }
            Verdict::Drop(reason) if self.may_wait(reason, &buffer) => {
                // A later fragment waits for the same neighbour as the frame before it. The
                // forwarder may no longer know that neighbour.
                let neighbour = match reason {
                    DropReason::NextHopUnresolved => self.forwarder.events().unresolved,
                    _ => None,
                };
                let Worker { waiting, stats, core, trace, forwarder, .. } = self;
                let frame = QueuedFrame { since, neighbour, parcel: Parcel { interface, buffer } };
                waiting.push(frame, round.now, |Parcel { interface, mut buffer }| {
                    stats.dropped(*core, DropReason::NextHopUnresolved, 1);
                    if trace.is_on() {
                        let (plan, now) = (&round.packet_state.plan, round.now);
                        let verdict = Verdict::Drop(DropReason::NextHopUnresolved);
                        let lost = HandledFrame { verdict, waits: false, plan, now };
                        trace.publish(forwarder, &buffer.as_frame(interface), lost, None);
                    }
                    round.spare.push(Parcel { interface, buffer });
                });
            }
            Verdict::Drop(reason) => {
                self.count_dropped(reason, round.accounting);
                round.spare.push(Parcel { interface, buffer });
            }
            Verdict::Pass => {
                self.stats.passed(self.core, 1);
                round.spare.push(Parcel { interface, buffer });
            }
        }
    }

    fn count_dropped(&self, reason: DropReason, accounting: &Accounting) {
        self.stats.dropped(self.core, reason, 1);
        accounting.refused_client(self.forwarder.refused_at(), reason);
    }

    /// Counts a forwarded frame. `interface` is its ingress interface.
    fn count(&self, forwarded: Forwarded, interface: u32, buffer: &Buffer, round: &Round<'_>) {
        let (packets, bytes) = match forwarded.direction {
            Direction::ToServer => (Counter::PacketsRx, Counter::BytesRx),
            Direction::ToClient => (Counter::PacketsTx, Counter::BytesTx),
        };
        round.accounting.count(forwarded.flow, packets, 1);
        round.accounting.count(forwarded.flow, bytes, buffer.frame().len() as u64);
        match forwarded.role {
            PacketRole::First => round.accounting.count(forwarded.flow, Counter::Opened, 1),
            PacketRole::Later => {}
            PacketRole::Answer => round.accounting.answered(forwarded.flow),
            PacketRole::Refusal => {
                if let Some(failures) =
                    round.accounting.refused(forwarded, interface, &round.packet_state.snapshot)
                {
                    let _ = self.failures.try_send(failures); // full: there is more of the same in it
                }
            }
            PacketRole::Untracked => self.stats.untracked(self.core, 1),
        }
    }

    /// Queues a rewritten frame for transmission. If the frame is too long for its next hop, cuts
    /// it first.
    fn transmit(&mut self, forwarded: Forwarded, parcel: Parcel, round: &mut Round<'_>) {
        let Parcel { interface, mut buffer } = parcel;
        let enclose = |buffer: &mut Buffer| {
            if let Some(envelope) = &forwarded.envelope {
                buffer.put_into(envelope);
            }
        };
        let Some(how) = forwarded.cut else {
            enclose(&mut buffer);
            return round.out.push(Parcel { interface: forwarded.interface, buffer });
        };
        let mut frame = buffer.as_frame(interface);
        match how {
            Cut::Segments(payload) if frame.segment_size.is_some() && forwarded.envelope.is_none() => {
                number_segments(&mut frame, payload, &self.ids);
                buffer.set_segment_size(payload);
                round.out.push(Parcel { interface: forwarded.interface, buffer });
            }
            how => {
                cut(&mut frame, how, &mut self.ids, |piece| {
                    let mut buffer = Buffer::default();
                    buffer.set_frame(piece);
                    enclose(&mut buffer);
                    round.out.push(Parcel { interface: forwarded.interface, buffer });
                });
                round.spare.push(Parcel { interface, buffer });
            }
        }
    }

    /// Sends resets to the servers of handshakes that were evicted.
    fn send_server_resets(&mut self, round: &mut Round<'_>) {
        while let Some((reset, interface)) = self.forwarder.next_server_reset(&round.packet_state.plan) {
            let mut buffer = Buffer::default();
            buffer.set_frame(reset);
            round.out.push(Parcel { interface, buffer });
        }
    }

    /// Whether a dropped frame may wait instead: its next hop is being resolved, or it is a
    /// fragment and other frames wait already.
    fn may_wait(&self, reason: DropReason, frame: &Buffer) -> bool {
        match reason {
            DropReason::NextHopUnresolved => true,
            DropReason::NoFlow => frame.first_fragment.is_some() && !self.waiting.is_empty(),
            _ => false,
        }
    }

    fn send(&self, out: Vec<Parcel>, spare: Vec<Parcel>) {
        if !out.is_empty()
            && let Err(SendTimeoutError::Timeout(lost)) =
                self.out.send_timeout(self.budget.batch(out), QUEUE_TIMEOUT)
        {
            self.stats.dropped(self.core, DropReason::TransmitQueueFull, lost.parcels.len() as u64);
            if self.trace.is_on() {
                self.trace.publish_not_sent(&lost.parcels, DropReason::TransmitQueueFull, (self.now)());
            }
            let _ = self.free_batches.try_send(lost);
        }
        if !spare.is_empty() {
            let _ = self.free_batches.try_send(self.budget.batch(spare)); // full: nobody needs them
        }
    }

    /// Releases the slots of ended flows, so that new flows can use them.
    pub(super) fn release_slots(&mut self, accounting: &Accounting) {
        let events = self.forwarder.events();
        for record in events.records.drain(..) {
            self.trace.publish_end(&record, accounting::reason(record.how));
            if self.access_log.chooses_one() {
                self.access_log.put(|| accounting.record(&record));
            }
        }
        for ended in events.ended.drain(..) {
            accounting.ended(ended);
        }
        for flow in events.answered.drain(..) {
            accounting.answered(flow);
        }
        if !events.handshakes.is_empty() {
            let now = (self.now)();
            events.handshakes.drain(..).for_each(|event| accounting.handshake(event, now));
        }
        if !events.unanswered.is_empty() || !events.path_mtu.is_empty() {
            self.check_unanswered(accounting);
        }
    }

    /// Checks for each unacknowledged large segment whether its server still answers. If the server
    /// answers, counts a suspected path MTU black hole.
    fn check_unanswered(&mut self, accounting: &Accounting) {
        for segment in std::mem::take(&mut self.forwarder.events().unanswered) {
            let answered = accounting.answered_since(&segment);
            let suspicion = answered.and_then(|at| self.forwarder.server_has_answered(&segment, at));
            suspicion.into_iter().for_each(|suspicion| accounting.path_mtu(suspicion));
        }
        let suspicions = self.forwarder.events().path_mtu.drain(..);
        suspicions.for_each(|suspicion| accounting.path_mtu(suspicion));
    }

    pub(super) fn report(&mut self, accounting: &Accounting) {
        self.release_slots(accounting);
        for wanted in self.forwarder.events().wanted.drain(..) {
            request_neighbour(&self.wanted, wanted);
        }
        for state in FlowState::ALL {
            let flows = self.forwarder.flows_in(state);
            self.stats.set(self.core, Gauge::Flows(state as usize), flows.into());
        }
        self.stats.set_handshakes(self.core, self.forwarder.handshakes());
        for shortage in Shortage::ALL {
            self.stats.set_evicted(self.core, shortage, self.forwarder.evicted(shortage));
        }
        self.stats.set(self.core, Gauge::OpenFlows, self.forwarder.open_flows().into());
        self.stats.set(self.core, Gauge::CachedFlows, self.forwarder.cached_flows().into());
        self.stats.set(self.core, Gauge::SnatPorts, self.forwarder.snat_ports_in_use() as u64);
    }
}

/// Requests the resolution of a neighbour. If the queue of requests is full, drops the request; the
/// next packet to the neighbour repeats it.
fn request_neighbour(requests: &tokio::sync::mpsc::Sender<WantedNeighbour>, wanted: WantedNeighbour) {
    if wanted.is_ours || requests.capacity() > WANTED_OURS {
        let _ = requests.try_send(wanted);
    }
}

#[cfg(test)]
mod tests {
    use convey_snapshot::Snapshot;

    use super::super::flow_queries::PacketFlows;
    use super::*;
    use convey_forward::Settings;

    #[test]
    fn frames_queued_for_a_neighbour_at_stop_count_as_dropped() {
        let (inbox, frames) = crossbeam_channel::bounded(1);
        let (out, _sent) = crossbeam_channel::bounded(1);
        let (free_batches, _spare) = crossbeam_channel::bounded(1);
        let stats = Arc::new(PacketStats::new(1));
        let mut worker = Worker {
            core: 0,
            forwarder: Forwarder::new(Settings::alone(1, 1)),
            counters: None,
            events: EventQueue::of(1, None, &convey_forward::Dispatch::new(1, None)).remove(0),
            ids: IpIds::new(0),
            waiting: NeighbourQueue::default(),
            packet_state: Arc::new(ArcSwap::from_pointee(PacketState::new(Arc::new(Snapshot::empty(1))))),
            stats: stats.clone(),
            frames,
            orders: crossbeam_channel::unbounded().1,
            queries: PacketFlows::new(1).1.remove(0),
            backlog: Backlog::new(false),
            out,
            free_batches,
            budget: MemoryBudget::new(crate::MAX_FRAME_MEMORY),
            wanted: tokio::sync::mpsc::channel(1).0,
            failures: tokio::sync::mpsc::channel(1).0,
            access_log: Arc::default(),
            trace: PacketTrace::default(),
            now: || Timestamp(0),
        };
        for _ in 0..3 {
            let frame = QueuedFrame {
                since: Timestamp(0),
                neighbour: None,
                parcel: Parcel { interface: 1, buffer: Buffer::default() },
            };
            worker.waiting.push(frame, Timestamp(0), |_| panic!("there is room"));
        }
        drop(inbox);
        worker.run();
        assert_eq!(stats.drops(DropReason::NextHopUnresolved), 3);
    }
    #[test]
    fn forged_clients_leave_room_for_a_request_for_a_server() {
        let (requests, mut asked) = tokio::sync::mpsc::channel(MAX_WANTED_NEIGHBOURS);
        let neighbour = |n: u32, is_ours| WantedNeighbour {
            interface: 2,
            ip: std::net::Ipv4Addr::from(n).into(),
            is_ours,
            is_repeated: false,
        };
        (0..10_000).for_each(|n| request_neighbour(&requests, neighbour(n, false)));
        request_neighbour(&requests, neighbour(10_000, true));
        let waiting: Vec<WantedNeighbour> = std::iter::from_fn(|| asked.try_recv().ok()).collect();
        assert_eq!(waiting.len(), MAX_WANTED_NEIGHBOURS - WANTED_OURS + 1);
        assert!(waiting.last().unwrap().is_ours);
    }
}
