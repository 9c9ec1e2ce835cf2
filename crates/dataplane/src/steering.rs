//! Steering of captured frames to workers.

use std::sync::Arc;

use super::Buffer;
use convey_forward::{Dispatch, Fragments, IpIds, Later, lost_frame};
use convey_model::{DropReason, Timestamp};
use convey_trace::TraceHub;
use convey_wire::Kind;

/// Steering state of one capture thread. It expects that all fragments of a packet arrive on one
/// interface.
pub(super) struct Steering {
    dispatch: Dispatch,
    fragments: Fragments<Buffer>,
    now: fn() -> Timestamp,
    lost: LostFragments,
}

/// Counters of fragments that reach no worker.
struct LostFragments {
    /// Number of fragments whose first fragment never arrived.
    unmatched: u64,
    /// Number of fragments that arrived while too many were waiting.
    refused: u64,
    /// Ingress interface of the frames.
    interface: u32,
    trace: Arc<TraceHub>,
}

impl Steering {
    /// Creates the steering state of one interface. `ids` supplies IP ids for packets that arrive
    /// in fragments.
    pub(super) fn new(
        dispatch: Dispatch,
        ids: IpIds,
        (interface, trace): (u32, Arc<TraceHub>),
        now: fn() -> Timestamp,
    ) -> Steering {
        let lost = LostFragments { unmatched: 0, refused: 0, interface, trace };
        Steering { dispatch, fragments: Fragments::new(ids), now, lost }
    }

    /// Sends a frame to its worker. A fragment other than the first may have to wait for the first
    /// fragment of its packet. A first fragment is sent together with the fragments that waited for
    /// it.
    pub(super) fn steer(&mut self, mut frame: Buffer, send: &mut impl FnMut(u16, Buffer)) {
        // A frame that cannot be parsed goes to worker 0, which counts the reason.
        let Ok(headers) = frame.headers else { return send(0, frame) };
        let Some(key) = headers.fragment() else { return send(self.dispatch.worker(&headers.key), frame) };

        let now = (self.now)();
        let lost = &mut self.lost;
        if let Kind::LaterFragment { .. } = headers.kind {
            match self.fragments.later(key, frame, now, |frame| lost.unmatched(&frame, now)) {
                Later::Follows(first, mut frame) => {
                    frame.set_first_fragment(first);
                    send(first.worker, frame);
                }
                Later::Queued => {}
                Later::Full(frame) => lost.refused(&frame, now),
            }
            return;
        }
        let worker = self.dispatch.worker(&headers.key);
        let flow = (&headers.key, worker);
        let (first, held) = self.fragments.first(key, flow, now, |frame| lost.unmatched(&frame, now));
        frame.set_first_fragment(first);
        send(worker, frame);
        for mut later in held {
            later.set_first_fragment(first);
            send(worker, later);
        }
    }

    /// Publishes a frame that reaches no worker to the trace watchers.
    pub(super) fn show_lost(&self, frame: &Buffer, reason: DropReason) {
        self.lost.show(frame, reason, (self.now)());
    }

    /// Number of frames that wait for their first fragment. They are lost when this value is
    /// dropped.
    pub(super) fn held(&self) -> u64 {
        self.fragments.held() as u64
    }

    /// Returns the numbers of fragments dropped since the last call, by reason. The caller calls
    /// this for every batch, so that the counters are up to date.
    pub(super) fn take_lost(&mut self) -> impl Iterator<Item = (DropReason, u64)> {
        if !self.fragments.is_empty() {
            let (lost, now) = (&mut self.lost, (self.now)());
            self.fragments.expire(now, |frame| lost.unmatched(&frame, now));
        }
        let LostFragments { unmatched, refused, .. } = &mut self.lost;
        let lost = [std::mem::take(unmatched), std::mem::take(refused)];
        [DropReason::FragmentUnmatched, DropReason::FragmentQueueFull].into_iter().zip(lost)
    }
}

impl LostFragments {
    fn unmatched(&mut self, frame: &Buffer, now: Timestamp) {
        self.unmatched += 1;
        self.show(frame, DropReason::FragmentUnmatched, now);
    }

    fn refused(&mut self, frame: &Buffer, now: Timestamp) {
        self.refused += 1;
        self.show(frame, DropReason::FragmentQueueFull, now);
    }

    fn show(&self, frame: &Buffer, reason: DropReason, now: Timestamp) {
        self.trace.publish(|| lost_frame(frame.frame(), self.interface, reason, now));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::buffer::VNET_HEADER_LEN;
    use convey_trace::TraceFilter;
    use convey_wire::TestPacket;

    fn steering(now: fn() -> Timestamp) -> Steering {
        Steering::new(Dispatch::new(4, None), IpIds::new(0), (1, Arc::default()), now)
    }

    /// For each steered frame: its worker, whether its first fragment is known, and its source
    /// port.
    fn steered(steering: &mut Steering, frame: &[u8]) -> Vec<(u16, bool, u16)> {
        let mut buffer = Buffer::default();
        buffer.fill(&[&[0; VNET_HEADER_LEN], frame].concat());
        let mut to = Vec::new();
        steering.steer(buffer, &mut |worker, buffer| {
            to.push((worker, buffer.first_fragment.is_some(), buffer.key().unwrap().src_port));
        });
        to
    }

    #[test]
    fn fragments_reach_the_worker_of_their_flow_in_any_order() {
        for port in 1..50 {
            let packet = TestPacket::from(format!("10.0.0.9:{port}")).to("10.0.0.1:53").udp();
            let mut steering = steering(|| Timestamp(0));
            let whole = steered(&mut steering, &packet.bytes());
            let (worker, [first, second, third]) =
                (whole[0].0, &packet.payload(&[7; 120]).fragments(9, 48)[..])
            else {
                panic!("three fragments")
            };
            assert_eq!(steered(&mut steering, third), []);
            assert_eq!(steered(&mut steering, first), [(worker, true, port); 2]);
            assert_eq!(steered(&mut steering, second), [(worker, true, port)]);
            assert_eq!(steering.take_lost().map(|(_, lost)| lost).sum::<u64>(), 0);
        }
    }

    #[test]
    fn unmatched_fragments_are_counted_and_traced() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let mut steering = steering(|| Timestamp(NOW.load(Ordering::Relaxed)));
        let hub = steering.lost.trace.clone();
        let watch = hub.watch(TraceFilter::default(), false).unwrap();
        let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:53").udp().payload(&[7; 80]);
        assert_eq!(steered(&mut steering, &packet.fragments(9, 48)[1]), []);
        NOW.store(1_000_000_000, Ordering::Relaxed);
        steered(&mut steering, &packet.fragments(10, 48)[0]);
        let lost: Vec<_> = steering.take_lost().collect();
        assert_eq!(lost, [(DropReason::FragmentUnmatched, 1), (DropReason::FragmentQueueFull, 0)]);
        let event = watch.take().unwrap();
        assert_eq!(
            (event.drop_reason(), event.client.unwrap().ip()),
            (Some("fragment_unmatched"), "fd00::9".parse().unwrap())
        );
        assert!(watch.take().is_none());
    }
}
