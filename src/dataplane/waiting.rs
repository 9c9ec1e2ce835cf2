//! Frames that wait for their next hop to be resolved, as the kernel's own do: UDP would not send them again, and TCP
//! only after a second.

use std::collections::VecDeque;
use std::time::Duration;

use super::queues::Parcel;
use crate::model::Timestamp;

/// How long a frame waits. The kernel asks a neighbour three times, a second apart; on a link that works the first
/// answer comes within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Frames that wait at once, for all neighbours: what a burst of new clients sends in a millisecond.
const MOST: usize = 512;

/// Bytes of memory that they have at most, the last one aside: super-frames are longer.
const MOST_BYTES: usize = 4 << 20;

/// The frames of one worker.
#[derive(Default)]
pub(super) struct Waiting {
    frames: VecDeque<(Timestamp, Parcel)>,
    bytes: usize,
    /// The snapshot they were last tried with.
    generation: u64,
}

impl Waiting {
    /// Has a frame wait that came at `since`. One that has waited for long enough, or finds no room, is given back.
    pub(super) fn push(&mut self, since: Timestamp, parcel: Parcel, now: Timestamp) -> Result<(), Parcel> {
        if self.frames.len() >= MOST || self.bytes >= MOST_BYTES || is_over(since, now) {
            return Err(parcel);
        }
        self.bytes += parcel.1.capacity();
        self.frames.push_back((since, parcel));
        Ok(())
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The frames that are to be tried again, and when they came: all of them if this snapshot is a new one, which may
    /// know more neighbours, and those that have waited for long enough.
    pub(super) fn due(&mut self, generation: u64, now: Timestamp) -> Vec<(Timestamp, Parcel)> {
        if generation != self.generation {
            self.generation = generation;
            self.bytes = 0;
            return self.frames.drain(..).collect();
        }
        let over = self.frames.iter().take_while(|(since, _)| is_over(*since, now)).count();
        let due: Vec<_> = self.frames.drain(..over).collect();
        self.bytes -= due.iter().map(|(_, (_, buffer))| buffer.capacity()).sum::<usize>();
        due
    }
}

fn is_over(since: Timestamp, now: Timestamp) -> bool {
    u128::from(now.0.saturating_sub(since.0)) >= PATIENCE.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::Buffer;

    const SECOND: u64 = 1_000_000_000;

    fn parcel(n: u32) -> Parcel {
        (n, Buffer::default())
    }

    fn numbers(due: Vec<(Timestamp, Parcel)>) -> Vec<u32> {
        due.into_iter().map(|(_, (n, _))| n).collect()
    }

    #[test]
    fn frames_are_tried_again_in_their_order_when_more_is_known() {
        let mut waiting = Waiting::default();
        assert!(waiting.due(1, Timestamp(0)).is_empty());
        for n in 1..4 {
            waiting.push(Timestamp(0), parcel(n), Timestamp(0)).unwrap();
        }
        assert!(waiting.due(1, Timestamp(1)).is_empty());
        assert_eq!(numbers(waiting.due(2, Timestamp(2))), [1, 2, 3]);
        assert!(waiting.due(3, Timestamp(3)).is_empty());
    }

    #[test]
    fn a_frame_waits_for_a_second_however_often_it_is_tried() {
        let mut waiting = Waiting::default();
        waiting.push(Timestamp(0), parcel(1), Timestamp(0)).unwrap();
        for generation in 1..10 {
            let now = Timestamp(generation * SECOND / 10);
            let (since, frame) = waiting.due(generation, now).remove(0);
            waiting.push(since, frame, now).unwrap();
        }
        let (since, frame) = waiting.due(9, Timestamp(SECOND)).remove(0);
        assert!(waiting.push(since, frame, Timestamp(SECOND)).is_err());
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let mut waiting = Waiting::default();
        let taken = (0..2_000).filter(|&n| waiting.push(Timestamp(0), parcel(n), Timestamp(0)).is_ok());
        assert_eq!(taken.count(), MOST);
    }

    #[test]
    fn super_frames_that_wait_take_no_more_memory_than_4_mib_and_one() {
        let mut waiting = Waiting::default();
        let super_frame = || {
            let mut buffer = Buffer::default();
            buffer.set_frame(&[0; 60_000]);
            (1, buffer)
        };
        for round in 1..4 {
            let taken =
                (0..1_000).filter(|_| waiting.push(Timestamp(0), super_frame(), Timestamp(0)).is_ok());
            assert_eq!(taken.count(), MOST_BYTES.div_ceil(60_010));
            let (generation, now) = if round < 3 { (round, Timestamp(0)) } else { (2, Timestamp(SECOND)) };
            waiting.due(generation, now);
            assert_eq!((waiting.len(), waiting.bytes), (0, 0));
        }
    }
}
