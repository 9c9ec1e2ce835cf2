//! Outcomes of requests (mode http). Pure.

use serde::{Deserialize, Serialize};

use crate::{Counts, nullable};

/// Requests of a frontend, a route, a backend or a server (mode http).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Requests")]
pub struct RequestReport {
    /// Requests whose head has arrived (frontend), or requests sent to a server, including retries
    /// (backend, server).
    pub total: u64,
    /// Responses by the class of their status: `1xx` (protocol switches) to `5xx`. A frontend's
    /// include convey's local replies.
    pub responses: Counts,
    /// Local replies of convey, by reason. Frontends and routes only; of a route, the reasons that
    /// have occurred.
    #[serde(alias = "answered", default, skip_serializing_if = "Option::is_none")]
    pub local_replies: Option<Counts>,
    /// Local replies with a status of 5xx; they are included in `responses`. Frontends and routes
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_5xx: Option<u64>,
    /// Requests of the last half minute. Frontends, routes and servers only; left out in the first
    /// seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<RecentRequestReport>,
    /// Requests that ended early or got a local reply, by the phase that they had reached. Frontends
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_ends: Option<Counts>,
    /// Compressed responses. Frontends only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionReport>,
}

/// Requests of the last half minute (mode http).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "RecentRequests")]
pub struct RecentRequestReport {
    /// Length of the period that ends now, in seconds: up to 40.
    pub seconds: f64,
    /// Requests of the period.
    pub total: u64,
    /// Responses of the period by the class of their status.
    pub responses: Counts,
    /// Median of the durations, in seconds: of requests to the last byte of their responses
    /// (frontends, routes), or to the head of their responses (servers). Null without requests.
    #[serde(deserialize_with = "nullable")]
    pub p50: Option<f64>,
    /// 90th percentile of the durations.
    #[serde(deserialize_with = "nullable")]
    pub p90: Option<f64>,
    /// 99th percentile of the durations.
    #[serde(deserialize_with = "nullable")]
    pub p99: Option<f64>,
}

/// Responses that a frontend has compressed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Compression")]
pub struct CompressionReport {
    /// Compressed responses, by their `Content-Encoding`.
    pub responses: Counts,
    /// Responses that were sent uncompressed because there was no memory for another encoder.
    #[serde(alias = "no_room")]
    pub no_memory: u64,
    /// Bytes of bodies before compression.
    pub bytes_in: u64,
    /// Bytes of these bodies after compression.
    pub bytes_out: u64,
}
