//! What became of requests (mode http). Pure.

use std::collections::BTreeMap;

use convey_snapshot::stats::{Counter, Traffic};
use serde::Serialize;

/// The requests of a frontend, a backend or a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestReport {
    /// Requests whose head has come (frontend), or that were sent to a server, retries included (backend, server).
    pub total: u64,
    /// Responses by the class of their status: `1xx` (the protocol was changed) to `5xx`. Those of convey's own are among a
    /// frontend's.
    pub responses: BTreeMap<&'static str, u64>,
    /// Those that convey answered itself, by the labels of [`Counter::ANSWERS`]. Frontends only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<BTreeMap<&'static str, u64>>,
    /// What was compressed of the responses. Frontends only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionReport>,
}

/// The responses that a frontend has compressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CompressionReport {
    /// Responses that were compressed, by their `Content-Encoding`.
    pub responses: BTreeMap<&'static str, u64>,
    /// Responses that went as they were: there was no memory for another encoder.
    pub no_room: u64,
    /// Bytes of bodies before they were compressed.
    pub bytes_in: u64,
    /// Bytes of the same bodies afterwards.
    pub bytes_out: u64,
}

impl RequestReport {
    /// Of a frontend.
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

    /// Of a backend or a server.
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
