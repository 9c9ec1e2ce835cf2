//! Files that workers cache (mode http). Pure.

use convey_api::FileCacheReport;
use convey_snapshot::stats::{Counter, Traffic};

/// Report of a backend.
pub(super) fn file_cache_report(traffic: &Traffic) -> FileCacheReport {
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
