//! Report on the outcomes of requests (mode http). Pure.

use convey_api::{CompressionReport, Counts, RequestReport};
use convey_snapshot::stats::{Counter, Traffic};

/// Report on the requests of a frontend.
pub(super) fn of_frontend(traffic: &Traffic) -> RequestReport {
    RequestReport {
        local_replies: Some(sums(traffic, &Counter::ANSWERS)),
        early_ends: Some(sums(traffic, &Counter::EARLY_ENDS)),
        compression: Some(CompressionReport {
            responses: sums(traffic, &Counter::COMPRESSED),
            no_memory: traffic.sum(Counter::CompressionNoRoom),
            bytes_in: traffic.sum(Counter::CompressionBytesIn),
            bytes_out: traffic.sum(Counter::CompressionBytesOut),
        }),
        ..of_servers(traffic)
    }
}

/// Report on the requests of a backend or a server.
pub(super) fn of_servers(traffic: &Traffic) -> RequestReport {
    RequestReport {
        total: traffic.sum(Counter::Requests),
        responses: sums(traffic, &Counter::RESPONSES),
        local_replies: None,
        early_ends: None,
        compression: None,
    }
}

/// Values of these counters, by label.
pub(super) fn sums(traffic: &Traffic, counters: &[(Counter, &'static str)]) -> Counts {
    counters.iter().map(|(counter, label)| ((*label).into(), traffic.sum(*counter))).collect()
}
