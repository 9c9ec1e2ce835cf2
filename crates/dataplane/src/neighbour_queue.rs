//! Queue of frames whose next hop is being resolved, like the kernel's own queue. Without it UDP
//! packets would be lost, and TCP would retransmit only after a second.

use std::collections::VecDeque;
use std::time::Duration;

use super::queues::Parcel;
use convey_model::{NeighbourKey, Timestamp};

/// Maximum wait of a frame. The kernel queries a neighbour three times at intervals of a second; on
/// a working link the first answer arrives within milliseconds.
const MAX_FRAME_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of waiting frames for all neighbours: a burst of new clients in a millisecond. A
/// new frame evicts the oldest one, which most likely waits for an unreachable neighbour, because
/// reachable ones answer within milliseconds.
const MAX_FRAMES: usize = 512;

/// Maximum number of waiting frames for one neighbour, so that an unreachable neighbour cannot fill
/// the queue.
const MAX_FRAMES_OF_ONE: usize = 128;

/// Memory in bytes above which the queue evicts frames; one super-frame may exceed it.
const MAX_BYTES: usize = 4 << 20;

/// Queue of waiting frames of one worker.
#[derive(Default)]
pub(super) struct NeighbourQueue {
    frames: VecDeque<QueuedFrame>,
    bytes: usize,
    /// Generation of the snapshot with which the frames were last tried.
    generation: u64,
}

pub(super) struct QueuedFrame {
    /// Arrival time.
    pub(super) since: Timestamp,
    /// Neighbour that the frame waits for. `None`: a fragment that waits for the frame before it.
    pub(super) neighbour: Option<NeighbourKey>,
    pub(super) parcel: Parcel,
}

impl NeighbourQueue {
    /// Queues a frame. Calls `lost` with each frame that the new frame evicts. If the new frame
    /// itself has waited for too long, or its neighbour has too many waiting frames, calls `lost`
    /// with the new frame instead.
    pub(super) fn push(&mut self, frame: QueuedFrame, now: Timestamp, mut lost: impl FnMut(Parcel)) {
        let same = || self.frames.iter().filter(|other| other.neighbour == frame.neighbour).count();
        if is_over(frame.since, now) || self.frames.len() >= MAX_FRAMES_OF_ONE && same() >= MAX_FRAMES_OF_ONE
        {
            return lost(frame.parcel);
        }
        while self.frames.len() >= MAX_FRAMES || self.bytes >= MAX_BYTES {
            let Some(oldest) = self.frames.pop_front() else { break };
            self.bytes -= oldest.parcel.buffer.capacity();
            lost(oldest.parcel);
        }
        self.bytes += frame.parcel.buffer.capacity();
        self.frames.push_back(frame);
    }

    /// Number of waiting frames.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether no frame waits.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes the frames to retry. If the snapshot has a new generation, takes all frames, because
    /// the snapshot may contain more neighbours. Otherwise takes only the frames that have waited
    /// for too long.
    pub(super) fn due(&mut self, generation: u64, now: Timestamp) -> Vec<QueuedFrame> {
        let is_new = generation != self.generation;
        self.generation = generation;
        let due = match is_new {
            true => self.frames.len(),
            false => self.frames.iter().take_while(|frame| is_over(frame.since, now)).count(),
        };
        self.frames.drain(..due).inspect(|frame| self.bytes -= frame.parcel.buffer.capacity()).collect()
    }
}

fn is_over(since: Timestamp, now: Timestamp) -> bool {
    u128::from(now.0.saturating_sub(since.0)) >= MAX_FRAME_WAIT.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    const SECOND: u64 = 1_000_000_000;

    fn parcel(n: u32) -> Parcel {
        Parcel { interface: n, buffer: Buffer::default() }
    }

    fn numbers(due: Vec<QueuedFrame>) -> Vec<u32> {
        due.into_iter().map(|frame| frame.parcel.interface).collect()
    }

    fn neighbour(n: u32) -> Option<NeighbourKey> {
        Some(NeighbourKey { interface: 1, ip: std::net::Ipv4Addr::from(n).into() })
    }

    /// Queues a frame for neighbour `to`; returns the numbers of the lost frames.
    fn push(waiting: &mut NeighbourQueue, since: u64, to: u32, parcel: Parcel, now: u64) -> Vec<u32> {
        let mut lost = Vec::new();
        let frame = QueuedFrame { since: Timestamp(since), neighbour: neighbour(to), parcel };
        waiting.push(frame, Timestamp(now), |parcel| lost.push(parcel.interface));
        lost
    }

    #[test]
    fn frames_are_tried_again_in_their_order_when_more_is_known() {
        let mut waiting = NeighbourQueue::default();
        assert!(waiting.due(1, Timestamp(0)).is_empty());
        for n in 1..4 {
            assert!(push(&mut waiting, 0, n, parcel(n), 0).is_empty());
        }
        assert!(waiting.due(1, Timestamp(1)).is_empty());
        assert_eq!(numbers(waiting.due(2, Timestamp(2))), [1, 2, 3]);
        assert!(waiting.due(3, Timestamp(3)).is_empty());
    }

    #[test]
    fn a_frame_waits_for_a_second_however_often_it_is_tried() {
        let mut waiting = NeighbourQueue::default();
        push(&mut waiting, 0, 1, parcel(1), 0);
        for generation in 1..10 {
            let now = generation * SECOND / 10;
            let QueuedFrame { since, parcel, .. } = waiting.due(generation, Timestamp(now)).remove(0);
            assert!(push(&mut waiting, since.0, 1, parcel, now).is_empty());
        }
        let QueuedFrame { since, parcel, .. } = waiting.due(9, Timestamp(SECOND)).remove(0);
        assert_eq!(push(&mut waiting, since.0, 1, parcel, SECOND), [1]);
    }

    #[test]
    fn full_neighbour_queue_evicts_the_oldest_frames() {
        let mut waiting = NeighbourQueue::default();
        let lost: Vec<u32> = (0..2_000).flat_map(|n| push(&mut waiting, 0, n, parcel(n), 0)).collect();
        assert_eq!(lost, (0..2_000 - MAX_FRAMES as u32).collect::<Vec<_>>());
        assert_eq!(waiting.len(), MAX_FRAMES);
    }

    #[test]
    fn a_neighbour_that_is_gone_takes_no_others_room() {
        let mut waiting = NeighbourQueue::default();
        for n in 0..10 {
            assert!(push(&mut waiting, 0, n, parcel(n), 0).is_empty());
        }
        let lost = (0..2_000).flat_map(|n| push(&mut waiting, 0, 99, parcel(1_000 + n), 0));
        assert!(lost.inspect(|lost| assert!(*lost >= 1_000)).count() == 2_000 - MAX_FRAMES_OF_ONE);
        assert_eq!(numbers(waiting.due(1, Timestamp(1)))[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    /// A frame for a new neighbour arrives every millisecond, so it takes half a second to fill the
    /// queue and evict a frame.
    #[test]
    fn queued_frame_survives_half_a_second_of_forged_ones() {
        let mut waiting = NeighbourQueue::default();
        for ms in 0..3_000u32 {
            let now = u64::from(ms) * SECOND / 1_000;
            for QueuedFrame { since, parcel, .. } in waiting.due(0, Timestamp(now)) {
                assert!(now - since.0 >= SECOND, "{} is tried for nothing", parcel.interface);
            }
            let lost = push(&mut waiting, now, ms, parcel(ms), now);
            assert!(lost.iter().all(|n| ms - n >= 500), "{lost:?} at {ms} ms");
        }
    }

    #[test]
    fn queued_super_frames_are_bounded_in_bytes() {
        let mut waiting = NeighbourQueue::default();
        let super_frame = || {
            let mut buffer = Buffer::default();
            buffer.set_frame(&[0; 60_000]);
            Parcel { interface: 1, buffer }
        };
        let most = MAX_BYTES.div_ceil(60_010);
        for round in 1..4 {
            let lost = (0..1_000).flat_map(|n| push(&mut waiting, 0, n, super_frame(), 0)).count();
            assert_eq!((waiting.len(), lost), (most, 1_000 - most));
            assert!((MAX_BYTES..MAX_BYTES + 61_000).contains(&waiting.bytes), "{}", waiting.bytes);
            let (generation, now) = if round < 3 { (round, Timestamp(0)) } else { (2, Timestamp(SECOND)) };
            waiting.due(generation, now);
            assert_eq!((waiting.len(), waiting.bytes), (0, 0));
        }
    }
}
