//! Flows whose sequence numbers in the flow cache are older than the numbers of a worker.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::cache::CachedActivity;
use crate::{Direction, Flow, FlowId, Progress, View};
use convey_model::Timestamp;

/// Time without packets at a worker after which the numbers of a flow are written into the cache.
/// No connection sends 4 GiB in this time.
const WRITE_AFTER: Duration = Duration::from_millis(250);

/// Flows whose numbers a worker has moved since their entries were last written. For all other
/// flows, the cache has the latest numbers.
#[derive(Debug, Default)]
pub(super) struct AheadOfCache {
    /// Time when a worker last moved the numbers of each flow.
    moved: HashMap<FlowId, Timestamp>,
    /// Each flow of `moved` once, with the time of its next check.
    queue: VecDeque<(Timestamp, FlowId)>,
}

impl AheadOfCache {
    /// Upper bound for the flows that one call writes, in about 0.3 ms.
    pub(super) const BUDGET: usize = 256;

    /// Upper bound for the flows that wait to be written. They take up to 3 MiB.
    pub(super) const MAX_FLOWS: usize = 65_536;

    /// Whether the list is full, so that numbers have to be written into the cache before another
    /// flow is noted.
    pub(super) fn is_full(&self) -> bool {
        self.moved.len() >= AheadOfCache::MAX_FLOWS
    }

    /// Whether a worker may have later numbers of a flow than the cache.
    pub(super) fn has(&self, id: FlowId) -> bool {
        self.moved.contains_key(&id)
    }

    /// Notes that a worker has moved the numbers of a flow.
    pub(super) fn note(&mut self, id: FlowId, now: Timestamp) {
        if self.moved.insert(id, now).is_none() {
            self.queue.push_back((now.after(WRITE_AFTER), id));
        }
    }

    /// Whether some flow has to be checked by now.
    pub(super) fn is_behind(&self, now: Timestamp) -> bool {
        self.queue.front().is_some_and(|(at, _)| *at <= now)
    }

    /// Removes the next flow whose numbers have to be written by now, and returns it.
    pub(super) fn next(&mut self, now: Timestamp) -> Option<FlowId> {
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

    /// Number of flows that wait to be written.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.moved.len(), self.queue.len());
        self.moved.len()
    }
}

/// Progress of both sides of a flow, from its entries and from a worker that may be ahead of them.
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
    // The server's entry has seen no packet, so all packets of the server have reached a worker.
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
}
