//! Flows whose numbers in the flow cache are behind those of a worker.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::Forwarder;
use super::entries::keys;
use crate::cache::CachedActivity;
use crate::{Direction, FIN, Flow, FlowId, Progress, RST, Segment, View};
use convey_model::Timestamp;

/// How long no worker has moved the numbers of a flow before they are written into the cache. No connection sends 4 GiB meanwhile.
const WRITE_AFTER: Duration = Duration::from_millis(250);

/// Flows written at once: about 0.3 ms.
const BUDGET: usize = 256;

/// Most flows that wait to be written: 3 MiB.
const MAX_FLOWS: usize = 65_536;

/// Flows whose numbers a worker has moved since their entries were last written. The numbers of all others count as the cache has them.
#[derive(Debug, Default)]
pub(super) struct AheadOfCache {
    /// When a worker last moved them.
    moved: HashMap<FlowId, Timestamp>,
    /// Each of these flows once, with the time before which it need not be looked at.
    queue: VecDeque<(Timestamp, FlowId)>,
}

impl AheadOfCache {
    /// Whether a worker may know later numbers of a flow than the cache.
    pub(super) fn has(&self, id: FlowId) -> bool {
        self.moved.contains_key(&id)
    }

    /// A worker has moved the numbers of a flow.
    fn note(&mut self, id: FlowId, now: Timestamp) {
        if self.moved.insert(id, now).is_none() {
            self.queue.push_back((now.after(WRITE_AFTER), id));
        }
    }

    /// Whether flows are to be looked at by now.
    pub(super) fn is_behind(&self, now: Timestamp) -> bool {
        self.queue.front().is_some_and(|(at, _)| *at <= now)
    }

    /// Takes the next flow that is to be written, if there is one by now.
    fn next(&mut self, now: Timestamp) -> Option<FlowId> {
        while self.is_behind(now) {
            let (_, id) = self.queue.pop_front()?;
            match self.moved.get(&id).map(|moved| moved.after(WRITE_AFTER)) {
                Some(at) if at > now => self.queue.push_back((at, id)),
                _ => {
                    self.moved.remove(&id);
                    return Some(id);
                }
            }
        }
        None
    }
}

impl Forwarder {
    /// Applies a packet that a worker forwards. If the cache has its flow, the cache may have forwarded much since the worker took
    /// numbers from there; and the entry gets the worker's numbers before it falls too far behind.
    #[inline]
    pub(super) fn hear_beside_cache(
        &mut self,
        id: FlowId,
        direction: Direction,
        segment: Segment,
        now: Timestamp,
    ) {
        let flow = self.flows.get(id);
        let is_open = flow.is_cached() && !flow.state().is_udp() && !flow.state().is_handshake();
        // The numbers of a FIN and a reset are up to date.
        let is_known = segment.flags & (FIN | RST) != 0
            || (self.ahead.has(id) && flow.is_followed_by(direction, segment));
        if is_open && !is_known {
            self.catch_up(id);
        }
        let before = self.flows.get(id).progress(direction);
        self.hear(id, direction, segment, now);
        let flow = self.flows.get(id);
        if !flow.is_cached() || flow.state().is_udp() {
            return;
        }
        let progress = flow.progress(direction);
        if progress != before {
            self.note_ahead(id, now);
        }
        if is_open && progress.is_stride_behind(before) {
            self.flush_cache();
            self.write_progress(id);
        }
    }

    fn note_ahead(&mut self, id: FlowId, now: Timestamp) {
        if self.ahead.moved.len() >= MAX_FLOWS {
            self.write_numbers(Timestamp(u64::MAX));
        }
        self.ahead.note(id, now);
    }

    /// Writes numbers that no worker has moved for a while into the cache.
    pub(super) fn write_numbers(&mut self, now: Timestamp) {
        if !self.ahead.is_behind(now) {
            return;
        }
        self.flush_cache();
        for _ in 0..BUDGET {
            let Some(id) = self.ahead.next(now) else { break };
            if self.flows.at(id.0).is_some() {
                self.write_progress(id);
            }
        }
        // From here on the entries alone count.
        self.flush_cache();
    }

    /// Writes the numbers of a worker that are ahead of a flow's entries. All earlier changes are carried out.
    fn write_progress(&mut self, id: FlowId) {
        let flow = self.flows.get(id);
        let is_open = flow.is_cached() && !flow.state().is_udp() && !flow.state().is_handshake();
        let Some(cache) = self.cache.as_mut().filter(|_| is_open) else { return };
        for (direction, key) in keys(flow) {
            let known = flow.progress(direction);
            let progress = match cache.seen(&key) {
                Some(CachedActivity { progress: Some(seen), .. }) if seen.or_ahead(known) == seen => continue,
                Some(CachedActivity { progress: Some(seen), .. }) => seen.or_ahead(known),
                // The kernel takes up the numbers of its packets.
                Some(CachedActivity { progress: None, .. }) => continue,
                None => known,
            };
            cache.advance(&key, progress);
        }
    }
}

/// How far the sides of a flow have got by its entries, and by a worker that may be ahead of them.
pub(super) fn progress_of(
    flow: &Flow,
    is_ahead: bool,
    seen: [Option<CachedActivity>; 2],
) -> [Option<Progress>; 2] {
    let [mut client, mut server] = seen.map(|seen| seen?.progress);
    if is_ahead {
        client = client.map(|client| client.or_ahead(flow.progress(Direction::ToServer)));
        server = server.map(|server| server.or_ahead(flow.progress(Direction::ToClient)));
    }
    // All packets of the server have come to a worker.
    if let (Some(client), None, View::BothSides) = (client, server, flow.view())
        && !flow.state().is_handshake()
    {
        server = Some(Progress { sent: flow.progress(Direction::ToClient).sent, acked: client.sent });
    }
    [client, server]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarder::Settings;

    fn at(ms: u64) -> Timestamp {
        Timestamp(ms * 1_000_000)
    }

    #[test]
    fn flow_is_written_once_no_worker_has_moved_it_for_250_ms() {
        let mut ahead = AheadOfCache::default();
        for ms in [0, 100, 200] {
            ahead.note(FlowId(1), at(ms));
        }
        ahead.note(FlowId(2), at(210));
        assert_eq!((ahead.next(at(250)), ahead.next(at(449))), (None, None));
        assert!(ahead.has(FlowId(1)));
        assert_eq!([ahead.next(at(460)), ahead.next(at(460))].map(|id| id.is_some()), [true, true]);
        assert!(!ahead.has(FlowId(1)) && !ahead.has(FlowId(2)) && !ahead.is_behind(at(10_000)));
    }

    #[test]
    fn flows_of_which_workers_are_ahead_are_bounded() {
        let mut forwarder = Forwarder::new(Settings::alone(16, 42));
        (0..MAX_FLOWS as u32 + 1_000).for_each(|n| forwarder.note_ahead(FlowId(n), at(0)));
        let AheadOfCache { moved, queue, .. } = &forwarder.ahead;
        assert_eq!(moved.len(), queue.len());
        assert!((MAX_FLOWS - BUDGET..=MAX_FLOWS).contains(&moved.len()), "{}", moved.len());
    }
}
