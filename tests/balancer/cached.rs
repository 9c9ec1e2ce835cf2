//! A balancer with a flow cache before it, as the kernel's is, or without one.

#[path = "../../src/forward/forwarder/tests/lab/kernel.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "a part of tests, of which the forwarder's own use all")]
mod kernel;

use std::sync::Arc;
use std::time::Duration;

use convey::forward::{FIN, FlowTable, Frame, Segment, Verdict};
use convey::model::{FlowKey, FlowTimeouts, Timestamp};
use convey::snapshot::Snapshot;

use self::kernel::Kernel;
use crate::balancer::{Balancer, Setup};

pub(super) struct Cached {
    balancer: Balancer,
    kernel: Option<Kernel>,
    /// What the cache has told of and the balancer has not read.
    unread: Vec<(FlowKey, Segment)>,
    /// Whether the balancer reads nothing just now.
    pub(super) is_deaf: bool,
    /// Whether there was no room to tell of some handshakes.
    pub(super) has_lost_some: bool,
}

impl Cached {
    pub(super) fn new(setup: Setup, has_cache: bool) -> Cached {
        let kernel = has_cache.then(Kernel::default);
        let balancer = Balancer::with_cache(setup, kernel.as_ref().map(Kernel::cache));
        Cached { balancer, kernel, unread: Vec::new(), is_deaf: false, has_lost_some: false }
    }

    /// Has a packet arrive. `None`: the cache has sent it on.
    pub(super) fn handle(&mut self, bytes: &mut [u8]) -> Option<Verdict> {
        let Balancer { snapshot, now, .. } = &self.balancer;
        let mut frame = Frame::new(bytes);
        // None is longer than a link takes.
        let forwards = |kernel: &Kernel| kernel.forward(&mut frame, |_, _, _| true, snapshot, *now).is_some();
        if self.kernel.as_ref().is_some_and(forwards) {
            return None;
        }
        let verdict = self.balancer.handle(bytes);
        while self.balancer.forwarder.next_farewell(&self.balancer.snapshot).is_some() {}
        self.balancer.forwarder.flush_cache();
        Some(verdict)
    }

    /// Has the balancer read what the cache tells of, unless it is deaf.
    pub(super) fn hear(&mut self) {
        self.unread.extend(self.kernel.iter().flat_map(Kernel::told));
        if !self.is_deaf {
            for (key, segment) in self.unread.drain(..) {
                self.balancer.forwarder.on_cached(&key, segment, self.balancer.now);
            }
            self.balancer.forwarder.flush_cache();
        }
        let news = self.balancer.forwarder.news();
        news.answered.clear();
        news.wanted.clear();
    }

    /// There was no room to tell of what opened since; FINs would not have been forwarded then.
    pub(super) fn lose_handshakes(&mut self) {
        self.unread.extend(self.kernel.iter().flat_map(Kernel::told));
        let before = self.unread.len();
        self.unread.retain(|(_, segment)| segment.flags & FIN != 0);
        self.has_lost_some |= self.unread.len() < before;
    }

    pub(super) fn pass_time(&mut self, duration: Duration) {
        self.balancer.pass_time(duration);
        self.balancer.forwarder.flush_cache();
    }

    pub(super) fn change_timeouts(&mut self, timeouts: FlowTimeouts) {
        self.balancer.change_timeouts(timeouts);
    }

    /// Gives back the slots of flows that are over. Returns how many are.
    pub(super) fn give_slots_back(&mut self) -> usize {
        let Balancer { forwarder, snapshot, .. } = &mut self.balancer;
        let ended = std::mem::take(&mut forwarder.news().ended);
        for ended in &ended {
            let frontend = snapshot.frontends.iter().find(|frontend| frontend.live.id == ended.flow.frontend);
            frontend.expect("frontends stay").live.slots.release();
            snapshot.servers[&ended.flow.server].live.slots.release();
        }
        ended.len()
    }

    pub(super) fn flows(&self) -> &FlowTable {
        self.balancer.forwarder.flows()
    }

    pub(super) fn snat_ports_in_use(&self) -> usize {
        self.balancer.forwarder.snat_ports_in_use()
    }

    pub(super) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.balancer.snapshot
    }

    pub(super) fn now(&self) -> Timestamp {
        self.balancer.now
    }
}
