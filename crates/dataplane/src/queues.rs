//! Queues of batches between the threads, and their memory limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::Buffer;

/// Batches that may wait for one thread.
pub(super) const QUEUE: usize = 64;

/// Batches of free buffers that may wait for reuse.
pub(super) const MAX_FREE_BATCHES: usize = 16;

/// How long a thread waits for room in the next thread's queue. Meanwhile frames wait in the
/// kernel's receive buffer, the only deep queue.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_millis(100);

/// Bytes of frames that may wait in all queues, unless memory is limited. Above this limit
/// capturing stops; each capture thread may hold one more batch then, and workers the frames that
/// they make from theirs.
pub const MAX_FRAME_MEMORY: usize = 64 << 20;

/// A frame, with the index of its ingress or egress interface.
#[derive(Clone)]
pub(super) struct Parcel {
    pub(super) interface: u32,
    pub(super) buffer: Buffer,
}

/// A batch of frames that one thread passes to another.
pub(super) struct Batch {
    pub(super) parcels: Vec<Parcel>,
    /// Dropped together with the frames.
    pub(super) charge: MemoryCharge,
}

/// Memory limit of batches, shared by all threads.
#[derive(Clone)]
pub(super) struct MemoryBudget {
    used: Arc<AtomicUsize>,
    has_peaked: Arc<AtomicBool>,
    most: usize,
}

/// Detects peaks of frame memory.
pub struct FrameMemory(MemoryBudget);

impl FrameMemory {
    /// Whether frames took a quarter of the limit since the last call, and take less now.
    pub fn had_peak(&self) -> bool {
        let MemoryBudget { used, has_peaked, most } = &self.0;
        used.load(Ordering::Relaxed) < most / 8 && has_peaked.swap(false, Ordering::Relaxed)
    }
}

/// Memory accounted to a batch; released when dropped.
pub(super) struct MemoryCharge {
    bytes: usize,
    budget: MemoryBudget,
}

impl MemoryBudget {
    /// Creates a limit of `most` bytes.
    pub(super) fn new(most: usize) -> MemoryBudget {
        MemoryBudget { used: Arc::default(), has_peaked: Arc::default(), most }
    }

    /// Detector of this limit's peaks.
    pub(super) fn peaks(&self) -> FrameMemory {
        FrameMemory(self.clone())
    }

    /// Whether the limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most
    }

    /// Whether less than half of the limit is left.
    pub(super) fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.most / 2
    }

    /// Creates a batch, and accounts the allocated memory of its frames, however short they are.
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
