//! Report on the files that workers cache (mode http). Pure.

use convey_api::FileCacheReport;
use convey_snapshot::stats::{Counter, Traffic};

/// Report on the cached files of a backend.
pub(super) fn file_cache_report(traffic: &Traffic) -> FileCacheReport {
    // Read the dropped bytes first. If a file is cached and dropped during these reads, the
    // difference must not become negative.
    let dropped = traffic.sum(Counter::FileCacheBytesDropped);
    FileCacheReport {
        hits: traffic.sum(Counter::FileCacheHits),
        misses: traffic.sum(Counter::FileCacheMisses),
        evictions: traffic.sum(Counter::FileCacheEvictions),
        bytes: traffic.sum(Counter::FileCacheBytesKept).saturating_sub(dropped),
    }
}
