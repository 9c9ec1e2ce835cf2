//! The batches that wait between the threads, and how many bytes they may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::Buffer;

/// Batches that may wait for one thread.
pub(super) const QUEUE: usize = 64;

/// Batches of buffers that may wait to be filled again.
pub(super) const MAX_FREE_BATCHES: usize = 16;

/// How long a thread waits for room in the next one's queue. Meanwhile frames wait in the kernel's receive buffer,
/// which is the one deep queue there is.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_millis(100);

/// Bytes of frames that may wait in all queues, unless memory is limited. Beyond, nothing more is captured; each capture
/// thread may have a batch at hand then, and workers what they make of the frames they have.
pub const MAX_FRAME_MEMORY: usize = 64 << 20;

/// A frame and the interface it came from or goes to.
pub(super) type Parcel = (u32, Buffer);

/// Frames on their way from one thread to another.
pub(super) struct Batch {
    pub(super) parcels: Vec<Parcel>,
    /// Drop it when the frames are done with.
    pub(super) charge: MemoryCharge,
}

/// How much memory batches may take, shared by all threads.
#[derive(Clone)]
pub(super) struct MemoryBudget {
    used: Arc<AtomicUsize>,
    has_peaked: Arc<AtomicBool>,
    most: usize,
}

/// Shows whether frames have taken much memory for a while.
pub struct FrameMemory(MemoryBudget);

impl FrameMemory {
    /// Whether frames took a quarter of what they may since the last call, and take less now.
    pub fn had_peak(&self) -> bool {
        let MemoryBudget { used, has_peaked, most } = &self.0;
        used.load(Ordering::Relaxed) < most / 8 && has_peaked.swap(false, Ordering::Relaxed)
    }
}

/// The memory that a batch takes; given back when dropped.
pub(super) struct MemoryCharge {
    bytes: usize,
    budget: MemoryBudget,
}

impl MemoryBudget {
    /// Of so many bytes at most.
    pub(super) fn new(most: usize) -> MemoryBudget {
        MemoryBudget { used: Arc::default(), has_peaked: Arc::default(), most }
    }

    /// Shows its peaks.
    pub(super) fn peaks(&self) -> FrameMemory {
        FrameMemory(self.clone())
    }

    /// Whether there is none left.
    pub(super) fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most
    }

    /// Whether less than half of it is left.
    pub(super) fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most / 2
    }

    /// Makes a batch. It takes what memory its frames have, however short they are.
    pub(super) fn batch(&self, parcels: Vec<Parcel>) -> Batch {
        let bytes = parcels.iter().map(|(_, buffer)| size_of::<Parcel>() + buffer.capacity()).sum();
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before >= self.most / 4 && !self.has_peaked.load(Ordering::Relaxed) {
            self.has_peaked.store(true, Ordering::Relaxed);
        }
        Batch { parcels, charge: MemoryCharge { bytes, budget: self.clone() } }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_takes_room_by_the_memory_of_its_frames_until_it_is_done_with() {
        let budget = MemoryBudget::new(MAX_FRAME_MEMORY);
        let peaks = budget.peaks();
        let grown = || {
            let mut buffer = Buffer::default();
            buffer.set_frame(&[0; 60_000]);
            buffer.set_frame(&[0; 60]);
            buffer
        };
        let mut batches = Vec::new();
        while !budget.is_full() {
            batches.push(budget.batch(vec![(1, grown()), (1, grown())]));
        }
        assert!((540..560).contains(&batches.len()), "{} of 120 KB each", batches.len());
        assert!(!peaks.had_peak(), "it lasts");
        let Batch { parcels, charge } = batches.pop().unwrap();
        drop(parcels);
        assert!(budget.is_full());
        drop(charge);
        assert!(!budget.is_full());
        drop(batches);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
        assert_eq!([(); 2].map(|()| peaks.had_peak()), [true, false]);
    }
}
