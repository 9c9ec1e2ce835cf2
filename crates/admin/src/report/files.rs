//! Files that workers cache (mode http). Pure.

use convey_snapshot::stats::{Counter, Traffic};
use serde::Serialize;

/// Cached files of a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileCacheReport {
    /// Requests for cached files: small ones in memory, others open.
    pub hits: u64,
    /// Requests for files that a worker had to open.
    pub misses: u64,
    /// Files that were evicted because a worker's cache memory, or its limit of open files, was
    /// used up.
    pub evictions: u64,
    /// Memory of all cached files now, in bytes, for all workers together.
    pub bytes: u64,
}

impl FileCacheReport {
    /// Report of a backend.
    pub(super) fn new(traffic: &Traffic) -> FileCacheReport {
        // Read first: a file that is cached and dropped in between must not make the difference
        // negative.
        let dropped = traffic.sum(Counter::FileCacheBytesDropped);
        FileCacheReport {
            hits: traffic.sum(Counter::FileCacheHits),
            misses: traffic.sum(Counter::FileCacheMisses),
            evictions: traffic.sum(Counter::FileCacheEvictions),
            bytes: traffic.sum(Counter::FileCacheBytesKept).saturating_sub(dropped),
        }
    }
}
