//! Which worker each captured frame goes to.

use super::Buffer;
use convey_forward::{Dispatch, Fragments, IpIds, Later};
use convey_model::{DropReason, Timestamp};
use convey_wire::Kind;

/// What one capture thread knows. The fragments of a packet are expected to come in by the same interface.
pub(super) struct Steering {
    dispatch: Dispatch,
    fragments: Fragments<Buffer>,
    now: fn() -> Timestamp,
    /// Fragments whose first did not come, and those that found too many waiting.
    lost: [u64; 2],
}

impl Steering {
    /// Numbers packets that come in fragments by `ids`.
    pub(super) fn new(dispatch: Dispatch, ids: IpIds, now: fn() -> Timestamp) -> Steering {
        Steering { dispatch, fragments: Fragments::new(ids), now, lost: [0; 2] }
    }

    /// Hands the frame to a worker, and with a first fragment those that waited for it; unless it has to wait itself.
    pub(super) fn steer(&mut self, mut frame: Buffer, send: &mut impl FnMut(u16, Buffer)) {
        // A frame that cannot be read goes to the first worker, which says why.
        let Ok(headers) = frame.headers else { return send(0, frame) };
        let Some(key) = headers.fragment() else { return send(self.dispatch.worker(&headers.key), frame) };

        let now = (self.now)();
        let unmatched = &mut self.lost[0];
        if let Kind::LaterFragment { .. } = headers.kind {
            match self.fragments.later(key, frame, now, |_| *unmatched += 1) {
                Later::Follows(lead, mut frame) => {
                    frame.set_lead(lead);
                    send(lead.worker, frame);
                }
                Later::Queued => {}
                Later::Full(_) => self.lost[1] += 1,
            }
            return;
        }
        let worker = self.dispatch.worker(&headers.key);
        let (lead, held) = self.fragments.first(key, (&headers.key, worker), now, |_| *unmatched += 1);
        frame.set_lead(lead);
        send(worker, frame);
        for mut later in held {
            later.set_lead(lead);
            send(worker, later);
        }
    }

    /// How many frames wait for what they follow: lost with this.
    pub(super) fn held(&self) -> u64 {
        self.fragments.held() as u64
    }

    /// How many frames were dropped since this was last asked, and why; for every batch, so that none waits for long.
    pub(super) fn take_lost(&mut self) -> impl Iterator<Item = (DropReason, u64)> {
        if !self.fragments.is_empty() {
            let unmatched = &mut self.lost[0];
            self.fragments.expire((self.now)(), |_| *unmatched += 1);
        }
        let lost = std::mem::take(&mut self.lost);
        [DropReason::FragmentUnmatched, DropReason::FragmentQueueFull].into_iter().zip(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::buffer::VNET_HEADER_LEN;
    use convey_wire::TestPacket;

    fn steering(now: fn() -> Timestamp) -> Steering {
        Steering::new(Dispatch::new(4, None), IpIds::new(0), now)
    }

    /// The workers that frames went to, whether they know their packet, and its source port.
    fn steered(steering: &mut Steering, frame: &[u8]) -> Vec<(u16, bool, u16)> {
        let mut buffer = Buffer::default();
        buffer.fill(&[&[0; VNET_HEADER_LEN], frame].concat());
        let mut to = Vec::new();
        steering.steer(buffer, &mut |worker, buffer| {
            to.push((worker, buffer.lead.is_some(), buffer.key().unwrap().src_port));
        });
        to
    }

    #[test]
    fn all_fragments_of_a_datagram_go_to_the_worker_of_its_flow_in_whatever_order_they_come() {
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
    fn what_waits_in_vain_is_counted() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let mut steering = steering(|| Timestamp(NOW.load(Ordering::Relaxed)));
        let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:53").udp().payload(&[7; 80]);
        assert_eq!(steered(&mut steering, &packet.fragments(9, 48)[1]), []);
        NOW.store(1_000_000_000, Ordering::Relaxed);
        steered(&mut steering, &packet.fragments(10, 48)[0]);
        let lost: Vec<_> = steering.take_lost().collect();
        assert_eq!(lost, [(DropReason::FragmentUnmatched, 1), (DropReason::FragmentQueueFull, 0)]);
    }
}
