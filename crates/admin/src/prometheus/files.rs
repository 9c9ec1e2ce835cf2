//! Metrics of cached files (mode http).

use convey_api::{FileCacheReport, StatsReport};

use super::page::{Labels, MetricsPage, labels};

/// Adds the counters of cached files.
pub(super) fn add(page: &mut MetricsPage, report: &StatsReport) {
    let backends: Vec<(Labels, &FileCacheReport)> = report
        .backends
        .iter()
        .filter_map(|(name, backend)| Some((labels([("backend", name)]), backend.file_cache.as_ref()?)))
        .collect();
    page.counter(
        "convey_backend_file_cache_hits_total",
        "Requested files that were in the cache of a worker.",
        &backends,
        |cache| cache.hits as f64,
    );
    page.counter(
        "convey_backend_file_cache_misses_total",
        "Requested files that were not in the cache, so that a worker opened them.",
        &backends,
        |cache| cache.misses as f64,
    );
    page.counter(
        "convey_backend_file_cache_evictions_total",
        "Cached files that were evicted to make space for others.",
        &backends,
        |cache| cache.evictions as f64,
    );
    page.gauge("convey_backend_file_cache_bytes", "Memory of cached files, in bytes.", &backends, |cache| {
        cache.bytes as f64
    });
}
