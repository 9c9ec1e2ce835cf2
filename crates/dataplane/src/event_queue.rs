//! Distribution of the flow cache's events: from the ring to the workers that own the flows.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::SegmentEvents;
use convey_forward::{CacheEvent, Dispatch};

/// Maximum number of events in one worker's queue, 1 MiB. The ring holds as many, so a worker can
/// always take all events that are in the ring.
const MAX_QUEUED: usize = 16_384;

/// A worker's queue of flow cache events. A new event does not wake the worker.
pub(super) struct EventQueue {
    inbox: Receiver<CacheEvent>,
    ring: Option<Arc<Mutex<Ring>>>,
}

struct Ring {
    events: SegmentEvents,
    outboxes: Outboxes,
}

struct Outboxes {
    dispatch: Dispatch,
    /// One sender for each worker.
    senders: Vec<Sender<CacheEvent>>,
    /// Event that did not fit into its worker's queue.
    deferred: Option<CacheEvent>,
}

impl EventQueue {
    /// Creates one queue for each worker, fed from the ring `events`.
    pub(super) fn of(workers: usize, events: Option<SegmentEvents>, dispatch: &Dispatch) -> Vec<EventQueue> {
        let (outboxes, inboxes) = Outboxes::new(workers, dispatch);
        let ring = events.map(|events| Arc::new(Mutex::new(Ring { events, outboxes })));
        inboxes.into_iter().map(|inbox| EventQueue { inbox, ring: ring.clone() }).collect()
    }

    /// Takes the events since the last call; the events of each flow are in order. The caller must
    /// process all of these events, because the end of a connection makes room for the next SYN.
    pub(super) fn take(&mut self) -> impl Iterator<Item = CacheEvent> {
        if let Some(ring) = &self.ring {
            let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
            let Ring { events, outboxes } = &mut *ring;
            outboxes.fill(|| events.take());
        }
        self.inbox.try_iter()
    }
}

impl Outboxes {
    fn new(workers: usize, dispatch: &Dispatch) -> (Outboxes, Vec<Receiver<CacheEvent>>) {
        let (senders, inboxes) = (0..workers).map(|_| bounded(MAX_QUEUED)).unzip();
        (Outboxes { dispatch: dispatch.clone(), senders, deferred: None }, inboxes)
    }

    /// Distributes events until a worker's queue is full. The remaining events stay in the ring.
    /// When the ring is full, the kernel drops FINs and counts them, and the senders of the FINs
    /// retransmit. If this function dropped a FIN event instead, the connection would stay open for
    /// hours.
    fn fill(&mut self, mut next: impl FnMut() -> Option<CacheEvent>) {
        while let Some(event) = self.deferred.take().or_else(&mut next) {
            let worker = usize::from(self.dispatch.worker(&event.key));
            match self.senders[worker].try_send(event) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => {} // its worker has ended: we stop
                Err(TrySendError::Full(event)) => {
                    self.deferred = Some(event);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_forward::{FIN, Segment};
    use convey_model::FlowKey;

    /// FIN of a connection from port `n`.
    fn fin(n: u32) -> CacheEvent {
        let key = FlowKey::tcp(
            format!("192.0.2.7:{}", n % 60_000 + 1).parse().unwrap(),
            "10.0.0.1:80".parse().unwrap(),
        );
        CacheEvent { key, segment: Segment { flags: FIN, seq: n, ack: 0, len: 1 } }
    }

    #[test]
    fn stalled_worker_has_a_bounded_queue_and_the_ring_backs_up() {
        let dispatch = Dispatch::new(2, None);
        let (mut outboxes, inboxes) = Outboxes::new(2, &dispatch);
        let mut ring = (0..100_000).map(fin);
        let mut heard = Vec::new();
        // Only worker 0 takes events.
        for _ in 0..100 {
            outboxes.fill(|| ring.next());
            heard.extend(inboxes[0].try_iter());
        }
        assert_eq!(inboxes[1].len(), MAX_QUEUED);
        assert!(ring.len() > 60_000, "{} are left", ring.len());
        // Now worker 1 takes events as well.
        while ring.len() > 0 || outboxes.deferred.is_some() || inboxes.iter().any(|inbox| !inbox.is_empty()) {
            outboxes.fill(|| ring.next());
            heard.extend(inboxes.iter().flat_map(Receiver::try_iter));
        }
        assert_eq!(heard.len(), 100_000, "none is lost");
        for worker in 0..2 {
            let of_one = heard.iter().filter(|event| dispatch.worker(&event.key) == worker);
            assert!(of_one.map(|event| event.segment.seq).is_sorted(), "in their order");
        }
    }
}
