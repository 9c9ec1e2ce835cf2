//! The files that workers keep at hand (mode http). Pure.

use convey_snapshot::stats::{Counter, Traffic};
use serde::Serialize;

/// The kept files of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileCacheReport {
    /// Files that a worker had at hand, small ones in memory and others open.
    pub hits: u64,
    /// Files that a worker had to open.
    pub misses: u64,
    /// Files that gave way to others because a worker's memory for them, or its open files, were used up.
    pub evictions: u64,
    /// Bytes of memory that kept files take now, all workers together.
    pub bytes: u64,
}

impl FileCacheReport {
    /// Of a backend.
    pub(super) fn new(traffic: &Traffic) -> FileCacheReport {
        // Read first: a file that is kept and dropped in between must not make it negative.
        let dropped = traffic.sum(Counter::FileCacheBytesDropped);
        FileCacheReport {
            hits: traffic.sum(Counter::FileCacheHits),
            misses: traffic.sum(Counter::FileCacheMisses),
            evictions: traffic.sum(Counter::FileCacheEvictions),
            bytes: traffic.sum(Counter::FileCacheBytesKept).saturating_sub(dropped),
        }
    }
}
