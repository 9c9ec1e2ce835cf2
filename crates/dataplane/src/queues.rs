//! Batches of frames, the queues for them between threads, and their memory limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::Buffer;

/// Maximum number of batches that wait for one thread.
pub(super) const QUEUE: usize = 64;

/// Maximum number of batches whose free buffers wait for reuse.
pub(super) const MAX_FREE_BATCHES: usize = 16;

/// Time that a thread waits for space in the next thread's queue. Meanwhile frames wait in the
/// kernel's receive buffer, the only long queue.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_millis(100);

/// Default and maximum of the memory for waiting frames in all queues, in bytes. At the limit,
/// capturing stops. Beyond it, each capture thread may hold one more batch, and workers may hold
/// the frames that they create from their own batches.
pub const MAX_FRAME_MEMORY: usize = 64 << 20;

/// Frame with the index of its ingress or egress interface.
#[derive(Clone)]
pub(super) struct Parcel {
    pub(super) interface: u32,
    pub(super) buffer: Buffer,
}

/// Batch of frames that one thread passes to another.
pub(super) struct Batch {
    pub(super) parcels: Vec<Parcel>,
    /// Memory of the frames, released when the batch is dropped.
    pub(super) charge: MemoryCharge,
}

/// Memory limit for batches, shared by all threads.
#[derive(Clone)]
pub(super) struct MemoryBudget {
    used: Arc<AtomicUsize>,
    has_peaked: Arc<AtomicBool>,
    most: usize,
}

/// Detector of peaks in the memory of waiting frames.
pub struct FrameMemory(MemoryBudget);

impl FrameMemory {
    /// Whether frames have used a quarter of the limit at some time since the last call, and use
    /// less than an eighth now.
    pub fn had_peak(&self) -> bool {
        let MemoryBudget { used, has_peaked, most } = &self.0;
        used.load(Ordering::Relaxed) < most / 8 && has_peaked.swap(false, Ordering::Relaxed)
    }
}

/// Guard that charges the memory of a batch to the budget until it is dropped.
pub(super) struct MemoryCharge {
    bytes: usize,
    budget: MemoryBudget,
}

impl MemoryBudget {
    /// Creates a budget of `most` bytes.
    pub(super) fn new(most: usize) -> MemoryBudget {
        MemoryBudget { used: Arc::default(), has_peaked: Arc::default(), most }
    }

    /// Returns a detector of peaks in this budget's use.
    pub(super) fn peaks(&self) -> FrameMemory {
        FrameMemory(self.clone())
    }

    /// Whether the memory is used up.
    pub(super) fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most
    }

    /// Whether at least half of the memory is used.
    pub(super) fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most / 2
    }

    /// Creates a batch, and charges the allocated memory of its buffers, even if their frames are
    /// short.
    pub(super) fn batch(&self, parcels: Vec<Parcel>) -> Batch {
        let bytes = parcels.iter().map(|parcel| size_of::<Parcel>() + parcel.buffer.capacity()).sum();
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
    fn batch_is_charged_for_its_buffer_memory_until_dropped() {
        let budget = MemoryBudget::new(MAX_FRAME_MEMORY);
        let peaks = budget.peaks();
        let grown = || {
            let mut buffer = Buffer::default();
            buffer.set_frame(&[0; 60_000]);
            buffer.set_frame(&[0; 60]);
            Parcel { interface: 1, buffer }
        };
        let mut batches = Vec::new();
        while !budget.is_full() {
            batches.push(budget.batch(vec![grown(), grown()]));
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
