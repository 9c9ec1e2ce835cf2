//! Queue from the data path to the writer thread: bounded, without blocking or wakeups.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Record;
use convey_model::Timestamp;

/// Maximum number of queued records: enough for 0.05 seconds at 300,000 connections per second.
const MAX_WAITING: usize = 1 << 14;

/// Sending end of the access log, for the data path. It is off until a caller of
/// [`AccessLog::records`] turns it on.
#[derive(Debug)]
pub struct AccessLog {
    /// Clock for the times in records.
    now: fn() -> Timestamp,
    /// Sampling rate: one record in `one_in` is kept, at random. 0 turns the log off.
    one_in: AtomicU32,
    queue: OnceLock<(Sender<Record>, Receiver<Record>)>,
    lost: AtomicU64,
}

/// Receiving end of the access log, for the writer thread.
#[derive(Debug, Clone)]
pub struct Records(Receiver<Record>);

impl Default for AccessLog {
    /// Creates a log that stays off.
    fn default() -> AccessLog {
        AccessLog::new(Timestamp::default)
    }
}

impl AccessLog {
    /// Creates a log that is off. Its records use the clock `now`.
    pub fn new(now: fn() -> Timestamp) -> AccessLog {
        AccessLog { now, one_in: AtomicU32::new(0), queue: OnceLock::new(), lost: AtomicU64::new(0) }
    }

    /// Current time of the clock that records use.
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Decides whether the caller should log a record. True if the log is on and the random sample
    /// includes this record. While the log is off, the call costs a single load.
    #[inline]
    pub fn chooses_one(&self) -> bool {
        match self.one_in.load(Ordering::Relaxed) {
            0 => false,
            1 => true,
            one_in => fastrand::u32(..one_in) == 0,
        }
    }

    /// Queues the record that `make` returns, if the log is on and the queue has space. Never
    /// blocks.
    pub fn put(&self, make: impl FnOnce() -> Option<Record>) {
        let Some((queue, _)) = self.queue.get().filter(|_| self.is_on()) else { return };
        // If the queue is full, `make` is not called.
        let is_lost = queue.is_full() || make().is_some_and(|record| queue.try_send(record).is_err());
        if is_lost {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the log is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.one_in.load(Ordering::Relaxed) != 0
    }

    /// Sets the sampling to one record in `records`; 0 turns the log off.
    pub fn keep_one_in(&self, records: u32) {
        self.one_in.store(records, Ordering::Relaxed);
    }

    /// Adds `lines` to the number of lost records, because they could not be written.
    pub fn note_lost(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    /// Number of lost records: dropped because the queue was full, or not written.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the receiving end. The first call allocates the queue.
    pub fn records(&self) -> Records {
        Records(self.queue.get_or_init(|| bounded(MAX_WAITING)).1.clone())
    }
}

impl Records {
    /// Returns the next record; `None` if the queue is empty. The caller must poll, because a new
    /// record does not wake the caller.
    pub fn next(&self) -> Option<Record> {
        self.0.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    #[test]
    fn queue_without_writer_is_bounded_and_counts_lost_records() {
        let log = AccessLog::default();
        assert!(!log.chooses_one());
        log.put(|| panic!("it is off"));
        let records = log.records();
        log.keep_one_in(1);
        let record = Record::sample();
        (0..1_000_000).filter(|_| log.chooses_one()).for_each(|_| log.put(|| Some(record.clone())));
        assert_eq!(log.lost(), 1_000_000 - MAX_WAITING as u64);
        assert_eq!(iter::from_fn(|| records.next()).count(), MAX_WAITING);
        log.keep_one_in(0);
        log.put(|| panic!("it is off"));
    }

    #[test]
    fn a_sample_is_one_in_so_many() {
        let log = AccessLog::default();
        let records = log.records();
        log.keep_one_in(10);
        let kept = (0..50_000).filter(|_| log.chooses_one()).count();
        assert!((4_500..5_500).contains(&kept), "{kept}");
        assert!(records.next().is_none() && log.lost() == 0);
    }
}
