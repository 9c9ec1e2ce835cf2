//! Workers behind a flow cache like the kernel's, or without one.

use std::sync::Arc;
use std::time::Duration;

use convey_forward::testing::{Flow, FlowTable, MockKernel};
use convey_forward::{CacheEvent, Dispatch, FIN, Frame, Verdict};
use convey_model::{FlowKey, Timestamp};
use convey_snapshot::Snapshot;
use convey_wire::parse;

use crate::balancer::{BalancerSetup, TestBalancer};

pub(super) struct Cached {
    workers: Vec<TestBalancer>,
    /// Assigns packets to workers.
    dispatch: Dispatch,
    kernel: Option<MockKernel>,
    /// The first snapshot: it has all frontends and servers.
    first: Arc<Snapshot>,
    /// Events of the cache that the balancer has not read.
    unread: Vec<CacheEvent>,
    /// Whether the balancer reads no events at present.
    pub(super) is_deaf: bool,
    /// Whether handshake events were lost because the event buffer was full.
    pub(super) has_lost_some: bool,
}

impl Cached {
    /// Returns so many workers; the cache has room for `room` entries.
    pub(super) fn new(setup: BalancerSetup, workers: u16, room: Option<usize>) -> Cached {
        let kernel = room.map(MockKernel::with_room);
        let (workers, dispatch) =
            TestBalancer::of_workers(setup, workers, || kernel.as_ref().map(MockKernel::cache));
        let first = workers[0].snapshot.clone();
        // Other balancers of the thread have had the same.
        let of_frontends = first.frontends.iter().map(|frontend| &frontend.live.slots);
        for slots in of_frontends.chain(first.servers().map(|server| &server.live.slots)) {
            (0..slots.open()).for_each(|_| slots.release());
        }
        Cached { workers, dispatch, kernel, first, unread: Vec::new(), is_deaf: false, has_lost_some: false }
    }

    fn number(&self, key: &FlowKey) -> usize {
        self.dispatch.worker(key).into()
    }

    /// Handles a packet. `None`: the cache has forwarded it.
    pub(super) fn handle(&mut self, bytes: &mut [u8]) -> Option<Verdict> {
        let headers = parse(bytes);
        let number = self.number(&headers.as_ref().expect("a packet").key);
        let worker = &mut self.workers[number];
        let TestBalancer { plan, now, .. } = worker;
        let mut frame = Frame::new(bytes, &headers);
        // No packet is longer than the MTU.
        let forwards = |kernel: &MockKernel| kernel.forward(&mut frame, |_, _, _| true, plan, *now).is_some();
        if self.kernel.as_ref().is_some_and(forwards) {
            return None;
        }
        let verdict = worker.handle(bytes);
        while worker.forwarder.next_server_reset(&worker.plan).is_some() {}
        worker.forwarder.flush_cache();
        Some(verdict)
    }

    /// Lets the balancer read the cache's events, unless it is deaf.
    pub(super) fn read_cache_events(&mut self) {
        self.unread.extend(self.kernel.iter().flat_map(MockKernel::events));
        if !self.is_deaf {
            for event in std::mem::take(&mut self.unread) {
                let number = self.number(&event.key);
                let worker = &mut self.workers[number];
                worker.forwarder.on_cached(event, worker.now);
            }
        }
        for worker in &mut self.workers {
            worker.forwarder.flush_cache();
            let events = worker.forwarder.events();
            events.answered.clear();
            events.wanted.clear();
        }
    }

    /// Loses the unread handshake events, as if the event buffer were full. FINs stay: the cache
    /// does not forward a FIN without room for its event.
    pub(super) fn drop_handshake_events(&mut self) {
        self.unread.extend(self.kernel.iter().flat_map(MockKernel::events));
        let before = self.unread.len();
        self.unread.retain(|event| event.segment.flags & FIN != 0);
        self.has_lost_some |= self.unread.len() < before;
    }

    pub(super) fn pass_time(&mut self, duration: Duration) {
        for worker in &mut self.workers {
            worker.pass_time(duration);
            worker.forwarder.flush_cache();
        }
    }

    pub(super) fn publish(&mut self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        self.workers.iter_mut().for_each(|worker| worker.see(snapshot.clone()));
    }

    /// Gives back the slots of flows that are over. Returns how many are.
    pub(super) fn release_slots(&mut self) -> usize {
        let ended =
            self.workers.iter_mut().flat_map(|worker| std::mem::take(&mut worker.forwarder.events().ended));
        let ended: Vec<_> = ended.collect();
        for ended in &ended {
            let mut frontends = self.first.frontends.iter();
            let frontend = frontends.find(|frontend| frontend.live.id == ended.flow.frontend);
            frontend.expect("one of those there are").live.slots.release();
            self.first.server(ended.flow.server).expect("a server of the first").live.slots.release();
        }
        ended.len()
    }

    /// The flow that packets with this key belong to.
    pub(super) fn flow(&self, key: &FlowKey) -> Option<&Flow> {
        let flows = self.workers[self.number(key)].forwarder.flows();
        flows.lookup(key).map(|(id, _)| flows.get(id))
    }

    /// Flow tables, one for each worker.
    pub(super) fn tables(&self) -> impl Iterator<Item = &FlowTable> {
        self.workers.iter().map(|worker| worker.forwarder.flows())
    }

    pub(super) fn snat_ports_in_use(&self) -> usize {
        self.workers.iter().map(|worker| worker.forwarder.snat_ports_in_use()).sum()
    }

    pub(super) fn counted_for_clients(&self) -> u64 {
        self.workers.iter().map(|worker| worker.forwarder.counted_for_clients()).sum()
    }

    pub(super) fn first(&self) -> &Snapshot {
        &self.first
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.workers[0].snapshot
    }

    pub(super) fn now(&self) -> Timestamp {
        self.workers[0].now
    }
}
