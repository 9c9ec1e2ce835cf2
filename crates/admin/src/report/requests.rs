//! Outcomes of requests (mode http). Pure.

use std::collections::BTreeMap;

use convey_snapshot::stats::{Counter, Traffic};
use serde::Serialize;

/// Requests of a frontend, a backend or a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestReport {
    /// Requests whose head has arrived (frontend), or requests sent to a server, including retries
    /// (backend, server).
    pub total: u64,
    /// Responses by the class of their status: `1xx` (protocol switches) to `5xx`. A frontend's
    /// include convey's local replies.
    pub responses: BTreeMap<&'static str, u64>,
    /// Local replies of convey, by the labels of [`Counter::ANSWERS`]. Frontends only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<BTreeMap<&'static str, u64>>,
    /// Compressed responses. Frontends only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionReport>,
}

/// Responses that a frontend has compressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CompressionReport {
    /// Compressed responses, by their `Content-Encoding`.
    pub responses: BTreeMap<&'static str, u64>,
    /// Responses that were sent uncompressed because there was no memory for another encoder.
    pub no_room: u64,
    /// Bytes of bodies before compression.
    pub bytes_in: u64,
    /// Bytes of these bodies after compression.
    pub bytes_out: u64,
}

impl RequestReport {
    /// Report of a frontend.
    pub(super) fn of_frontend(traffic: &Traffic) -> RequestReport {
        RequestReport {
            answered: Some(sums(traffic, &Counter::ANSWERS)),
            compression: Some(CompressionReport {
                responses: sums(traffic, &Counter::COMPRESSED),
                no_room: traffic.sum(Counter::CompressionNoRoom),
                bytes_in: traffic.sum(Counter::CompressionBytesIn),
                bytes_out: traffic.sum(Counter::CompressionBytesOut),
            }),
            ..RequestReport::of_servers(traffic)
        }
    }

    /// Report of a backend or a server.
    pub(super) fn of_servers(traffic: &Traffic) -> RequestReport {
        RequestReport {
            total: traffic.sum(Counter::Requests),
            responses: sums(traffic, &Counter::RESPONSES),
            answered: None,
            compression: None,
        }
    }
}

fn sums(traffic: &Traffic, counters: &[(Counter, &'static str)]) -> BTreeMap<&'static str, u64> {
    counters.iter().map(|(counter, label)| (*label, traffic.sum(*counter))).collect()
}
